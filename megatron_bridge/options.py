"""What a family may ask for beyond Megatron-Core's own fields.

Families name these options beside Megatron's fields; `worker/modules.py` and `worker/hooks.py` hold
what they stand for. The file is light: families are read without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class Options:
    """The options of one model; the defaults are Megatron-Core's own ways."""

    layer: Literal["sequential", "parallel", "sandwich"] = "sequential"
    """Parallel: `x + attention(norm x) + mlp(norm x)`. Sandwich: attention and MLP outputs are
    normalised once more before they are added."""
    shared_norm: bool = False
    """A parallel layer's MLP reads the attention's norm and has none of its own."""
    norm: Literal["affine", "no bias", "plain"] = "affine"
    """LayerNorm with weight and bias, with a weight only, or with neither."""
    attention_output_bias: bool = False
    """A bias on the attention's output where the MLP has none."""
    own_attention: bool = False
    """Attention computed by our own module; the options below need it, and so does MLA where
    Transformer Engine is missing."""
    alibi: Literal["float32", "bfloat16, scaled"] | None = None
    """Linear position biases: BLOOM's, or Falcon's (rounded to bfloat16, then scaled as scores)."""
    attention_softcap: float | None = None
    """Scores pass `cap * tanh(score / cap)`."""
    output_softcap: float | None = None
    """Logits pass `cap * tanh(logit / cap)`."""
    output_scale: float | None = None
    """Logits are multiplied by this."""
    normalized_output: bool = False
    """Rows of the output layer are normalised to length 1 in every forward pass."""
    embedding_norm: bool = False
    """A norm on the word embeddings."""
    embedding_scale: float | None = None
    """Word embeddings are multiplied by this, rounded to their number format."""
    position_offset: int = 0
    """Added to every position before the table of learned positions is looked up."""
    group_score: Literal["sum", "max"] = "sum"
    """How a router scores a group of experts: by the sum of its best, or by its best one."""
    rope_scaling: Mapping[str, Any] | None = None
    """Rotary scaling as in `config.json` (`rope_type`, `factor`, …); see `worker/rope.py`."""
    window_rotary_base: float | None = None
    """Rotary base of the layers with a window, where it is not the others'."""

    @property
    def needs_own_attention(self) -> bool:
        """True where Megatron's attention cannot do what the options say."""
        return self.own_attention or bool(self.alibi or self.attention_softcap)

    @property
    def why_local(self) -> str | None:
        """What keeps a model with these options from Transformer Engine's layer spec, or None."""
        reasons = {
            "its attention is our own module (ALiBi or soft cap)": self.needs_own_attention,
            "attention and MLP share a norm, which the engine fuses into one linear layer":
                self.shared_norm,
            "its norms lack a weight or a bias, which the engine's have": self.norm != "affine",
            "the attention's output has a bias where the MLP has none":
                self.attention_output_bias,
        }  # fmt: skip
        return next((reason for reason, holds in reasons.items() if holds), None)


NAMES = frozenset(option.name for option in fields(Options))

# Names of norms on Megatron's local layer spec, and in a checkpoint: Transformer Engine's, which
# makes each a part of the linear layer behind it.
ATTENTION_NORM = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
MLP_NORM = {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
LATENT_NORMS = {
    "self_attention.q_layernorm.": "self_attention.linear_q_up_proj.layer_norm_",
    "self_attention.kv_layernorm.": "self_attention.linear_kv_up_proj.layer_norm_",
}
