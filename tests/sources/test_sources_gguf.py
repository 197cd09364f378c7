"""GGUF files against the models they were written from, gguf's own arithmetic, and transformers."""

from __future__ import annotations

import json
import struct
import warnings
from pathlib import Path
from typing import Any

import gguf
import gguf_writer
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from megatron_bridge import families
from megatron_bridge.__main__ import main
from megatron_bridge.convert import export_hf, import_hf
from megatron_bridge.errors import ConfigError, InputError, MappingError
from megatron_bridge.hf import Weights
from megatron_bridge.proof import TENSORS, Proof
from megatron_bridge.sources import gguf as gguf_source
from megatron_bridge.sources import source as sources
from megatron_bridge.sources.gguf_header import Entry
from megatron_bridge.sources.ranges import LocalFile
from megatron_bridge.verify import verify

KINDS = {
    "llama": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}
"""Model types, and GGUF's architectures."""
SIZES = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 32, "num_attention_heads": 6,
         "num_hidden_layers": 2}  # fmt: skip
Q = "model.layers.0.self_attn.q_proj.weight"


def config_of(kind: str) -> dict[str, Any]:
    config = {**families.get(kind).toy, **SIZES}
    if "moe_intermediate_size" in config:
        config |= {"moe_intermediate_size": 64, "decoder_sparse_step": 1, "mlp_only_layers": []}
    if kind == "qwen2":  # transformers gives it no other head dimension, and GGUF no window
        config |= {"num_attention_heads": 4, "head_dim": 24, "use_sliding_window": False}
    if kind == "qwen2_moe":
        config["shared_expert_intermediate_size"] = 32
    return config


def save(kind: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """Save a random model as Hugging Face has it."""
    config = {**config_of(kind), **changes}
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config)
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight + 0.1 * torch.randn(weight.shape))
    model.float().save_pretrained(folder)
    return config


