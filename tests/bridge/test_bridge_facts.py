"""Each family's built model against its `config.json`, and that no fact can change unseen."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import family_bench
import pytest
import toys

from megatron_bridge import architecture, facts, families
from megatron_bridge.convert import import_hf
from megatron_bridge.errors import ProofError
from megatron_bridge.mapping import Family

CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "attention heads": ("llama", {"num_attention_heads": 4, "num_query_groups": 2}),
    "feed-forward size": ("llama", {"ffn_hidden_size": 96}),
    "norm": ("starcoder2", {"normalization": "RMSNorm"}),
    "norm epsilon": ("gpt2", {"layernorm_epsilon": 1e-6}),
    "norm on query and key": ("qwen3", {"qk_layernorm": False}),
    "bias of query, key and value": ("qwen2", {"add_qkv_bias": False}),
    "bias of the attention's output": ("internlm", {"attention_output_bias": False}),
    "bias of the MLP": ("gpt_neox", {"add_bias_linear": False, "add_qkv_bias": True}),
    "activation": ("starcoder2", {"activation_func": "gelu"}),
    "embeddings tied": ("qwen2", {"share_embeddings_and_output_weights": False}),
    "rotary frequencies": ("glm", {"rotary_percent": 1.0}),
    "rotary frequencies under a window": ("gemma3_text", {"window_rotary_base": 100000.0}),
    "factor on cosine and sine": ("deepseek_v2", {"mscale": 1.0}),
    "scale of scores": ("gemma2", {"softmax_scale": 20**-0.5}),
    "window": ("qwen2", {"window_attn_skip_freq": None}),
    "ALiBi": ("bloom", {"alibi": None}),
    "learned positions": ("gpt2", {"max_sequence_length": 131}),
    "first position": ("opt", {"position_offset": 0}),
    "soft cap of attention": ("gemma2", {"attention_softcap": None}),
    "a logit of 100 becomes": ("cohere", {"output_scale": 1.0}),
    "factor on embeddings": ("gemma", {"embedding_scale": None}),
    "experts a token": ("mixtral", {"moe_router_topk": 3}),
    "routing of a sample": ("qwen2_moe", {"moe_router_pre_softmax": False}),
    "layers with experts": ("qwen2_moe", {"moe_layer_freq": [1, 1, 1, 0]}),
    "shared expert size": ("deepseek_v3", {"moe_shared_expert_intermediate_size": 36}),
    "query latent": ("deepseek_v3", {"q_lora_rank": 24}),
}
"""A fact, a family whose `config.json` states it, and Megatron's fields set otherwise."""
ROUTING = {
    "mixtral": {"moe_router_pre_softmax": True},
    "qwen3_moe": {"moe_router_pre_softmax": True},
    "deepseek_v2": {"group_score": "sum"},
    "deepseek_v3": {"moe_router_topk_scaling_factor": 1.0},
    "deepseek_v3, groups": {"moe_router_num_groups": None, "moe_router_group_topk": None},
}


PUBLISHED = json.loads(Path(__file__).with_name("published_sizes.json").read_text())
"""`config.json` files with the entries and sizes of published models, old spellings among them."""
RIGHT: dict[str, Mapping[str, Any]] = {
    **{family.model_type: family.toy for family in families.FAMILIES.values()},
    **{f"case {case.name}": case.config for case in family_bench.all_cases()},
    **PUBLISHED,
}
MAY_BE_UNSAID = {"head size", "key-value heads", "rotary frequencies", "scale of scores"}


def otherwise(family: Family, fields: dict[str, Any]) -> Family:
    """The family with some of Megatron's fields set otherwise."""
    return dataclasses.replace(family, computed=(*family.computed, lambda config: fields))


def wrong_models() -> dict[str, tuple[str, Family]]:
    """Faulty families by name, with the fact that has to show it."""
    cases = {fact: (fact, kind, fields) for fact, (kind, fields) in CHANGES.items()} | {
        f"{name} routing": ("routing of a sample", name.partition(",")[0], fields)
        for name, fields in ROUTING.items()
    }
    return {
        name: (fact, otherwise(families.get(kind), fields))
        for name, (fact, kind, fields) in cases.items()
    }


@pytest.fixture(scope="module")
def built() -> dict[str, architecture.Built]:
    """Every right model and every faulty one, all built on one rank."""
    right = {name: (families.get(c["model_type"]), c) for name, c in RIGHT.items()}
    wrong = {name: (family, family.toy) for name, (_, family) in wrong_models().items()}
    return architecture.build(right | {f"wrong {name}": model for name, model in wrong.items()})


