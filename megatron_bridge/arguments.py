"""The command line of `python -m megatron_bridge`: its commands, and what `--help` teaches."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, get_args

from megatron_bridge.config import DType, Form, TrainConfig
from megatron_bridge.errors import ConfigError

Run = Callable[[argparse.Namespace], int]

_PROG = "python -m megatron_bridge"
_ABOUT = """\
Models between Hugging Face and Megatron-Core, with proof. A checkpoint is a folder that holds
Megatron's torch_dist files, the model's config and tokenizer in hf/, and checkpoint.json, which is
written last."""
_EXAMPLES = """\
examples:
  python -m megatron_bridge import Qwen3-0.6B ckpt            a Hugging Face folder to Megatron
  python -m megatron_bridge verify Qwen3-0.6B ckpt            are both the same model?
  python -m megatron_bridge export ckpt back                  and back again, bit for bit
  python -m megatron_bridge logits ckpt --tokens ids.json --out logits.safetensors --tp 2
  python -m megatron_bridge generate ckpt --prompts ids.json --max-new-tokens 16 --out new.json

exit status: 0 done; 1 a proof does not hold; 2 bad input; 3 failed, may be retried
"""
_CHECKPOINT = "a checkpoint's folder, imported or trained, in any layout"
_HF_DIR = "a Hugging Face folder: config.json, *.safetensors or pytorch_model*.bin, tokenizer"


def parser(runs: Mapping[str, Run]) -> argparse.ArgumentParser:
    """Return the parser; what it parses holds the chosen command's function as `run`.

    Args:
        runs: a function for each command, by name.
    """
    whole = _Parser(
        prog=_PROG,
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    for name, (add, text, example) in _COMMANDS.items():
        added = commands.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            epilog=f"for example:\n{example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=runs[name])
        add(added)
    return whole


class _Parser(argparse.ArgumentParser):
    """Tells a mistake as every other one is told, not as usage and a line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            "The command line cannot be read",
            where=self.prog,
            expected=self.format_usage().removeprefix("usage: ").replace("\n", " ").strip(),
            got=message,
            fix=f"see {self.prog} --help",
        )


def _import(command: argparse.ArgumentParser) -> None:
    command.add_argument("hf_dir", type=Path, help=_HF_DIR)
    _output(command, "every tensor its own")


def _export(command: argparse.ArgumentParser) -> None:
    command.add_argument("checkpoint", type=Path, help=_CHECKPOINT)
    command.add_argument(
        "--like",
        type=Path,
        metavar="HF_DIR",
        help="take config, tokenizer and other files from this folder; default: from the "
        "checkpoint's hf/, byte for byte as they were imported",
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


def _verify(command: argparse.ArgumentParser) -> None:
    command.add_argument("hf_dir", type=Path, help=_HF_DIR)
    command.add_argument("checkpoint", type=Path, help=_CHECKPOINT)
    command.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the certificate here, and print what it says in lines; default: print it",
    )
    _proof(command)


def _train(command: argparse.ArgumentParser) -> None:
    command.add_argument("checkpoint", type=Path, help=f"the start: {_CHECKPOINT}")
    command.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="PREFIX",
        help="the training split in Megatron's indexed format: PREFIX.bin and PREFIX.idx",
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
        type=Path,
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


def _logits(command: argparse.ArgumentParser) -> None:
    command.add_argument("checkpoint", type=Path, help=_CHECKPOINT)
    command.add_argument(
        "--tokens",
        type=Path,
        required=True,
        metavar="FILE",
        help="token ids as a JSON list of lists, all of one length: [[1, 2, 3], [4, 5, 6]]",
    )
    _ranks(command, "safetensors file to write; it holds one tensor, logits")


