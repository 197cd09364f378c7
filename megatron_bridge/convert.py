"""The two loops of conversion: Hugging Face folder to Megatron checkpoint, and back.

Both hold one Megatron tensor in memory at a time, build no model and start no process group. Output
is written beside its final place and moved there whole, after it was read back and compared.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import certificate, checkpoint, hf, torch_dist
from megatron_bridge.config import DType, Form
from megatron_bridge.conversion import Conversion, cast
from megatron_bridge.errors import ConfigError, InputError, MappingError
from megatron_bridge.mapping import Bound, check
from megatron_bridge.proof import Proof, add_answers, add_architecture
from megatron_bridge.verify import certify

if TYPE_CHECKING:
    import torch

Progress = Callable[..., None]
"""Called as `progress(done, total, unit="tensors")`."""


def import_hf(
    hf_dir: Path | str,
    out: Path | str,
    dtype: DType | None = None,
    progress: Progress | None = None,
    proof: Proof | None = None,
) -> dict[str, Any]:
    """Convert a Hugging Face folder to a `torch_dist` checkpoint; return its certificate.

    Args:
        hf_dir: folder with `config.json` and safetensors.
        out: a new or empty folder.
        dtype: number format to cast to; by default every tensor keeps its own, so nothing is lost.
        progress: called once a Megatron tensor.
        proof: what is compared beside the tensors; the architecture when None.

    Raises:
        ConfigError: no such family, a switch that cannot be carried over, or `out` is not empty.
        InputError: the folder lacks something or a file is damaged.
        MappingError: a tensor that no row claims, or one that is missing.
        ProofError: what was written differs from what was read, or is not the same model.
    """
    hf_dir, proof = Path(hf_dir), proof or Proof()
    with _fresh(Path(out)) as partial, hf.Weights(hf_dir) as weights:
        model = Conversion.of_weights(weights)
        _refuse(check(model.family, model.shape, hf_names=model.weight_names(weights)), hf_dir)
        count = _counter(progress, len(model.bounds))
        widest = _widest(model, weights)
        chunks = [
            _chunk(model, bound, weights, cast(bound, dtype, widest[bound.slot.key]), count)
            for bound in model.bounds
        ]
        commit = functools.partial(
            checkpoint.commit,
            partial,
            iteration=0,
            consumed_samples=0,
            model_type=model.family.model_type,
            dtype=hf.dtype_name(hf.main_dtype((c.dtype, math.prod(c.size)) for c in chunks)),
            vocab_size=model.shape.vocab,
            padded_vocab_size=model.shape.padded_vocab,
            optimizer=False,
            hf_prefix=model.hf_prefix,
            proven=not certificate.is_doubtful_origin(hf_dir),
        )
        with proof.begin(model) as building:
            torch_dist.write_index(partial, torch_dist.write_file(partial / "__0_0.distcp", chunks))
            _carry(hf_dir, partial / checkpoint.HF_FILES)
            found = certify("import", model, weights, partial)
            add_architecture(found, model, hf_dir, building)
        if proof.runs and found["holds"]:
            commit()
            add_answers(found, proof, hf_dir, partial)
        certificate.write(found, partial)
        commit()
    return found


def export_hf(
    folder: Path | str,
    out: Path | str,
    like: Path | str | None = None,
    dtype: DType | None = None,
    progress: Progress | None = None,
    form: Form = "original",
    proof: Proof | None = None,
) -> dict[str, Any]:
    """Convert a checkpoint to a Hugging Face folder; return its certificate.

    Args:
        folder: a finished checkpoint, with or without optimizer state.
        out: a new or empty folder.
        like: a Hugging Face folder that gives config, tokenizer and other files in place of those
            that travelled with the checkpoint.
        dtype: number format to cast to; by default the checkpoint's own.
        progress: called once a Megatron tensor.
        form: "native" writes transformers' own class for a model whose class is remote code.
        proof: what is compared beside the tensors; the architecture when None.

    Raises:
        ConfigError, InputError, MappingError, ProofError: as `import_hf`; a ConfigError also where
            no native class computes the same.
    """
    folder, proof = Path(folder), proof or Proof()
    info = checkpoint.read_info(folder)
    carried = Path(like) if like else folder / checkpoint.HF_FILES
    with _fresh(Path(out)) as partial, torch_dist.Reader(folder) as reader:
        own = Conversion.of_folder(carried, info.hf_prefix)
        model = (own.as_native() if form == "native" else own).padded_as(reader)
        _refuse(check(model.family, model.shape, slots=model.slots(reader)), folder)
        specs = [spec for bound in model.bounds for spec in model.hf_specs(bound, reader, dtype)]
        main_dtype = hf.dtype_name(hf.main_dtype((spec.dtype, spec.bytes) for spec in specs))
        count = _counter(progress, len(model.bounds))
        with proof.begin(Conversion.of_folder(folder / checkpoint.HF_FILES)) as building:
            hf.write_weights(partial, specs, _tensors(model, reader, dtype, count))
            _carry(carried, partial)
            if model.config != own.config:
                _write_config(partial / "config.json", model.config)
            _name_dtype(partial / "config.json", main_dtype)
            with hf.Weights(partial) as weights:
                found = certify("export", model, weights, folder)
            add_architecture(found, model, partial, building)
        add_answers(found, proof, partial, folder)
        certificate.write(found, partial)
    return found


def _widest(model: Conversion, weights: hf.Weights) -> dict[str, torch.dtype]:
    """The number format of each Megatron tensor: the widest of all that lie in it."""
    found: dict[str, torch.dtype] = {}
    for bound in model.bounds:
        kinds = [weights.spec(name).dtype for name in bound.hf]
        if bound.slot.key in found:
            kinds.append(found[bound.slot.key])
        found[bound.slot.key] = max(kinds, key=lambda dtype: dtype.itemsize)
    return found


def _chunk(
    model: Conversion,
    bound: Bound,
    weights: hf.Weights,
    dtype: torch.dtype,
    count: Callable[[], None],
) -> torch_dist.Chunk:
    import torch

    with torch.device("meta"):
        specs = [weights.spec(name) for name in bound.hf]
        packed = model.pack(bound, [torch.empty(s.shape, dtype=dtype) for s in specs])
    tail = tuple(packed.shape)
    sizes = bound.row.sizes
    if sizes and tail != (fitting := tuple(map(model.shape.size, sizes))):
        raise MappingError(
            "The weights do not fit config.json",
            where=", ".join(bound.hf),
            expected=f"together {list(fitting)} ({' x '.join(sizes)})",
            got=list(tail),
            fix="use the config.json that belongs to the weights",
        )

    index, counts = bound.slot.index, bound.counts(model.shape)
    size = (*(1 for _ in index), *tail)

    def produce() -> torch.Tensor:
        count()
        return model.pack(bound, [weights.read(name).to(dtype) for name in bound.hf]).view(size)

    offset = index + (0,) * len(tail)
    return torch_dist.Chunk(bound.slot.key, offset, size, counts + tail, dtype, produce)


def _tensors(
    model: Conversion, reader: torch_dist.Reader, dtype: DType | None, count: Callable[[], None]
) -> Iterator[tuple[str, torch.Tensor]]:
    for bound in model.bounds:
        count()
        whole = reader.read(bound.slot.key, bound.slot.index)
        for name, part in zip(bound.hf, model.unpack(bound, whole), strict=True):
            yield name, part.to(cast(bound, dtype, part.dtype))


def _carry(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in hf.carried_files(source):
        shutil.copyfile(path, target / path.name)


def _name_dtype(path: Path, dtype: str) -> None:
    """Let `config.json` name the weights' number format; the file stays as it is when it does."""
    config = json.loads(path.read_text(encoding="utf-8"))
    key = "dtype" if "dtype" in config or "torch_dtype" not in config else "torch_dtype"
    if config.get(key) != dtype:
        _write_config(path, config | {key: dtype})


def _write_config(path: Path, config: dict[str, Any]) -> None:
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _refuse(problems: list[str], where: Path) -> None:
    if problems:
        shown = "; ".join(problems[:8])
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise MappingError(
            f"{len(problems)} tensors cannot be mapped",
            where=where,
            expected="every tensor claimed by exactly one row",
            got=shown + more,
            fix="check that config.json belongs to these weights",
        )


def _counter(progress: Progress | None, total: int) -> Callable[[], None]:
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, unit="tensors")

    return count


@contextmanager
def _fresh(out: Path) -> Iterator[Path]:
    """Yield a scratch folder beside `out` that becomes `out` when the block succeeds."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            "The output folder is not empty",
            where=out,
            expected="a new or empty folder",
            got="files in it" if out.is_dir() else "a file",
            fix="choose another folder; nothing is ever written over a checkpoint",
        )
    partial = out.parent / f".{out.name}.partial-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
    except OSError as error:
        raise InputError("The output folder cannot be made", where=out, got=error) from error
    try:
        yield partial
        partial.rename(out)
        checkpoint.sync_folder(out.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
