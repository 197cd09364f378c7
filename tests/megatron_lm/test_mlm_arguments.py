"""A run's arguments give the family and the `config.json` that compute the same."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from mlm_arguments import RUN, RUNS, arguments

from megatron_bridge import facts, families
from megatron_bridge.errors import ConfigError, InputError, PipelineError
from megatron_bridge.megatron_lm import arguments as megatron
from megatron_bridge.megatron_lm import candidates
from megatron_bridge.megatron_lm.candidates import CANDIDATES
from megatron_bridge.megatron_lm.meaning import meaning


def choice(of: dict[str, Any], model_type: str | None = None) -> tuple[str, dict[str, Any]]:
    family, config = candidates.choose(megatron.fields(of), 331, model_type)
    return family.model_type, config


@pytest.mark.parametrize("name", RUNS)
def test_a_family_is_found(name: str) -> None:
    kind, config = choice(arguments(name))
    assert kind == RUNS[name][0]
    said = facts.expected(config)  # the second reading, which knows nothing of arguments
    run = arguments(name)
    assert said["layers"] == 4
    assert said["embeddings tied"] is not run["untie_embeddings_and_output_weights"]
    assert said["norm"] == run["normalization"]
    assert said["norm epsilon"] == run["norm_epsilon"]
    assert said["bias of the MLP"] is run["add_bias_linear"]
    assert said["bias of query, key and value"] is (run["add_bias_linear"] or run["add_qkv_bias"])
    if not run["multi_latent_attention"]:
        assert said["norm on query and key"] is run["qk_layernorm"]
        assert said["head size"] == run["kv_channels"]
        assert said["key-value heads"] == (
            run["num_query_groups"] if run["group_query_attention"] else 6
        )
    sized = run["window_size"]
    freq = run["window_attn_skip_freq"]
    has = freq if isinstance(freq, list) else [not freq or (i + 1) % freq != 0 for i in range(4)]
    windows = [sized[0] + 1 if sized and one else None for one in has]
    assert said["window"] == (windows[0] if len(set(windows)) == 1 else windows)
    if run["num_experts"]:
        every = run["moe_layer_freq"]
        sparse = every if isinstance(every, list) else [i % every == 0 for i in range(4)]
        assert said["layers with experts"] == [i for i in range(4) if sparse[i]]
        assert said["expert size"] == 36
        assert said["shared expert size"] == run["moe_shared_expert_intermediate_size"]


@pytest.mark.parametrize("name", RUNS)
def test_transformers_takes_the_config(name: str) -> None:
    """A model of it runs, and has as many weights as Megatron's rows."""
    import torch
    import transformers

    kind, config = choice(arguments(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the toys are shorter than what was scaled
        config = transformers.AutoConfig.for_model(**config)
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        assert model(torch.tensor([[1, 2, 330]])).logits.shape == (1, 3, 331)
    family = families.get(kind)
    shape = replace(family.shape(choice(arguments(name))[1]), padded_vocab=331)
    rows = sum(math.prod(map(shape.size, b.row.sizes)) for b in family.expand(shape))
    biases = sum(b.numel() for n, b in model.named_buffers() if "e_score_correction" in n)
    assert sum(p.numel() for p in model.parameters()) + biases == rows


def test_rotary_positions_are_read() -> None:
    plain = facts.expected(choice(RUN)[1])["rotary frequencies"]
    stretched = facts.expected(choice(arguments("llama, stretched"))[1])["rotary frequencies"]
    assert stretched == pytest.approx([value / 4 for value in plain])
    scaled = facts.expected(choice(arguments("llama, scaled", kv_channels=64))[1])
    # Llama 3's constants in Megatron: the slowest of them by 8, the fastest as they were.
    unscaled = facts.expected(choice({**RUN, "kv_channels": 64})[1])["rotary frequencies"]
    assert scaled["rotary frequencies"][0] == unscaled[0]
    assert scaled["rotary frequencies"][-1] == pytest.approx(unscaled[-1] / 8)
    yarn = facts.expected(choice(arguments("llama, yarn"))[1])
    assert yarn["factor on cosine and sine"] == pytest.approx(1.1386294)
    assert facts.expected(choice(arguments("gpt_neox"))[1])["rotary frequencies"] == [
        pytest.approx(10000 ** (-i / 6)) for i in (0, 2, 4)
    ]


# Arguments that bear on what is computed, each with another value for a run that reads it.
BEARING: list[tuple[str, str, Any]] = [
    ("llama", "num_layers", 3),
    ("llama", "hidden_size", 78),
    ("llama", "num_attention_heads", 12),
    ("llama", "num_query_groups", 3),
    ("llama", "group_query_attention", False),
    ("llama", "kv_channels", 18),
    ("llama", "ffn_hidden_size", 96),
    ("llama", "swiglu", False),
    ("llama", "normalization", "LayerNorm"),
    ("llama", "norm_epsilon", 1e-6),
    ("llama", "apply_layernorm_1p", True),
    ("llama", "layernorm_zero_centered_gamma", True),
    ("llama", "add_bias_linear", True),
    ("llama", "add_qkv_bias", True),
    ("llama", "qk_layernorm", True),
    ("llama", "untie_embeddings_and_output_weights", False),
    ("llama", "rotary_base", 500000),
    ("llama", "rotary_percent", 0.5),
    ("llama", "rotary_interleaved", True),
    ("llama", "use_rope_scaling", True),
    ("llama", "rotary_seq_len_interpolation_factor", 2),
    ("llama", "position_embedding_type", "learned_absolute"),
    ("llama", "position_embedding_type", "none"),
    ("llama", "position_embedding_type", "relative"),
    ("llama", "window_size", (7, 0)),
    ("mistral", "window_size", (5, 0)),
    ("mistral", "window_attn_skip_freq", 2),
    ("llama", "num_experts", 6),
    ("llama", "squared_relu", True),
    ("llama", "quick_geglu", True),
    ("llama", "softmax_scale", 0.1),
    ("llama", "softmax_type", "learnable"),
    ("llama", "qk_l2_norm", True),
    ("llama", "no_rope_freq", 4),
    ("llama", "mtp_num_layers", 1),
    ("llama", "attention_output_gate", True),
    ("llama", "spec", ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]),
    ("llama", "heterogeneous_layers_config_path", "layers.json"),
    ("llama", "use_mup", True),
    ("llama, yarn", "rotary_scaling_factor", 3.0),
    ("llama, yarn", "yarn_original_max_position_embeddings", 16),
    ("llama, yarn", "yarn_beta_fast", 16.0),
    ("llama, yarn", "yarn_beta_slow", 2.0),
    ("llama, yarn", "yarn_correction_range_round_to_int", False),
    ("llama, yarn", "mscale", 0.5),
    ("llama, yarn", "mscale_all_dim", 0.5),
    ("gpt2", "bias_gelu_fusion", False),
    ("gpt2", "max_position_embeddings", 64),
    ("gpt2", "kv_channels", 20),
    ("gpt2", "apply_residual_connection_post_layernorm", True),
    ("mixtral", "num_experts", 8),
    ("mixtral", "moe_router_topk", 3),
    ("mixtral", "moe_ffn_hidden_size", 40),
    ("mixtral", "moe_layer_freq", 2),
    ("mixtral", "moe_router_pre_softmax", True),
    ("mixtral", "moe_router_score_function", "sigmoid"),
    ("mixtral", "moe_router_enable_expert_bias", True),
    ("mixtral", "moe_router_topk_scaling_factor", 2.0),
    ("mixtral", "moe_shared_expert_intermediate_size", 44),
    ("mixtral", "moe_router_load_balancing_type", "sinkhorn"),
    ("mixtral", "moe_router_load_balancing_type", ["aux_loss", "sinkhorn"]),
    ("mixtral", "moe_apply_probs_on_input", True),
    ("mixtral", "moe_mlp_glu_interleave_size", 32),
    ("qwen2_moe", "moe_shared_expert_gate", False),
    ("qwen2_moe", "moe_shared_expert_intermediate_size", 48),
    ("qwen3_moe", "moe_layer_freq", [1, 1, 0, 1]),
    ("deepseek_v3", "q_lora_rank", None),
    ("deepseek_v3", "kv_lora_rank", 40),
    ("deepseek_v3", "qk_head_dim", 12),
    ("deepseek_v3", "qk_pos_emb_head_dim", 8),
    ("deepseek_v3", "v_head_dim", 12),
    ("deepseek_v3", "qk_layernorm", False),
    ("deepseek_v3", "norm_epsilon", 1e-5),
    ("deepseek_v3", "rotary_base", 500000),
    ("deepseek_v3", "rotary_scaling_factor", 3.0),
    ("deepseek_v3", "moe_router_num_groups", 4),
    ("deepseek_v3", "moe_router_group_topk", 1),
    ("deepseek_v3", "moe_router_topk", 6),
    ("deepseek_v3", "moe_router_topk_scaling_factor", 1.5),
    ("deepseek_v3", "moe_router_enable_expert_bias", False),
    ("deepseek_v3", "moe_shared_expert_intermediate_size", 80),
    ("deepseek_v3, yarn", "original_max_position_embeddings", 32),
    ("deepseek_v3, yarn", "beta_fast", 16.0),
    ("deepseek_v3, yarn", "beta_slow", 2.0),
    ("deepseek_v3, yarn", "mscale", 0.5),
    ("deepseek_v3, yarn", "mscale_all_dim", 0.5),
    ("deepseek_v3, yarn", "rope_type", "rope"),
]


@pytest.mark.parametrize(("name", "argument", "value"), BEARING)
def test_a_change_is_seen(name: str, argument: str, value: Any) -> None:
    """It gives another model, or is refused; and the old config.json no longer fits."""
    family, config = candidates.choose(megatron.fields(arguments(name)), 331)
    changed = arguments(name, **{argument: value})
    refused = None
    try:
        fields = megatron.fields(changed)
        assert candidates.disagreements(family, config, meaning(fields))
        assert candidates.choose(fields, 331)[1] != config
    except PipelineError as error:
        refused = str(error)
    assert refused is None or any(word in refused for word in (argument, "against"))


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("llama", "max_position_embeddings", 260),
        ("llama", "num_query_groups", 2),
        ("llama", "moe_router_topk", 7),
        ("llama", "bias_gelu_fusion", True),
        ("llama", "hidden_dropout", 0.1),
        ("llama", "moe_layer_freq", 2),
        ("llama", "spec", ["local"]),
        ("llama, plain attention", "num_query_groups", 5),
        ("mixtral", "ffn_hidden_size", 1000),
        ("mixtral", "moe_layer_freq", [1, 1, 1, 1]),
        ("mistral", "window_attn_skip_freq", [1, 1, 1, 1]),
        ("deepseek_v3", "kv_channels", 999),
        ("deepseek_v3", "moe_router_pre_softmax", True),
        ("deepseek_v3", "beta_fast", 16.0),
    ],
)
def test_what_does_not_bear_is_not_compared(name: str, argument: str, value: Any) -> None:
    family, config = candidates.choose(megatron.fields(arguments(name)), 331)
    changed = meaning(megatron.fields(arguments(name, **{argument: value})))
    assert candidates.disagreements(family, config, changed) == []


