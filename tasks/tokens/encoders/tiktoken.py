"""tiktoken on a byte-level BPE's tokenizer.json: three to five times as fast as `tokenizers`.

It knows one regular expression and a table of ranks that are the ids, so a tokenizer suits it when
it splits by one expression (or as GPT-2) and merges in the order of its ids. Texts that spell an
added token are not for it.
"""

from __future__ import annotations

import functools
import json
import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.tokens.encoders import Spec, Unsuited, byte_level, unsuited
from tasks.tokens.encoders.routing import Routed, any_of

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel(use_regex=True)` splits by."""


def load(spec: Spec) -> Routed:
    """Build tiktoken's encoding from a tokenizer.json.

    Raises:
        Unsuited: the package is missing, or the tokenizer is of another kind.
    """
    if spec.own != "hugging_face":
        raise Unsuited("there is no tokenizer.json")
    try:
        import tiktoken
    except ImportError as error:
        raise Unsuited("the package tiktoken is not installed") from error
    described = json.loads(spec.file.read_bytes())
    pattern, ranks = pattern_of(described), _ranks(described)
    encoding = tiktoken.Encoding(
        "megaline", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
    )
    apart = any_of(token["content"] for token in described["added_tokens"])
    nfc = _is_nfc(described)
    return Routed("tiktoken", functools.partial(_encode, encoding, nfc), spec, nfc, apart)


def pattern_of(described: dict[str, Any]) -> str:
    """The one regular expression that a tokenizer.json splits texts by.

    Raises:
        Unsuited: it does not split by one.
    """
    steps = described["pre_tokenizer"] or {}
    steps = steps.get("pretokenizers", [steps])
    byte_level_step = {"type": "ByteLevel", "add_prefix_space": False}
    last = {**byte_level_step, "use_regex": True, **steps[-1]}
    if {key: last[key] for key in byte_level_step} != byte_level_step:
        raise Unsuited("it is no byte-level tokenizer, or puts a space before each text")
    if len(steps) == 1 and last["use_regex"]:
        return GPT2
    first = steps[0]
    whole = {"type": "Split", "behavior": "Isolated", "invert": False}
    if len(steps) != 2 or last["use_regex"] or {k: first.get(k) for k in whole} != whole:
        raise Unsuited("it does not split texts by one regular expression")
    pattern = first["pattern"].get("Regex")
    if not pattern:
        raise Unsuited("it does not split texts by one regular expression")
    return str(pattern)


def _ranks(described: dict[str, Any]) -> dict[bytes, int]:
    model = described["model"]
    if model.get("type") != "BPE" or model.get("dropout") or model.get("byte_fallback"):
        raise Unsuited("it is no plain BPE")
    vocabulary: dict[str, int] = model["vocab"]
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    made = [vocabulary["".join(pair)] for pair in pairs]
    if made != sorted(made):
        raise Unsuited("its ids are not in the order of its merges")
    if not set(byte_level.BYTES) <= set(vocabulary):
        raise Unsuited("its vocabulary lacks some of the 256 bytes")
    plain = set(vocabulary) - {token["content"] for token in described["added_tokens"]}
    try:
        return {byte_level.unspell(token): vocabulary[token] for token in plain}
    except KeyError as error:
        raise Unsuited("its vocabulary holds more than bytes") from error


def _is_nfc(described: dict[str, Any]) -> bool:
    normalizer = described["normalizer"]
    if normalizer not in (None, {"type": "NFC"}):
        raise Unsuited(f"it normalizes texts by {normalizer['type']}")
    return normalizer is not None


def _encode(encoding: Any, nfc: bool, text: str) -> NDArray[np.uint32]:
    if nfc:
        text = unicodedata.normalize("NFC", text)
    # Its regular expressions end at some 500,000 characters of whitespace in a row.
    with unsuited("tiktoken failed"):
        ids: NDArray[np.uint32] = encoding.encode_to_numpy(text, disallowed_special=())
    return ids