@pytest.fixture(scope="module", params=KINDS)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model's folder, its GGUF file, and what the file's tensors mean."""
    kind, root = request.param, tmp_path_factory.mktemp("gguf")
    config = save(kind, root / "hf")
    tensors = load_file(root / "hf" / "model.safetensors")
    meant = gguf_writer.write(root / "toy.gguf", tensors, config, KINDS[kind])
    save_file(meant, root / "hf" / "model.safetensors", metadata={"format": "pt"})
    return kind, root, meant


def test_every_tensor_and_row_is_what_was_written(case: Any) -> None:
    _, root, meant = case
    with sources.opened(root / "toy.gguf") as source, Weights(source) as weights:
        assert source.name == "a toy"
        assert weights.names == sorted(meant)
        for name, tensor in meant.items():
            assert torch.equal(weights.read(name).float(), tensor), name
            for rows in ((0, 1), (tensor.shape[0] // 3, tensor.shape[0])):
                part = weights.stored(name).read(*rows)
                assert torch.equal(part.float(), tensor[slice(*rows)]), name
        lost = weights.dequantised()
        assert lost is not None
        assert lost.to == ("float32",)
        assert lost.formats["Q8_0"] >= 2
        assert weights.spec("model.layers.0.self_attn.k_proj.weight").dtype == torch.bfloat16


def test_the_made_config_computes_what_the_models_own_does(case: Any, tmp_path: Path) -> None:
    _, root, meant = case
    import_hf(root / "toy.gguf", tmp_path / "ckpt", "float32", proof=TENSORS)
    assert verify(root / "toy.gguf", tmp_path / "ckpt", TENSORS)["holds"]
    exported = export_hf(tmp_path / "ckpt", tmp_path / "back", proof=TENSORS)
    assert "Q4_1" in exported["dequantised"]["formats"]
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == meant.keys()
    assert all(torch.equal(back[name], meant[name]) for name in meant)
    ids = torch.arange(40).reshape(2, 20) * 8
    own, made = (
        transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(ids).logits
        for path in (root / "hf", tmp_path / "back")
    )
    assert torch.equal(own, made)
    assert own.abs().max() > 0.1


# Of the others transformers reads no head dimension, or not the size of experts.
@pytest.mark.parametrize("case", ["llama", "qwen2"], indirect=True)
def test_transformers_reads_the_same_tensors(case: Any) -> None:
    kind, root, _ = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            root, gguf_file="toy.gguf", dtype=torch.float32
        )
    theirs = loaded.state_dict()
    with sources.opened(root / "toy.gguf") as source, Weights(source) as weights:
        config = families.read_config(source.files)
        for name in weights.names:
            assert torch.equal(weights.read(name).float(), theirs[name]), name
    assert config["rms_norm_eps"] == config_of(kind)["rms_norm_eps"]
    for key in ("hidden_size", "num_hidden_layers", "num_key_value_heads", "vocab_size"):
        assert config[key] == getattr(loaded.config, key)


ALL = [kind for kind in Type if kind in gguf.quants._type_traits and kind != Type.BF16]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_blocks_of_rows_are_gguf_s_own_whole_tensor(tmp_path: Path, kind: Type) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, width = 37, 2 * max(block, 256) // block
    data = np.random.default_rng(3).integers(0, 256, (rows, width * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        whole = gguf.quants.dequantize(data, kind)
    (tmp_path / "x").write_bytes(b"four" + data.tobytes())
    file = LocalFile(tmp_path / "x")
    found = gguf_source.Quantised(file, Entry(int(kind), (1, rows, width * block), 4)).at((0,))
    assert found.stored_as == kind.name
    for start, stop in ((0, rows), (5, 6), (7, 36)):
        ours = found.read(start, stop).numpy()
        assert np.array_equal(ours, whole[start:stop], equal_nan=True)
    file.close()


def test_rows_left_in_pairs_or_of_other_heads_are_another_model(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tensors = llama
    meant = gguf_writer.write(tmp_path / "x.gguf", tensors, config, "llama")
    right = gguf_source.HalfByHalf
    for wrong in (lambda pairs, size: pairs, lambda pairs, size: right(pairs, size // 2)):
        monkeypatch.setattr(gguf_source, "HalfByHalf", wrong)
        with sources.opened(tmp_path / "x.gguf") as source, Weights(source) as weights:
            assert weights.read(Q).shape == meant[Q].shape
            assert not torch.equal(weights.read(Q), meant[Q])


def with_bias(folder: Path, path: Path) -> dict[str, torch.Tensor]:
    config = save("llama", folder, attention_bias=True, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    return gguf_writer.write(path, tensors, config, "llama")


def test_biases_are_permuted_too_and_a_missing_output_layer_is_tied(tmp_path: Path) -> None:
    meant = with_bias(tmp_path / "hf", tmp_path / "toy.gguf")
    with sources.opened(tmp_path / "toy.gguf") as source, Weights(source) as weights:
        config = families.read_config(source.files)
        assert config["attention_bias"] is True
        assert config["tie_word_embeddings"] is True
        assert weights.names == sorted(meant)
        assert all(torch.equal(weights.read(n).float(), t) for n, t in meant.items())


def test_llama_3_scaling_comes_back_from_its_factors(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    config = save("llama", tmp_path / "hf", rope_parameters=rope)
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    plain = 500000.0 ** (-torch.arange(0, 32, 2) / 32)
    factors = (plain / model.model.rotary_emb.inv_freq).float().numpy()
    assert factors.max() == pytest.approx(8)
    assert factors.min() == pytest.approx(1)

    def add(factors: Any) -> Any:
        return lambda writer: writer.add_tensor("rope_freqs.weight", factors)

    gguf_writer.write(tmp_path / "a.gguf", tensors, config, "llama", add(factors))
    with sources.opened(tmp_path / "a.gguf") as source, Weights(source) as weights:
        made = families.read_config(source.files)
        assert {k: pytest.approx(v) if v == 8.0 else v for k, v in rope.items()} == made[
            "rope_parameters"
        ]
        assert "rope_freqs.weight" not in weights.names
    gguf_writer.write(tmp_path / "b.gguf", tensors, config, "llama", add(factors**1.1))
    with pytest.raises(InputError, match="not Llama 3's"), sources.opened(tmp_path / "b.gguf"):
        pass


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Config and tensors of a small Llama."""
    root = tmp_path_factory.mktemp("llama")
    config = save("llama", root / "hf", num_hidden_layers=1)
    return config, load_file(root / "hf" / "model.safetensors")


