"""One contender of `clean.py`, in a process of its own: ours, or a peer in the peers' environment.

    python benchmarks/clean_contenders.py NAME INPUT OUT [JSON]

A tool reads the dump INPUT and writes JSON lines into the folder OUT. The others read texts from a
JSON file, and write to the file OUT what they found and the processor seconds that it took them,
their imports and models apart.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

PROCESSES = 2
_PART_BYTES = 64 << 20
_ROUNDS = 3

Work = Callable[[Path, Path, dict[str, Any]], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("input", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("options", nargs="?", default="{}", type=json.loads)
    options = parser.parse_args()
    CONTENDERS[options.name](options.input, options.out, options.options)


def ours(dump: Path, out: Path, options: dict[str, Any]) -> None:
    """What the stage `clean` does to a dump, two workers; `options` is its configuration."""
    from tasks.clean.corpus import Run, write_parts
    from tasks.clean.task import CleanConfig

    config = CleanConfig.model_validate(options)
    scratch = out.with_name(f"{out.name}.scratch")
    scratch.mkdir()
    run = Run(
        config, dump.name, scratch, "error", _PART_BYTES, PROCESSES, config.executor,
        lambda *_, **__: None,
    )  # fmt: skip
    report = write_parts(dump.parent, [dump.name], out, run).as_json()
    (out / "report.json").write_text(json.dumps(report), encoding="utf-8")


def wikiextractor(dump: Path, out: Path, options: dict[str, Any]) -> None:
    """WikiExtractor's command, two processes.

    Its patterns have `(?i)` behind their beginning, which Python 3.11 refuses: the flag is handed
    to `re.compile` in its place. Python 3.10 and older, which need no such thing, run it slower.
    """
    compiled = re.compile

    def compile_flagged(pattern: Any, flags: int = 0) -> Any:
        if isinstance(pattern, str) and "(?i)" in pattern[1:]:
            pattern, flags = pattern.replace("(?i)", ""), flags | re.I
        return compiled(pattern, flags)

    # mypy knows `re.compile` by its overloads.
    re.compile = compile_flagged  # type: ignore[assignment]
    from wikiextractor.WikiExtractor import main as extract

    size = ("--bytes", "64M", "--processes", str(PROCESSES), "--json", "--quiet")
    sys.argv = ["wikiextractor", str(dump), "--output", str(out), *size, *options.get("more", ())]
    extract()


def repair(texts: Path, out: Path, options: dict[str, Any]) -> None:
    """ftfy and ours in turn; tells whether every text comes out the same."""
    import ftfy

    from tasks.clean.repair import repair as ours

    documents = json.loads(texts.read_text(encoding="utf-8"))
    ours(documents[0])
    rounds = []
    for _ in range(_ROUNDS):
        theirs_took, theirs = _timed(ftfy.fix_text, documents)
        ours_took, repaired = _timed(ours, documents)
        rounds.append([ours_took, theirs_took])
    changed = sum(new != old for new, old in zip(theirs, documents, strict=True))
    same = sum(one == two for one, two in zip(theirs, repaired, strict=True))
    _tell(out, rounds=rounds, texts=len(documents), changed=changed, same=same)


def filters(texts: Path, out: Path, options: dict[str, Any]) -> None:
    """Our rules for lines and filters; `options` are thresholds."""
    from tasks.clean.filters import Thresholds, reason_to_drop
    from tasks.clean.line_filters import LineThresholds, drop_lines

    thresholds, lines = Thresholds.model_validate(options), LineThresholds()

    def judged(text: str) -> Any:
        return reason_to_drop(drop_lines(text, "en", lines)[0], "en", thresholds)

    _judge(judged, texts, out)


def datatrove(texts: Path, out: Path, options: dict[str, Any]) -> None:
    """datatrove's Gopher filters, and of C4's what applies to an encyclopaedia.

    Each sees each text, as ours takes every measure of a text that passes.
    """
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from datatrove.utils.text import split_into_parts

    off = dict.fromkeys(
        ("filter_no_terminal_punct", "filter_curly_bracket", "filter_javascript", "filter_policy"),
        False,
    )
    rules = [
        GopherQualityFilter(**options),
        GopherRepetitionFilter(),
        C4QualityFilter(**off, min_words_per_line=-1),
    ]

    def judged(text: str) -> Any:
        found = [rule.filter(Document(text=text, id="0")) for rule in rules]
        return next((one[1] for one in found if isinstance(one, tuple)), None)

    # It remembers the parts of each text.
    _judge(judged, texts, out, split_into_parts.cache_clear)


def mwparserfromhell(texts: Path, out: Path, options: dict[str, Any]) -> None:
    """The text of pages of wikitext, without files, categories, references and comments.

    `options` holds the prefixes of links that show nothing.
    """
    import mwparserfromhell as parser

    hidden = frozenset(options["hidden"])

    def shown(source: str) -> str:
        code = parser.parse(source)
        gone = [link for link in code.filter_wikilinks() if _prefix(link.title) in hidden]
        tags = (tag for tag in code.filter_tags() if str(tag.tag).strip().lower() == "ref")
        for node in (*gone, *tags, *code.filter_comments()):
            # What stood inside another one is gone already.
            if code.contains(node):
                code.remove(node)
        return str(code.strip_code())

    _tell(out, texts=[shown(text) for text in json.loads(texts.read_text(encoding="utf-8"))])


def _prefix(title: Any) -> str:
    return str(title).partition(":")[0].strip().lower() if ":" in str(title) else ""


def _judge(
    judged: Callable[[str], Any],
    texts: Path,
    out: Path,
    forget: Callable[[], None] = lambda: None,
) -> None:
    documents = json.loads(texts.read_text(encoding="utf-8"))
    # Models are loaded when a text first asks for them.
    for text in documents:
        judged(text)
    forget()
    seconds, verdicts = _timed(judged, documents)
    dropped = sum(verdict is not None for verdict in verdicts)
    _tell(out, seconds=seconds, texts=len(documents), dropped=dropped)


def _timed(function: Callable[[str], Any], texts: list[str]) -> tuple[float, list[Any]]:
    started = time.process_time()
    results = [function(text) for text in texts]
    return time.process_time() - started, results


def _tell(out: Path, **found: Any) -> None:
    out.write_text(json.dumps(found), encoding="utf-8")


CONTENDERS: dict[str, Work] = {
    "ours": ours,
    "wikiextractor": wikiextractor,
    "repair": repair,
    "filters": filters,
    "datatrove": datatrove,
    "mwparserfromhell": mwparserfromhell,
}


if __name__ == "__main__":
    main()
