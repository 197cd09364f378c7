"""`config.json` for a run: each family's own words for Megatron's fields, and which family it is.

A candidate says what a family's `config.json` would be. It is the run's family when that file, read
by the family, means what the run's arguments mean, in everything that is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatron_bridge import families
from megatron_bridge.errors import ConfigError, PipelineError
from megatron_bridge.mapping import Config, Family
from megatron_bridge.megatron_lm.meaning import Meaning, differences, meaning

Fields = Mapping[str, Any]

_LATENT_SIZES = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}
_YARN = ("original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_NO_HEAD_SIZE = ("gpt2", "gpt_neox", "deepseek_v2", "deepseek_v3")
"""Families whose class in transformers does not take the size of a head from `head_dim`."""
_GELU = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


def choose(
    fields: Fields, vocab: int, model_type: str | None = None
) -> tuple[Family, dict[str, Any]]:
    """Return the family that computes what the fields say, and its `config.json`.

    Of several that do, the first of `CANDIDATES`.

    Args:
        fields: what `arguments.fields` returns.
        vocab: the true number of tokens.
        model_type: take this family, or refuse.

    Raises:
        ConfigError: no family, or not this one; the text names what differs from the nearest.
    """
    if model_type is not None and model_type not in CANDIDATES:
        raise ConfigError(
            "No config.json can be made for this family",
            where="--model-type",
            expected=", ".join(CANDIDATES),
            got=model_type,
            fix="give one of these, or a folder with a config.json by --like",
        )
    wanted = meaning(fields)
    if model_type is not None:
        return _named(model_type, fields, vocab, wanted)
    apart: dict[str, list[str]] = {}
    for name in CANDIDATES:
        family, config = families.FAMILIES[name], make(name, fields, vocab)
        apart[name] = disagreements(family, config, wanted)
        if not apart[name]:
            return family, config
    nearest = min(apart, key=lambda name: len(apart[name]))
    raise ConfigError(
        "No model family computes what this run computes",
        where="the run's arguments",
        expected=f"one of {', '.join(apart)}",
        got=f"{'; '.join(apart[nearest])} (against {nearest}, the nearest)",
        fix="give a folder with the model's config.json by --like, where another family fits",
    )


def _named(
    model_type: str, fields: Fields, vocab: int, wanted: Meaning
) -> tuple[Family, dict[str, Any]]:
    family, config = families.FAMILIES[model_type], make(model_type, fields, vocab)
    apart = disagreements(family, config, wanted)
    if not apart:
        return family, config
    fitting = [
        name
        for name in CANDIDATES
        if not disagreements(families.FAMILIES[name], make(name, fields, vocab), wanted)
    ]
    experts = fields.get("num_moe_experts")
    if bool(experts) != any(field.megatron == "num_moe_experts" for field in family.fields):
        kind = f"has {experts} experts a layer" if experts else "is dense"
        apart = [f"{model_type}, and the run {kind}"]
    raise ConfigError(
        f"The family {model_type} does not compute what this run computes",
        where="--model-type",
        expected=" or ".join(fitting) or "a family that does; none of those here",
        got="; ".join(apart),
        fix="give a family that fits, or leave --model-type out"
        if fitting
        else "give a folder with the model's config.json by --like",
    )


def disagreements(family: Family, config: Config, wanted: Meaning) -> list[str]:
    """Say in what a `config.json` differs from what a run computes."""
    try:
        got = meaning(family.megatron_config(config))
    except PipelineError as error:
        return [error.what if error.got is None else f"{error.what} ({error.got})"]
    return [
        f"{name} is {mine!r} in the run and {other!r} in {family.model_type}"
        for name, (mine, other) in differences(wanted, got).items()
    ]


def make(model_type: str, fields: Fields, vocab: int) -> dict[str, Any]:
    """Return a family's `config.json` for these fields, as far as it has words for them."""
    family = families.FAMILIES[model_type]
    architecture, further = CANDIDATES[model_type]
    named = {
        field.hf: fields[field.megatron] for field in family.fields if field.megatron in fields
    }
    if model_type in _NO_HEAD_SIZE:
        named.pop("head_dim", None)
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": vocab,
        **named,
        **further(fields),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }


def _rotary(fields: Fields) -> dict[str, Any]:
    """In the words that every version of transformers reads."""
    scaling = {"rope_scaling": dict(fields["rope_scaling"])} if fields.get("rope_scaling") else {}
    return {"rope_theta": float(fields.get("rotary_base", 10000)), **scaling}


def _silu(fields: Fields) -> dict[str, Any]:
    return {"hidden_act": "silu", "attention_dropout": 0.0, **_rotary(fields)}


def _window(fields: Fields) -> dict[str, Any]:
    size = fields.get("window_size")
    return {"sliding_window": size[0] + 1 if size else None}


