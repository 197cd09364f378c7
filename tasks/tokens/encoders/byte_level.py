"""The printable characters that stand for bytes in GPT-2's vocabulary and its heirs'."""

from __future__ import annotations


def _characters() -> dict[int, str]:
    # GPT-2's encoder.py, `bytes_to_unicode`: printable bytes stand for themselves, the others take
    # the code points from 256 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    moved = {byte: chr(256 + place) for place, byte in enumerate(others)}
    return {byte: moved.get(byte, chr(byte)) for byte in range(256)}


CHARACTERS = _characters()
BYTES = {character: byte for byte, character in CHARACTERS.items()}


def spell(token: bytes) -> str:
    """A token's bytes as the vocabulary writes them."""
    return "".join(CHARACTERS[byte] for byte in token)


def unspell(token: str) -> bytes:
    """The bytes of a token; raises KeyError where it has a character that stands for none."""
    return bytes(BYTES[character] for character in token)
