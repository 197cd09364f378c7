"""GGUF files written with gguf's own writer, from tensors in Hugging Face's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

Tensors = dict[str, torch.Tensor]
NAMES = {
    r"model\.layers\.(\d+)\.": r"blk.\1.",
    r"model\.embed_tokens": "token_embd",
    r"model\.norm": "output_norm",
    r"lm_head": "output",
    r"self_attn\.([qkv])_proj": r"attn_\1",
    r"self_attn\.o_proj": "attn_output",
    r"self_attn\.([qk])_norm": r"attn_\1_norm",
    r"input_layernorm": "attn_norm",
    r"post_attention_layernorm": "ffn_norm",
    r"mlp\.(gate|up|down)_proj": r"ffn_\1",
    r"mlp\.shared_expert\.(gate|up|down)_proj": r"ffn_\1_shexp",
    r"mlp\.shared_expert_gate": "ffn_gate_inp_shexp",
    r"(mlp|block_sparse_moe)\.gate\.": "ffn_gate_inp.",
    r"mlp\.experts\.(\d+)\.(gate|up|down)_proj": r"ffn_\2_exps@\1",
    r"block_sparse_moe\.experts\.(\d+)\.w1": r"ffn_gate_exps@\1",
    r"block_sparse_moe\.experts\.(\d+)\.w3": r"ffn_up_exps@\1",
    r"block_sparse_moe\.experts\.(\d+)\.w2": r"ffn_down_exps@\1",
}
FORMATS = {"attn_q": Type.Q4_1, "attn_k": Type.BF16, "attn_v": Type.Q5_0, "attn_output": Type.F16,
           "ffn_down": Type.Q8_0, "ffn_up_exps": Type.Q4_0}  # fmt: skip
TOKENS = [*"abcdefgh", "ab", "abc", "<s>", "</s>"]


def pairs(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """llama.cpp stores q and k for interleaved rotary (convert_hf_to_gguf.py, `permute`)."""
    heads = weight.shape[0] // head_dim
    split = weight.reshape(heads, 2, head_dim // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def halves(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """The reverse, row by row."""
    order = [
        head * head_dim + 2 * (row % (head_dim // 2)) + row // (head_dim // 2)
        for head in range(weight.shape[0] // head_dim)
        for row in range(head_dim)
    ]
    return weight[order]


def write(
    path: Path,
    tensors: Tensors,
    config: Mapping[str, Any],
    architecture: str,
    more: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Tensors:
    """Write a model; return what its tensors mean then, in Hugging Face's names."""
    writer = gguf.GGUFWriter(path, architecture)
    _facts(writer, config)
    more(writer)
    stacks: dict[str, dict[int, str]] = {}
    for name in tensors:
        own = name
        for ours, theirs in NAMES.items():
            own = re.sub(ours, theirs, own)
        own, _, expert = own.removesuffix(".weight").partition("@")
        suffix = "" if own.endswith(".bias") else ".weight"
        stacks.setdefault(own + suffix, {})[int(expert or 0)] = name
    meant: Tensors = {}
    for own, parts in stacks.items():
        values = np.stack([tensors[parts[i]].float().numpy() for i in range(len(parts))])
        permuted = architecture == "llama" and re.search(r"attn_[qk]\.", own)
        if permuted:
            values = pairs(values[0], config["head_dim"])[None]
        kind = next((k for n, k in FORMATS.items() if n in own and values[0].ndim > 1), Type.F32)
        data = values.astype(np.float32)
        raw = data if kind == Type.F32 else gguf.quants.quantize(data, kind)
        if kind == Type.F16:
            raw = data.astype(np.float16)
        whole = data if kind == Type.F32 else gguf.quants.dequantize(raw, kind)
        for number, name in parts.items():
            one = halves(whole[number], config["head_dim"]) if permuted else whole[number]
            meant[name] = torch.from_numpy(np.ascontiguousarray(one))
        if "_exps" not in own:
            raw = raw[0]
        if own.endswith("ffn_gate_inp_shexp.weight"):
            raw = raw[0]
        writer.add_tensor(own, np.ascontiguousarray(raw), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def _facts(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_name("a toy")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token.startswith("<") else 1 for token in TOKENS])
    writer.add_token_merges(["a b", "ab c"])
    writer.add_eos_token_id(11)
