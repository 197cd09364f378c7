"""A GGUF file as a Hugging Face folder: weights dequantised to float32, tokenizer, chat template.

transformers reads the weights well. Its tokenizer is wrong in one thing: it splits text by GPT-2's
rule whatever `tokenizer.ggml.pre` says, so that the ids differ wherever the model's own rule does
(SmolLM2: each digit by itself, so two spaces before a digit are one token). It is set right here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from gguf import GGMLQuantizationType, GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from tasks.core.errors import InputError
from tasks.model import folder
from tasks.model.quiet import quiet

_STEPS = 4


def convert(path: Path, out: Path, progress: Callable[..., None]) -> dict[str, Any]:
    """Write the folder that `AutoModelForCausalLM` and `AutoTokenizer` load.

    Returns:
        weights (the file's number formats, most used first) and name (the model's own).

    Raises:
        InputError: the file is damaged, or its tokenizer is of a kind not supported.
    """
    progress(0, _STEPS, unit="steps", note="reading the header")
    facts, formats = read(path)
    with quiet():
        progress(1, _STEPS, unit="steps", note="tokenizer")
        write_tokenizer(path, facts, out)
        progress(2, _STEPS, unit="steps", note="dequantising")
        write_weights(path, out)
    folder.finish_config(out)
    progress(_STEPS, _STEPS, unit="steps")
    name = facts.get("general.name")
    return {"weights": f"dequantised from {', '.join(formats)}", "name": name}


def read(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The header's facts (all but long lists), and the tensors' formats, most used first."""
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise InputError(
            "The GGUF file cannot be read", where=path, expected="a whole GGUF file", got=error,
            fix="fetch the file again",
        ) from error  # fmt: skip
    # A scalar or a text has one part of data; a list has one for each item.
    facts = {name: f.contents() for name, f in reader.fields.items() if len(f.data) == 1}
    sizes: dict[str, int] = {}
    for tensor in reader.tensors:
        name = GGMLQuantizationType(tensor.tensor_type).name
        sizes[name] = sizes.get(name, 0) + int(tensor.n_elements)
    return facts, sorted(sizes, key=lambda name: -sizes[name])


def write_tokenizer(path: Path, facts: dict[str, Any], out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template.

    Raises:
        InputError: the tokenizer is not byte-level BPE, or splits text by an unknown rule.
    """
    kind = (facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre"))
    if kind not in _SPLITTERS:
        known = ", ".join(f"{model} with {pre}" for model, pre in _SPLITTERS)
        raise InputError(
            "The GGUF file's tokenizer is not supported", where=path,
            expected=f"tokenizer.ggml.model and .pre of {known}", got=f"{kind[0]} with {kind[1]}",
            fix="start from the model's Hugging Face folder",
        )  # fmt: skip
    loaded = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    backend = loaded.backend_tokenizer
    backend.pre_tokenizer = _SPLITTERS[kind]()
    special = {
        f"{role}_token": backend.id_to_token(int(facts[f"tokenizer.ggml.{name}_token_id"]))
        for role, name in _ROLES.items()
        if f"tokenizer.ggml.{name}_token_id" in facts
    }
    architecture = facts["general.architecture"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=int(facts[f"{architecture}.context_length"]),
        clean_up_tokenization_spaces=False,
        chat_template=facts.get("tokenizer.chat_template"),
        **special,
    )
    tokenizer.save_pretrained(out)
    # The name that transformers 4 and 5 both know; 5 writes one that 4 refuses.
    file = out / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_weights(path: Path, out: Path) -> None:
    """Write config.json, generation_config.json and the weights in float32."""
    loaded = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    config = loaded.config
    # A model that came from GGUF says that it is quantised, and refuses to be saved.
    del config.quantization_config
    if getattr(config, "rms_norm_eps", None) is not None:
        # GGUF holds it in float32: 1e-05 comes back as 9.999999747378752e-06.
        config.rms_norm_eps = float(str(numpy.float32(config.rms_norm_eps)))
    clean = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    clean.load_state_dict(loaded.state_dict())
    clean.generation_config = loaded.generation_config
    clean.save_pretrained(out)


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_SPLITTERS: dict[tuple[Any, Any], Callable[[], Any]] = {
    ("gpt2", "smollm"): _smollm,
    ("gpt2", "gpt-2"): _gpt2,
}
"""By `tokenizer.ggml.model` and `.pre`: llama.cpp's rule (src/llama-vocab.cpp) in this library."""

_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
