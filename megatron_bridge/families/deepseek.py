"""DeepSeek-V2 and V3: latent attention, and experts that are chosen by groups.

Queries, keys and values pass a narrow latent; all heads share one rotary key. The rotary part of a
head lies interleaved on both sides, so that rows of a projection stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.families import rotary, rows
from megatron_bridge.families.rows import H, M
from megatron_bridge.families.toy import TOY
from megatron_bridge.mapping import Config, Family, Field, Row

DEFAULTS: Mapping[str, Config] = {
    "deepseek_v2": {
        "q_lora_rank": 1536,
        "first_k_dense_replace": 0,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "n_group": None,
        "topk_group": None,
    },
    "deepseek_v3": {
        "q_lora_rank": 1536,
        "first_k_dense_replace": 3,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "n_group": 8,
        "topk_group": 4,
    },
}
"""What transformers takes for entries that `config.json` lacks; a null stays a null."""


def _get(config: Config, key: str) -> Any:
    return {**DEFAULTS[config["model_type"]], **config}[key]


def _attention(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    if groups != heads:
        raise _refused("num_key_value_heads", f"as num_attention_heads, {heads}", groups)
    return {"num_query_groups": heads, "q_lora_rank": _get(config, "q_lora_rank")}


def _positions(config: Config) -> dict[str, Any]:
    """Rotary positions, in the fields that Megatron has for latent attention alone."""
    fields = rotary.rope(config)
    scaling = fields.pop("rope_scaling")
    if scaling is None:
        return {**fields, "rope_type": "rope", "rotary_scaling_factor": 1.0}
    given = config.get("rope_parameters") or config["rope_scaling"]
    over = given.get("mscale_all_dim") or 0.0
    for key, expected, holds in (
        ("rope_type", "'default' or 'yarn'", scaling["rope_type"] == "yarn"),
        ("attention_factor", "none", not given.get("attention_factor")),
        ("truncate", "true", given.get("truncate", True)),
        ("mscale", "a number beside mscale_all_dim", given.get("mscale") or not over),
    ):
        if not holds:
            raise _refused(f"rope_parameters, {key}", expected, repr(given.get(key)))
    return {
        **fields,
        "rope_type": "yarn",
        "rotary_scaling_factor": float(scaling["factor"]),
        "original_max_position_embeddings": scaling["original_max_position_embeddings"],
        "beta_fast": scaling["beta_fast"],
        "beta_slow": scaling["beta_slow"],
        # transformers looks at `mscale` only where `mscale_all_dim` stands beside it.
        "mscale": given["mscale"] if over else 1.0,
        "mscale_all_dim": over,
    }


def _experts(config: Config) -> dict[str, Any]:
    shared, kinds = _get(config, "n_shared_experts"), _kinds(config)
    if not shared:
        raise _refused("n_shared_experts", "one or more", shared)
    fields = {
        "moe_shared_expert_intermediate_size": shared * config["moe_intermediate_size"],
        "moe_router_topk_scaling_factor": _get(config, "routed_scaling_factor"),
    }
    if kinds["dense"]:
        fields["moe_layer_freq"] = [0] * len(kinds["dense"]) + [1] * len(kinds["sparse"])
    return fields


def _kinds(config: Config) -> Mapping[str, range]:
    layers, dense = config["num_hidden_layers"], _get(config, "first_k_dense_replace")
    if dense >= layers:
        raise _refused("first_k_dense_replace", f"fewer than num_hidden_layers, {layers}", dense)
    return {"dense": range(dense), "sparse": range(dense, layers)}


def _best_of_each_group(config: Config) -> dict[str, Any]:
    groups = {} if _get(config, "topk_method") == "greedy" else _groups(config)
    return {**groups, "group_score": "max"} if groups else {}


def _best_two_of_each_group(config: Config) -> dict[str, Any]:
    """transformers scores a group by its best two experts, Megatron by `topk // groups`."""
    chosen, groups = config["num_experts_per_tok"], _groups(config)
    allowed = groups.get("moe_router_group_topk")
    if allowed and chosen // allowed != 2:
        raise _refused("num_experts_per_tok", f"twice topk_group, {2 * allowed}", chosen)
    if chosen == 1:
        # Megatron divides the weights by their sum only where there are several.
        raise _refused("num_experts_per_tok", "two or more", chosen)
    return groups


def _groups(config: Config) -> dict[str, Any]:
    groups, allowed = _get(config, "n_group"), _get(config, "topk_group")
    if not groups or groups == allowed:
        return {}
    return {"moe_router_num_groups": groups, "moe_router_group_topk": allowed}


def _further_predictions(config: Config) -> Mapping[str, str]:
    """Layers behind the last, which DeepSeek-V3 predicts further tokens with."""
    count = config.get("num_nextn_predict_layers", config.get("num_mtp_layers", 1))
    first = config["num_hidden_layers"]
    reason = "a layer that predicts a further token, which transformers leaves out as well"
    layers = range(first, first + (count or 0))
    return {rf"model\.layers\.{layer}\..+": reason for layer in layers}


def _refused(key: str, expected: str, got: object) -> ConfigError:
    return ConfigError(
        f"DeepSeek: {key} cannot be carried over to Megatron",
        where=f"config.json, {key}",
        expected=expected,
        got=got,
        fix="convert a model without it",
    )


def _linear(
    mcore: str, hf: str, sizes: tuple[str, str], needs: str | None = None
) -> tuple[Row, ...]:
    mcore, hf = f"{M}self_attention.linear_{mcore}", f"{H}self_attn.{hf}"
    return rows.linear(mcore, hf, sizes=sizes, needs=needs)


def _latent_norm(mcore: str, hf: str, size: str, needs: str | None = None) -> tuple[Row, ...]:
    mcore, hf = f"{M}self_attention.linear_{mcore}.layer_norm_", f"{H}self_attn.{hf}"
    return rows.norm(mcore, hf, size=size, needs=needs)


ROWS = (
    *rows.embeddings(),
    *rows.norm(M + "input_layernorm.", H + "input_layernorm"),
    *_linear("q_proj", "q_proj", ("queries", "hidden"), "whole query"),
    *_linear("q_down_proj", "q_a_proj", ("query latent", "hidden"), "query latent"),
    *_latent_norm("q_up_proj", "q_a_layernorm", "query latent", "query latent"),
    *_linear("q_up_proj", "q_b_proj", ("queries", "query latent"), "query latent"),
    *_linear("kv_down_proj", "kv_a_proj_with_mqa", ("KV latent and rotary", "hidden")),
    *_latent_norm("kv_up_proj", "kv_a_layernorm", "KV latent"),
    *_linear("kv_up_proj", "kv_b_proj", ("keys and values", "KV latent")),
    *_linear("proj", "o_proj", ("hidden", "values")),
    *rows.norm(rows.MLP_NORM, H + "post_attention_layernorm", layers="dense"),
    *rows.norm(rows.EXPERTS_NORM, H + "post_attention_layernorm", layers="sparse"),
    *rows.swiglu(layers="dense"),
    *rows.experts(layers="sparse"),
    *rows.shared_experts(H + "mlp.shared_experts", layers="sparse"),
)

FIELDS = (
    *rows.DECODER_FIELDS,
    Field("kv_lora_rank", "kv_lora_rank", 512),
    Field("qk_head_dim", "qk_nope_head_dim", 128),
    Field("qk_pos_emb_head_dim", "qk_rope_head_dim", 64),
    Field("v_head_dim", "v_head_dim", 128),
    # Latent attention has the three sizes above; this one must be there and is not used.
    Field("kv_channels", "v_head_dim", 128),
    Field("num_moe_experts", "n_routed_experts"),
    Field("moe_router_topk", "num_experts_per_tok"),
    Field("moe_ffn_hidden_size", "moe_intermediate_size"),
)

FIXED = {**rows.SWIGLU, "multi_latent_attention": True, "qk_layernorm": True}

ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    # The latent norms of transformers have this epsilon whatever the file says.
    "rms_norm_eps": (1e-6,),
    "moe_layer_freq": (1,),
}

PARTS = {
    **rows.untied(),
    "query latent": lambda config: _get(config, "q_lora_rank") is not None,
    "whole query": lambda config: _get(config, "q_lora_rank") is None,
}

SIZES: Mapping[str, Any] = {
    **{key: value for key, value in TOY.items() if key != "head_dim"},
    "num_key_value_heads": 6,
    "rms_norm_eps": 1e-6,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "q_lora_rank": 46,
    "kv_lora_rank": 38,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 36,
    "n_routed_experts": 12,
    "n_shared_experts": 3,
    "num_experts_per_tok": 4,
    "n_group": 3,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}
YARN: Mapping[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 5.0,
    "original_max_position_embeddings": 26,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}

DEEPSEEK_V2 = Family(
    "deepseek_v2",
    rows=ROWS,
    fields=FIELDS,
    computed=(_attention, _positions, _experts, _best_of_each_group),
    fixed={**FIXED, "moe_router_pre_softmax": True},
    only={
        **ONLY,
        "mlp_bias": (False,),
        "scoring_func": ("softmax",),
        "topk_method": ("greedy", "group_limited_greedy"),
        "norm_topk_prob": (False,),
    },
    parts=PARTS,
    layer_sets=_kinds,
    buffers=rows.ROTARY_BUFFERS,
    toy={
        "model_type": "deepseek_v2",
        **SIZES,
        "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 1.5,
        "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
)

DEEPSEEK_V3 = Family(
    "deepseek_v3",
    rows=(
        *ROWS,
        Row(
            M + "mlp.router.expert_bias",
            (H + "mlp.gate.e_score_correction_bias",),
            sizes=("experts",),
            layers="sparse",
            keeps_dtype=True,
        ),
    ),
    fields=FIELDS,
    computed=(_attention, _positions, _experts, _best_two_of_each_group),
    fixed={
        **FIXED,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
    },
    only={
        **ONLY,
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "norm_topk_prob": (True,),
        "rope_interleave": (True,),
    },
    parts=PARTS,
    layer_sets=_kinds,
    buffers=rows.ROTARY_BUFFERS,
    left_out=_further_predictions,
    toy={
        "model_type": "deepseek_v3",
        **SIZES,
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
)
