"""A dump of 2 GB, grown from real pages: bounded memory, and a kill in the middle.

`MEGALINE_LARGE_BYTES` names another size.
"""

from __future__ import annotations

import bz2
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_bridge.launch.process import tied
from tasks.core import sources

BYTES = int(os.environ.get("MEGALINE_LARGE_BYTES", 2_000_000_000))
SAMPLE = (
    "package://gensim/test/test_data/"
    "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)
MIB = 1 << 20
RUN = """
import json, sys
from pathlib import Path
from tasks.clean.corpus import Run, write_parts
from tasks.clean.pages import Options
from tasks.core.executor import Executor

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in ("out", "scratch"):
        (folder / name).mkdir(exist_ok=True)
    options = Options(
        min_words=50, duplicates="near", drop_repeated_paragraphs=True, mask=("mail", "ipv4")
    )
    run = Run(
        options, "large", folder / "scratch", "error", 64 << 20, 2, Executor(),
        lambda *args, **more: None,
    )
    counts = write_parts(folder, ["dump.xml"], folder / "out", run)
    (folder / "report.json").write_text(json.dumps(counts.as_json()))
"""


def _grow(path: Path, size: int) -> int:
    """Write a dump with copies of real pages, whose titles and ids are their own.

    Returns:
        How many pages it has.
    """
    text = bz2.decompress(sources.locate(SAMPLE).read_bytes())
    begin, end = text.index(b"  <page>"), text.rindex(b"</mediawiki>")
    pages = re.split(rb"(?<=</page>\n)", text[begin:end])[:-1]
    count = 0
    with open(path, "wb") as file:
        file.write(text[:begin])
        for copy in range(1 << 20):
            for page in pages:
                page = re.sub(rb"</title>", b" (%d)</title>" % copy, page, count=1)
                file.write(re.sub(rb"<id>", b"<id>%d0" % copy, page, count=1))
                count += 1
            if file.tell() >= size:
                break
        file.write(text[end:])
    return count


def _status(pid: int, field: str) -> int:
    """A line of a process's status, in bytes; 0 where it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.M)
    return int(found[1]) << 10 if found else 0


def _family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            found += _family(int(child))
    return found


def _sealed(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob("scratch/*/sealed/[0-9]*")}


class Watch:
    """The memory of a process and its children: their sum, and the highest peak of a child."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.total = self.worker = 0

    def until(self, shards: int, folder: Path) -> None:
        """Look twice a second until the process ends, or has sealed so many shards."""
        while self.process.poll() is None and len(_sealed(folder)) < shards:
            family = _family(self.process.pid)
            self.total = max(self.total, sum(_status(pid, "VmRSS") for pid in family))
            self.worker = max([self.worker, *(_status(pid, "VmHWM") for pid in family[1:])])
            time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.skipif(importlib.util.find_spec("gensim") is None, reason="the sample is gensim's")
def test_a_large_dump_in_bounded_memory_killed_in_the_middle(tmp_path: Path) -> None:
    pages = _grow(tmp_path / "dump.xml", BYTES)
    script = tmp_path / "run.py"
    script.write_text(RUN)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def start() -> Watch:
        return Watch(tied([sys.executable, str(script), str(tmp_path)], env=environment))

    first = start()
    try:
        first.until(BYTES // (8 * MIB), tmp_path)
        assert first.process.poll() is None
    finally:
        first.process.kill()
        first.process.wait()
    before = _sealed(tmp_path)
    assert not (tmp_path / "report.json").exists()
    second = start()
    try:
        second.until(sys.maxsize, tmp_path)
    finally:
        second.process.kill()
    assert second.process.wait() == 0
    after = _sealed(tmp_path)
    print({"shards": len(after), "taken over": len(before), "pages": pages})
    print({name: {"total MiB": watch.total / MIB, "worker MiB": watch.worker / MIB}
           for name, watch in (("first", first), ("second", second))})  # fmt: skip
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["pages"] == pages == sum(report["whereabouts"].values())
    assert after.items() >= before.items()
    assert 0 < len(before) < len(after)
    for watch in (first, second):
        assert 0 < watch.worker <= 150 * MIB
        assert watch.total < 1_500 * MIB
    # pytest keeps the folders of the last runs.
    shutil.rmtree(tmp_path)
