"""Phi-3 and Phi-4: Llama's network with fused projections, a window and long rotary scaling."""

from __future__ import annotations

from typing import Any

from megatron_bridge.families import rotary, rows
from megatron_bridge.families.rows import H
from megatron_bridge.families.toy import TOY
from megatron_bridge.layouts import FUSED_QKV
from megatron_bridge.mapping import Config, Family


def _rope(config: Config) -> dict[str, Any]:
    """The first files call the long scaling "su" or "yarn"; its length lies outside it."""
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = given.pop("type", None)
    kind = given.pop("rope_type", None) or kind or "default"
    kind = "longrope" if kind in ("su", "yarn") else kind
    given["rope_type"] = kind
    lengths = dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings"), 4096)
    return rotary.rope({**lengths, **config, "rope_parameters": given})


PHI3 = Family(
    "phi3",
    rows=(
        *rows.embeddings(),
        *rows.PRE_NORMS,
        *rows.linear(rows.QKV, H + "self_attn.qkv_proj", FUSED_QKV, sizes=rows.QKV_SIZES),
        *rows.linear(rows.PROJ, H + "self_attn.o_proj", sizes=rows.PROJ_SIZES),
        *rows.linear(rows.FC1, H + "mlp.gate_up_proj", sizes=rows.GATED_SIZES),
        *rows.linear(rows.FC2, H + "mlp.down_proj", sizes=rows.FC2_SIZES),
    ),
    fields=rows.defaults(rows.DECODER_FIELDS, rms_norm_eps=1e-5, max_position_embeddings=4096),
    computed=(_rope, rows.window),
    fixed=rows.SWIGLU,
    only={"hidden_act": ("silu",), "attention_bias": (False,)},
    parts=rows.untied(),
    buffers=rows.ROTARY_BUFFERS,
    toy={
        **{key: value for key, value in TOY.items() if key != "head_dim"},
        "model_type": "phi3",
        "sliding_window": 5,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    },
)
