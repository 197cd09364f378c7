"""ftfy's repair of broken text, called only on the lines that it could change."""

from __future__ import annotations

import re
import unicodedata

# What any of ftfy's steps but two looks for: controls, ligatures and digraphs, surrogates, line
# breaks of other systems, then quotes and full- and half-width forms. The two others are asked
# themselves: mojibake (`is_bad`) and NFC.
_ALWAYS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u0132\u0133\u0149\u01c4-\u01cc\u01f1-\u01f3\u2028\u2029"
    "\u206a-\u206f\ud800-\udfff\ufb00-\ufb06\ufeff\ufff0-\uffff"
)
_TRIGGER = re.compile(f"[{_ALWAYS}\u02bc\u2018-\u201f\u3000\uff01-\uffef]")
_TRIGGER_CJK = re.compile(f"[{_ALWAYS}]")
_ANY_DOUBT = re.compile(r"[^\t\n\x20-\x25\x27-\x7e]")
_SEGMENT = 1_000_000


def repair(text: str, cjk: bool = False) -> str:
    """The same as `ftfy.fix_text(text)`, but faster.

    Args:
        text: any text.
        cjk: leave curly quotes and full-width forms as they are, for they are the right
            punctuation in Chinese, Japanese and Korean; the same as
            `ftfy.fix_text(text, uncurl_quotes=False, fix_character_width=False)`.
    """
    import ftfy
    from ftfy.badness import is_bad

    if not _ANY_DOUBT.search(text):
        return text
    config = ftfy.TextFixerConfig(explain=False, uncurl_quotes=not cjk, fix_character_width=not cjk)
    trigger = _TRIGGER_CJK if cjk else _TRIGGER
    # Segments of ftfy: lines with their line feed, for "\\r\\n" must not become two.
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    if max(map(len, lines)) > _SEGMENT:
        return ftfy.fix_text(text, config)
    for index, line in enumerate(lines):
        # ftfy unescapes entities up to the first line with a "<", taken as a sign of HTML.
        if config.unescape_html == "auto" and "<" in line:
            config = config._replace(unescape_html=False)
        if _ANY_DOUBT.search(line) and (
            trigger.search(line)
            or ("&" in line and config.unescape_html is not False)
            or not unicodedata.is_normalized("NFC", line)
            or is_bad(line)
        ):
            lines[index] = ftfy.fix_text(line, config)
    return "".join(lines)