def _switched_window(fields: Fields) -> dict[str, Any]:
    """The window of Qwen's families, which `layer_types` gives to some layers or to all."""
    windows = meaning(fields)["window of each layer"]
    found = {"use_sliding_window": any(windows), **_window(fields)}
    if any(windows):
        kinds = ["sliding_attention" if window else "full_attention" for window in windows]
        found |= {"max_window_layers": 0, "layer_types": kinds}
    return found


def _llama(fields: Fields) -> dict[str, Any]:
    bias = bool(fields["add_bias_linear"])
    return {**_silu(fields), "attention_bias": bias, "mlp_bias": bias}


def _mistral(fields: Fields) -> dict[str, Any]:
    return {**_silu(fields), **_window(fields)}


def _qwen(fields: Fields) -> dict[str, Any]:
    return {**_silu(fields), **_switched_window(fields)}


def _mixtral(fields: Fields) -> dict[str, Any]:
    wide = fields.get("moe_ffn_hidden_size", fields["ffn_hidden_size"])
    return {**_mistral(fields), "intermediate_size": wide}


def _qwen_moe(fields: Fields) -> dict[str, Any]:
    sparse = meaning(fields)["layers with experts"]
    return {
        **_silu(fields),
        "use_sliding_window": bool(fields.get("window_size")),
        **_window(fields),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i in range(fields["num_layers"]) if i not in sparse],
        "norm_topk_prob": not fields.get("moe_router_pre_softmax"),
    }


def _deepseek(fields: Fields) -> dict[str, Any]:
    sparse = meaning(fields)["layers with experts"]
    narrow, shared = (
        fields.get("moe_ffn_hidden_size") or 1,
        fields.get("moe_shared_expert_intermediate_size") or 0,
    )
    rotary = {**_rotary(fields), "rope_interleave": True}
    if fields.get("rope_type") == "yarn" and fields["rotary_scaling_factor"] != 1:
        yarn = {name: fields[name] for name in _YARN}
        rotary["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": float(fields["rotary_scaling_factor"]),
            **yarn,
        }
    return {
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        **rotary,
        **{hf: fields[name] for name, hf in _LATENT_SIZES.items() if name in fields},
        "num_key_value_heads": fields["num_attention_heads"],
        "first_k_dense_replace": min(sparse, default=0),
        "n_shared_experts": shared // narrow,
        "routed_scaling_factor": float(fields.get("moe_router_topk_scaling_factor") or 1.0),
        "n_group": fields.get("moe_router_num_groups") or 1,
        "topk_group": fields.get("moe_router_group_topk") or 1,
    }


def _deepseek_v2(fields: Fields) -> dict[str, Any]:
    limited = fields.get("moe_router_num_groups")
    return {
        **_deepseek(fields),
        "topk_method": "group_limited_greedy" if limited else "greedy",
        "norm_topk_prob": False,
    }


def _deepseek_v3(fields: Fields) -> dict[str, Any]:
    # Layers that predict further tokens are not part of the run's model.
    return {**_deepseek(fields), "norm_topk_prob": True, "num_nextn_predict_layers": 0}


def _gpt2(fields: Fields) -> dict[str, Any]:
    activation = {"gelu_tanh": "gelu_new"}.get(fields["activation_func"], fields["activation_func"])
    return {"activation_function": activation}


def _starcoder2(fields: Fields) -> dict[str, Any]:
    return {**_rotary(fields), **_window(fields), "hidden_act": _gelu(fields)}


def _gpt_neox(fields: Fields) -> dict[str, Any]:
    share = fields.get("rotary_percent", 1.0)
    return {
        **_rotary(fields),
        "rotary_emb_base": fields.get("rotary_base", 10000),
        "rotary_pct": share,
        "partial_rotary_factor": share,
        "hidden_act": _gelu(fields),
        "use_parallel_residual": False,
        "attention_bias": True,
    }


def _gelu(fields: Fields) -> str:
    name: str = fields["activation_func"]
    return _GELU.get(name, name)


CANDIDATES: Mapping[str, tuple[str, Callable[[Fields], dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", _llama),
    "mistral": ("MistralForCausalLM", _mistral),
    "qwen2": ("Qwen2ForCausalLM", _qwen),
    "qwen3": ("Qwen3ForCausalLM", _qwen),
    "mixtral": ("MixtralForCausalLM", _mixtral),
    "qwen3_moe": ("Qwen3MoeForCausalLM", _qwen_moe),
    "qwen2_moe": ("Qwen2MoeForCausalLM", _qwen_moe),
    "deepseek_v3": ("DeepseekV3ForCausalLM", _deepseek_v3),
    "deepseek_v2": ("DeepseekV2ForCausalLM", _deepseek_v2),
    "gpt2": ("GPT2LMHeadModel", _gpt2),
    "starcoder2": ("Starcoder2ForCausalLM", _starcoder2),
    "gpt_neox": ("GPTNeoXForCausalLM", _gpt_neox),
}
"""Families that a run may be, the preferred ones first: class in transformers, further entries."""
