"""Conversion in both directions: Hugging Face folder to Megatron checkpoint, and back.

Neither builds a model or starts a process group; memory has a ceiling at any size of model. Output
is written beside its final place and moved there whole, after it was read back and compared. A run
that was killed is taken up where it stopped.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron_bridge import (
    certificate,
    checkpoint,
    families,
    hf,
    index_file,
    once,
    torch_dist,
    transfer,
)
from megatron_bridge.config import DType, Form
from megatron_bridge.conversion import Conversion
from megatron_bridge.errors import MappingError
from megatron_bridge.journal import refuse_a_full, state_of, unfinished
from megatron_bridge.mapping import check
from megatron_bridge.megatron_lm import origin
from megatron_bridge.megatron_lm.origin import Origin
from megatron_bridge.megatron_lm.sides import NOTHING, Given
from megatron_bridge.proof import EVERYTHING, Proof, add_answers, add_architecture
from megatron_bridge.runner import Progress, Runner, threads
from megatron_bridge.side import Job, Sides
from megatron_bridge.sources import source as sources
from megatron_bridge.sources.source import Source
from megatron_bridge.verify import certify

VERSION = 3
"""Raised when the same model must give other bytes, or the journal has another form; an unfinished
run of another begins anew."""


def import_hf(
    hf_dir: Path | str,
    out: Path | str,
    dtype: DType | None = None,
    progress: Progress | None = None,
    proof: Proof = EVERYTHING,
    memory: int | None = None,
    scratch: Path | None = None,
) -> dict[str, Any]:
    """Convert a Hugging Face folder to a `torch_dist` checkpoint; return its certificate.

    Args:
        hf_dir: folder with `config.json` and weights, or its URL as text.
        out: a new or empty folder.
        dtype: number format to cast to; by default every tensor keeps its own, so nothing is lost.
        progress: called as groups of tensors are written, then as they are compared.
        proof: what is compared beside the tensors; the architecture by default.
        memory: a ceiling in bytes, by default half of the machine's.
        scratch: where unfinished output lies, on the disk of `out`; beside it by default.

    Raises:
        ConfigError: no such family, a switch that cannot be carried over, or `out` is not empty.
        InputError: the folder lacks something or a file is damaged.
        MappingError: a tensor that no row claims, or one that is missing.
        ProofError: what was written differs from what was read, or is not the same model.
    """
    out = Path(out)
    # Hours of work, or a minute on a slow machine, must not come before these.
    refuse_a_full(out, *(() if isinstance(hf_dir, str) and "://" in hf_dir else (Path(hf_dir),)))
    threads(memory, 0)
    with sources.opened(hf_dir, dtype) as source:
        return _import(source, out, dtype, progress, proof, memory, scratch)


def export_hf(
    folder: Path | str,
    out: Path | str,
    like: Path | str | None = None,
    dtype: DType | None = None,
    progress: Progress | None = None,
    form: Form = "original",
    proof: Proof = EVERYTHING,
    memory: int | None = None,
    scratch: Path | None = None,
    given: Given = NOTHING,
) -> dict[str, Any]:
    """Convert a checkpoint to a Hugging Face folder; return its certificate.

    Args:
        folder: a finished checkpoint, with or without optimizer state, or a directory that
            Megatron-LM wrote.
        out: a new or empty folder.
        like: a Hugging Face folder that gives config, tokenizer and other files in place of those
            that travelled with the checkpoint, or that Megatron-LM never writes.
        dtype: number format to cast to; by default the checkpoint's own.
        progress: called as groups of tensors are written, then as they are compared.
        form: "native" writes transformers' own class for a model whose class is remote code.
        proof: what is compared beside the tensors; the architecture by default.
        memory: a ceiling in bytes, by default half of the machine's.
        scratch: where unfinished output lies, on the disk of `out`; beside it by default.
        given: what is known of a Megatron-LM run beside its directory.

    Raises:
        ConfigError, InputError, MappingError, ProofError: as `import_hf`; a ConfigError also where
            no native class computes the same, and where something of a Megatron-LM run must be
            asked for.
    """
    other = Path(like).resolve() if like else None
    refuse_a_full(Path(out), Path(folder))
    threads(memory, 0)
    with origin.opened(Path(folder).resolve(), other, given) as begin:
        return _export(begin, Path(out), dtype, progress, form, proof, memory, scratch)


def _export(
    begin: Origin,
    out: Path,
    dtype: DType | None,
    progress: Progress | None,
    form: Form,
    proof: Proof,
    memory: int | None,
    scratch: Path | None,
) -> dict[str, Any]:
    folder, carried = begin.folder, begin.files
    begin.check(proof)
    job = Job(
        carried,
        checkpoint=folder,
        hf_prefix=begin.hf_prefix,
        native=form == "native",
        dtype=dtype,
    )
    with Sides(job) as sides:
        one = sides.mine()
        model = one.model
        _refuse(check(model.family, model.shape, slots=model.slots(one.reader)), folder)
        one.check_shapes()
        proof.check(model)
        specs = [spec for bound in model.bounds for spec in one.part_specs(bound)]
        main_dtype = hf.dtype_name(hf.main_dtype((spec.dtype, spec.bytes) for spec in specs))
        pieces = transfer.groups(one, one.stored_spec, parts=True)
        identity: dict[str, Any] = {
            "export": str(folder),
            "files": state_of(path for path in folder.rglob("*") if path.is_file()),
            "dtype": dtype,
            "form": form,
        }
        identity |= {"beside": hf.digests(carried), "config": model.config}
        identity |= {"pieces": repr(pieces), "version": VERSION}
        run = Runner(2 * len(model.bounds), memory, sum(spec.bytes for spec in specs), progress)
        with unfinished(out, identity, scratch) as (partial, journal):
            with proof.begin(Conversion.of_folder(begin.described)) as building:
                places = hf.prepare(partial, specs)
                run(
                    functools.partial(transfer.write_tensors, sides, partial, places),
                    pieces,
                    journal,
                    "write",
                )
                _carry(carried, partial)
                if model.config != families.read_config(carried):
                    _write_config(partial / "config.json", model.config)
                _name_dtype(partial / "config.json", main_dtype)
                with Sides(replace(job, source=Source.of_folder(partial))) as both:
                    found = certify("export", both, run, journal)
                add_architecture(found, model, partial, building)
                begin.tell(found)
            add_answers(found, proof, partial, folder)
            certificate.write(found, partial)
        return found


def _import(
    source: Source,
    out: Path,
    dtype: DType | None,
    progress: Progress | None,
    proof: Proof,
    memory: int | None,
    scratch: Path | None,
) -> dict[str, Any]:
    with hf.Weights(source) as weights:
        model = Conversion.of_weights(weights)
        proof.check(model)
        proof.check_source(source)
        names = model.weight_names(weights)
        problems = check(model.family, model.shape, hf_names=names)
        _refuse(problems, source.weights, model.layers_apart(names))
        state, dequantised = weights.state(), weights.dequantised()
    job = Job(source.files, source, hf_prefix=model.hf_prefix, dtype=dtype)
    with Sides(job) as sides:
        one = sides.mine()
        specs = [one.packed_spec(bound) for bound in model.bounds]
        amounts = [(kind, math.prod(shape)) for shape, kind in specs]
        pieces = transfer.groups(one, one.packed_spec, parts=False)
        identity: dict[str, Any] = {"import": source.weights, "files": state, "dtype": dtype}
        identity |= {"beside": hf.digests(source.files), "config": model.config}
        identity |= {"pieces": repr(pieces), "version": VERSION}
        size = sum(kind.itemsize * count for kind, count in amounts)
        fetched = source.fetched + weights.fetched + one.fetched
        run = Runner(2 * len(model.bounds), memory, size, progress)
        with unfinished(out, identity, scratch) as (partial, journal):
            commit = functools.partial(
                checkpoint.commit,
                partial,
                iteration=0,
                consumed_samples=0,
                model_type=model.family.model_type,
                dtype=hf.dtype_name(hf.main_dtype(amounts)),
                vocab_size=model.shape.vocab,
                padded_vocab_size=model.shape.padded_vocab,
                optimizer=False,
                hf_prefix=model.hf_prefix,
                dequantised=dequantised,
                proven=not certificate.is_doubtful_origin(source.files),
            )
            with proof.begin(model) as building:
                written = run(
                    functools.partial(transfer.write_checkpoint, sides, partial),
                    pieces,
                    journal,
                    "write",
                )
                placed = (
                    index_file.Placed(**block) for group in written for block in group["placed"]
                )
                torch_dist.write_index(partial, placed)
                _carry(source.files, partial / checkpoint.HF_FILES)
                job = replace(job, checkpoint=partial, noted=once.keep(written, journal))
                with Sides(job) as both:
                    found = certify("import", both, run, journal)
                    found |= once.told(both.mine().weights, state, written, fetched)
                add_architecture(found, model, source.files, building)
            if proof.runs and found["holds"]:
                commit()
                add_answers(found, proof, source.files, partial)
            certificate.write(found, partial)
            commit()
        return found


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


def _refuse(problems: list[str], where: Path | str, cause: str | None = None) -> None:
    if problems:
        shown = "; ".join([*([cause] if cause else []), *problems[:8]])
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise MappingError(
            f"{len(problems)} tensors cannot be mapped",
            where=where,
            expected="every tensor claimed by exactly one row",
            got=shown + more,
            fix="check that config.json belongs to these weights",
        )
