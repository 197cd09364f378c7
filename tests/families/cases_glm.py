"""GLM, and the families of remote code: ChatGLM, Qwen 1 and Baichuan.

The reference of a family of remote code is transformers' class of the same network, whose weights
are renamed and joined here by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from cases_llama import NAIVE, SWAPPED, toy
from family_cases import Case, Control, Tensors, relayout, swap_names
from torch import Tensor, nn

from megatron_bridge.layouts import AS_IS, FUSED_QKV

NOT_GROUPED = Control(rows=relayout(FUSED_QKV, AS_IS))
HALF_ROTARY = {
    "halves rotated, not pairs": Control(fields={"rotary_interleaved": False}),
    "all of each head rotated": Control(fields={"rotary_percent": 1.0}),
}

CHATGLM_NAMES = {
    "model.embed_tokens": "transformer.embedding.word_embeddings",
    "model.norm": "transformer.encoder.final_layernorm",
    "lm_head": "transformer.output_layer",
    "model.layers": "transformer.encoder.layers",
    "self_attn.o_proj": "self_attention.dense",
    "mlp.gate_up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}
QWEN_NAMES = {
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
    "model.layers": "transformer.h",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.gate_proj": "mlp.w2",
    "mlp.up_proj": "mlp.w1",
    "mlp.down_proj": "mlp.c_proj",
    "post_attention_layernorm": "ln_2",
    "input_layernorm": "ln_1",
}


def renamed(tensors: Tensors, names: Mapping[str, str], fused: str) -> Tensors:
    """Native tensors under other names, query, key and value joined row by row as `fused`."""
    out = {}
    for name, tensor in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            tensor = torch.cat([tensors[name.replace("q_proj", f"{x}_proj")] for x in "qkv"])
            name = name.replace("self_attn.q_proj", fused)
        for old, new in names.items():
            name = name.replace(old, new)
        out[name] = tensor
    return out


def built(native: Any) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_config(native, attn_implementation="eager")


def as_glm(config: Mapping[str, Any]) -> Any:
    import transformers

    return built(
        transformers.GlmConfig(
            vocab_size=config["padded_vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["ffn_hidden_size"],
            num_hidden_layers=config["num_layers"],
            num_attention_heads=config["num_attention_heads"],
            num_key_value_heads=config["multi_query_group_num"],
            head_dim=config["kv_channels"],
            rms_norm_eps=config["layernorm_epsilon"],
            attention_bias=True,
            pad_token_id=None,  # transformers' embedding has no gradient at it, ChatGLM's has
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0 * config["rope_ratio"],
                "partial_rotary_factor": 0.5,
            },
        )
    )


def as_qwen2(config: Mapping[str, Any]) -> Any:
    import transformers

    return built(
        transformers.Qwen2Config(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"] // 2,
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=config["num_attention_heads"],
            num_key_value_heads=config["num_attention_heads"],
            rms_norm_eps=config["layer_norm_epsilon"],
        )
    )


def as_llama(config: Mapping[str, Any]) -> Any:
    import transformers

    own = ("model_type", "model_max_length", "z_loss_weight")
    return built(transformers.LlamaConfig(**{k: v for k, v in config.items() if k not in own}))


def with_normalized_head(config: Mapping[str, Any]) -> Any:
    """Llama whose output layer's rows have length 1 in every forward pass."""
    model = as_llama(config)
    head = model.lm_head
    head.forward = lambda x: nn.functional.linear(x, nn.functional.normalize(head.weight))
    return model


def without_rotary(config: Mapping[str, Any]) -> Any:
    make = with_normalized_head if "z_loss_weight" in config else as_llama
    model = make(config)
    model.model.rotary_emb.inv_freq.zero_()
    return model


def with_alibi(model: Any, ids: Tensor) -> Tensor:
    """Logits with linear position biases, added to the scores through the attention mask."""
    heads, length = model.config.num_attention_heads, ids.shape[1]
    # https://arxiv.org/abs/2108.12409 for 4 heads, then every other slope for 8.
    slopes = torch.tensor([0.25**i for i in range(1, 5)] + [0.5**i for i in (1, 3)])
    assert len(slopes) == heads
    distance = torch.arange(length) - torch.arange(length)[:, None]
    biases = (slopes[:, None, None] * distance).masked_fill(
        distance > 0, torch.finfo(torch.float32).min
    )
    logits: Tensor = model(ids, attention_mask=biases.expand(len(ids), -1, -1, -1)).logits
    return logits


SEVEN = toy("baichuan")
THIRTEEN = {k: v for k, v in SEVEN.items() if k != "max_position_embeddings"}
THIRTEEN["model_max_length"] = 130


def baichuan_names(tensors: Tensors, config: Any) -> Tensors:
    return renamed(tensors, {}, "self_attn.W_pack")


CASES = [
    Case("glm", toy("glm"), {"qkv not grouped": NAIVE, **HALF_ROTARY}),
    Case("glm4", toy("glm4"), {
        "norms after attention and MLP swapped": Control(
            rows=swap_names("post_self_attn_layernorm", "post_mlp_layernorm")),
        "norms before and after the MLP swapped": Control(
            rows=swap_names("post_attention_layernorm", "post_mlp_layernorm")),
        **HALF_ROTARY,
    }),
    Case("chatglm", toy("chatglm"), {
        "qkv not grouped": NOT_GROUPED,
        "rope_ratio left out": Control(fields={"rotary_base": 10000.0}),
        **HALF_ROTARY,
    }, native=as_glm,
       rename=lambda t, config: renamed(t, CHATGLM_NAMES, "self_attention.query_key_value"),
       note="against transformers' Glm"),
    Case("qwen", toy("qwen"), {
        "w1 for the gate": SWAPPED,
        "qkv not grouped": NOT_GROUPED,
    }, native=as_qwen2, rename=lambda t, config: renamed(t, QWEN_NAMES, "attn.c_attn"),
       note="against transformers' Qwen2"),
    Case("baichuan, 7B", SEVEN, {
        "qkv not grouped": NOT_GROUPED,
        "gate and up swapped": SWAPPED,
    }, native=as_llama, rename=baichuan_names, note="against transformers' Llama"),
    Case("baichuan2, 7B", {**SEVEN, "z_loss_weight": 0}, {
        "output layer not normalised": Control(fields={"normalized_output": False}),
    }, native=with_normalized_head, rename=baichuan_names,
       note="against transformers' Llama with a normalised output layer"),
    Case("baichuan, 13B", THIRTEEN, {
        "no ALiBi": Control(fields={"alibi": None}),
        "Falcon's ALiBi": Control(fields={"alibi": "bfloat16, scaled"}),
    }, native=without_rotary, rename=baichuan_names, logits=with_alibi,
       note="against transformers' Llama with ALiBi in its mask and no rotary"),
    Case("baichuan2, 13B", {**THIRTEEN, "z_loss_weight": 0}, {
        "output layer not normalised": Control(fields={"normalized_output": False}),
        "no ALiBi": Control(fields={"alibi": None}),
    }, native=without_rotary, rename=baichuan_names, logits=with_alibi,
       note="against the same with a normalised output layer"),
]  # fmt: skip
