"""What travels beside a run's weights: `config.json`, tokenizer, generation config, made or given.

Megatron-LM writes none of them. They are made from the run's arguments, or taken from a folder that
somebody names and compared with the arguments; what cannot be known is asked for by name.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_bridge import families, hf
from megatron_bridge.errors import ConfigError, InputError
from megatron_bridge.megatron_lm import arguments as megatron
from megatron_bridge.megatron_lm import candidates, tokenizer
from megatron_bridge.megatron_lm.arguments import Arguments
from megatron_bridge.megatron_lm.meaning import meaning
from megatron_bridge.megatron_lm.tokenizer import Tokenizer

Told = dict[str, Any]
"""What the files were made of, for a certificate."""


@dataclass(frozen=True)
class Given:
    """What somebody knows of a run beside its folder."""

    tokenizer: Path | None = None
    """A folder with the tokenizer."""
    vocab_size: int | None = None
    """The true number of tokens."""
    model_type: str | None = None
    """The family, where another would be taken."""
    like: Path | None = None
    """A Hugging Face folder with the model's config, and its tokenizer."""


NOTHING = Given()
_NULL = (
    "of a NullTokenizer (some versions of Megatron-Core give it one more, the end of documents; "
    "--vocab-size keeps it)"
)


def write(arguments: Arguments, padded: int, given: Given, folder: Path) -> Told:
    """Write the files into `folder`; return what they were made of.

    Args:
        arguments: the run's.
        padded: rows of the checkpoint's embedding.
        given: what was said beside.
        folder: it plays the part that `hf/` has in a checkpoint of ours.

    Raises:
        ConfigError: the vocabulary's true size is not known, or something given does not fit.
        InputError: a file given cannot be read, or the arguments lack something.
    """
    found = tokenizer_of(arguments, given)
    if given.like is not None:
        config, told = _given_config(arguments, given)
        size = families.get(config["model_type"]).shape(config).vocab
        source = "config.json of --like"
        if given.vocab_size is not None:
            size, source = vocabulary(arguments, found, given)
    else:
        reading = megatron.only_reading(present(arguments))
        size, source = vocabulary(arguments, found, given)
        family, config = candidates.choose(megatron.fields(reading), size, given.model_type)
        told = f"made from the arguments, as {family.model_type}"
    check_size(arguments, size, padded, source)
    _write(config, size, found, given, folder)
    return {
        "arguments": len(arguments),
        "config": told,
        "vocabulary": {"true": size, "padded": padded, "from": source},
        "tokenizer": _tokenizer_words(found, given),
        "training_only": megatron.training_only(arguments),
    }


def check_size(arguments: Arguments, size: int, padded: int, source: str) -> None:
    """Refuse a number of tokens that the run cannot have padded to what the checkpoint has.

    Raises:
        ConfigError: it is too large, or too small; one below the run's own would drop tokens.
    """
    own = arguments.get("vocab_size") or 1
    multiple = megatron.vocabulary_multiple(arguments)
    smallest = 1 if not multiple or padded % multiple else padded - multiple + 1
    smallest = max(smallest, min(own, padded))
    if smallest <= size <= padded:
        return
    pads = f", which pads to a multiple of {multiple}" if multiple and smallest > 1 else ""
    pads += f"; the run's arguments say {own}" if smallest == own > 1 else ""
    raise ConfigError(
        "The vocabulary does not fit the checkpoint",
        where=source,
        expected=f"{smallest} to {padded} tokens, for an embedding of {padded} rows{pads}",
        got=f"{size} tokens",
        fix="give the tokenizer that the run used, or its number of tokens by --vocab-size",
    )


def tokenizer_of(arguments: Arguments, given: Given = NOTHING) -> Tokenizer | None:
    """Return the tokenizer given, or the one that the arguments name on this disk, or None."""
    if given.tokenizer is not None:
        return tokenizer.given(given.tokenizer)
    return tokenizer.of_run(arguments) if given.like is None else None


