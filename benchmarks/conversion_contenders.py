"""One contender of `conversion.py`, in a process of its own.

    python benchmarks/conversion_contenders.py NAME FOLDER INPUT OUT

Imports what the contender needs, then works, then writes `FOLDER/told.json`: the seconds of the
work without the imports, and of its phases.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

CONFIG = "config.json"
QKV = ("q_proj", "k_proj", "v_proj")
MLP = ("gate_proj", "up_proj")
_SAME = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
_ENDS = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}

Work = Callable[[Path, Path, Callable[[str], None]], None]
"""From an input to an output folder; tells the end of each phase but the last."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("input", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    work = CONTENDERS[options.name]()
    phases: dict[str, float] = {}
    started = last = time.perf_counter()

    def mark(phase: str) -> None:
        nonlocal last
        now = time.perf_counter()
        phases[phase] = now - last
        last = now

    work(options.input, options.out, mark)
    mark("rest")
    told = {"work": last - started, "phases": phases if len(phases) > 1 else {}}
    (options.folder / "told.json").write_text(json.dumps(told), encoding="utf-8")


def make() -> Work:
    """Write a random Llama: `INPUT` holds its `config.json`. bfloat16 of 2^-15 to 2^-8."""
    import numpy

    from megatron_bridge import hf

    def work(source: Path, out: Path, mark: Callable[[str], None]) -> None:
        config = json.loads((source / CONFIG).read_text(encoding="utf-8"))
        shutil.copyfile(source / CONFIG, out / CONFIG)
        kind = hf.dtype_of("bfloat16")
        specs = [hf.TensorSpec(name, kind, shape) for name, shape in shapes(config).items()]
        places = hf.prepare(out, specs)
        random = numpy.random.default_rng(0)
        for spec in specs:
            words = random.integers(0, 2**64, -(-spec.bytes // 8), numpy.uint64)
            # The sign, the lowest three bits of the exponent and the mantissa are random.
            words &= numpy.uint64(0x83FF_83FF_83FF_83FF)
            words |= numpy.uint64(0x3800_3800_3800_3800)
            place = places[spec.name]
            with (out / place.file).open("r+b") as file:
                hf.write_at(file.fileno(), place.offset, words.data.cast("B")[: spec.bytes])

    return work


def copy() -> Work:
    """Copy the files."""

    def work(source: Path, out: Path, mark: Callable[[str], None]) -> None:
        shutil.copytree(source, out, dirs_exist_ok=True)

    return work


def safetensors() -> Work:
    """Load and save with the safetensors library."""
    from safetensors.torch import load_file, save_file

    def work(source: Path, out: Path, mark: Callable[[str], None]) -> None:
        for path in source.glob("*.safetensors"):
            save_file(load_file(path), out / path.name, metadata={"format": "pt"})

    return work


def to_torch() -> Work:
    """`from_pretrained`, pack, `torch.save`, as Pai-Megatron-Patch does."""
    import torch
    from transformers import AutoModelForCausalLM

    def work(source: Path, out: Path, mark: Callable[[str], None]) -> None:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        state = model.state_dict()
        mark("from_pretrained")
        # It copies every tensor into the parameters of a Megatron model.
        packed = {key: tensor.clone() for key, tensor in pack(state.__getitem__, _config(source))}
        mark("pack")
        torch.save({"model": packed, "checkpoint_version": 3.0}, out / "model_optim_rng.pt")
        shutil.copyfile(source / CONFIG, out / CONFIG)

    return work


def from_torch() -> Work:
    """The reverse: `torch.load`, unpack, `save_pretrained`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    def work(source: Path, out: Path, mark: Callable[[str], None]) -> None:
        packed = torch.load(source / "model_optim_rng.pt", weights_only=True)["model"]
        mark("torch.load")
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
        model.load_state_dict(dict(unpack(packed, _config(source))), assign=True)
        mark("unpack")
        model.save_pretrained(out)

    return work


def to_torch_dist() -> Work:
    """Megatron-Core's own save of the model whose tensors are read by safetensors and packed."""
    import torch
    from megatron.core import dist_checkpointing, parallel_state
    from safetensors import safe_open

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", GLOO_SOCKET_IFNAME="lo")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    if not torch.cuda.is_available():
        # The save names a GPU, which one process on a CPU does not need.
        torch.cuda.synchronize = lambda *args, **options: None  # type: ignore[assignment]
        torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    sharded = dist_checkpointing.ShardedTensor.from_rank_offsets

    def work(source: Path, out: Path, mark: Callable[[str], None]) -> None:
        config = _config(source)
        (path,) = source.glob("*.safetensors")
        with safe_open(path, "pt") as file:
            state = {}
            for name, tensor in pack(file.get_tensor, config):
                key, layer = _stacked(name)
                at = [] if layer is None else [(0, layer, config["num_hidden_layers"])]
                state[name] = sharded(key, tensor, *at, prepend_axis_num=len(at))
            mark("read and pack")
            dist_checkpointing.save(state, str(out))

    return work


def import_() -> Work:
    """Ours: `import_hf` with all that it proves by default."""
    from megatron_bridge.convert import import_hf

    return _ours(import_hf)


def export() -> Work:
    """Ours: `export_hf` with all that it proves by default."""
    from megatron_bridge.convert import export_hf

    return _ours(export_hf)


def _ours(convert: Callable[..., Any]) -> Work:

    def work(source: Path, out: Path, mark: Callable[[str], None]) -> None:
        def progress(done: int, total: int, unit: str = "tensors") -> None:
            # Each tensor counts twice: when it is written, and when it is compared.
            if done == total // 2:
                mark("write")
            elif done == total:
                mark("compare")

        convert(source, out, progress=progress)

    return work


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Llama's tensors."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    narrow = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        found |= {f"{at}{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        rows = zip((*QKV, "o_proj"), (hidden, narrow, narrow, hidden), strict=True)
        found |= {f"{at}self_attn.{name}.weight": (n, hidden) for name, n in rows}
        found |= {f"{at}mlp.{name}.weight": (ffn, hidden) for name in MLP}
        found[f"{at}mlp.down_proj.weight"] = (hidden, ffn)
    return found


def pack(get: Callable[[str], Any], config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield Megatron's tensors of a Llama, by name."""
    import torch

    groups = config["num_key_value_heads"]
    for key, name in _ENDS.items():
        yield key, get(name)
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        for key, name in _SAME.items():
            yield ours + key, get(theirs + name)
        parts = [get(f"{theirs}self_attn.{name}.weight") for name in QKV]
        grouped = [part.view(groups, -1, part.shape[1]) for part in parts]
        yield ours + "self_attention.linear_qkv.weight", torch.cat(grouped, 1).flatten(0, 1)
        parts = [get(f"{theirs}mlp.{name}.weight") for name in MLP]
        yield ours + "mlp.linear_fc1.weight", torch.cat(parts)


def unpack(packed: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield Hugging Face's tensors, each with memory of its own."""
    groups, heads = config["num_key_value_heads"], config["num_attention_heads"]
    size = config["hidden_size"] // heads
    for key, name in _ENDS.items():
        yield name, packed[key]
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        for key, name in _SAME.items():
            yield theirs + name, packed[ours + key]
        whole = packed[ours + "self_attention.linear_qkv.weight"]
        grouped = whole.view(groups, -1, whole.shape[1])
        parts = grouped.split([heads // groups * size, size, size], 1)
        for name, part in zip(QKV, parts, strict=True):
            yield f"{theirs}self_attn.{name}.weight", part.flatten(0, 1).clone()
        for name, part in zip(MLP, packed[ours + "mlp.linear_fc1.weight"].chunk(2), strict=True):
            yield f"{theirs}mlp.{name}.weight", part.clone()


def _stacked(name: str) -> tuple[str, int | None]:
    """The key under which Megatron keeps all layers of a tensor, and the layer."""
    start, layers, rest = name.partition("decoder.layers.")
    if not layers:
        return name, None
    number, _, tail = rest.partition(".")
    return f"{start}{layers}{tail}", int(number)


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return config


CONTENDERS: dict[str, Callable[[], Work]] = {
    "make": make,
    "copy": copy,
    "safetensors": safetensors,
    "to_torch": to_torch,
    "from_torch": from_torch,
    "to_torch_dist": to_torch_dist,
    "import": import_,
    "export": export,
}


if __name__ == "__main__":
    main()
