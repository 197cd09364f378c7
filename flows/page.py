"""The report of a run: records and what their outputs hold, as one document and as one HTML page.

The page asks for nothing beyond itself, and everything in it is escaped.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows import corpus, lineage, pictures
from flows.config import PipelineConfig
from megatron_bridge.resume import LOG
from tasks.core.errors import InputError
from tasks.core.record import Record

Document = dict[str, Any]

_TEMPLATE = "report.html.jinja"


def document(path: Path) -> Document:
    """All that the page shows, as JSON values.

    Args:
        path: a sealed output; what it was made from is taken from its store.

    Returns:
        `path`, `stage`, `label`, `fingerprint`, `results` (the headline), `line` (every stage of
        the line, with its state), `stages` (the records), `training` (the log), `sources` (of its
        samples), `evaluation`, `served`, `cleaned` and `commands`; None or empty where the run has
        no such stage.

    Raises:
        InputError: nothing is sealed there, or a file that a record lists cannot be read.
    """
    folder, record = lineage.open_record(path)
    root = folder.parents[2] if len(folder.parents) > 2 else folder
    found = {f"{record.stage}/{record.label}/{record.fingerprint}": record}
    above = found | lineage.ancestors(folder, record)
    stages = [
        _stage(folder if key in found else root / key, key, one) for key, one in above.items()
    ]
    order = list(PipelineConfig.model_fields)
    stages.sort(key=lambda one: order.index(one["stage"]) if one["stage"] in order else len(order))
    by_name = {one["stage"]: one for one in stages if one["state"] != "gone"}
    metrics = {name: one["metrics"] for name, one in by_name.items()}
    return {
        "path": str(folder),
        "stage": record.stage,
        "label": record.label,
        "fingerprint": record.fingerprint,
        "created_at": record.created_at.isoformat(timespec="seconds"),
        "results": _results(metrics, sum(one["seconds"] for one in stages)),
        "line": _line(order, stages),
        "stages": stages,
        "training": _lines(by_name.get("train"), LOG),
        "sources": metrics.get("train", {}).get("blend", []),
        "evaluation": _file(by_name.get("evaluate"), "report.json"),
        "served": _file(by_name.get("export"), "proof.json"),
        "cleaned": _cleaned(by_name.get("clean")),
        "commands": _commands(stages),
    }


def html(found: Document) -> str:
    """The document as one self-contained page.

    Raises:
        InputError: an output holds a report of another shape than this version writes.
    """
    drawn = [
        {"title": chart.title, "url": pictures.data_url(pictures.picture(chart, found["training"]))}
        for chart in (pictures.CHARTS if found["training"] else ())
    ]
    cleaned = corpus.drawn(found["cleaned"]) if found["cleaned"] else []
    return render(_TEMPLATE, found, pictures=drawn, corpus_pictures=cleaned)


def render(template: str, found: Mapping[str, Any], **more: Any) -> str:
    """A page from one of the templates beside this file; all that it shows is escaped.

    Args:
        template: the file's name.
        found: what it shows, with the `path` that it is about.
        more: what it shows besides.

    Raises:
        InputError: the template asks for what is not there.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(value=value, size=size, duration=duration)
    try:
        return environment.get_template(template).render(found, flat=flat, **more)
    except (UndefinedError, TypeError) as error:
        raise InputError(
            "An output cannot be shown", where=found["path"], got=error,
            expected="reports of the shape that this version of megaline writes",
            fix="take the version named in the output's record, or build the output anew",
        ) from error  # fmt: skip


def write(text: str, out: Path, option: str = "--out") -> None:
    """Write a page.

    Raises:
        InputError: `out` cannot be a file; `option` names another.
    """
    try:
        out.write_text(text, encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise InputError(
            "The page cannot be written", where=out, expected="a file name in a folder that exists",
            got=error.strerror, fix=f"make the folder, or name another place with {option}",
        ) from error  # fmt: skip


def flat(values: Mapping[str, Any], under: str = "") -> dict[str, Any]:
    """Nested values by dotted names."""
    found: dict[str, Any] = {}
    for key, one in values.items():
        if isinstance(one, Mapping) and one:
            found |= flat(one, f"{under}{key}.")
        else:
            found[f"{under}{key}"] = one
    return found


def value(one: Any) -> str:
    """A JSON value for people: thousands apart, six significant digits."""
    if isinstance(one, bool) or one is None:
        return {True: "yes", False: "no", None: "–"}[one]
    if isinstance(one, int):
        return f"{one:,}"
    if isinstance(one, float):
        return f"{one:,.6g}"
    return one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)


