"""What `config.json` says of a model, in plain facts: the second reading of a conversion's input.

`families/` turns `config.json` into Megatron's fields, and a model is built from them;
`worker/architecture.py` reads the same facts off the modules of that model. Here they come from
Hugging Face's own entries, under the names that each family has for them. Nothing of `families/` is
used, so that a mistake there is not compared with itself. Light: standard library only.

A fact of every layer is one value where all layers agree, else a list. What a `model_type` implies
without an entry is written as Hugging Face's modelling code has it. Of a type that is not `KNOWN`
only what its entries say under common names is taken for a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_bridge.facts import parts, positions, routing, sizes

ABSENT = object()
"""What no fact equals."""

Facts = dict[str, Any]
"""Values by the fact's name: numbers, words, lists."""


KNOWN = frozenset(
    {
        "baichuan", "bloom", "chatglm", "cohere", "deepseek_v2", "deepseek_v3", "falcon", "gemma",
        "gemma2", "gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "internlm",
        "llama", "mistral", "mixtral", "opt", "phi3", "qwen", "qwen2", "qwen2_moe", "qwen3",
        "qwen3_moe", "starcoder2",
    }
)  # fmt: skip
"""Types whose implications are written in these files: add a new one when they are."""


def expected(config: Mapping[str, Any]) -> Facts:
    """Return the facts that `config.json` states."""
    if config["model_type"] not in KNOWN:
        said = {name: sizes.first(config, *names) for name, names in _COMMON.items()}
    else:
        said = {
            **sizes.read(config),
            **parts.read(config),
            **positions.read(config),
            **routing.read(config),
        }
    return {name: value for name, value in said.items() if value is not sizes.UNSAID}


_COMMON = {
    "layers": sizes.LAYERS,
    "hidden size": sizes.HIDDEN,
    "attention heads": sizes.HEADS,
    "key-value heads": ("num_key_value_heads",),
    "head size": ("head_dim",),
    "experts": sizes.EXPERTS,
    "experts a token": ("num_experts_per_tok",),
    "norm epsilon": parts.EPSILONS,
    "embeddings tied": ("tie_word_embeddings",),
}
