"""Proof that a Hugging Face folder and a Megatron checkpoint hold the same model.

`certify` shows coverage (every tensor on each side claimed once) and the inverse (every Hugging
Face tensor equals, bit by bit, the one read back from the checkpoint). Whether the rows mean the
right thing is another question: `proof.py` has what answers it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import certificate, checkpoint, hf, torch_dist, transfer
from megatron_bridge.comparison import digest, narrower
from megatron_bridge.conversion import Conversion
from megatron_bridge.journal import Journal
from megatron_bridge.layouts import VOCAB
from megatron_bridge.mapping import VOCAB_DIVISOR, check
from megatron_bridge.megatron_lm.folder import is_ours
from megatron_bridge.proof import EVERYTHING, Proof, add_answers, add_architecture
from megatron_bridge.runner import Progress, Runner
from megatron_bridge.side import Job, Side, Sides
from megatron_bridge.sources import source as sources
from megatron_bridge.sources.source import Source
from megatron_bridge.sources.transport import changed
from megatron_bridge.tensors import Tensors

if TYPE_CHECKING:
    import torch


def verify(
    hf_dir: Path | str,
    folder: Path | str,
    proof: Proof = EVERYTHING,
    memory: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare a Hugging Face folder with a Megatron checkpoint; return the certificate.

    `certificate["holds"]` says whether they hold the same model. Nothing is written.

    Args:
        hf_dir: the folder, or its URL as text.
        folder: the checkpoint.
        proof: what is compared beside the tensors; the architecture by default.
        memory: a ceiling in bytes, by default half of the machine's.
        progress: called as groups of tensors are compared.

    Raises:
        ConfigError, InputError: one side cannot be read.
    """
    folder = Path(folder).resolve()
    info = checkpoint.read_info(folder)
    with sources.opened(hf_dir, info.dtype) as source:
        return _verify(source, folder, proof, memory, progress)


def _verify(
    source: Source, folder: Path, proof: Proof, memory: int | None, progress: Progress | None
) -> dict[str, Any]:
    with hf.Weights(source) as weights:
        prefix, state = Conversion.of_weights(weights).hf_prefix, weights.state()
    proof.check_source(source)
    job = Job(source.files, source, folder, hf_prefix=prefix)
    with Sides(job) as sides:
        one = sides.mine()
        proof.check(one.model)
        with proof.begin(Conversion.of_folder(folder / checkpoint.HF_FILES)) as building:
            run = Runner(len(one.model.bounds), memory, one.total_bytes, progress)
            found = certify("verify", sides, run)
            with hf.Weights(source) as weights:
                if weights.state() != state:
                    raise changed(source.weights)
            add_architecture(found, one.model, source.files, building)
    add_answers(found, proof, source.files, folder)
    return found


