"""What links show: internal, external and to other wikis, files with captions, variants."""

from __future__ import annotations

import re

from tasks.clean.marks import CAPTION, DROPPED
from tasks.clean.wiki import Ledger, Wiki

_LANGUAGE_PREFIX = re.compile(r"(?:[a-z]{2,3}(?:-[a-z]{1,8})*|simple)")
_OTHER_PREFIXES = {"doi", "rfc", "hdl", "bug", "mw", "wp", "wt", "s", "q", "b", "d", "m", "n", "v"}
_MEDIA_FILE = re.compile(
    r"[^:|]+:[^|]*\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|og[agv]|webm|pdf|djvu|mp3|wav|flac|midi?)"
    r"\s*",
    re.I,
)
_LONGEST_TITLE = 300
_FRAMES = (
    "thumb|frame|mini|vignette|náhled|mały|bélyegkép|pienoiskuva|nhỏ|мини|міні|サムネ|缩略图|縮圖|有框"
    "|섬네일|تصغير|بندانگشتی|ממוזער"
)
_FRAMED = re.compile(rf"\|\s*(?:{_FRAMES})", re.I)
# Options are words of the wiki's language; those with a size or a `=` are known in any.
_IMAGE_OPTION = re.compile(
    rf"(?:{_FRAMES})\w*+|border|left|right|cent(?:er|re)|none|upright|baseline|middle|top"
    r"|bottom|text-top|text-bottom|sub|super|\d*+\s*+x?+\s*+\d*+\s*+(?:px|像素)|\d++|[\w-]++\s*+=.*"
    r"|links|rechts|zentriert|gauche|droite|centré|izquierda|derecha|centro|destra|sinistra"
    r"|esquerda|direita|lewo|prawo|слева|справа|ліворуч|праворуч|дясно|ляво|右|左|中央|居中|置中|无框"
    r"|無框",
    re.I | re.S,
)
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
    return label if label.strip() else target.strip().removeprefix("#")


def is_furniture(target: str, wiki: Wiki) -> bool:
    """True for files, categories and links to other languages."""
    return ":" in target and _kind(target.strip(), wiki) != ""


def caption(rest: str) -> str:
    """The caption of an image: the last of its parts that is no option."""
    for part in reversed(rest.split("|")):
        part = part.strip()
        if part and not _IMAGE_OPTION.fullmatch(part):
            return part
    return ""


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
    framed = wiki.captions == "text" and _FRAMED.search("|" + rest)
    shown = " ".join(caption(rest).replace(CAPTION, " ").split()) if framed else ""
    if not shown:
        ledger.drop("files", inner)
        return DROPPED
    ledger.keep("files", inner, shown)
    return f"{DROPPED}{CAPTION}{shown}{CAPTION}"


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