def vocabulary(
    arguments: Arguments, found: Tokenizer | None, given: Given = NOTHING
) -> tuple[int, str]:
    """Return the true number of tokens, and who says so.

    Raises:
        ConfigError: nobody does.
    """
    own = arguments.get("vocab_size")
    if given.vocab_size is not None:
        apart = own and own != given.vocab_size
        said = f" (the run's arguments say {own:,})" if apart else ""
        return given.vocab_size, f"--vocab-size{said}"
    if found is not None and (size := found.size):
        return size, f"the tokenizer in {found.folder}"
    if own:
        source = "vocab_size among the run's arguments"
        null = str(arguments.get("tokenizer_type") or "").startswith("Null")
        return own, f"{source}, {_NULL}" if null else source
    raise ConfigError(
        "The number of tokens is not known: the checkpoint says the padded one only",
        where="--vocab-size",
        expected="the true number of tokens, or the run's tokenizer",
        got="neither, and the run's arguments do not say it",
        fix="give --vocab-size N, or --tokenizer DIR with a tokenizer.json",
    )


def _given_config(arguments: Arguments, given: Given) -> tuple[dict[str, Any], str]:
    """Return the `config.json` of `--like`, which must mean what the arguments mean."""
    folder = Path(str(given.like))
    config = families.read_config(folder)
    family = families.get(config.get("model_type"))
    if given.model_type not in (None, family.model_type):
        raise ConfigError(
            "Two families were named",
            where="--model-type",
            expected=f"{family.model_type}, as in config.json of --like",
            got=given.model_type,
            fix="leave one of the two out",
        )
    if not arguments:
        return config, f"that of {folder}; the checkpoint has no arguments to compare it with"
    apart = [
        candidates.disagreements(family, config, meaning(megatron.fields(reading)))
        for reading in megatron.readings(arguments)
    ]
    if all(apart):
        raise ConfigError(
            "The config.json does not describe this run",
            where=f"--like {folder}",
            expected="the model that the run's arguments describe",
            got="; ".join(apart[0]),
            fix="give the folder of the model that was trained, or leave --like out",
        )
    return config, f"that of {folder}, compared with the arguments"


def _vocab_name(config: dict[str, Any]) -> str:
    return families.get(config["model_type"]).vocab


def _write(
    config: dict[str, Any], size: int, found: Tokenizer | None, given: Given, folder: Path
) -> None:
    if given.like is not None:
        for path in hf.carried_files(given.like):
            shutil.copyfile(path, folder / path.name)
    if found is not None:
        found.copy(folder)
    special = {name: n for name, n in (found.special() if found else {}).items() if n < size}
    if special and given.like is None:
        config = {**config, **special}
        (folder / "generation_config.json").write_text(_json(special), encoding="utf-8")
    if given.like is None or config[_vocab_name(config)] != size:
        config = {**config, _vocab_name(config): size}
        (folder / "config.json").write_text(_json(config), encoding="utf-8")


def _tokenizer_words(found: Tokenizer | None, given: Given) -> str | None:
    """Where the tokenizer came from; None where there is none."""
    if found is not None:
        named = "given" if given.tokenizer else "named by the run's arguments"
        return f"{found.folder}, {named}"
    if given.like is not None and Tokenizer(given.like).files:
        return f"{given.like}, given"
    return None


def present(arguments: Arguments) -> Arguments:
    """Return the arguments.

    Raises:
        InputError: there are none.
    """
    if not arguments:
        raise InputError(
            "The checkpoint holds no arguments of the run",
            where="args in the checkpoint",
            expected="what Megatron-LM keeps there, by which the model is known",
            got="weights alone",
            fix="give a folder with the model's config.json by --like; the export will say that it "
            "could not be compared with the run",
        )
    return arguments


def _json(table: dict[str, Any]) -> str:
    return json.dumps(table, indent=2, ensure_ascii=False) + "\n"
