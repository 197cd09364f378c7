"""`config.json` and `generation_config.json` of a model from the facts of its GGUF file.

A fact of the architecture that is not known here is refused: it may change what the model computes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from megatron_bridge.errors import InputError
from megatron_bridge.sources.gguf_header import damaged
from megatron_bridge.sources.ranges import Ranges

Facts = Mapping[str, Any]
Kinds = Mapping[str, tuple[str, tuple[int, ...]]]
"""Format and shape of each tensor by its GGUF name."""

ROPE_FACTORS = "rope_freqs.weight"
MOST_FACTORS = 4096
LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What every Llama since 3.1 has; the file holds what follows from it, and not these."""
_ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen2moe": ("qwen2_moe", "Qwen2MoeForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
}
_MIXTRAL = ("mixtral", "MixtralForCausalLM")
"""Mistral's models are of architecture llama, its mixtures too."""
_KNOWN = {
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "vocab_size",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
}
_MOST_TENSORS = 10**6
_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_IDS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""A token's role for Hugging Face, and in the file."""


def architecture_of(model_type: str) -> str:
    """Return the GGUF architecture of a `model_type`."""
    names = {kind: name for name, (kind, _) in _ARCHITECTURES.items()} | {_MIXTRAL[0]: "llama"}
    return names[model_type]


