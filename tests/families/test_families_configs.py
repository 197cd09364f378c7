"""Traps of each family's `config.json`: old spellings, defaults, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
import transformers

from megatron_bridge import families
from megatron_bridge.errors import ConfigError

GEMMA_SIZES = {
    "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
    "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 262144,
}  # fmt: skip
GEMMA_FILES = {
    "gemma": {"hidden_act": "gelu", "hidden_activation": None, "head_dim": 256,
              "max_position_embeddings": 8192, "rope_theta": 10000.0, "rope_scaling": None},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
               "query_pre_attn_scalar": 224, "sliding_window": 4096, "rope_theta": 10000.0,
               "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {"hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 10000,
                    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "rope_theta": 1000000,
                    "sliding_window": 512, "sliding_window_pattern": 6,
                    "attn_logit_softcapping": None, "final_logit_softcapping": None},
}  # fmt: skip
"""What real files of each generation hold, beside their sizes."""


@pytest.mark.parametrize("model_type", GEMMA_FILES)
def test_gemmas_old_files_read_as_transformers_writes_them_today(model_type: str) -> None:
    old = {"model_type": model_type, **GEMMA_SIZES, **GEMMA_FILES[model_type]}
    new = transformers.AutoConfig.for_model(**old).to_dict()
    family = families.get(model_type)
    assert "rope_parameters" in new
    assert family.megatron_config(old) == family.megatron_config(new)
    assert family.megatron_config(old)["kv_channels"] == 256


def test_a_gemma_cap_that_is_null_is_off_and_a_missing_one_is_the_classs() -> None:
    sizes = {"model_type": "gemma2", **GEMMA_SIZES}
    missing = families.get("gemma2").megatron_config(sizes)
    assert (missing["attention_softcap"], missing["output_softcap"]) == (50.0, 30.0)
    null = sizes | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    fields = families.get("gemma2").megatron_config(null)
    assert (fields["attention_softcap"], fields["output_softcap"]) == (None, None)
    third = families.get("gemma3_text").megatron_config({**sizes, "model_type": "gemma3_text"})
    assert (third["attention_softcap"], third["output_softcap"]) == (None, None)


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("gemma", {"hidden_act": "silu"}),
        ("gemma", {"use_bidirectional_attention": True}),
        ("gemma2", {"attention_bias": True}),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}),
        ("gemma3_text", {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}),
    ],
)
def test_a_gemma_that_cannot_be_carried_over_is_refused(model_type: str, change: Any) -> None:
    with pytest.raises(ConfigError, match=r"Expected: .* Got: "):
        families.get(model_type).megatron_config(
            {"model_type": model_type, **GEMMA_SIZES, "max_position_embeddings": 8192, **change}
        )


PHI3_LONG = {
    "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
    "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32064,
    "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0 + i / 48 for i in range(48)],
                     "long_factor": [2.0] * 48},
}  # fmt: skip


def test_phi3s_long_scaling_reads_as_transformers_writes_it_today() -> None:
    new = transformers.AutoConfig.for_model(**json.loads(json.dumps(PHI3_LONG))).to_dict()
    family = families.get("phi3")
    fields = family.megatron_config(PHI3_LONG)
    assert fields == family.megatron_config(new)
    assert fields["rope_scaling"]["rope_type"] == "longrope"
    assert fields["rope_scaling"]["attention_factor"] == pytest.approx(1.1902380714238083)


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_phi3s_long_scaling_has_older_names(name: str) -> None:
    old = {**PHI3_LONG, "rope_scaling": {**PHI3_LONG["rope_scaling"], "type": name}}
    family = families.get("phi3")
    assert family.megatron_config(old) == family.megatron_config(PHI3_LONG)


def test_phi3_without_epsilon_or_lengths_has_its_own_classs() -> None:
    config = {
        "model_type": "phi3", "hidden_size": 72, "intermediate_size": 92, "vocab_size": 331,
        "num_hidden_layers": 4, "num_attention_heads": 6,
    }  # fmt: skip
    fields = families.get("phi3").megatron_config(config)
    theirs = transformers.Phi3Config()
    assert fields["layernorm_epsilon"] == theirs.rms_norm_eps
    assert fields["max_sequence_length"] == theirs.max_position_embeddings