def test_the_command_takes_a_gguf_file_and_says_what_was_lost(
    llama: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, tensors = llama
    path = tmp_path / "toy.gguf"
    gguf_writer.write(path, tensors, config, "llama")
    assert main(["import", str(path), str(tmp_path / "ckpt"), "--dtype", "bfloat16"]) == 0
    said = capsys.readouterr().out
    assert "DEQUANTISED: 3 tensors (" in said
    for part in ("1 Q4_1", "1 Q5_0", "1 Q8_0", "to float32"):
        assert part in said
    assert verify(path, tmp_path / "ckpt", TENSORS)["holds"]
    for place in (path, tmp_path / "ckpt"):
        assert main(["inspect", str(place)]) == 0
        assert "3 tensors (" in capsys.readouterr().out
    names = sorted(p.name for p in (tmp_path / "ckpt" / "hf").iterdir())
    assert names == ["config.json", "generation_config.json", "tokenizer.json",
                     "tokenizer_config.json"]  # fmt: skip
    with pytest.raises(ConfigError, match="cannot be run on these weights"):
        import_hf(path, tmp_path / "other", proof=Proof(logits=True))


def test_scaling_and_facts_that_are_not_known_are_told(llama: Any, tmp_path: Path) -> None:
    config, tensors = llama

    def made(more: Any) -> dict[str, Any]:
        gguf_writer.write(tmp_path / "x.gguf", tensors, config, "llama", more)
        with sources.opened(tmp_path / "x.gguf") as source:
            return families.read_config(source.files)

    def yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    assert made(yarn)["rope_parameters"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    }  # fmt: skip
    for more, words in (
        (lambda w: w.add_logit_scale(0.5), "logit_scale"),
        (lambda w: w.add_sliding_window(4096), "sliding_window"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "longrope"),
    ):
        with pytest.raises(InputError, match=words):
            made(more)
    gguf_writer.write(tmp_path / "x.gguf", tensors, config, "gemma3")
    with pytest.raises(InputError, match="xpected: llama, qwen2"):
        import_hf(tmp_path / "x.gguf", tmp_path / "ckpt", proof=TENSORS)


def test_a_tensor_that_no_row_claims_is_named(llama: Any, tmp_path: Path) -> None:
    config, tensors = llama
    more = tensors | {"model.layers.0.self_attn.q_norm.weight": torch.ones(32)}
    gguf_writer.write(tmp_path / "x.gguf", more, config, "llama")
    with pytest.raises(MappingError, match=r"blk\.0\.attn_q_norm\.weight"):
        import_hf(tmp_path / "x.gguf", tmp_path / "ckpt", proof=TENSORS)


def test_a_model_in_several_files_is_one(llama: Any, tmp_path: Path) -> None:
    config, tensors = llama
    whole = gguf_writer.write(tmp_path / "whole.gguf", tensors, config, "llama")
    first = {n: t for n, t in tensors.items() if "mlp" not in n}

    def split(number: int) -> Any:
        def add(writer: gguf.GGUFWriter) -> None:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", 2)

        return add

    one, two = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
    gguf_writer.write(one, first, config, "llama", split(0))
    with pytest.raises(InputError, match="00002-of-00002"):
        import_hf(one, tmp_path / "ckpt", proof=TENSORS)
    rest = {n: t for n, t in tensors.items() if "mlp" in n}
    gguf_writer.write(two, rest, config, "llama", split(1))
    with sources.opened(one) as source, Weights(source) as weights:
        assert weights.names == sorted(whole)
        assert all(torch.equal(weights.read(n).float(), t) for n, t in whole.items())
    with pytest.raises(InputError, match="the first of them"):
        import_hf(two, tmp_path / "ckpt", proof=TENSORS)


def test_a_gguf_file_at_a_url_is_read_by_ranges(llama: Any, tmp_path: Path, served: Any) -> None:
    config, tensors = llama
    path = served.folder / "a model.gguf"
    gguf_writer.write(path, tensors, config, "llama")
    local = import_hf(path, tmp_path / "local", proof=TENSORS)
    found = import_hf(f"{served.url}/a%20model.gguf", tmp_path / "out", proof=TENSORS)
    told = found.pop("source")
    assert (told["bytes_fetched"], told["bytes"]) == (served.total, path.stat().st_size)
    assert found == local
    for file in (tmp_path / "local").glob("*.distcp"):
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()


def header(
    facts: bytes = b"", count: int = 0, tensors: bytes = b"", number: int = 0, version: int = 3
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, number, count) + facts + tensors


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def tensor(dims: list[int], kind: int = 0, offset: int = 0, name: bytes = b"t") -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


HUGE = 2**64 - 1
MALICIOUS = {
    "nothing": b"",
    "another file": b"PK\3\4" + b"\0" * 100,
    "high byte first": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "the first version": header(version=1),
    "many facts": header(count=HUGE),
    "many tensors": header(number=HUGE),
    "a long name": header(text(b"a", HUGE), 1),
    "a long text": header(text(b"a") + struct.pack("<I", 8) + text(b"b", 2**62), 1),
    "a long list": header(text(b"a") + struct.pack("<IIQ", 9, 8, HUGE), 1),
    "many numbers": header(text(b"a") + struct.pack("<IIQ", 9, 0, 2**40), 1),
    "a list of lists": header(text(b"a") + struct.pack("<IIQ", 9, 9, 1), 1),
    "an unknown type": header(text(b"a") + struct.pack("<I", 77), 1),
    "no UTF-8": header(text(b"\xff\xfe") + struct.pack("<IB", 7, 1), 1),
    "one fact twice": header(2 * (text(b"a") + struct.pack("<IB", 7, 1)), 2),
    "no dimension": header(tensors=tensor([]), number=1),
    "many dimensions": header(tensors=text(b"t") + struct.pack("<I", HUGE % 2**32), number=1),
    "one tensor twice": header(tensors=2 * tensor([1]), number=2),
    "no alignment": header(text(b"general.alignment") + struct.pack("<II", 4, 0), 1),
    "a tensor outside": header(tensors=tensor([32]), number=1),
    "dimensions that overflow": header(tensors=tensor([2**40, 2**40]), number=1),
    "an empty dimension": header(tensors=tensor([0]), number=1) + b"\0" * 64,
    "an offset that overflows": header(tensors=tensor([1], offset=HUGE), number=1),
    "an unknown format": header(tensors=tensor([1], kind=999), number=1) + b"\0" * 64,
    "half a block": header(tensors=tensor([33, 1], kind=8), number=1) + b"\0" * 999,
    "no facts": header() + b"\0" * 64,
}


@pytest.mark.parametrize("what", MALICIOUS)
def test_damaged_and_malicious_headers_are_a_sentence(what: str, tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "x.gguf"
    path.write_bytes(MALICIOUS[what])
    tracemalloc.start()
    with pytest.raises(InputError, match="GGUF"):
        import_hf(path, tmp_path / "ckpt", proof=TENSORS)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "value"),
    [("block_count", 2**31 - 1), ("block_count", HUGE), ("block_count", 0),
     ("attention.head_count", 0), ("attention.head_count", 10**6), ("expert_count", 2**30),
     ("embedding_length", 97), ("rope.dimension_count", 16), ("attention.key_length", 33),
     ("rope.freq_base", 1e300), ("rope.freq_base", float("nan"))],
)  # fmt: skip
def test_facts_that_cannot_be_are_a_sentence(
    llama: Any, tmp_path: Path, name: str, value: float
) -> None:
    config, tensors = llama

    def add(writer: gguf.GGUFWriter) -> None:
        for data in writer.kv_data:
            data.pop(f"llama.{name}", None)
        add_value = writer.add_uint64 if isinstance(value, int) else writer.add_float64
        add_value(f"llama.{name}", value)

    gguf_writer.write(tmp_path / "x.gguf", tensors, config, "llama", add)
    with pytest.raises((InputError, MappingError, ConfigError)):
        import_hf(tmp_path / "x.gguf", tmp_path / "ckpt", proof=TENSORS)


def test_bytes_changed_anywhere_in_the_header_never_end_in_a_traceback(
    llama: Any, tmp_path: Path
) -> None:
    config, tensors = llama
    path = tmp_path / "x.gguf"
    gguf_writer.write(path, tensors, config, "llama")
    whole = path.read_bytes()
    end = whole.rindex(b"output_norm.weight") + 60
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for place in random.integers(4, end, random.integers(1, 4)):
            data[place] = random.integers(0, 256)
        path.write_bytes(data if random.random() < 0.9 else data[: random.integers(0, len(data))])
        try:
            with sources.opened(path) as source, Weights(source) as weights:
                json.dumps([weights.spec(name).shape for name in weights.names])
        except (InputError, ConfigError, MappingError):
            refused += 1
    assert 100 < refused < 400