def certify(kind: str, sides: Sides, run: Runner, journal: Journal | None = None) -> dict[str, Any]:
    """Read both sides back from disk and compare them, block by block.

    Where the two differ in number format, the wider one is cast to the narrower, as the conversion
    did; the certificate says so.
    """
    one = sides.mine()
    model, weights, reader = one.model, one.weights, one.reader
    names, left_out = model.weight_names(weights), model.left_out(weights)
    passed = set(weights.names) - set(names)
    problems = check(model.family, model.shape, names, model.slots(reader))
    stored = {hf.dtype_name(dtype) for _, dtype in _model_shapes(reader)}
    weighty = [name for name in names if not model.family.is_buffer(name)]
    found = {hf.dtype_name(weights.spec(name).dtype) for name in weighty}
    problems += _other_shapes(one) if not problems else []
    digests: dict[str, str] = {}
    cast: list[str] = []
    not_finite: dict[str, int] = {}
    if not problems:
        pieces = transfer.groups(one, one.stored_spec, parts=True)
        compared = run(functools.partial(transfer.compare, sides), pieces, journal, "compare")
        results = {name: result for group in compared for name, result in group.items()}
        for bound in model.bounds:
            for name in bound.hf:
                digests[name], state, count = results[name]
                if count:
                    not_finite[name] = count
                if state == "cast":
                    cast.append(name)
                elif state != "equal":
                    problems.append(f"{name} {state} {bound.slot}")
            padded = bound.row.layout is VOCAB and kind != "export"
            if padded and one.has_padding(bound):
                problems.append(f"{bound.slot} holds values in the padding of the vocabulary")
        problems += _other_copies(one, digests)
    parameters = sum(math.prod(weights.spec(name).shape) for name in digests)
    others = sorted(key for key in reader.shapes() if not torch_dist.is_model_key(key))
    folder = reader.folder
    ours = kind != "import" and is_ours(folder)
    mark = checkpoint.read_info(folder) if ours else None
    dequantised = weights.dequantised() or (mark and mark.dequantised)
    divisor = mark.vocab_divisor if mark else VOCAB_DIVISOR
    carried = _compare_files(weights.source.files, folder, problems if kind != "export" else [])
    return {
        "kind": kind,
        "holds": not problems,
        "problems": problems,
        "proven": not certificate.is_doubtful_origin(weights.source.files)
        if kind == "import"
        else not ours or certificate.doubt_of_checkpoint(folder) is None,
        "model_type": model.family.model_type,
        "parameters": parameters,
        "dtype": {
            "hugging_face": sorted(found),
            "megatron": sorted(stored),
            "cast": bool(cast),
        },
        "vocabulary": {
            "true": model.shape.vocab,
            "padded": model.shape.padded_vocab,
            "divisor": divisor,
        },
        **({"dequantised": dequantised.model_dump()} if dequantised else {}),
        "coverage": {
            "hugging_face_tensors": len(names),
            "megatron_tensors": len(model.bounds),
            "buffers_left_out": [name for name in names if model.family.is_buffer(name)],
            "tied_copies_left_out": sorted(passed - set(itertools.chain(*left_out.values()))),
            "weights_left_out": {
                reason: {
                    "tensors": lost,
                    "parameters": sum(math.prod(weights.spec(name).shape) for name in lost),
                }
                for reason, lost in left_out.items()
            },
            "other_checkpoint_tensors": len(others),
        },
        "inverse": {
            "algorithm": "sha256",
            "tensors": digests,
            "not_finite": not_finite,
            **({"of": "values as the checkpoint holds them"} if cast and _rounded(one) else {}),
            "rows_normalised_to_length_1": model.changed(),
        },
        "files": carried,
    }


def _other_shapes(one: Side) -> list[str]:
    """Tensors that have another shape on the Hugging Face side than the checkpoint gives them."""
    return [
        f"{spec.name} is {list(found)} in the folder, the checkpoint gives {list(spec.shape)}"
        for bound in one.model.bounds
        for spec in one.part_specs(bound)
        if (found := one.weights.stored(spec.name).shape) != spec.shape
    ]


def _rounded(one: Side) -> bool:
    """True where digests are of values that a cast to the checkpoint's format has rounded."""
    return one.job.noted is not None and any(
        narrower(kind := one.weights.spec(name).dtype, one.stored_spec(bound)[1]) != kind
        for bound in one.model.bounds
        for name in bound.hf
    )


def _other_copies(one: Side, digests: Mapping[str, str]) -> list[str]:
    """A tied model's second embedding that is not the first; one on this disk was seen before."""
    copy, original = one.model.family.tied
    if one.weights.source.address is None or one.model.tied_copy(one.weights) is None:
        return []
    stored = one.weights.stored(copy)
    dtype = stored.dtype
    if one.job.noted:
        bound = next(bound for bound in one.model.bounds if original in bound.hf)
        dtype = narrower(dtype, one.stored_spec(bound)[1])
    same = one.weights.spec(original)
    if (stored.dtype, stored.shape) == (same.dtype, same.shape):
        if digest(stored, dtype) == digests[original]:
            return []
    return [f"{copy} differs from {original}, and config.json says that they are tied"]


def _model_shapes(reader: Tensors) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [shape for key, shape in reader.shapes().items() if torch_dist.is_model_key(key)]


def _compare_files(hf_dir: Path, folder: Path, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Digests of the files beside the weights, and whether both sides agree."""
    left, right = hf.digests(hf_dir), hf.digests(folder / checkpoint.HF_FILES)
    table = {}
    for name in sorted(left.keys() | right.keys()):
        equal = left.get(name) == right.get(name)
        table[name] = {"sha256": left.get(name) or right[name], "equal": equal}
        if not equal:
            where = "" if left.keys() & right.keys() & {name} else " (one side only)"
            problems.append(f"the file {name} differs{where}")
    return table