def compared(config: Mapping[str, Any], built: architecture.Built) -> dict[str, Any]:
    family = families.get(config["model_type"])
    return architecture.compare(config, family, family.shape(config), built)


@pytest.mark.parametrize("name", RIGHT)
def test_the_built_model_is_the_one_that_the_config_describes(built, name) -> None:
    section = compared(RIGHT[name], built[name])
    assert section["problems"] == []
    assert len(section["compared"]) >= 20
    assert not set(section["not_compared"]) - MAY_BE_UNSAID


def test_of_an_unknown_type_only_entries_under_common_names_are_facts() -> None:
    acorn = {"model_type": "acorn", "blocks": 4, "width": 72, "epsilon": 1e-5}
    assert facts.expected(acorn) == {}
    named = {"model_type": "acorn", "n_layer": 4, "rms_norm_eps": 1e-5, "use_bias": True}
    assert facts.expected(named) == {"layers": 4, "norm epsilon": 1e-5}
    assert families.FAMILIES.keys() <= facts.KNOWN


@pytest.mark.parametrize("name", wrong_models())
def test_a_model_built_otherwise_is_seen(built, name) -> None:
    fact, family = wrong_models()[name]
    problems = compared(family.toy, built[f"wrong {name}"])["problems"]
    assert any(problem.startswith(f"{fact}: ") for problem in problems), problems


def test_every_fact_that_a_family_states_is_tried() -> None:
    stated = {fact for family in families.FAMILIES.values() for fact in facts.expected(family.toy)}
    counted = {"layers", "hidden size", "key-value heads", "head size", "experts", "expert size"}
    latent = {"query rows", "key and value rows", "key-value latent", "rotary key size"}
    lengths = {"rotary frequencies at twice the length", "output rows are normalised"}
    assert stated - set(CHANGES) == counted | latent | lengths


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
         "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 16},
        {"rope_type": "longrope", "short_factor": [1.0 + 0.1 * i for i in range(10)],
         "long_factor": [2.0 + 0.3 * i for i in range(10)],
         "original_max_position_embeddings": 60},
    ],
    ids=lambda s: s["rope_type"],
)  # fmt: skip
def test_frequencies_are_those_of_transformers(scaling) -> None:
    """The facts' own formulas against the library's, at a short and at a long sequence."""
    import torch
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = {**families.get("llama").toy, "rope_parameters": {"rope_theta": 10000.0, **scaling}}
    stated = facts.expected(config)
    rotary = LlamaRotaryEmbedding(transformers.AutoConfig.for_model(**config))
    for length, name in ((1, ""), (260, " at twice the length")):
        positions = torch.arange(length)[None]
        rotary(torch.zeros(1), positions)
        found = rotary.inv_freq.tolist()
        assert found == pytest.approx(stated[f"rotary frequencies{name}"], rel=1e-5)
    assert rotary.attention_scaling == pytest.approx(stated["factor on cosine and sine"])


def test_a_family_that_reads_a_wrong_field_does_not_convert(tmp_path, monkeypatch) -> None:
    """A mistake in `families/` shows, though both sides come from one `config.json`."""
    toys.hf_model("llama", tmp_path / "hf")
    wrong = otherwise(families.get("llama"), {"layernorm_epsilon": 1e-5})
    monkeypatch.setitem(families.FAMILIES, "llama", wrong)
    with pytest.raises(ProofError, match=r"norm epsilon: config\.json says 1e-06"):
        import_hf(tmp_path / "hf", tmp_path / "ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_changed_config_is_another_model(tmp_path) -> None:
    """The control of the cache in conftest.py: another config is built anew."""
    toys.hf_model("llama", tmp_path / "hf")
    first = import_hf(tmp_path / "hf", tmp_path / "one")
    shutil.copytree(tmp_path / "hf", tmp_path / "other")
    config = json.loads((tmp_path / "other/config.json").read_text()) | {"rms_norm_eps": 1e-3}
    (tmp_path / "other/config.json").write_text(json.dumps(config))
    second = import_hf(tmp_path / "other", tmp_path / "two")
    epsilons = [c["architecture"]["compared"]["norm epsilon"] for c in (first, second)]
    assert epsilons == [1e-6, 1e-3]
