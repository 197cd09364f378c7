"""`megaline explain`: which page a document or a token of a dataset came from, byte by byte."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows import console
from flows.arguments import Json
from flows.show_tokens import printable
from tasks.core import sources
from tasks.core.errors import ConfigError, InputError, ProofError

if TYPE_CHECKING:
    from tasks.core.record import Record

Found = dict[str, Any]
Split = Literal["train", "validation", "test"]

_FIRST_IDS = 40
_PARQUET = b"PAR1"
_BESIDE = ("documents.jsonl", "tokenizer.json")
_TOLD_BY = {"clean": "URL and clean text", "ingest": "the source's place, size and digest"}
_UNPACK = {"none": "cat", "bz2": "bzcat", "gz": "zcat", "xz": "xzcat", "zst": "zstdcat"}


def explain(
    path: Path,
    /,
    *,
    document: int | None = None,
    token: int | None = None,
    split: Split = "train",
    json: Json = False,
) -> int:
    """Say where a document of a token dataset came from, or the document that holds a token.

    That is the title and revision of its page; which bytes of the .bin are its ids; which line of
    the clean corpus is its text; which file of the raw corpus is its source, and which bytes of
    that file, unpacked (of Parquet which rows); and the fingerprint of all that it was made from.
    Numbers begin at 0, and the second number of a range is that of the byte after it.

    For example:

    megaline explain .megaline/tokens/*/* --document 7

    megaline explain .megaline/tokens/*/* --token 100000 --split test --json

    megaline explain build/chat/train --document 3

    Args:
        path: a sealed output of tokens; or chat data, a path without .bin and .idx
        document: its number in the split; in chat data the number of a conversation
        token: the number of a token in the split
        split: which one of a sealed output
    """
    if (document is None) == (token is None):
        raise ConfigError(
            "It is not said what is to be explained", where="--document, --token",
            expected="one of them", got="neither" if token is None else "both",
        )  # fmt: skip
    found = explained(path, split, document, token)
    console.say(found, lines(found), json)
    return 0


def explained(path: Path, split: Split, document: int | None, token: int | None) -> Found:
    """All that is known of a document, named by its own number or by that of a token.

    Returns:
        id, title and revision; `begins` (its first words, read from its ids); `token`, where one
        was asked for; `tokens` (where its ids lie); `source` (what it was made from). Of a sealed
        dataset also `clean` (where its text lies, and its URL) and `raw` (where its source lies,
        and the record of that), None where they are gone; `chain` (all outputs that went into it)
        and `unknown` (what is not told, and why).

    Raises:
        ConfigError: there is no such document or token, or this is an output of another stage.
        InputError: there is no dataset, or none that tells where its documents are from.
        ProofError: files contradict each other.
    """
    from flows import lineage
    from tasks.tokens.sft import files

    for prefix in (path, path / split):
        if files.is_one(prefix):
            beside = [files.beside(prefix, name) for name in _BESIDE]
            return _of_dataset(prefix, beside, document, token)
    if Path(f"{path}.idx").is_file():
        raise InputError(
            "This dataset does not tell where its documents are from", where=path,
            expected="an output of the stage tokens, or of `megaline tokenize-chat`",
            got="ids alone", fix="`megaline show-tokens` prints their text",
        )  # fmt: skip
    folder, record = lineage.open_record(path)
    if record.stage != "tokens":
        raise ConfigError(
            "This is no token dataset", where=folder, expected="an output of the stage tokens",
            got=f"one of {record.stage}", fix="take a path below tokens/",
        )  # fmt: skip
    data = folder / "data"
    found = _of_dataset(data / split, [data / name for name in _BESIDE], document, token)
    return found | _of_store(folder, record, found)


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The same as text for a terminal, which a stranger's page must not steer."""
    yield printable(found["title"] or found["id"])
    for name, told in _rows(found):
        if told:
            yield printable(f"  {name:<12} {told}")


def _of_dataset(prefix: Path, beside: list[Path], document: int | None, token: int | None) -> Found:
    """What a dataset tells; `beside` it are its list of documents and its tokenizer."""
    from tasks.tokens import lookup

    if token is None:
        place, inside = lookup.document(prefix, document or 0), []
    else:
        place = lookup.holder(prefix, token)
        inside = place.ids(token - place.first, token - place.first + 1)
    listing, tokenizer = beside
    noted = lookup.note(listing, place)
    # SentencePiece's and tiktoken's files are others.
    texts = lookup.texts(tokenizer, place.ids(0, _FIRST_IDS), inside) if tokenizer.is_file() else []
    begins, text = texts or (None, None)
    named = {"number": token, "offset": (token or 0) - place.first, "text": text}
    return {
        **{name: noted.get(name, "") for name in ("id", "title", "revision")},
        "begins": begins,
        **({"token": {**named, "id": inside[0]}} if inside else {}),
        "tokens": {
            "file": str(place.index.data),
            "range": list(place.range),
            "first": place.first,
            "count": place.tokens,
            "document": place.document,
            "documents": place.index.sequences,
            **({"pack": noted["pack"]} if "pack" in noted else {}),
        },
        "source": {"file": noted["source"], "range": noted["range"], "unit": "bytes"},
    }