def make(file: Ranges, facts: Facts, kinds: Kinds, factors: Sequence[float]) -> dict[str, Any]:
    """Return the contents of `config.json`.

    Args:
        file: for errors.
        facts: of the file.
        kinds: of its tensors.
        factors: of rotary wavelengths, [head dimension / 2]; none in most files.

    Raises:
        InputError: another architecture, a fact that is not known, or one that cannot be.
    """
    read = _Facts(file, facts)
    model_type, name = _architecture(read)
    hidden, heads = read.count("embedding_length"), read.count("attention.head_count")
    head_dim = read.count("attention.key_length", hidden // heads)
    if head_dim % 2:
        raise damaged(file, f"heads of {head_dim}, which has no half for rotary positions")
    read.same("attention.value_length", head_dim)
    read.same("rope.dimension_count", head_dim)
    layers = read.count("block_count")
    if layers * read.count("expert_count", 0, least=0) > _MOST_TENSORS or layers > len(kinds):
        raise damaged(file, f"{layers} layers, and {len(kinds)} tensors")
    embedding = kinds.get("token_embd.weight")
    if embedding is None or embedding[1][1:] != (hidden,):
        raise damaged(file, f"no token_embd.weight with rows of {hidden}")
    config = {
        "architectures": [name],
        "model_type": model_type,
        "dtype": _dtype(kinds),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "head_dim": head_dim,
        "intermediate_size": read.count("feed_forward_length", 0, least=0),
        "max_position_embeddings": read.count("context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": read.count("attention.head_count_kv", heads),
        "rms_norm_eps": read.real("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in kinds,
        "vocab_size": embedding[1][0],
        **_rope(read, factors, head_dim),
        **_switches(read, model_type, kinds),
        **ids(facts),
    }
    return dict(sorted(config.items()))


def ids(facts: Facts) -> dict[str, int]:
    """Return the ids of tokens with a role, as `config.json` names them."""
    found = {
        f"{role}_token_id": facts.get(f"tokenizer.ggml.{name}_token_id")
        for role, name in _IDS.items()
    }
    return {name: value for name, value in found.items() if type(value) is int}


def generation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of `generation_config.json`."""
    named = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {"_from_model_config": True, **{k: config[k] for k in named if k in config}}


class _Facts:
    """The facts of one architecture, checked when they are asked for."""

    def __init__(self, file: Ranges, facts: Facts) -> None:
        self.file, self._facts = file, facts
        self.architecture = facts.get("general.architecture")

    def get(self, name: str, default: Any = None) -> Any:
        return self._facts.get(f"{self.architecture}.{name}", default)

    def unknown(self) -> list[str]:
        begin = f"{self.architecture}."
        own = [name.removeprefix(begin) for name in self._facts if name.startswith(begin)]
        return [name for name in own if name not in _KNOWN]

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or value is True or not least <= value < 2**31:
            raise damaged(self.file, f"{self.architecture}.{name} {value!r}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if not isinstance(value, float) or not 1e-30 < value < 1e30:
            raise damaged(self.file, f"{self.architecture}.{name} {value!r}")
        return _shortest(value)

    def same(self, name: str, expected: int) -> None:
        if self.count(name, expected) != expected:
            raise self.refused(name, str(expected), self.get(name))

    def refused(self, name: str, expected: str, got: object) -> InputError:
        return InputError(
            "A fact of the GGUF file cannot be carried over",
            where=f"{self.file.name}, {self.architecture}.{name}",
            expected=expected,
            got=got,
            fix="convert the model's Hugging Face folder",
        )


def _architecture(read: _Facts) -> tuple[str, str]:
    if read.architecture not in _ARCHITECTURES:
        raise InputError(
            "The GGUF file's architecture is not supported",
            where=f"{read.file.name}, general.architecture",
            expected=", ".join(_ARCHITECTURES),
            got=repr(read.architecture),
            fix="convert the model's Hugging Face folder",
        )
    if unknown := read.unknown():
        name = unknown[0]
        raise read.refused(name, "facts that are known here", repr(read.get(name))[:80])
    is_mixture = read.architecture == "llama" and read.get("expert_count", 0)
    return _MIXTRAL if is_mixture else _ARCHITECTURES[read.architecture]


def _switches(read: _Facts, model_type: str, kinds: Kinds) -> dict[str, Any]:
    """What only some families' `config.json` has; routing as llama.cpp's graphs do it."""
    if model_type == "llama":
        return {
            "attention_bias": "blk.0.attn_q.bias" in kinds,
            "mlp_bias": "blk.0.ffn_gate.bias" in kinds,
        }
    chosen: dict[str, Any] = {}
    if model_type in ("mixtral", "qwen2_moe", "qwen3_moe"):
        experts = "num_local_experts" if model_type == "mixtral" else "num_experts"
        chosen = {
            experts: read.count("expert_count"),
            "num_experts_per_tok": read.count("expert_used_count"),
        }
    if model_type == "mixtral":
        return {**chosen, "sliding_window": None}
    switches = {**chosen, "use_sliding_window": False}
    if model_type in ("qwen3", "qwen3_moe"):
        switches["attention_bias"] = False
    if chosen:
        switches |= {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": read.count("expert_feed_forward_length"),
            "norm_topk_prob": model_type == "qwen3_moe",
        }
    if model_type == "qwen2_moe":
        shared = "expert_shared_feed_forward_length"
        switches["shared_expert_intermediate_size"] = read.count(shared)
    return switches


def _rope(read: _Facts, factors: Sequence[float], head_dim: int) -> dict[str, Any]:
    """Rotary positions, in the words of transformers 5, and of 4 which knows no others."""
    theta = read.real("rope.freq_base", 10000.0)
    kind = read.get("rope.scaling.type", "none")
    scaling: dict[str, Any] = {}
    if factors:
        scaling = _llama3(read, factors, head_dim, theta)
    elif kind in ("linear", "yarn"):
        scaling = {"rope_type": kind, "factor": read.real("rope.scaling.factor")}
        if kind == "yarn":
            length = read.count("rope.scaling.original_context_length")
            scaling["original_max_position_embeddings"] = length
    elif kind != "none":
        raise read.refused("rope.scaling.type", "none, linear or yarn", repr(kind))
    return {
        "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": theta},
        "rope_theta": theta,
        "rope_scaling": scaling or None,
    }


def _llama3(read: _Facts, factors: Sequence[float], head_dim: int, theta: float) -> dict[str, Any]:
    factor = _shortest(max(factors))
    low, high, length = LLAMA3_ROPE.values()
    expected = []
    for pair in range(head_dim // 2 if 1 <= factor < 1e6 else 0):
        turns = length * theta ** (-2 * pair / head_dim) / (2 * math.pi)
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        expected.append(1 / ((1 - smooth) / factor + smooth))
    if len(factors) != len(expected) or not all(
        math.isclose(a, b, rel_tol=1e-5) for a, b in zip(factors, expected, strict=True)
    ):
        raise InputError(
            "The rotary factors of the GGUF file are not Llama 3's",
            where=f"{read.file.name}, {ROPE_FACTORS}",
            expected=f"what follows from {LLAMA3_ROPE} and factor {factor}",
            got=f"{len(factors)} numbers, such as {list(factors[:4])}",
            fix="convert the model's Hugging Face folder",
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3_ROPE}


def _dtype(kinds: Kinds) -> str:
    """The number format of most weights; what is quantised becomes float32."""
    amounts: dict[str, int] = {}
    for name, shape in kinds.values():
        dtype = _PLAIN.get(name, "float32")
        amounts[dtype] = amounts.get(dtype, 0) + math.prod(shape)
    return max(amounts, key=lambda dtype: amounts[dtype])


def _shortest(value: float) -> float:
    """The shortest number that is the same in float32: 9.999999747378752e-06 is 1e-05."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return value
