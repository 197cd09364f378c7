"""Masks for what points at a person: addresses, numbers of phones, papers and cards.

Conservative: a number is masked where its form, its place and its check digit say what it is. An
encyclopaedia is full of numbers, and an ISBN, a year or a coordinate must come through.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import date
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Literal, NamedTuple

Kind = Literal["mail", "phone", "china_id", "bank_card", "ipv4", "ipv6"]

MASKS: dict[Kind, str] = {
    "mail": "<MAIL>",
    "phone": "<PHONE>",
    "china_id": "<ID>",
    "bank_card": "<CARD>",
    "ipv4": "<IP>",
    "ipv6": "<IP>",
}
# Beside a number may stand no digit or letter, nor a mark that makes more of it, as in a DOI.
_BEFORE = r"(?<![0-9A-Za-z_])(?<![0-9A-Za-z][-.,/:])"
_AFTER = r"(?![0-9A-Za-z_])(?![-.,/:][0-9])"
# The weights and check digits of GB 11643-1999 (ISO 7064, MOD 11-2).
_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_ID_CHECKS = "10X98765432"
_ID_PROVINCES = frozenset(
    "11 12 13 14 15 21 22 23 31 32 33 34 35 36 37 41 42 43 44 45 46 50 51 52 53 54 61 62 63 64 65 "
    "71 81 82 83".split()
)
# Identifiers whose numbers look like a card's or a phone's.
_NO_PERSON = re.compile(
    r"(?:ISBN|ISSN|EAN|UPC|OCLC|PMID|PMC|DOI|arXiv|LCCN|JSTOR|Bibcode|IMEI|GTIN|NCT|RFC|CAS)"
    r"(?:-1[03])?[\s:#：No.]{0,4}$",
    re.I,
)
_AMOUNT = re.compile(r"\+\d{1,3}(?:[ .]\d{3})+")


class _Rule(NamedTuple):
    """How one kind is found.

    Attributes:
        kind: what it is.
        hint: is in every text that holds one; a search for it is cheaper.
        pattern: what it looks like.
        is_one: whether a match is one, given the text before it.
    """

    kind: Kind
    hint: re.Pattern[str]
    pattern: re.Pattern[str]
    is_one: Callable[[str, str], bool]


def mask(text: str, kinds: Iterable[Kind]) -> tuple[str, Counter[Kind]]:
    """Put a mask for each thing found.

    Args:
        text: any text.
        kinds: what to look for; `MASKS` names the masks.

    Returns:
        The text, and how many of each kind were masked.
    """
    counts: Counter[Kind] = Counter()
    wanted = set(kinds)
    for rule in _RULES:
        if rule.kind in wanted and rule.hint.search(text):
            text = _masked(text, rule, counts)
    return text, counts


def _masked(text: str, rule: _Rule, counts: Counter[Kind]) -> str:
    def put(match: re.Match[str]) -> str:
        before = match.string[max(0, match.start() - 24) : match.start()]
        if not rule.is_one(match[0], before):
            return match[0]
        counts[rule.kind] += 1
        return MASKS[rule.kind]

    return rule.pattern.sub(put, text)


def _is_mail(found: str, before: str) -> bool:
    del before
    name, _, domain = found.rpartition("@")
    # Example domains are nobody's (RFC 2606).
    return ".." not in name and not re.search(
        r"(?:^|\.)(?:example\.(?:com|net|org)|example|invalid|localhost)$", domain, re.I
    )


def _is_phone(found: str, before: str) -> bool:
    # +100 000 000 is an amount.
    if _AMOUNT.fullmatch(found):
        return False
    digits = re.sub(r"\D", "", found)
    return 7 <= len(digits) <= 15 and not _NO_PERSON.search(before)


def _is_china_id(found: str, before: str) -> bool:
    del before
    try:
        born = date(int(found[6:10]), int(found[10:12]), int(found[12:14]))
    except ValueError:
        return False
    total = sum(weight * int(digit) for weight, digit in zip(_ID_WEIGHTS, found, strict=False))
    return (
        found[:2] in _ID_PROVINCES
        and 1880 <= born.year <= 2100
        and _ID_CHECKS[total % 11] == found[17].upper()
    )


def _is_card(found: str, before: str) -> bool:
    digits = re.sub(r"\D", "", found)
    doubled = [int(d) * (1 + i % 2) for i, d in enumerate(reversed(digits))]
    luhn = sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0
    return luhn and len(set(digits)) > 1 and not _NO_PERSON.search(before)


def _is_ipv4(found: str, before: str) -> bool:
    # Versions and sections have four parts too.
    if re.search(r"(?:version|v\.?|release|ver\.?|section|§|firmware|build)\s*$", before, re.I):
        return False
    try:
        address = IPv4Address(found)
    except AddressValueError:
        return False
    return address.is_global


def _is_ipv6(found: str, before: str) -> bool:
    del before
    try:
        return IPv6Address(found).is_global
    except AddressValueError:
        return False


# In this order: an identity number has the length of a card's, and a card's that of a phone's.
_RULES = (
    _Rule(
        "mail",
        re.compile("@"),
        re.compile(
            r"(?<![\w.+-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@"
            r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,24}(?![\w@-])"
        ),
        _is_mail,
    ),
    _Rule(
        "china_id",
        re.compile(r"\d\d{16}"),
        re.compile(r"(?<![0-9A-Za-z.])[1-8]\d{16}[0-9Xx](?![0-9A-Za-z])"),
        _is_china_id,
    ),
    _Rule(
        "bank_card",
        re.compile(r"\d\d\d\d(?:[ -]?\d{4}[ -]?\d{4}|[ -]\d{6})"),
        # Groups of four, or none; the first digits of the card networks.
        re.compile(
            rf"{_BEFORE}(?:(?:4\d|5[1-5]|2[2-7]|62|60|65|35)\d\d([ -]?)\d{{4}}\1\d{{4}}\1\d{{4}}"
            rf"(?:\1\d{{3}})?|3[47]\d\d([ -]?)\d{{6}}\2\d{{5}}){_AFTER}"
        ),
        _is_card,
    ),
    # Mobile numbers in China.
    _Rule(
        "phone",
        re.compile(r"1[3-9]\d[ -]?\d{4}[ -]?\d{4}"),
        re.compile(rf"{_BEFORE}(?:(?:\+|00)86[ -]?)?1[3-9]\d([ -]?)\d{{4}}\1\d{{4}}{_AFTER}"),
        _is_phone,
    ),
    # International ones.
    _Rule(
        "phone",
        re.compile(r"\+[1-9]"),
        re.compile(
            r"(?<![0-9A-Za-z_+−])\+(?:[1-9]\d{0,2}[ .-]?(?:\(\d{1,4}\)[ .-]?\d{2,4}"
            rf"|\d{{1,4}}[ .-]\d{{2,4}})(?:[ .-]\d{{2,4}}){{1,3}}|[1-9]\d{{9,13}}){_AFTER}"
        ),
        _is_phone,
    ),
    # Others where a word says what they are.
    _Rule(
        "phone",
        re.compile(r"[Tt]el[.:] |[Pp]hone: |电话[：:]|電話[：:]"),
        re.compile(
            r"(?:(?<=[Tt]el[.:] )|(?<=[Pp]hone: )|(?<=电话[：:])|(?<=電話[：:]))"
            rf"\(?0?\d{{2,4}}\)?[ -]?\d{{3,4}}[ -]?\d{{3,4}}{_AFTER}"
        ),
        _is_phone,
    ),
    _Rule(
        "ipv4",
        re.compile(r"\d\.\d{1,3}\.\d{1,3}\.\d"),
        re.compile(rf"{_BEFORE}(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?![0-9A-Za-z_])(?!\.\d)"),
        _is_ipv4,
    ),
    _Rule(
        "ipv6",
        re.compile(r"[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]"),
        # Addresses of the Internet begin with 2 or 3, and C++ does not.
        re.compile(
            r"(?<![\w:.])[23][0-9A-Fa-f]{3}:(?:[0-9A-Fa-f]{0,4}:){1,6}[0-9A-Fa-f]{1,4}(?![\w:])"
        ),
        _is_ipv6,
    ),
)
