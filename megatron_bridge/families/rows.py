"""Rows and fields that several families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.layouts import AS_IS, GROUPED_QKV, STACKED, TRANSPOSED, VOCAB, Layout
from megatron_bridge.mapping import Config, Field, Row

M = "decoder.layers.{layer}."
EXPERT = M + "mlp.experts.experts.{expert}."
ATTENTION_NORM = M + "self_attention.linear_qkv.layer_norm_"
MLP_NORM = M + "mlp.linear_fc1.layer_norm_"
EXPERTS_NORM = M + "pre_mlp_layernorm."
FINAL_NORM = "decoder.final_layernorm."
QKV = M + "self_attention.linear_qkv"
PROJ = M + "self_attention.linear_proj"
FC1, FC2 = M + "mlp.linear_fc1", M + "mlp.linear_fc2"
POSITIONS = "embedding.position_embeddings"

POSITIONS_SIZES = ("positions", "hidden")
QKV_SIZES, PROJ_SIZES = ("heads and KV heads", "hidden"), ("hidden", "heads")
FC1_SIZES, GATED_SIZES, FC2_SIZES = ("ffn", "hidden"), ("gate and up", "hidden"), ("hidden", "ffn")

H = "model.layers.{layer}."
"""Where most families keep a layer's tensors."""


def norm(
    mcore: str,
    hf: str,
    *,
    bias: bool = False,
    size: str = "hidden",
    layers: str | None = None,
    needs: str | None = None,
) -> tuple[Row, ...]:
    """Rows of a norm: weight, and bias on demand. `mcore` ends before "weight"."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return tuple(
        Row(mcore + kind, (f"{hf}.{kind}",), sizes=(size,), layers=layers, needs=needs)
        for kind in kinds
    )


def linear(
    mcore: str,
    hf: str | Iterable[str],
    layout: Layout = AS_IS,
    *,
    sizes: tuple[str, str],
    bias: bool | str = False,
    layers: str | None = None,
    needs: str | None = None,
) -> tuple[Row, ...]:
    """Rows of a linear layer: weight, and bias always (True) or with a part of that name."""
    names = (hf,) if isinstance(hf, str) else tuple(hf)
    weights = tuple(f"{name}.weight" for name in names)
    rows: tuple[Row, ...] = (
        Row(f"{mcore}.weight", weights, layout, sizes=sizes, layers=layers, needs=needs),
    )
    if bias:
        biases = tuple(f"{name}.bias" for name in names)
        part = bias if isinstance(bias, str) else needs
        flat = AS_IS if layout is TRANSPOSED else layout
        rows += (Row(f"{mcore}.bias", biases, flat, sizes=sizes[:1], layers=layers, needs=part),)
    return rows


def embeddings(
    words: str = "model.embed_tokens", final: str = "model.norm", output: str = "lm_head",
    *, bias: bool = False,
) -> tuple[Row, ...]:  # fmt: skip
    """Rows of word embeddings, final norm and, where it is not tied, the output layer."""
    vocabulary = ("vocabulary", "hidden")
    return (
        *linear("embedding.word_embeddings", words, VOCAB, sizes=vocabulary),
        *norm(FINAL_NORM, final, bias=bias),
        *linear("output_layer", output, VOCAB, sizes=vocabulary, needs="untied"),
    )


def attention(
    *, qkv_bias: bool | str = False, output_bias: bool | str = False, output: str = "o_proj"
) -> tuple[Row, ...]:
    """Rows of query, key, value and output, in most families' names."""
    qkv = [H + f"self_attn.{x}_proj" for x in "qkv"]
    return (
        *linear(QKV, qkv, GROUPED_QKV, sizes=QKV_SIZES, bias=qkv_bias),
        *linear(PROJ, H + f"self_attn.{output}", sizes=PROJ_SIZES, bias=output_bias),
    )


def fused_linears(layer: str, attention: str, *, bias: bool | str) -> tuple[Row, ...]:
    """Rows of a plain layer in the names of the first Megatron-LM, query, key and value grouped."""
    attention, mlp = layer + attention, layer + "mlp."
    return (
        *linear(QKV, f"{attention}.query_key_value", sizes=QKV_SIZES, bias=bias),
        *linear(PROJ, f"{attention}.dense", sizes=PROJ_SIZES, bias=bias),
        *linear(FC1, mlp + "dense_h_to_4h", sizes=FC1_SIZES, bias=bias),
        *linear(FC2, mlp + "dense_4h_to_h", sizes=FC2_SIZES, bias=bias),
    )


def swiglu(*, bias: bool | str = False, layers: str | None = None) -> tuple[Row, ...]:
    """Rows of a gated MLP in most families' names."""
    both = (H + "mlp.gate_proj", H + "mlp.up_proj")
    return (
        *linear(FC1, both, STACKED, sizes=GATED_SIZES, bias=bias, layers=layers),
        *linear(FC2, H + "mlp.down_proj", sizes=FC2_SIZES, bias=bias, layers=layers),
    )


