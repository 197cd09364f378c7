"""`megaline show-tokens`: a sample of a token dataset, with the tokens that bear loss in colour."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from flows import console
from flows.arguments import Json
from tasks.core.errors import InputError

Sample = Mapping[str, Any]
Place = Annotated[int | None, Parameter(validator=Number(gte=0))]

# Controls, and what turns the writing direction: they could show what is not there.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Two shades each, by turns, so that every token is seen: with loss, and without.
_SHADES = {True: ("\x1b[30;42m", "\x1b[30;102m"), False: ("\x1b[0m", "\x1b[2m")}
_RESET = "\x1b[0m"
_PIECE = "⋯"


def show_tokens(
    path: Path,
    /,
    *,
    index: Place = None,
    document: Place = None,
    split: str = "train",
    length: Annotated[int, Parameter(validator=Number(gte=1))] = 256,
    tokenizer: Path | None = None,
    ids: Annotated[bool, Parameter(negative="")] = False,
    no_color: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Print a sample of a token dataset, the tokens that bear loss in colour.

    Without colour, as in a pipe, these stand between ‹ and ›, and │ stands between tokens. ⋯ is
    part of a character, ⏎ a line break, and controls are shown as pictures of them.

    For example:

    megaline show-tokens .megaline/tokens/*/* --split test --index 3

    megaline show-tokens build/chat/train --document 7 --ids

    Args:
        path: a sealed output of tokens, or a path without .bin and .idx
        index: a sample: a pack of a chat dataset, the Nth --length tokens of a text dataset; 0
        document: a conversation, or a document, in place of a sample
        split: which one of a sealed output
        length: tokens of a sample of a text dataset
        tokenizer: a tokenizer.json, or its folder; the one beside the dataset without it
        ids: one token a line, with its id
        no_color: as NO_COLOR in the environment
    """
    found = sample(_prefix(path, split), index, document, length, tokenizer)
    colour = not no_color and "NO_COLOR" not in os.environ and sys.stdout.isatty()
    console.say(found, listed(found) if ids else lines(found, colour), json)
    return 0


def sample(
    prefix: Path, index: int | None, document: int | None, length: int, tokenizer: Path | None
) -> Sample:
    """The sample that was asked for; see `tasks.tokens.sample.stretch`.

    Raises:
        ConfigError: there is none of this number.
        InputError: there is no dataset, or no tokenizer.
    """
    from tasks.tokens import sample as samples
    from tasks.tokens.sft import files

    tokenizer = tokenizer or files.beside(prefix, "tokenizer.json")
    if tokenizer.is_dir():
        tokenizer /= "tokenizer.json"
    elif not tokenizer.exists():
        # That of a sealed output.
        tokenizer = prefix.with_name("tokenizer.json")
    if files.is_one(prefix):
        if document is not None:
            return samples.conversation(prefix, document, tokenizer)
        return samples.pack(prefix, index or 0, tokenizer)
    if document is not None:
        return samples.document(prefix, document, tokenizer)
    return samples.stretch(prefix, index or 0, length, tokenizer)


def lines(found: Sample, colour: bool) -> Iterator[str]:
    """The sample as text for a terminal, or for a pipe."""
    for one in found["documents"]:
        yield _heading(found, one)
        yield "".join(_coloured(one["tokens"]) if colour else _marked(one["tokens"]))
    yield _summary(found)


def listed(found: Sample) -> Iterator[str]:
    """The sample as a table: place in its document, id, ‹› where it bears loss, text."""
    for one in found["documents"]:
        yield _heading(found, one)
        for place, token in enumerate(one["tokens"]):
            mark = "‹›" if token["loss"] else "  "
            yield f"{place:>7} {token['id']:>8} {mark} {printable(token['text'])}"
    yield _summary(found)


def printable(text: str) -> str:
    """A stranger's text in one line, without what would steer a terminal."""
    return _CONTROL.sub(_picture, text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code == 0x0A:
        return "⏎"
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"


def _token(text: str) -> str:
    """A token's text; line breaks are shown, and made."""
    return "⏎\n".join(map(printable, text.split("\n"))) if text else _PIECE


def _coloured(tokens: list[dict[str, Any]]) -> Iterator[str]:
    for place, token in enumerate(tokens):
        shade = _SHADES[token["loss"]][place % 2]
        # A background goes to the end of the line if it is left on at a line break.
        yield f"{shade}{_token(token['text'])}".replace("\n", f"{_RESET}\n{shade}") + _RESET


def _marked(tokens: list[dict[str, Any]]) -> Iterator[str]:
    inside = False
    for place, token in enumerate(tokens):
        if token["loss"] != inside:
            yield "‹" if token["loss"] else "›"
            inside = token["loss"]
        elif place:
            yield "│"
        yield _token(token["text"])
    if inside:
        yield "›"


def _heading(found: Sample, one: Mapping[str, Any]) -> str:
    what = "conversation" if found["kind"] == "chat" else "document"
    note, tokens = one["note"] or {}, one["tokens"]
    said = [
        f"{what} {one['document']}",
        f"{len(tokens):,} tokens",
        f"{sum(token['loss'] for token in tokens):,} bear loss",
        *(f"{key} {note[key]}" for key in ("id", "source", "range") if note.get(key, "") != ""),
    ]
    return printable(f"── {', '.join(said)} ──")


def _summary(found: Sample) -> str:
    tokens = [token for one in found["documents"] for token in one["tokens"]]
    bearing = sum(token["loss"] for token in tokens)
    return f"── {len(tokens):,} tokens in all, {bearing:,} bear loss ──"


def _prefix(path: Path, split: str) -> Path:
    for prefix in (path, path / split, path / "data" / split):
        if Path(f"{prefix}.idx").is_file():
            return prefix
    raise InputError(
        "There is no token dataset", where=path,
        expected=f"{path.name}.idx, or a folder with {split}.idx", got="neither",
        fix="name an output of tokens, or a path without .bin and .idx",
    )  # fmt: skip