def _generate(command: argparse.ArgumentParser) -> None:
    command.add_argument("checkpoint", type=Path, help=_CHECKPOINT)
    command.add_argument(
        "--prompts",
        type=Path,
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


def _families(command: argparse.ArgumentParser) -> None:
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
    command.add_argument("out", type=Path, help="folder to write; new or empty")
    command.add_argument(
        "--dtype", choices=get_args(DType), help=f"number format of the weights; default: {default}"
    )
    _proof(command)


def _proof(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print the whole certificate")
    command.add_argument(
        "--memory",
        type=_bytes,
        metavar="SIZE",
        help="most that the conversion's processes may take together, such as 2GB; a model of any "
        "size fits into 600MB (but GPT-2's matrices, which are transposed, pass whole), and more "
        "memory means more processes; default: half of the machine's",
    )
    command.add_argument(
        "--logits",
        action="store_true",
        help="run both models and compare their logits, in float32, and for weights in bfloat16 "
        "in that too; needs memory for the whole model",
    )
    command.add_argument(
        "--tokens",
        type=Path,
        metavar="FILE",
        help="ids for --logits as a JSON list of lists, all of one length; default: 2 x 64 from "
        "all over the vocabulary",
    )
    command.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="compare the zero-shot loss on this text (UTF-8; its first 8,192 tokens)",
    )
    _layout(command)


def _bytes(text: str) -> int:
    """`2GB` to 2,000,000,000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(K|M|G|T)?i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 600MB or 2GB")
    scale = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    return int(float(match[1]) * scale[(match[2] or "").upper()])


def _ranks(command: argparse.ArgumentParser, out: str) -> None:
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help=out)
    _layout(command)
    command.add_argument(
        "--dtype",
        choices=get_args(DType),
        default="float32",
        help="number format of weights and computation; default: float32",
    )


def _layout(command: argparse.ArgumentParser) -> None:
    for flag, text in (
        ("tp", "tensor parallel ranks, which share each weight matrix; divides the heads"),
        ("pp", "pipeline parallel ranks, which share the layers; divides their number"),
        ("ep", "expert parallel ranks, which share the experts"),
    ):
        command.add_argument(
            f"--{flag}", type=int, default=1, metavar="N", help=f"{text}; default: 1"
        )


# Name: what adds its arguments, what it does (the first line stands in the list), an example.
_COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], Any], str, str]] = {
    "import": (
        _import,
        "Convert a Hugging Face folder to a checkpoint.\n\n"
        "On a CPU, in blocks, within --memory. The same command after a kill goes on where it\n"
        "stopped. The output holds certificate.json: every tensor claimed\n"
        "once on both sides, read back, and equal by digest; and the model that Megatron builds\n"
        "(without weights, beside the conversion) compared with config.json, fact by fact.\n"
        "--logits and --text also run both models. What does not hold is not written: status 1.",
        "  python -m megatron_bridge import Qwen3-0.6B ckpt --dtype bfloat16",
    ),
    "export": (
        _export,
        "Convert a checkpoint to a Hugging Face folder.\n\n"
        "The reverse of import, with the same proof.",
        "  python -m megatron_bridge export ckpt back\n"
        "  python -m megatron_bridge export ckpt served --as native",
    ),
    "verify": (
        _verify,
        "Say whether a folder and a checkpoint hold the same model.\n\n"
        "Reads both anew, converts the checkpoint's tensors back and compares each by digest, and\n"
        "the config and tokenizer too. Where the number formats differ, the wider side is cast to\n"
        "the narrower. Builds the checkpoint's model without weights, and compares it with the\n"
        "folder's config.json. Prints a certificate in JSON, or writes it to --out.\n"
        "Exit status 0: its `holds` is true. 1: something differs, and `problems` names it; so it\n"
        "is after training.",
        "  python -m megatron_bridge verify Qwen3-0.6B ckpt > certificate.json && echo the same\n"
        "  python -m megatron_bridge verify Qwen3-0.6B ckpt --logits --text page.txt --tp 2",
    ),
    "train": (
        _train,
        "Train a checkpoint; the same call resumes a killed run.\n\n"
        "Starts world_size ranks on this machine. Prints what was measured, in JSON.",
        "  python -m megatron_bridge train ckpt --data tokens/train --end-of-document 0 \\\n"
        "      --out run --set steps=100 world_size=2 tensor_parallel=2 learning_rate=1e-5",
    ),
    "logits": (
        _logits,
        "Compute the logits of token ids: [batch, sequence, vocabulary].\n\n"
        "Starts tp x pp x ep ranks on this machine. The vocabulary is the model's own, without\n"
        "Megatron's padding. Hugging Face gives the same logits for the same ids, up to rounding.",
        "  echo '[[504, 3575, 282, 4649, 314]]' > ids.json\n"
        "  python -m megatron_bridge logits ckpt --tokens ids.json --out logits.safetensors\n"
        "  python -c \"from safetensors.numpy import load_file as load;\n"
        "  print(load('logits.safetensors')['logits'].argmax(-1))\"",
    ),
    "generate": (
        _generate,
        "Continue prompts greedily; writes the new ids.\n\n"
        "Starts tp x pp x ep ranks on this machine. Each step takes the likeliest token; nothing\n"
        "stops early, also not an end-of-document token. Ids are those of the model's tokenizer,\n"
        "which lies in the checkpoint's hf/.",
        "  echo '[[504, 3575, 282, 4649, 314]]' > ids.json\n"
        "  python -m megatron_bridge generate ckpt --prompts ids.json --max-new-tokens 16 "
        "--out new.json",
    ),
    "families": (
        _families,
        "List the model families; their tensors' names; what each was proved by.\n\n"
        "One line a family: its layers, what our own modules do in it (in brackets: in some of\n"
        "its models), and the only values of config.json's switches that can be carried over.",
        "  python -m megatron_bridge families --names qwen3_moe",
    ),
}  # fmt: skip
