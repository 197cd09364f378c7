"""The command line of `python -m megatron_bridge`: its commands, and what `--help` teaches."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from megatron_bridge import switches
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
  python -m megatron_bridge inspect checkpoints               what is in Megatron-LM's folder?
  python -m megatron_bridge export checkpoints back --tokenizer tokenizer
  python -m megatron_bridge logits ckpt --tokens ids.json --out logits.safetensors --tp 2
  python -m megatron_bridge generate ckpt --prompts ids.json --max-new-tokens 16 --out new.json

exit status: 0 done; 1 a proof does not hold; 2 bad input; 3 failed, may be retried
"""


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
        is_short = message.endswith("expected one argument")
        raise ConfigError(
            "The command line cannot be read",
            where=self.prog,
            expected=" ".join(self.format_usage().removeprefix("usage: ").split()),
            got=message,
            fix=f"see {self.prog} --help"
            + ("; a value that begins with - is written --option=VALUE" if is_short else ""),
        )


# Name: what adds its arguments, what it does (the first line stands in the list), an example.
_COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], Any], str, str]] = {
    "import": (
        switches.add_import,
        "Convert a Hugging Face folder or a GGUF file to a checkpoint.\n\n"
        "On a CPU, in blocks, within --memory. The same command after a kill goes on where it\n"
        "stopped. The output holds certificate.json: every tensor claimed\n"
        "once on both sides, read back, and equal by digest; and the model that Megatron builds\n"
        "(without weights, beside the conversion) compared with config.json, fact by fact.\n"
        "--logits and --text also run both models. What does not hold is not written: status 1.\n"
        "A model at a URL is read once, by ranges; no file of weights is kept on this disk.\n"
        "Quantised weights (GGUF, FP8 in blocks) are dequantised, and the certificate says so.\n"
        "FP8 becomes the number format that config.json names, or --dtype's; GGUF float32.",
        "  python -m megatron_bridge import Qwen3-0.6B ckpt --dtype bfloat16\n"
        "  python -m megatron_bridge import Qwen3-8B-Q4_K_M.gguf ckpt --dtype bfloat16\n"
        "  python -m megatron_bridge import http://localhost:8000/Qwen3-0.6B ckpt",
    ),
    "export": (
        switches.add_export,
        "Convert a checkpoint to a Hugging Face folder.\n\n"
        "The reverse of import, with the same proof. Tensors come back bit for bit; one\n"
        "model.safetensors of up to 5 GB as the same file, any other in shards of our own.\n\n"
        "It also takes a directory that Megatron-LM wrote, in its torch_dist or its old torch\n"
        "layout, of any parallel sizes. Family and config.json are made from the arguments that\n"
        "Megatron-LM keeps in its checkpoints; what cannot be known is asked for by name. The\n"
        "vocabulary's padding is left behind. `inspect` says beforehand what is missing.",
        "  python -m megatron_bridge export ckpt back\n"
        "  python -m megatron_bridge export ckpt served --as native\n"
        "  python -m megatron_bridge export megatron/checkpoints back --tokenizer tokenizer",
    ),
    "inspect": (
        switches.add_inspect,
        "Say what lies in a folder: ours, Megatron-LM's or Hugging Face's.\n\n"
        "Format, iteration, the layout that it was written in, family, parameters, number\n"
        "formats, vocabulary, optimizer, and what is missing for an export. Reads headers only.",
        "  python -m megatron_bridge inspect megatron/checkpoints --tensors",
    ),
    "reshard": (
        switches.add_reshard,
        "Turn Megatron-LM's old torch layout into torch_dist.\n\n"
        "Weights and optimizer state; Megatron-LM takes the training up from it in any layout.\n"
        "What was written is read back and compared bit by bit.\n\n"
        "Megatron-LM's loss counts the rows that pad the vocabulary to a multiple of\n"
        "--make-vocab-size-divisible-by x --tensor-model-parallel-size. In another layout keep\n"
        "this product as it was, or the losses are not those of the run before.",
        "  python -m megatron_bridge reshard megatron/checkpoints resharded",
    ),
    "verify": (
        switches.add_verify,
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
        switches.add_train,
        "Train a checkpoint; the same call resumes a killed run.\n\n"
        "Starts world_size ranks on this machine; before that, indexes the samples and tells what\n"
        "is taken of each dataset. Prints what was measured, in JSON.",
        "  python -m megatron_bridge train ckpt --data tokens/train --end-of-document 0 \\\n"
        "      --out run --set steps=100 world_size=2 tensor_parallel=2 learning_rate=1e-5\n"
        "  python -m megatron_bridge train ckpt --data 0.7 web/train 0.3 books/train \\\n"
        "      --repeats books/train --end-of-document 0 --out run --set steps=100",
    ),
    "logits": (
        switches.add_logits,
        "Compute the logits of token ids: [batch, sequence, vocabulary].\n\n"
        "Starts tp x pp x ep ranks on this machine. The vocabulary is the model's own, without\n"
        "Megatron's padding. Hugging Face gives the same logits for the same ids, up to rounding.",
        "  echo '[[504, 3575, 282, 4649, 314]]' > ids.json\n"
        "  python -m megatron_bridge logits ckpt --tokens ids.json --out logits.safetensors\n"
        "  python -c \"from safetensors.numpy import load_file as load;\n"
        "  print(load('logits.safetensors')['logits'].argmax(-1))\"",
    ),
    "generate": (
        switches.add_generate,
        "Continue prompts greedily; writes the new ids.\n\n"
        "Starts tp x pp x ep ranks on this machine. Each step takes the likeliest token; nothing\n"
        "stops early, also not an end-of-document token. Ids are those of the model's tokenizer,\n"
        "which lies in the checkpoint's hf/.",
        "  echo '[[504, 3575, 282, 4649, 314]]' > ids.json\n"
        "  python -m megatron_bridge generate ckpt --prompts ids.json --max-new-tokens 16 "
        "--out new.json",
    ),
    "families": (
        switches.add_families,
        "List the model families; their tensors' names; what each was proved by.\n\n"
        "One line a family: its layers, what our own modules do in it (in brackets: in some of\n"
        "its models), and the only values of config.json's switches that can be carried over.",
        "  python -m megatron_bridge families --names qwen3_moe",
    ),
}  # fmt: skip
