"""What links show: internal, external and to other wikis, files with captions, variants."""

from __future__ import annotations

import re

from tasks.clean.marks import CAPTION, DROPPED
from tasks.clean.names import FRAMES, OPTIONS, PIXELS
from tasks.clean.wiki import Ledger, Wiki

_LANGUAGE_PREFIX = re.compile(r"(?:[a-z]{2,3}(?:-[a-z]{1,8})*|simple)")
# Of this shape, but no languages: https://meta.wikimedia.org/wiki/Interwiki_map.
_OTHER_PREFIXES = {"doi", "rfc", "hdl", "bug", "mw", "voy", "wmf", "wp", "wt", "irc", "ftp", "svn"}
_MEDIA_FILE = re.compile(
    r"[^:|]+:[^|]*\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|og[agv]|webm|pdf|djvu|mp3|wav|flac|midi?)"
    r"\s*",
    re.I,
)
_LONGEST_TITLE = 300
_PIXELS = "|".join(sorted(PIXELS, key=len, reverse=True))
_SIZE = re.compile(rf"\d*+\s*+x?+\s*+\d*+[\s_]*+(?:{_PIXELS})?+", re.I)
_NAMED_OPTION = re.compile(r"[\w-]++\s*+=.*", re.S)
_GALLERY_OPTION = re.compile(
    r"(?:^|\|)\s*(?:alt|link|lang|page|class|代替文|替代文本)\s*=[^|\n]*+\|?"
)
_VARIANT_FLAGS = re.compile(r"[A-Za-z; -]*")
_SCRIPTS = {
    "zh-hant": ("zh-hant", "zh-tw", "zh-hk", "zh-mo", "zh", "zh-hans", "zh-cn"),
    "sr": ("sr-ec", "sr", "sr-el"),
}
_SIMPLIFIED = ("zh-hans", "zh-cn", "zh", "zh-sg", "zh-my", "zh-hant", "zh-tw", "zh-hk", "sr-ec")


def internal(inner: str, wiki: Wiki, ledger: Ledger) -> str:
    """What `[[inner]]` shows, its own markup already shown."""
    target, bar, rest = inner.partition("|")
    if ":" in target:
        target = target.strip()
        if target.startswith(":"):
            target = target[1:]
        elif (kind := _kind(target, wiki)) == "files":
            return _file(inner, rest, wiki, ledger)
        elif kind:
            ledger.drop(kind, inner)
            return DROPPED
    label = rest.rpartition("|")[2] if bar else ""
    return label if label.strip() else _title(target.strip(), wiki)


def is_furniture(target: str, wiki: Wiki) -> bool:
    """True for files, categories and links to other languages."""
    return ":" in target and _kind(target.strip(), wiki) != ""


def caption(rest: str) -> str:
    """The caption of an image: the last of its parts that is no option."""
    return next((part for part in _parts(rest)[::-1] if not _is_option(part)), "")


def variant(inner: str, language: str) -> str:
    """What `-{flags|zh-hans:…;zh-hant:…}-` shows: the first of the preferred scripts."""
    flags, bar, body = inner.partition("|")
    if not bar or not _VARIANT_FLAGS.fullmatch(flags):
        flags, body = "", inner
    if set(flags) & set("HTD-"):
        return DROPPED
    pairs = [part.partition(":") for part in body.split(";") if ":" in part]
    if "R" in flags or not pairs:
        return body
    by_script = {script.strip().lower(): text.strip() for script, _, text in pairs}
    for script in _SCRIPTS.get(language, _SIMPLIFIED):
        if script in by_script:
            return by_script[script]
    # A colon of the text itself: `-{A: b}-` is no list of scripts.
    return next(iter(by_script.values())) if all(map(_is_script, by_script)) else body


def _is_script(name: str) -> bool:
    return bool(re.fullmatch(r"[a-z]{2,3}(?:-[a-z]{2,8})*", name))


def _title(target: str, wiki: Wiki) -> str:
    """A title as readers know it: without the address of a category or file."""
    prefix, colon, name = target.partition(":")
    space = prefix.strip().lower() if colon else ""
    if space in wiki.namespaces.hidden or space in wiki.namespaces.files:
        return name.strip()
    return target.removeprefix("#")


def _kind(target: str, wiki: Wiki) -> str:
    """The construct that a link is if it shows nothing where it stands; else empty."""
    prefix = target.partition(":")[0].strip().replace("_", " ")
    lower = prefix.lower()
    if lower in wiki.namespaces.files:
        return "files"
    if lower in wiki.namespaces.hidden:
        return "categories"
    if len(target) < _LONGEST_TITLE and _MEDIA_FILE.fullmatch(target):
        return "files"
    if _LANGUAGE_PREFIX.fullmatch(prefix) and prefix not in _OTHER_PREFIXES:
        return "language links"
    return ""


def _file(inner: str, rest: str, wiki: Wiki, ledger: Ledger) -> str:
    # Only a frame shows its caption; that of a bare image is a tooltip.
    framed = wiki.captions == "text" and any(_word(part) in FRAMES for part in _parts(rest))
    shown = " ".join(caption(rest).replace(CAPTION, " ").split()) if framed else ""
    if not shown:
        ledger.drop("files", inner)
        return DROPPED
    ledger.keep("files", inner, shown)
    return f"{DROPPED}{CAPTION}{shown}{CAPTION}"


def _parts(rest: str) -> list[str]:
    return [part for part in map(str.strip, rest.split("|")) if part]


def _is_option(part: str) -> bool:
    return bool(_word(part) in OPTIONS or _SIZE.fullmatch(part) or _NAMED_OPTION.fullmatch(part))


def _word(option: str) -> str:
    """An option in small letters without a value, or a size as in `thumb250px`, behind it."""
    word = option.partition("=")[0].lower().replace("_", " ")
    return word.rstrip("0123456789px. ") if word[-1:] in "x0123456789. " else word


def gallery(inner: str) -> str:
    """The captions of a `<gallery>`, a line each.

    Args:
        inner: lines of `file|options|caption`, whose links are shown already.
    """
    captions = []
    for line in inner.split("\n"):
        rest = _GALLERY_OPTION.sub("", line.partition("|")[2]).strip()
        if rest:
            captions.append(rest)
    return "\n".join(["", *captions, ""])
