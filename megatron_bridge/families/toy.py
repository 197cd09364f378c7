"""Sizes of the toy models: nothing a power of two, odd ratios, a vocabulary that nothing divides.

Parity at round sizes can be an accident: with heads of 16, for one, the softmax scale is exactly
1/4, and two different orders of the same products agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIZES: Mapping[str, Any] = {
    "hidden_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "vocab_size": 331,
    "max_position_embeddings": 130,
    "bos_token_id": None,
    "eos_token_id": 330,
    "pad_token_id": None,
}

TOY: Mapping[str, Any] = {
    **SIZES,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "intermediate_size": 92,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

EXPERTS: Mapping[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 36,
}
