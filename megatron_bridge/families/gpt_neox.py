"""GPT-NeoX and Pythia, Dolly, StableLM-alpha, RedPajama: attention and MLP side by side."""

from __future__ import annotations

from typing import Any

from megatron_bridge.families import rotary, rows
from megatron_bridge.families.toy import SIZES
from megatron_bridge.mapping import Config, Family, Field

H = "gpt_neox.layers.{layer}."


def _layer(config: Config) -> dict[str, Any]:
    parallel = config.get("use_parallel_residual", True)
    return {"layer": "parallel" if parallel else "sequential"}


def _rope(config: Config) -> dict[str, Any]:
    """Rotary positions under the names that the family had before transformers 5."""
    base, share = config.get("rotary_emb_base"), config.get("rotary_pct", 0.25)
    return rotary.rope({"rope_theta": base, "partial_rotary_factor": share, **config})


GPT_NEOX = Family(
    "gpt_neox",
    rows=(
        *rows.embeddings("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out", bias=True),
        *rows.norm(rows.ATTENTION_NORM, H + "input_layernorm", bias=True),
        *rows.norm(rows.MLP_NORM, H + "post_attention_layernorm", bias=True),
        *rows.fused_linears(H, "attention", bias=True),
    ),
    fields=(
        *rows.SIZE_FIELDS,
        Field("layernorm_epsilon", "layer_norm_eps", 1e-5),
        Field("share_embeddings_and_output_weights", "tie_word_embeddings", False),
    ),
    computed=(_layer, _rope, rows.activation("hidden_act", "gelu")),
    fixed=rows.GPT,
    only={"attention_bias": (True,)},
    parts=rows.untied(),
    buffers=(r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    tied=("embed_out.weight", "gpt_neox.embed_in.weight"),
    toy={
        "model_type": "gpt_neox",
        **SIZES,
        "intermediate_size": 92,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.4,
        },
    },
)
