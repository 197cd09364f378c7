"""The arguments of each command of `python -m megatron_bridge`, with the help that they give."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import get_args

from megatron_bridge.config import DType, Form, TrainConfig
from megatron_bridge.sources.address import parse

_CHECKPOINT = "a checkpoint's folder, imported or trained, in any layout"
_RUN = "a directory that Megatron-LM wrote with --save, or one iter_* folder in it"
_HF_DIR = (
    "a Hugging Face folder: config.json, *.safetensors or pytorch_model*.bin, tokenizer, its "
    "weights as numbers or in FP8 blocks (weight_scale_inv); or a GGUF file of a llama, mixtral, "
    "qwen2, qwen3 or their mixtures, in any format that gguf dequantises; or the URL of either, "
    "http:// or https:// or another that fsspec knows, whose weights are read by byte ranges"
)


def add_import(command: argparse.ArgumentParser) -> None:
    """Add those of `import`."""
    command.add_argument("hf_dir", type=_place, help=_HF_DIR)
    _output(command, "every tensor its own")


def add_export(command: argparse.ArgumentParser) -> None:
    """Add those of `export`."""
    command.add_argument("checkpoint", type=_path, help=f"{_CHECKPOINT}; or {_RUN}")
    command.add_argument(
        "--like",
        type=_path,
        metavar="HF_DIR",
        help="take config, tokenizer and other files from this folder; default: from the "
        "checkpoint's hf/, byte for byte as they were imported. For a directory of Megatron-LM its "
        "config.json is compared with the run's arguments; default: made from them",
    )
    command.add_argument(
        "--tokenizer",
        type=_path,
        metavar="DIR",
        help="for a directory of Megatron-LM: the tokenizer's folder; default: the folder that "
        "the run's arguments name, if it is on this disk",
    )
    command.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="for a directory of Megatron-LM: the number of tokens without padding; default: as "
        "--like, the tokenizer or the run's arguments say",
    )
    command.add_argument(
        "--model-type",
        metavar="TYPE",
        help="for a directory of Megatron-LM: the model family, refused where it does not compute "
        "what the run did; default: the first that does",
    )
    command.add_argument(
        "--as",
        dest="form",
        choices=get_args(Form),
        default="original",
        help="native: write chatglm as transformers' Glm, qwen as Qwen2, internlm and baichuan 7B "
        "as Llama, which need no remote code; tokenizer files stay as they are, so a tokenizer "
        "that is remote code stays remote. default: original",
    )
    _output(command, "the checkpoint's own")


def add_inspect(command: argparse.ArgumentParser) -> None:
    """Add those of `inspect`."""
    command.add_argument("folder", type=_place, help=f"{_CHECKPOINT}; {_RUN}; or {_HF_DIR}")
    command.add_argument("--json", action="store_true", help="print all of it as JSON")
    command.add_argument("--tensors", action="store_true", help="list every tensor")


def add_reshard(command: argparse.ArgumentParser) -> None:
    """Add those of `reshard`."""
    command.add_argument("folder", type=_path, help=_RUN)
    command.add_argument("out", type=_path, help="folder to write; new or empty")
    command.add_argument("--json", action="store_true", help="print what was written as JSON")
    _memory(command)


def add_verify(command: argparse.ArgumentParser) -> None:
    """Add those of `verify`."""
    command.add_argument("hf_dir", type=_place, help=_HF_DIR)
    command.add_argument("checkpoint", type=_path, help=_CHECKPOINT)
    command.add_argument(
        "--out",
        type=_path,
        metavar="FILE",
        help="write the certificate here, and print what it says in lines; default: print it",
    )
    _proof(command)


def add_train(command: argparse.ArgumentParser) -> None:
    """Add those of `train`."""
    command.add_argument("checkpoint", type=_path, help=f"the start: {_CHECKPOINT}")
    command.add_argument(
        "--data",
        nargs="+",
        required=True,
        metavar="PREFIX",
        help="the training split in Megatron's indexed format: PREFIX.bin and PREFIX.idx; or "
        "several with their weights: 0.7 PREFIX 0.3 PREFIX. A weight that asks for more than is "
        "there is refused",
    )
    command.add_argument(
        "--repeats",
        nargs="+",
        type=_path,
        default=[],
        metavar="PREFIX",
        help="datasets that may be gone through more than once, of several; a single one may",
    )
    command.add_argument(
        "--end-of-document",
        type=int,
        required=True,
        metavar="ID",
        help="id of the token that ends each document there",
    )
    command.add_argument(
        "--out",
        type=_path,
        required=True,
        metavar="FOLDER",
        help="the run's log, ledger and checkpoints; the same call goes on from what lies there",
    )
    command.add_argument(
        "--unproven",
        action="store_true",
        help="train a checkpoint whose certificate is missing or does not hold; every checkpoint "
        "and export made from it says so for ever",
    )
    command.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="FIELD=VALUE",
        help=f"values are JSON, or plain words; fields: {', '.join(TrainConfig.model_fields)}",
    )


def add_logits(command: argparse.ArgumentParser) -> None:
    """Add those of `logits`."""
    command.add_argument("checkpoint", type=_path, help=_CHECKPOINT)
    command.add_argument(
        "--tokens",
        type=_path,
        required=True,
        metavar="FILE",
        help="token ids as a JSON list of lists, all of one length: [[1, 2, 3], [4, 5, 6]]",
    )
    _ranks(command, "safetensors file to write; it holds one tensor, logits")


def add_generate(command: argparse.ArgumentParser) -> None:
    """Add those of `generate`."""
    command.add_argument("checkpoint", type=_path, help=_CHECKPOINT)
    command.add_argument(
        "--prompts",
        type=_path,
        required=True,
        metavar="FILE",
        help="token ids as a JSON list of lists, of any lengths: [[1, 2, 3], [4, 5]]",
    )
    command.add_argument(
        "--max-new-tokens",
        type=int,
        default=16,
        metavar="N",
        help="ids to add to each prompt, exactly as many; default: 16",
    )
    _ranks(command, "JSON file to write: for each prompt the list of its new ids")


def add_families(command: argparse.ArgumentParser) -> None:
    """Add those of `families`."""
    command.add_argument(
        "--names",
        metavar="TYPE",
        help="the tensors of this model_type: Hugging Face's, Megatron's and Transformer Engine's "
        "names side by side",
    )
    command.add_argument(
        "--json",
        action="store_true",
        help="each family's checks with their figures, or with --names all names, as JSON",
    )


def _output(command: argparse.ArgumentParser, default: str) -> None:
    command.add_argument("out", type=_path, help="folder to write; new or empty")
    command.add_argument(
        "--dtype", choices=get_args(DType), help=f"number format of the weights; default: {default}"
    )
    _proof(command)


def _proof(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print the whole certificate")
    _memory(command)
    command.add_argument(
        "--logits",
        action="store_true",
        help="run both models and compare their logits, in float32, and for weights in bfloat16 "
        "in that too; needs memory for the whole model",
    )
    command.add_argument(
        "--tokens",
        type=_path,
        metavar="FILE",
        help="ids for --logits as a JSON list of lists, all of one length; default: 2 x 64 from "
        "all over the vocabulary",
    )
    command.add_argument(
        "--text",
        type=_path,
        metavar="FILE",
        help="compare the zero-shot loss on this text (UTF-8; its first 8,192 tokens)",
    )
    _layout(command)


def _memory(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--memory",
        type=_bytes,
        metavar="SIZE",
        help="most that the conversion may take, such as 2GB; 600MB is enough for most models of "
        "any size, 1GB for tens of thousands of tensors as in DeepSeek-V3 (GPT-2's matrices, "
        "which are transposed, pass whole), and more memory means more threads; building the "
        "model to compare it, beside the conversion, takes 350MB of its own for some seconds; "
        "default: half of the machine's",
    )


def _bytes(text: str) -> int:
    """`2GB` to 2,000,000,000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(K|M|G|T)?i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 600MB or 2GB")
    scale = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    return int(float(match[1]) * scale[(match[2] or "").upper()])


def _ranks(command: argparse.ArgumentParser, out: str) -> None:
    command.add_argument("--out", type=_path, required=True, metavar="FILE", help=out)
    _layout(command)
    command.add_argument(
        "--dtype",
        choices=get_args(DType),
        default="float32",
        help="number format of weights and computation; default: float32",
    )


def _path(text: str) -> Path:
    """A path as a shell understands it, also in quotes."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text).expanduser()


def _place(text: str) -> Path | str:
    place = parse(text)
    if not isinstance(place, Path):
        return text
    return place if "://" in text else _path(text)


def _layout(command: argparse.ArgumentParser) -> None:
    for flag, text in (
        ("tp", "tensor parallel ranks, which share each weight matrix; divides the heads"),
        ("pp", "pipeline parallel ranks, which share the layers; divides their number"),
        ("ep", "expert parallel ranks, which share the experts"),
    ):
        command.add_argument(
            f"--{flag}", type=int, default=1, metavar="N", help=f"{text}; default: 1"
        )
