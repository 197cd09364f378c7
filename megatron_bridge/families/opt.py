"""OPT, and Galactica, which is OPT without biases and without parameters in its norms."""

from __future__ import annotations

from typing import Any

from megatron_bridge.errors import ConfigError
from megatron_bridge.families import rows
from megatron_bridge.families.toy import SIZES
from megatron_bridge.layouts import GROUPED_QKV, VOCAB
from megatron_bridge.mapping import Config, Family, Field, Row

D = "model.decoder."
H = D + "layers.{layer}."
OFFSET = 2
"""The first rows of the table of positions, which no token uses."""


def _norm(mcore: str, hf: str) -> tuple[Row, ...]:
    return rows.norm(mcore, hf, bias=True, needs="affine")


def _positions(config: Config) -> dict[str, Any]:
    return {
        "position_embedding_type": "learned_absolute",
        "position_offset": OFFSET,
        "max_sequence_length": config["max_position_embeddings"] + OFFSET,
    }


def _norms(config: Config) -> dict[str, Any]:
    return {"norm": "affine" if _is_affine(config) else "plain"}


def _is_affine(config: Config) -> bool:
    return bool(config.get("layer_norm_elementwise_affine", True))


def _refuse_projection(config: Config) -> dict[str, Any]:
    """OPT-350m's embeddings are narrower than its layers, and its norms come last."""
    hidden, width = config["hidden_size"], config.get("word_embed_proj_dim")
    if width not in (None, hidden):
        raise ConfigError(
            "opt: word_embed_proj_dim cannot be carried over to Megatron",
            where="config.json, word_embed_proj_dim",
            expected=f"hidden_size, {hidden}",
            got=width,
            fix="convert another size of the model: of OPT's, only 350m is built like this",
        )
    return {}


VOCABULARY = ("vocabulary", "hidden")
QKV = [H + f"self_attn.{x}_proj" for x in "qkv"]

OPT = Family(
    "opt",
    rows=(
        *rows.linear("embedding.word_embeddings", D + "embed_tokens", VOCAB, sizes=VOCABULARY),
        *rows.linear(rows.POSITIONS, D + "embed_positions", sizes=rows.POSITIONS_SIZES),
        *_norm(rows.FINAL_NORM, D + "final_layer_norm"),
        *rows.linear("output_layer", "lm_head", VOCAB, sizes=VOCABULARY, needs="untied"),
        *_norm(rows.ATTENTION_NORM, H + "self_attn_layer_norm"),
        *rows.linear(rows.QKV, QKV, GROUPED_QKV, sizes=rows.QKV_SIZES, bias="bias"),
        *rows.linear(rows.PROJ, H + "self_attn.out_proj", sizes=rows.PROJ_SIZES, bias="bias"),
        *_norm(rows.MLP_NORM, H + "final_layer_norm"),
        *rows.linear(rows.FC1, H + "fc1", sizes=rows.FC1_SIZES, bias="bias"),
        *rows.linear(rows.FC2, H + "fc2", sizes=rows.FC2_SIZES, bias="bias"),
    ),
    fields=(
        *rows.HEAD_FIELDS,
        Field("ffn_hidden_size", "ffn_dim"),
        Field("max_sequence_length", "max_position_embeddings"),
        Field("add_bias_linear", "enable_bias", True),
        rows.TIED,
    ),
    computed=(
        _positions,
        _norms,
        _refuse_projection,
        rows.activation("activation_function", "relu"),
    ),
    # The norms have torch's own epsilon; no entry of config.json says it.
    fixed={**rows.GPT, "layernorm_epsilon": 1e-5},
    only={"do_layer_norm_before": (True,), "_remove_final_layer_norm": (False,)},
    parts={
        **rows.untied(True),
        "bias": lambda config: bool(config.get("enable_bias", True)),
        "affine": _is_affine,
    },
    tied=("lm_head.weight", D + "embed_tokens.weight"),
    prefix="model.",
    toy={"model_type": "opt", **SIZES, "ffn_dim": 92},
)
