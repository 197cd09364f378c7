"""What `python -m megatron_bridge inspect` tells of a folder, from headers alone.

It may be a checkpoint of ours, one that Megatron-LM wrote, or a Hugging Face folder.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_bridge import certificate, checkpoint, families, hf
from megatron_bridge.conversion import Conversion
from megatron_bridge.errors import InputError, PipelineError
from megatron_bridge.mapping import check
from megatron_bridge.megatron_lm import arguments as megatron
from megatron_bridge.megatron_lm import candidates, folder, sides
from megatron_bridge.megatron_lm.folder import Run
from megatron_bridge.megatron_lm.tokenizer import Tokenizer
from megatron_bridge.sources import gguf
from megatron_bridge.sources import source as sources
from megatron_bridge.sources.address import parse
from megatron_bridge.tensors import Shape
from megatron_bridge.torch_dist import Reader, is_model_key

if TYPE_CHECKING:
    from megatron_bridge.sources.source import Source

Report = dict[str, Any]
"""format, iteration, layout, family, parameters, tensors, vocabulary, optimizer, files, missing;
`damaged` is true where files that the checkpoint names are not whole."""

_LAYOUT = {
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "virtual_pipeline": "virtual_pipeline_model_parallel_size",
    "expert_parallel": "expert_model_parallel_size",
}
_VOCABULARIES = ("word_embeddings.weight", "output_layer.weight")


def inspect(given: Path | str) -> Report:
    """Return what lies in a folder.

    Raises:
        InputError: it is none of the three kinds, or a file in it is damaged.
    """
    place = parse(given)
    if isinstance(place, Path):
        if folder.is_ours(place):
            return _of_ours(place)
        if folder.is_run(place):
            return _of_run(folder.open_run(place))
        if not gguf.is_one(place.name) and not (place / "config.json").exists():
            raise _no_model(place)
    with sources.opened(given) as source:
        return _of_hugging_face(source)


def lines(report: Report, tensors: bool = False) -> list[str]:
    """Say a report in lines of text; `tensors` lists them all."""
    counted, vocabulary = report["tensors"], report["vocabulary"]
    told = [("format", report["format"])]
    if report["iteration"] is not None:
        told.append(("iteration", f"{report['iteration']:,}"))
    if report["layout"]:
        told.append(("layout", ", ".join(f"{k} {v}" for k, v in report["layout"].items())))
    told += [
        ("family", report["family"] or "not known"),
        ("parameters", f"{report['parameters']:,}"),
        ("tensors", f"{counted['count']:,}, {counted['bytes']:,} bytes"),
        ("number format", ", ".join(f"{k} ({n:,})" for k, n in report["dtypes"].items())),
        ("vocabulary", ", ".join(f"{k} {v}" for k, v in vocabulary.items() if v is not None)),
        ("optimizer", ", ".join(report["optimizer"]) or "none"),
        ("tokenizer", report["tokenizer"] or "none"),
        ("config", report["config"] or "none"),
    ]
    if report["dequantised"]:
        told.append(("dequantised", certificate.dequantised(report["dequantised"])))
    if report["proof"]:
        told.append(("proof", report["proof"]))
    told += [("missing", text) for text in report["missing"]]
    width = max(len(name) for name, _ in told) + 2
    found = [f"{name:<{width}}{text}" for name, text in told]
    if tensors:
        rows = report["shapes"].items()
        found += [f"{name}  {kind}  {'x'.join(map(str, size))}" for name, (size, kind) in rows]
    return found


def _no_model(place: Path) -> InputError:
    return InputError(
        "The folder holds no model",
        where=place,
        expected="a checkpoint of ours (checkpoint.json), a directory of Megatron-LM (iter_* "
        "folders, mp_rank_* or *.distcp), a Hugging Face folder (config.json), or a GGUF file",
        got=", ".join(sorted(path.name for path in place.iterdir())[:6]) or "an empty folder"
        if place.is_dir()
        else "a file"
        if place.is_file()
        else "no such folder",
        fix="name the folder of one of these",
    )


def _of_run(run: Run) -> Report:
    opened = folder.tensors(run.folder)
    try:
        shapes = opened.shapes()
        damage = opened.damage() if isinstance(opened, Reader) else []
    finally:
        opened.close()
    report = _counted(shapes, f"{run.format}, by Megatron-LM", folder.optimizer_states(run))
    padded = next((s[0] for k, (s, _) in shapes.items() if k.endswith(_VOCABULARIES[0])), None)
    found = sides.tokenizer_of(run.arguments)
    size, source, missing = None, None, [*damage]
    try:
        size, source = sides.vocabulary(run.arguments, found)
    except PipelineError as error:
        missing.append(str(error))
    report |= {
        "iteration": run.iteration,
        "layout": {name: run.arguments.get(key) or 1 for name, key in _LAYOUT.items()}
        if run.arguments
        else None,
        "tokenizer": str(found.folder) if found else None,
        "vocabulary": {
            "true": size,
            "padded": padded,
            "divisor": megatron.vocabulary_multiple(run.arguments),
            "from": source,
        },
    }
    try:
        reading = megatron.only_reading(sides.present(run.arguments))
        family, _ = candidates.choose(megatron.fields(reading), size or padded or 1)
        report |= {"family": family.model_type, "config": "made from the run's arguments"}
    except PipelineError as error:
        missing.append(str(error))
    if size and padded:
        parts = [s for k, (s, _) in shapes.items() if k.endswith(_VOCABULARIES) and is_model_key(k)]
        report["parameters"] -= sum((s[0] - size) * math.prod(s[1:]) for s in parts)
    if found is None:
        missing.append("a tokenizer: give --tokenizer DIR to export, or the export has none")
    return report | {"missing": missing, "damaged": bool(damage)}


def _of_ours(place: Path) -> Report:
    info = checkpoint.read_info(place)
    with Reader(place) as reader:
        shapes = reader.shapes()
    model = Conversion.of_folder(place / checkpoint.HF_FILES, info.hf_prefix)
    report = _counted(shapes, "torch_dist, by megatron_bridge", folder.states(shapes))
    doubt = certificate.doubt_of_checkpoint(place)
    spare = (info.padded_vocab_size - info.vocab_size) * model.shape.hidden
    padded = [key for key in shapes if is_model_key(key) and key.endswith(_VOCABULARIES)]
    return report | {
        "iteration": info.iteration,
        "family": info.model_type,
        "parameters": report["parameters"] - spare * len(padded),
        "vocabulary": {
            "true": info.vocab_size,
            "padded": info.padded_vocab_size,
            "divisor": info.vocab_divisor,
        },
        "proof": f"unproven: {doubt}" if doubt else "proven",
        "dequantised": info.dequantised and info.dequantised.model_dump(),
        **_beside(place / checkpoint.HF_FILES),
    }


def _of_hugging_face(source: Source) -> Report:
    with hf.Weights(source) as weights:
        specs = {name: weights.spec(name) for name in weights.names}
        shapes: dict[str, Shape] = {n: (spec.shape, spec.dtype) for n, spec in specs.items()}
        config = families.read_config(source.files)
        kind = "GGUF" if source.is_gguf else "Hugging Face"
        report = _counted(shapes, kind, [])
        report |= {
            "vocabulary": {"true": config.get("vocab_size")},
            "dequantised": (lost := weights.dequantised()) and lost.model_dump(),
            **_beside(source.files),
        }
        try:
            model = Conversion.of_weights(weights)
            names = model.weight_names(weights)
            problems = check(model.family, model.shape, hf_names=names)
        except PipelineError as error:
            return report | {"missing": [*report["missing"], str(error)]}
        held = [name for name in names if not model.family.is_buffer(name)]
        return report | {
            "family": model.family.model_type,
            "vocabulary": {"true": model.shape.vocab},
            "parameters": sum(math.prod(specs[name].shape) for name in held),
            "missing": report["missing"] + _unclaimed(problems, model, names),
        }


def _counted(shapes: Mapping[str, Shape], kind: str, optimizer: Iterable[str]) -> Report:
    model = {key: shape for key, shape in shapes.items() if is_model_key(key)}
    sizes = {key: math.prod(size) for key, (size, _) in model.items()}
    dtypes: Counter[str] = Counter()
    for key, (_, dtype) in model.items():
        dtypes[hf.dtype_name(dtype)] += sizes[key]
    return {
        "format": kind,
        "iteration": None,
        "layout": None,
        "family": None,
        "parameters": sum(sizes.values()),
        "dtypes": dict(dtypes.most_common()),
        "tensors": {
            "count": len(model),
            "bytes": sum(sizes[key] * dtype.itemsize for key, (_, dtype) in model.items()),
        },
        "vocabulary": {},
        "optimizer": sorted(optimizer),
        "tokenizer": None,
        "config": None,
        "proof": None,
        "dequantised": None,
        "missing": [],
        "damaged": False,
        "shapes": {k: [list(size), hf.dtype_name(dtype)] for k, (size, dtype) in model.items()},
    }


def _beside(place: Path) -> Report:
    tokenizer = Tokenizer(place)
    return {
        "config": "config.json" if (place / "config.json").is_file() else None,
        "tokenizer": ", ".join(tokenizer.files) or None,
        "missing": [] if tokenizer.files else ["a tokenizer"],
    }


def _unclaimed(problems: list[str], model: Conversion, names: list[str]) -> list[str]:
    if not problems:
        return []
    shown = [*filter(None, [model.layers_apart(names)]), *problems[:4]]
    return [f"{len(problems)} tensors do not fit {model.family.model_type}: {'; '.join(shown)}"]
