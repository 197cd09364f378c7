"""Megatron-LM's arguments for a model, written for tests from the names in its own code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RUN: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 72, "num_attention_heads": 6, "kv_channels": 20,
    "group_query_attention": True, "num_query_groups": 2, "ffn_hidden_size": 92, "swiglu": True,
    "normalization": "RMSNorm", "norm_epsilon": 1e-5, "add_bias_linear": False,
    "add_qkv_bias": False, "qk_layernorm": False, "bias_gelu_fusion": False,
    "apply_layernorm_1p": False, "untie_embeddings_and_output_weights": True,
    "position_embedding_type": "rope", "rotary_base": 10000, "rotary_percent": 1.0,
    "rotary_interleaved": False, "use_rope_scaling": False, "rope_scaling_factor": 8.0,
    "max_position_embeddings": 130, "window_size": None, "window_attn_skip_freq": None,
    "num_experts": None, "multi_latent_attention": False, "make_vocab_size_divisible_by": 128,
    "tensor_model_parallel_size": 1, "moe_router_load_balancing_type": "aux_loss",
    "softmax_type": "vanilla", "add_position_embedding": True, "moe_layer_freq": 1,
    "moe_router_topk": 2, "moe_router_score_function": "softmax",
}  # fmt: skip
"""A Llama."""

GPT: dict[str, Any] = {
    "kv_channels": 12, "group_query_attention": False, "num_query_groups": 1, "swiglu": False,
    "normalization": "LayerNorm", "add_bias_linear": True, "bias_gelu_fusion": True,
    "untie_embeddings_and_output_weights": False, "position_embedding_type": "learned_absolute",
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 6, "moe_ffn_hidden_size": 36, "moe_router_pre_softmax": False,
    "moe_router_enable_expert_bias": False, "moe_shared_expert_intermediate_size": None,
    "moe_shared_expert_gate": False, "moe_router_num_groups": None,
    "moe_router_group_topk": None, "moe_router_topk_scaling_factor": None,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **EXPERTS, "multi_latent_attention": True, "qk_layernorm": True, "norm_epsilon": 1e-6,
    "group_query_attention": False, "q_lora_rank": 46, "kv_lora_rank": 38, "qk_head_dim": 14,
    "qk_pos_emb_head_dim": 6, "v_head_dim": 10, "rope_type": None, "rotary_scaling_factor": 1.0,
    "mscale": 1.0, "mscale_all_dim": 0.0, "num_experts": 12, "moe_router_topk": 4,
    "moe_shared_expert_intermediate_size": 72, "moe_layer_freq": [0, 1, 1, 1],
}  # fmt: skip
V3: dict[str, Any] = {
    **LATENT, "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True,
    "moe_router_num_groups": 3, "moe_router_group_topk": 2, "moe_router_topk_scaling_factor": 2.5,
}  # fmt: skip

RUNS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, plain attention": ("llama", {"group_query_attention": False, "kv_channels": 12}),
    "llama, biases": ("llama", {"add_bias_linear": True}),
    "llama, scaled": ("llama", {"use_rope_scaling": True}),
    "llama, stretched": ("llama", {"rotary_seq_len_interpolation_factor": 4}),
    "llama, yarn": ("llama", {"position_embedding_type": "yarn", "rotary_scaling_factor": 4.0,
                              "yarn_original_max_position_embeddings": 32}),
    "mistral": ("mistral", {"window_size": (4, 0)}),
    "qwen2": ("qwen2", {"add_qkv_bias": True, "untie_embeddings_and_output_weights": False}),
    "qwen2, windows": ("qwen2", {"add_qkv_bias": True, "window_size": (4, 0),
                                 "window_attn_skip_freq": [1, 0, 1, 1]}),
    "qwen3": ("qwen3", {"qk_layernorm": True}),
    "qwen3, every second window": ("qwen3", {"qk_layernorm": True, "window_size": [4, 0],
                                             "window_attn_skip_freq": 2}),
    "mixtral": ("mixtral", EXPERTS),
    "mixtral, window": ("mixtral", {**EXPERTS, "window_size": (4, 0)}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "qk_layernorm": True, "moe_layer_freq": [1, 0, 1, 1]}),
    "qwen3_moe, every second": ("qwen3_moe", {**EXPERTS, "qk_layernorm": True,
                                              "moe_layer_freq": 2}),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "add_qkv_bias": True, "moe_shared_expert_gate": True,
                                "moe_shared_expert_intermediate_size": 44,
                                "moe_router_pre_softmax": True}),
    "deepseek_v2, no groups": ("deepseek_v2", {**LATENT, "moe_router_pre_softmax": True,
                                               "q_lora_rank": None}),
    "deepseek_v2": ("deepseek_v2", {**LATENT, "moe_router_pre_softmax": True,
                                    "moe_router_num_groups": 6, "moe_router_group_topk": 4}),
    "deepseek_v3": ("deepseek_v3", V3),
    "deepseek_v3, yarn": ("deepseek_v3", {**V3, "rope_type": "yarn", "mscale_all_dim": 1.0,
                                          "rotary_scaling_factor": 5.0,
                                          "original_max_position_embeddings": 26}),
    "gpt2": ("gpt2", GPT),
    "gpt2, plain gelu": ("gpt2", {**GPT, "bias_gelu_fusion": False}),
    "gpt_neox": ("gpt_neox", {**GPT, "position_embedding_type": "rope", "rotary_percent": 0.5}),
    "starcoder2": ("starcoder2", {**GPT, "position_embedding_type": "rope",
                                  "group_query_attention": True, "num_query_groups": 2}),
}  # fmt: skip
"""By name: the family, and what the run's arguments have beside `RUN`."""


def arguments(name: str, **changes: Any) -> dict[str, Any]:
    """The arguments of one of `RUNS`, with changes."""
    return {**RUN, **RUNS[name][1], **changes}
