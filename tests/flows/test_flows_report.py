"""`megaline report` on a store whose records were written by hand."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_store import HOSTILE, LOG, STEPS, write

from flows import page, pictures
from flows.cli import _guarded
from tasks.core.errors import InputError


@pytest.fixture
def run(tmp_path: Path) -> dict[str, Path]:
    return write(tmp_path / "store")


class Seen(HTMLParser):
    """The tags, the text and whatever an attribute would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "href", "srcset", "action", "poster"):
                self.fetched.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_escaped_and_asks_for_nothing(run: dict[str, Path]) -> None:
    text = page.html(page.document(run["export"]))
    seen = Seen(text)
    assert "script" not in seen.tags
    assert HOSTILE in seen.text
    assert all(url.startswith("data:") for url in seen.fetched), seen.fetched
    assert "@import" not in text
    assert "url(" not in text
    assert set(run) <= set(seen.ids)
    assert {link.removeprefix("#") for link in seen.links} <= set(seen.ids)
    assert seen.tags.count("img") == len(pictures.CHARTS) + 2
    for words in (
        "22.51 → 20.56", "-8.7% over 8,176", "filtered: too few words", "2 against 20",
        "96 documents", "60,000 characters, from 206 pages", "反照率", "Items that are too short",
        "3 files, 1 of them without a document", "and 2 more", "quiz in 1 documents", "777",
        "In 1 of 900 paragraphs: tags 1", "反照率", "0.4000 ± 0.1000",
        "perplexity_ratio", ".venv/bin/megaline run 'a recipe.yaml'", "not committed", "1 min 2 s",
    ):  # fmt: skip
        assert words in seen.text, words


def test_every_page_of_the_dump_is_accounted_for(run: dict[str, Path]) -> None:
    rows = page.document(run["export"])["cleaned"]["pages"]
    assert sum(row["pages"] for row in rows) == 206
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_the_train_output_is_a_run_of_its_own(run: dict[str, Path]) -> None:
    found = page.document(run["train"] / "data")
    states = {one["stage"]: one["state"] for one in found["line"]}
    assert [name for name, state in states.items() if state == "not part"] == [
        "to_hf", "evaluate", "export",
    ]  # fmt: skip
    assert len(found["training"]) == STEPS
    assert (found["evaluation"], found["served"]) == (None, None)
    assert "Perplexity" not in {card["title"] for card in found["results"]}
    page.html(found)


def test_altered_and_lost_outputs_are_shown_as_such(run: dict[str, Path]) -> None:
    (run["tokens"] / "data" / "file").write_text("longer")
    shutil.rmtree(run["ingest"])
    found = page.document(run["export"])
    states = {one["stage"]: one["state"] for one in found["line"]}
    assert (states["tokens"], states["ingest"], states["train"]) == ("altered", "gone", "sealed")
    assert "no longer in the store" in page.html(found)


def test_the_command(
    run: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert _guarded(["report", str(run["export"]), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert _guarded(["report", str(run["train"]), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stage"] == "train"


def test_what_cannot_be_reported_is_one_paragraph(
    run: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run["evaluate"] / "data" / "report.json").write_text("{")
    for arguments, words in (
        ([str(tmp_path)], "There is no sealed output"),
        ([str(run["export"])], "A file of a sealed output cannot be read"),
        ([str(run["train"]), "--out", str(tmp_path)], "The page cannot be written"),
        ([str(run["train"]), "--out", str(tmp_path / "no" / "x.html")], "cannot be written"),
    ):
        assert _guarded(["report", *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert "Traceback" not in error


def test_a_report_needs_neither_torch_nor_prefect(run: dict[str, Path], tmp_path: Path) -> None:
    code = (
        "import sys; from flows.cli import _guarded\n"
        f"_guarded(['report', {str(run['export'])!r}, '--out', {str(tmp_path / 'x.html')!r}])\n"
        "print([name for name in ('torch', 'prefect', 'tensorboard') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 1e-4, [0, 2e-5, 4e-5, 6e-5, 8e-5, 1e-4]),
        (2.5, 3.34, [2.4, 2.6, 2.8, 3.0, 3.2, 3.4]),
        (1, 12, [0, 5, 10, 15]),
        (-3, 9, [-5, 0, 5, 10]),
    ],
)
def test_ticks_are_round_and_span_the_values(low: float, high: float, wanted: list[float]) -> None:
    assert pictures.ticks(low, high, 5) == pytest.approx(wanted)


def test_a_picture_shows_every_spike_of_a_long_run_and_counts_what_it_leaves_out() -> None:
    lines = [{"step": step, "loss": 3.0} for step in range(1, 50_001)]
    lines[31_337]["loss"] = 99.0
    lines[5]["loss"] = float("nan")
    text = pictures.picture(pictures.CHARTS[0], lines)
    assert len(text) < 60_000
    assert "1 of 50000 values are not finite" in text
    drawn = points(text)
    tops = [x for x, y in drawn if y == min(y for _, y in drawn)]
    assert len(tops) == 1
    across = (tops[0] - drawn[0][0]) / (drawn[-1][0] - drawn[0][0])
    assert across == pytest.approx(31_337 / 50_000, abs=0.01)


def test_pictures_of_short_runs_are_drawn() -> None:
    for lines in (LOG[:1], LOG[:2], [LOG[0] | {"learning_rate": 0.0, "grad_norm": 0.0}], []):
        for chart in pictures.CHARTS:
            ET.fromstring(pictures.picture(chart, lines))
        ET.fromstring(pictures.sheet(lines))
    assert len(points(pictures.picture(pictures.CHARTS[0], LOG))) == STEPS


def points(svg: str) -> list[tuple[float, float]]:
    line = ET.fromstring(svg).find(".//{http://www.w3.org/2000/svg}polyline")
    assert line is not None
    pairs = [point.split(",") for point in line.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_a_corpus_of_another_version_is_told(run: dict[str, Path]) -> None:
    data = run["clean"] / "data" / "report.json"
    text = data.read_text(encoding="utf-8")
    data.write_text(text.replace('"whereabouts"', '"elsewhere"'))
    with pytest.raises(InputError, match=r"whereabouts"):
        page.document(run["export"])
    data.write_text(text.replace('"residue": {"paragraphs"', '"residue": {"lines"'))
    with pytest.raises(InputError, match="reports of the shape that this version"):
        page.html(page.document(run["export"]))
