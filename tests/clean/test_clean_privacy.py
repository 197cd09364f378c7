"""What is masked, and above all what is not."""

from __future__ import annotations

import pytest

from tasks.clean.privacy import MASKS, Kind, mask

ALL = tuple(MASKS)

# The identity numbers and cards are made up, with right check digits: GB 11643-1999's own example,
# and the networks' test cards.
MASKED: list[tuple[str, str, Kind]] = [
    ("Write to jane.doe+wiki@mail.test.co.uk.", "Write to <MAIL>.", "mail"),
    ("邮箱：zhang_san@test.cn。", "邮箱：<MAIL>。", "mail"),
    ("身份证11010519491231002X号", "身份证<ID>号", "china_id"),
    ("ID 440524188001010014.", "ID <ID>.", "china_id"),
    ("Pay with 4111 1111 1111 1111, please", "Pay with <CARD>, please", "bank_card"),
    ("378282246310005", "<CARD>", "bank_card"),
    ("卡号6200000000000005。", "卡号<CARD>。", "bank_card"),
    ("手机13812345678，", "手机<PHONE>，", "phone"),
    ("call +86 138-1234-5678 now", "call <PHONE> now", "phone"),
    ("ring +44 20 7946 0958.", "ring <PHONE>.", "phone"),
    ("ring +1 (202) 555-0143.", "ring <PHONE>.", "phone"),
    ("Tel: 010-62781234 for all", "Tel: <PHONE> for all", "phone"),
    ("edited from 8.8.4.4 at night", "edited from <IP> at night", "ipv4"),
    ("edited from 2001:4860:4860::8888 at night", "edited from <IP> at night", "ipv6"),
]
# Such as stand in the sample articles, or might.
KEPT = [
    "ISBN 978-0-306-40615-7, ISBN 0-306-40615-2, ISBN 9787111213826, ISSN 0378-5955",
    "OCLC 4111111111111111; PMID: 4111111111111111",
    "from 1815 to 1915, in 1949-1950, on 1949-10-01 and at 12:30:45",
    "a population of 4,196,457, or 1380000000000000, at 6.62607015 and 3.14159265358979",
    "37°47′N 122°25′W; 40.446111, -79.982222; 40.7128° N",
    "18 000 000 km² and 100 000–200 000 people; 1000 1000 1000 1000",
    "RGB +10 -20; a change of +1 234 567 people; +15 percent; +100 000 000",
    "version 1.2.3.4 and section 1.1.1.1, or 192.168.0.1 at home, 999.1.2.3",
    "std::vector, a::b, 1::2, 10:30:45, Genesis 1:1:2, ::1",
    "@handle, 4 @ 5, me@home, jane@example.org, a@b, user@localhost",
    "110105194912310021 has a wrong check digit, 990105194912310029 no province",
    "4111 1111 1111 1112 fails Luhn, 0000 0000 0000 0000 is nobody's",
    "π is 3.14159 26535 89793 23846 26433; 13812345678901 and 138123456789",
    "in base 2 it is 1011011101111011, in base 16 0x13812345678",
]


@pytest.mark.parametrize(("text", "expected", "kind"), MASKED)
def test_masked(text: str, expected: str, kind: Kind) -> None:
    assert mask(text, ALL) == (expected, {kind: 1})
    assert mask(text, [other for other in ALL if other != kind]) == (text, {})
    assert mask(text, []) == (text, {})


@pytest.mark.parametrize("text", KEPT)
def test_kept(text: str) -> None:
    assert mask(text, ALL) == (text, {})


def test_all_are_counted() -> None:
    text, counts = mask("a.b@test.org, c@test.org and 13812345678", ALL)
    assert text == "<MAIL>, <MAIL> and <PHONE>"
    assert counts == {"mail": 2, "phone": 1}


def test_time_is_linear() -> None:
    for piece in ("1", "1 ", "a@", "a.", "1.", ":", "0:", "-", "+1 ", "1-", "a"):
        mask(piece * 200_000, ALL)