def experts(
    router: str = H + "mlp.gate",
    expert: str = H + "mlp.experts.{expert}.",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    *,
    layers: str | None = None,
) -> tuple[Row, ...]:
    """Rows of a router and its experts; `names` are gate, up and down."""
    gate, up, down = (expert + name for name in names)
    wide, narrow = ("expert gate and up", "hidden"), ("hidden", "expert ffn")
    return (
        *linear(M + "mlp.router", router, sizes=("experts", "hidden"), layers=layers),
        *linear(EXPERT + "linear_fc1", (gate, up), STACKED, sizes=wide, layers=layers),
        *linear(EXPERT + "linear_fc2", down, sizes=narrow, layers=layers),
    )


def shared_experts(
    hf: str, *, gate: str | None = None, layers: str | None = None
) -> tuple[Row, ...]:
    """Rows of the experts that every token passes, and of their gate where there is one."""
    both, mcore = (f"{hf}.gate_proj", f"{hf}.up_proj"), M + "mlp.shared_experts."
    wide, narrow = ("shared gate and up", "hidden"), ("hidden", "shared ffn")
    rows: tuple[Row, ...] = (
        *linear(mcore + "linear_fc1", both, STACKED, sizes=wide, layers=layers),
        *linear(mcore + "linear_fc2", f"{hf}.down_proj", sizes=narrow, layers=layers),
    )
    if gate:
        one = (f"{gate}.weight",)
        rows += (Row(mcore + "gate_weight", one, sizes=("one", "hidden"), layers=layers),)
    return rows


QK_NORM = tuple(
    row
    for x in "qk"
    for row in norm(M + f"self_attention.{x}_layernorm.", H + f"self_attn.{x}_norm", size="head")
)

PRE_NORMS = (
    *norm(ATTENTION_NORM, H + "input_layernorm"),
    *norm(MLP_NORM, H + "post_attention_layernorm"),
)
"""The two norms of a dense layer, in most families' names."""

HEAD_FIELDS = (
    Field("num_layers", "num_hidden_layers"),
    Field("hidden_size", "hidden_size"),
    Field("num_attention_heads", "num_attention_heads"),
    Field("num_query_groups", "num_key_value_heads", lambda c: c["num_attention_heads"]),
    Field("kv_channels", "head_dim", lambda c: c["hidden_size"] // c["num_attention_heads"]),
)

SIZE_FIELDS = (
    *HEAD_FIELDS,
    Field("ffn_hidden_size", "intermediate_size"),
    Field("max_sequence_length", "max_position_embeddings"),
)

DECODER_FIELDS = (
    *SIZE_FIELDS,
    Field("layernorm_epsilon", "rms_norm_eps", 1e-6),
    Field("share_embeddings_and_output_weights", "tie_word_embeddings", False),
)

TIED = Field("share_embeddings_and_output_weights", "tie_word_embeddings", True)
"""For the families that are tied unless `config.json` says otherwise; `untied(True)` beside it."""


def defaults(fields: Iterable[Field], **values: Any) -> tuple[Field, ...]:
    """Fields with other defaults, by their names in `config.json`."""
    return tuple(replace(f, default=values.get(f.hf, f.default)) for f in fields)


SWIGLU: Mapping[str, Any] = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
}

GPT: Mapping[str, Any] = {
    "normalization": "LayerNorm",
    "gated_linear_unit": False,
    "add_bias_linear": True,
}

ACTIVATIONS = {
    "silu": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Hugging Face's names of activations, and what they compute."""

ROTARY_BUFFERS = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


def untied(default: bool = False) -> dict[str, Callable[[Config], bool]]:
    """The part "untied"; `default` is the family's `tie_word_embeddings`."""
    return {"untied": lambda config: not config.get("tie_word_embeddings", default)}


def activation(key: str, default: str) -> Callable[[Config], dict[str, Any]]:
    """Read the activation from entry `key`."""

    def compute(config: Config) -> dict[str, Any]:
        name = config.get(key) or default
        if name not in ACTIVATIONS:
            raise ConfigError(
                "This activation is not supported",
                where=f"config.json, {key}",
                expected=" or ".join(map(repr, ACTIVATIONS)),
                got=repr(name),
                fix="convert a model with one of these",
            )
        return {"activation_func": ACTIVATIONS[name]}

    return compute


def window(config: Config) -> dict[str, Any]:
    """Read a sliding window, and which layers have it.

    transformers keeps `i - j < sliding_window`, Megatron `i - j <= window_size[0]`.
    """
    size = config.get("sliding_window")
    if not size:
        return {}
    kinds = config.get("layer_types")
    fields: dict[str, Any] = {"window_size": [size - 1, 0]}
    if kinds and set(kinds) != {"sliding_attention"}:
        fields["window_attn_skip_freq"] = [int(kind == "sliding_attention") for kind in kinds]
    return fields


def switched_window(config: Config) -> dict[str, Any]:
    """Read the window of Qwen's families, which a switch turns on for the upper layers."""
    if not config.get("use_sliding_window"):
        return {}
    layers, full = config["num_hidden_layers"], config.get("max_window_layers", 28)
    kinds = config.get("layer_types") or [
        "sliding_attention" if layer >= full else "full_attention" for layer in range(layers)
    ]
    if "sliding_attention" not in kinds:
        return {}
    return window({"sliding_window": 4096, **config, "layer_types": kinds})
