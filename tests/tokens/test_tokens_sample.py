"""Samples of what is damaged, cut or of another tokenizer."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from tokenizers.decoders import DecodeStream

from tasks.core.errors import ConfigError, InputError, ProofError
from tasks.tokens import indexed, sample

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["\u2581", "\u2581a", "b", "\u2581n't"]


@pytest.fixture
def fallback(tmp_path: Path) -> Path:
    """A tokenizer like Llama 2's: what it has no token for is spelled in tokens of one byte."""
    vocabulary = {token: number for number, token in enumerate([*BYTES, *WORDS])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def write(prefix: Path, ids: list[int]) -> Path:
    with indexed.Writer(prefix, np.dtype("<i4")) as writer:
        writer.add(np.array(ids), np.array([len(ids)], np.int32))
    return prefix


def texts(prefix: Path, tokenizer: Path) -> list[str]:
    (found,) = sample.stretch(prefix, 0, 100, tokenizer)["documents"]
    return [token["text"] for token in found["tokens"]]


def test_characters_in_pieces(tmp_path: Path, fallback: Path) -> None:
    ids = [257, 258, *"\u6771\U0001f600".encode(), 257, 256]
    wanted = ["a", "b", "", "", "\u6771", "", "", "", "\U0001f600", " a", " "]
    assert texts(write(tmp_path / "x", ids), fallback) == wanted


def test_a_sample_that_begins_within_a_character(tmp_path: Path, fallback: Path) -> None:
    ids = [0x9F, 0x98, 0x80, 257, 258, *[0x80] * 40, 257]
    found = "".join(texts(write(tmp_path / "x", ids), fallback))
    assert (found.count("\ufffd"), found.replace("\ufffd", "")) == (43, " ab a")
    # Where the library's own decoder gives up.
    ids = [0x3D, 0x80, 257, 0x3D, 0xFF, 259]
    stream, tokenizer = DecodeStream(), Tokenizer.from_file(str(fallback))
    with pytest.raises(Exception, match="Invalid prefix"):
        list(map(functools.partial(stream.step, tokenizer), ids))
    assert len(texts(write(tmp_path / "y", ids), fallback)) == 6


def test_ids_that_the_tokenizer_does_not_have(tmp_path: Path, fallback: Path) -> None:
    assert texts(write(tmp_path / "x", [257, -1, 1 << 30, 258]), fallback) == ["a", "", "", "b"]


def test_what_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        texts(write(tmp_path / "x", [1]), tmp_path / "t.json")


def test_an_index_that_contradicts_itself(tmp_path: Path, fallback: Path) -> None:
    prefix = write(tmp_path / "x", [257, 258])
    assert texts(prefix, fallback) == ["a", "b"]
    index = bytearray((tmp_path / "x.idx").read_bytes())
    index[-8] = 7
    (tmp_path / "x.idx").write_bytes(index)
    with pytest.raises(ProofError, match="7 sequences in its documents"):
        texts(prefix, fallback)


def test_documents_without_tokens(tmp_path: Path, fallback: Path) -> None:
    with indexed.Writer(tmp_path / "x", np.dtype("<i4")) as writer:
        counts, lengths = np.array([1, 0, 1]), np.array([2, 1], np.int32)
        writer.add(np.array([257, 258, 258]), lengths, counts)
    for number, texts in enumerate((["a", "b"], [], ["b"])):
        (found,) = sample.document(tmp_path / "x", number, fallback)["documents"]
        assert found["document"] == number
        assert [token["text"] for token in found["tokens"]] == texts
    with pytest.raises(ConfigError, match=r"some stretches of 9 tokens\. Got: none"):
        sample.stretch(write(tmp_path / "empty", []), 0, 9, fallback)