def _of_store(folder: Path, record: Record, found: Found) -> Found:
    """What the outputs tell that a dataset was made from."""
    from flows import lineage

    root, above = folder.parents[2], lineage.ancestors(folder, record)
    keys = {key.partition("/")[0]: key for key in above}
    # Where the record of the corpus is gone, nothing names the raw one.
    told = {
        stage: of(root / key, above[key], found) if (key := keys.get(stage, "")) else None
        for stage, of in (("clean", _of_clean), ("ingest", _of_raw))
    }
    raw = told["ingest"]
    unknown = [
        f"{what}: {keys.get(stage, stage)} is no longer in the store"
        for stage, what in _TOLD_BY.items()
        if told[stage] is None
    ]
    own = f"{record.stage}/{record.label}/{record.fingerprint}"
    chain = {own: record, **above}
    return {
        "clean": told["clean"],
        "raw": raw,
        # Of a file that is gone nobody knows whether it was Parquet.
        "source": {**found["source"], "unit": raw.pop("unit") if raw else None},
        "chain": [{"output": key, "sealed": one is not None} for key, one in chain.items()],
        "unknown": unknown,
    }


def _of_clean(folder: Path, record: Record | None, found: Found) -> Found | None:
    from tasks.clean import lookup
    from tasks.core.artifacts import CleanCorpus

    parts = CleanCorpus(path=folder, record=record).shards if record else []
    if not parts or not all(part.is_file() for part in parts):
        return None
    source = found["source"]
    place = lookup.find(parts, source["file"], source["range"][0])
    if place is None or place.document["id"] != found["id"]:
        raise ProofError(
            "The clean corpus does not fit the tokens", where=folder,
            expected=f"document {found['id']}, from {source['range']} of {source['file']}",
            got=f"document {place.document['id']}" if place else "none from there",
            fix="`megaline verify --deep` tells which of the two was changed",
        )  # fmt: skip
    named = {name: place.document[name] for name in ("url", "language")}
    return {"file": str(place.part), "range": list(place.range), **named}


def _of_raw(folder: Path, record: Record | None, found: Found) -> Found | None:
    source = found["source"]
    path = folder / "data" / source["file"]
    if record is None or not path.is_file():
        return None
    entry = next(entry for entry in record.files if entry.path == source["file"])
    return {
        "file": str(path),
        **_extract(path, *source["range"]),
        "bytes": entry.bytes,
        "sha256": entry.sha256,
        "sources": record.metrics.get("sources", []),
        "created_at": record.created_at.isoformat(timespec="seconds"),
        "host": record.provenance.get("host"),
        "argv": record.provenance.get("argv", []),
    }


def _extract(path: Path, start: int, stop: int) -> Found:
    """What a range of a source file counts, and which command prints it."""
    with open(path, "rb") as file:
        if file.read(len(_PARQUET)) == _PARQUET:
            return {"unit": "rows", "command": None}
    unpack = f"{_UNPACK[sources.compression(path)]} {shlex.quote(str(path))}"
    return {"unit": "bytes", "command": f"{unpack} | tail -c +{start + 1} | head -c {stop - start}"}


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    tokens, source = found["tokens"], found["source"]
    token, clean, raw = (found.get(name) for name in ("token", "clean", "raw"))
    for name in ("id", "revision"):
        yield name, found[name]
    yield "url", clean and clean["url"]
    yield "begins", found["begins"]
    if token:
        text = "" if token["text"] is None else f" {token['text']!r}"
        yield "token", f"{token['number']}, number {token['offset']} here: id {token['id']}{text}"
    pack = f", in pack {tokens['pack']}" if "pack" in tokens else ""
    yield "document", f"{tokens['document']} of {tokens['documents']}{pack}"
    yield "tokens", f"{tokens['count']}, from number {tokens['first']} on"
    yield "ids", f"{_range(tokens)} of {tokens['file']}"
    yield "clean text", clean and f"{_range(clean)} of {clean['file']}"
    yield "source", f"{_range(source)} of {raw['file'] if raw else source['file']}"
    if raw:
        yield "", raw["command"]
        yield "sha256", f"{raw['sha256']}, {raw['bytes']} bytes"
        yield "from", ", ".join(raw["sources"])
        yield "taken in", f"{raw['created_at']} on {raw['host']}: {shlex.join(raw['argv'])}"
    for one in found.get("chain", ()):
        yield "made from", f"{one['output']}{'' if one['sealed'] else ' (gone)'}"
    for reason in found.get("unknown", ()):
        yield "not known", reason


def _range(place: Mapping[str, Any]) -> str:
    start, stop = place["range"]
    return f"{place.get('unit', 'bytes') or 'range'} {start} to {stop}"
