"""`config.json` for transformers' own class, where a family's own class is remote code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_bridge.mapping import Config, Family

KEPT = ("bos_token_id", "eos_token_id", "pad_token_id")
DTYPES = ("torch_dtype", "dtype")


def config_of(
    native: Family,
    fields: Mapping[str, Any],
    config: Config,
    *,
    architecture: str,
    vocab_size: int,
    **more: Any,
) -> dict[str, Any]:
    """Return the native class's `config.json`, from what the family's own means to Megatron.

    Args:
        native: the family of the native class; its fields say under which names it reads sizes.
        fields: `Family.megatron_config` of the family's own `config.json`.
        config: that `config.json`, for token ids and number format.
        architecture: the class in transformers.
        vocab_size: rows of the embedding.
        more: entries that only the native class has.
    """
    scaling = dict(fields["rope_scaling"] or {})
    scaling.pop("max_position_embeddings", None)
    return {
        "architectures": [architecture],
        "model_type": native.model_type,
        "vocab_size": vocab_size,
        **{field.hf: fields[field.megatron] for field in native.fields},
        "hidden_act": "silu",
        "rope_theta": fields["rotary_base"],
        **({"rope_scaling": scaling} if scaling else {}),
        **more,
        **{name: config.get(name) for name in KEPT},
        **{name: config[name] for name in DTYPES if name in config},
    }
