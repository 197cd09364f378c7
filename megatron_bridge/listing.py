"""What `python -m megatron_bridge families` tells: the families, their names, and their proof.

Nothing here imports torch. What was measured of each family lies in `families/figures.json`;
`tests/families/make_page.py` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from megatron_bridge import families, options
from megatron_bridge.families.rows import M
from megatron_bridge.mapping import Config, Family, Row
from megatron_bridge.options import Options

# What our module or hook does, by the option that asks for it.
PARTS = {
    "alibi": "ALiBi",
    "attention_softcap": "soft cap on scores",
    "output_softcap": "soft cap on logits",
    "output_scale": "scale on logits",
    "normalized_output": "normalised output layer",
    "embedding_norm": "norm on embeddings",
    "embedding_scale": "scale on embeddings",
    "position_offset": "offset of positions",
    "attention_output_bias": "bias on attention's output alone",
    "window_rotary_base": "second rotary base",
    "rope_scaling": "rotary scaling",
}
_NORMS = {**options.ATTENTION_NORM, **options.MLP_NORM, **options.LATENT_NORMS}


def lines() -> list[str]:
    """One line for each family: its layers, our parts (some models' in brackets), its limits."""
    cases = figures()["cases"].values()
    told: list[tuple[str, ...]] = [("TYPE", "LAYERS", "OUR PARTS", "ONLY WITH")]
    for name, family in families.FAMILIES.items():
        variants = [case for case in cases if case["model_type"] == name] or [
            kind(family.megatron_config(family.toy))
        ]
        kinds = dict.fromkeys(variant["layers"] for variant in variants)
        parts = dict.fromkeys(part for variant in variants for part in variant["own_parts"])
        everywhere = [part for part in parts if all(part in v["own_parts"] for v in variants)]
        somewhere = [f"({part})" for part in parts if part not in everywhere]
        limits = [f"{key} {' or '.join(map(json.dumps, v))}" for key, v in family.only.items()]
        limits += [f"no {key}" for key in family.refused]
        columns = (" / ".join(kinds), ", ".join(everywhere + somewhere), "; ".join(limits))
        told.append((name, *(column or "-" for column in columns)))
    return _columns(told)


def names(model_type: str) -> list[dict[str, Any]]:
    """A family's tensors by all their names, one entry a row.

    Raises:
        ConfigError: no such family.
    """
    family = families.get(model_type)
    stacked = family.shape(family.toy).stacked
    return [
        {
            "hugging_face": list(row.hf),
            "layout": row.layout.name,
            "checkpoint": _checkpoint_key(row, stacked),
            "megatron": local_name(row.mcore),
            "transformer_engine": engine_name(row.mcore),
            "only_with": row.needs,
            "only_in_layers": row.layers,
        }
        for row in family.rows
    ]


def name_lines(model_type: str) -> list[str]:
    """The same as columns; what all names of a layer begin with is told once."""
    rows = names(model_type)
    layer = next(n for row in rows for n in row["hugging_face"] if "{layer}." in n)
    prefixes = (layer.partition("{layer}.")[0] + "{layer}.", M, M)
    table: list[tuple[str, ...]] = [
        ("HUGGING FACE", "MEGATRON, LOCAL SPEC", "TRANSFORMER ENGINE", "LAYOUT", "ONLY WITH"),
        (*(prefix + "…" for prefix in prefixes), "", ""),
    ]
    for row in rows:
        where = f"{row['only_in_layers']} layers" if row["only_in_layers"] else ""
        notes = (row["layout"], ", ".join(filter(None, (row["only_with"], where))))
        first, *others = row["hugging_face"]
        named = (first, row["megatron"], row["transformer_engine"])
        table.append((*(n.replace(p, "  …") for n, p in zip(named, prefixes, strict=True)), *notes))
        table += [(name.replace(prefixes[0], "  …"), "", "", "", "") for name in others]
    reason = kind(_toy(model_type))["local_spec"]
    return [
        *_columns(table),
        "",
        "A checkpoint has the same keys for both specs: Transformer Engine's names, all layers and "
        "all experts",
        "of a tensor under one key where layers are of one kind; --json gives them.",
        *([f"The toy model is not on Transformer Engine's spec: {reason}."] if reason else []),
    ]


def proof() -> dict[str, Any]:
    """Each family's checks with their figures, as recorded in `families/figures.json`."""
    recorded = figures()
    engine = recorded["transformer_engine"] or {"cases": {}}
    told = {}
    for name, family in families.FAMILIES.items():
        cases = {
            case: {**checks, "transformer_engine": engine["cases"].get(case)}
            for case, checks in recorded["cases"].items()
            if checks["model_type"] == name
        }
        told[name] = {
            "only_with": {key: list(values) for key, values in family.only.items()},
            "refused": dict(family.refused),
            "cases": cases,
        }
    machine = {key: value for key, value in engine.items() if key != "cases"}
    return {"limits": recorded["limits"], "transformer_engine": machine or None, "families": told}


def figures() -> dict[str, Any]:
    """Return what was measured of each case."""
    text = resources.files(families).joinpath("figures.json").read_text("utf-8")
    recorded: dict[str, Any] = json.loads(text)
    return recorded


def kind(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Say what a model is made of.

    Args:
        fields: what `Family.megatron_config` returns.

    Returns:
        `layers` in words; `own_parts`, what our modules and hooks do in it; `local_spec`, what
        keeps it from Transformer Engine's spec, or None.
    """
    ours = Options(**{name: fields[name] for name in options.NAMES if name in fields})
    latent = bool(fields.get("multi_latent_attention"))
    layers = {
        f"{ours.layer}, one norm" if ours.shared_norm else ours.layer: True,
        "latent attention": latent,
        "window": fields.get("window_size"),
        "experts": fields.get("num_moe_experts"),
    }
    parts = {
        f"{ours.layer} layer": ours.layer != "sequential",
        f"norm with {'no bias' if ours.norm == 'no bias' else 'no weight'}": ours.norm != "affine",
        "norm around one": fields.get("layernorm_zero_centered_gamma"),
        "attention with heads of two sizes": latent,
        "query without latent or norm": latent and fields.get("q_lora_rank") is None,
        "router by a group's best": ours.group_score == "max",
        **{text: getattr(ours, name) for name, text in PARTS.items()},
    }
    return {
        "layers": ", ".join(text for text, there in layers.items() if there),
        "own_parts": [text for text, there in parts.items() if there],
        "local_spec": ours.why_local,
    }


def local_name(mcore: str) -> str:
    """A row's parameter in a model on Megatron's local spec."""
    for local, engine in _NORMS.items():
        mcore = mcore.replace(engine, local)
    return mcore.replace(".experts.experts.", ".experts.local_experts.")


def engine_name(mcore: str) -> str:
    """A row's parameter in a model on Transformer Engine's spec, experts in one grouped linear."""
    name = mcore.replace(".experts.experts.{expert}.", ".experts.")
    return name if name == mcore else name + "{expert}"


def parameters(family: Family, config: Config, *, engine: bool) -> Iterator[str]:
    """Names of all parameters, and buffers that are kept, of the model in one pipeline stage."""
    name = engine_name if engine else local_name
    for bound in family.expand(family.shape(config)):
        yield name(bound.row.mcore).format(layer=bound.layer, expert=bound.expert)


def _toy(model_type: str) -> Mapping[str, Any]:
    family = families.get(model_type)
    return family.megatron_config(family.toy)


def _checkpoint_key(row: Row, stacked: bool) -> str:
    """The key, and behind it the slice of its tensor."""
    key, index = row.mcore, ""
    if stacked and "{layer}" in key:
        key, index = key.replace(".{layer}", ""), "[{layer}]"
    if "{expert}" in key:
        key, index = key.replace(".{expert}", ""), index + "[{expert}]"
    return key + index


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