def test_the_nearest_family_is_named_with_what_differs() -> None:
    with pytest.raises(ConfigError, match="against llama, the nearest") as caught:
        choice({**RUN, "rotary_interleaved": True})
    assert "rotary_interleaved is True in the run and False in llama" in str(caught.value)


def test_a_family_can_be_insisted_on() -> None:
    assert choice(RUN, "llama")[0] == "llama"
    assert choice(arguments("llama"), "mistral")[0] == "mistral"  # a Mistral without window
    with pytest.raises(ConfigError, match=r"qwen2 does not compute .* bias on query"):
        choice(RUN, "qwen2")
    with pytest.raises(ConfigError, match=r"No config\.json can be made"):
        choice(RUN, "gemma")


@pytest.mark.parametrize("name", ["num_layers", "hidden_size", "max_position_embeddings"])
def test_a_missing_argument_is_named(name: str) -> None:
    with pytest.raises(InputError, match=f"do not say {name}"):
        megatron.fields({**RUN, name: None})


def test_a_factor_that_may_have_been_ignored_is_asked_for() -> None:
    """Megatron-LM's `gpt_builders.py` ignores both; `megatron.training.models` and forks do not."""
    scaled = arguments("llama, scaled", rope_scaling_factor=32.0)
    stretched = arguments("llama, stretched")
    for unclear in (scaled, stretched):
        with pytest.raises(ConfigError, match=r"(rope_scaling|interpolation)_factor.*--like"):
            megatron.only_reading(unclear)
    assert [one["rope_scaling_factor"] for one in megatron.readings(scaled)] == [32.0, 8.0]
    both = {**scaled, "rotary_seq_len_interpolation_factor": 4}
    assert len(megatron.readings(both)) == 4
    assert sum(_fits(one) for one in megatron.readings(both)) == 2
    for clear in (arguments("llama, scaled"), {**RUN, "rope_scaling_factor": 32.0}):
        assert megatron.only_reading(clear) == clear


def _fits(run: Mapping[str, Any]) -> bool:
    try:
        choice(dict(run))
    except ConfigError:
        return False
    return True


def test_every_candidate_is_a_run_here() -> None:
    assert {kind for kind, _ in RUNS.values()} == set(CANDIDATES)