def size(count: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _stage(folder: Path, key: str, record: Record | None) -> Document:
    stage, label, fingerprint = key.split("/")
    named = {"stage": stage, "label": label, "fingerprint": fingerprint, "path": str(folder)}
    if record is None:
        return named | {"state": "gone", "seconds": 0.0}
    wrong = lineage.mismatches(folder, record)
    own = record.model_dump(mode="json", include={"metrics", "provenance", "inputs", "files"})
    return {
        **named,
        **own,
        "state": "altered" if wrong else "sealed",
        "mismatches": wrong,
        "version": record.version,
        "config": record.identity["identity"],
        "created_at": record.created_at.isoformat(timespec="seconds"),
        "seconds": record.seconds,
        "bytes": sum(file.bytes for file in record.files),
    }


def _line(order: list[str], stages: list[Document]) -> list[Document]:
    """Every stage of the line; several outputs of one stage show as the first of them."""
    shown = {one["stage"]: one for one in reversed(stages)}
    names = order + [name for name in shown if name not in order]
    return [
        {
            "stage": name,
            "state": shown[name]["state"] if name in shown else "not part",
            "seconds": shown[name]["seconds"] if name in shown else None,
        }
        for name in names
    ]


def _results(metrics: Mapping[str, Document], seconds: float) -> list[Document]:
    """The headline: one card a finding, only for what this run has measured."""
    cards = []
    found = metrics.get("evaluate", {})
    measured = {"perplexity_before", "perplexity_after", "loss_gap_before", "loss_gap_after"}
    if measured | {"eval_tokens"} <= found.keys():
        before, after = found["perplexity_before"], found["perplexity_after"]
        note = f"{after / before - 1:+.1%} over {found['eval_tokens']:,} held-out tokens"
        cards.append(_card("Perplexity", f"{before:.2f} → {after:.2f}", note))
        gap = max(found["loss_gap_before"], found["loss_gap_after"])
        note = "largest difference of the mean loss, nats per token"
        cards.append(_card("Megatron and Hugging Face", f"{gap:.1e}", note))
    found = metrics.get("export", {})
    if "tokens_equal" in found:
        count = len(found.get("compared", []))
        said = "equal" if found["tokens_equal"] else "differ"
        note = f"greedy, beside Megatron's; prompts: {count}"
        cards.append(_card("Served tokens", said, note))
    found = metrics.get("train", {})
    if {"loss_first", "loss_last", "steps", "tokens"} <= found.keys():
        note = f"{found['steps']:,} steps, {found['tokens']:,} tokens"
        shown = f"{found['loss_first']:.3f} → {found['loss_last']:.3f}"
        cards.append(_card("Training loss", shown, note))
    found = metrics.get("tokens", {})
    if {"tokens", "documents"} <= found.keys():
        shown = f"{found['tokens']:,} tokens"
        cards.append(_card("Text", shown, f"in {found['documents']:,} documents"))
    found = metrics.get("clean", {})
    if {"articles", "pages", "characters_out"} <= found.keys():
        note = f"{found['characters_out']:,} characters, from {found['pages']:,} pages"
        cards.append(_card("Corpus", f"{found['articles']:,} documents", note))
    cards.append(_card("Time", duration(seconds), "all stages together, as built"))
    return cards


def _card(title: str, shown: str, note: str) -> Document:
    return {"title": title, "value": shown, "note": note}


def _cleaned(stage: Document | None) -> Document | None:
    report = _file(stage, "report.json")
    try:
        return corpus.section(report) if report else None
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(stage, "report.json", f"no {error} in it") from error


def _commands(stages: list[Document]) -> list[Document]:
    """The command lines that built the stages, each with its commit and the stages."""
    found: dict[tuple[str, str, bool], list[str]] = {}
    for one in stages:
        origin = one.get("provenance", {})
        if origin.get("argv"):
            key = (shlex.join(origin["argv"]), origin.get("commit") or "", bool(origin["dirty"]))
            found.setdefault(key, []).append(one["stage"])
    return [
        {"command": command, "commit": commit, "dirty": dirty, "stages": names}
        for (command, commit, dirty), names in found.items()
    ]


def _lines(stage: Document | None, name: str) -> list[Document]:
    text = _text(stage, name)
    return [_parsed(stage, name, line) for line in text.splitlines()] if text else []


def _file(stage: Document | None, name: str) -> Any:
    text = _text(stage, name)
    return None if text is None else _parsed(stage, name, text)


def _text(stage: Document | None, name: str) -> str | None:
    """A file of an output, if its record lists it."""
    if stage is None or name not in {file["path"] for file in stage["files"]}:
        return None
    try:
        return (Path(stage["path"]) / "data" / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(stage, name, error) from error


def _parsed(stage: Document | None, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _unreadable(stage, name, error) from error


def _unreadable(stage: Document | None, name: str, error: object) -> InputError:
    folder = Path(stage["path"]) if stage else Path()
    return InputError(
        "A file of a sealed output cannot be read", where=folder / "data" / name,
        expected="the file as it was sealed", got=error,
        fix=f"see `megaline verify --deep {folder}`; remove the output to have it built again",
    )  # fmt: skip
