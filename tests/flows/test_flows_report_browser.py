"""The report and Prefect's pages in headless Chromium; leaves pictures in build/screenshots/."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from report_store import write

from flows import page as report
from flows import pictures
from megatron_bridge.launch.process import tied

REPOSITORY = Path(__file__).parents[2]
SHOTS = REPOSITORY / "build" / "screenshots"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
    # Prefect's second UI asks an analytics host for its settings, whatever the server is told.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]  # fmt: skip
# The smallest text of a picture as it is shown, in CSS pixels.
READABLE = 10.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write(tmp_path_factory.mktemp("run") / "store")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A server of the temporary folder, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_report_fits_and_is_all_there(
    browser: Browser, run: dict[str, Path], site: tuple[str, list[str]], tmp_path: Path,
    width: int, scheme: Any,
) -> None:  # fmt: skip
    report.write(report.html(report.document(run["export"])), tmp_path / "report.html")
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    requests = watched(page)
    page.goto(f"{site[0]}/report.html")
    assert page.title() == f"{run['export'].parent.name} · megaline report"
    assert not overflows(page)
    page.screenshot(path=SHOTS / f"report-{width}-{scheme}.png", full_page=True)
    sizes = images(page)
    assert len(sizes) == len(pictures.CHARTS) + 2
    for natural, _, shown in sizes:
        assert natural == pictures.WIDTH
        assert 12 * shown / natural >= READABLE
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert not overflows(page)
    page.screenshot(path=SHOTS / f"report-{width}-{scheme}-open.png", full_page=True)
    assert requests == [f"{site[0]}/report.html"]
    assert site[1] == ["/report.html"]
    page.close()


def test_the_checks_see_what_they_are_for(
    browser: Browser, run: dict[str, Path], site: tuple[str, list[str]], tmp_path: Path
) -> None:
    text = report.html(report.document(run["export"]))
    stranger = "<div style='width: 900px'>wide</div><img src='/stranger.png'>"
    (tmp_path / "held.html").write_text(text.replace("<main>", f"<main>{stranger}"))
    (tmp_path / "open.html").write_text(f"<!DOCTYPE html>{stranger}")
    for name, fetched in (("held", False), ("open", True)):
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto(f"{site[0]}/{name}.html")
        assert overflows(page)
        # The page's own policy keeps even a stranger's image from being fetched.
        assert ("/stranger.png" in site[1]) == fetched
        page.close()


def test_prefect_shows_the_run_its_picture_and_its_report(
    browser: Browser, run: dict[str, Path], tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_HOME": str(tmp_path / "prefect"),
        # Without it, the pages of a server on another port than 4200 are blank.
        "PREFECT_SERVER_UI_API_URL": f"{url}/api",
        "PYTHONPATH": str(REPOSITORY),
    }
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    with (tmp_path / "log").open("w") as log:
        server = tied(
            [*command, "--port", str(port)], env=environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(f"{url}/api/health")
        done = subprocess.run(
            [
                sys.executable, str(Path(__file__).with_name("report_driver.py")),
                str(run["train"]), str(run["evaluate"]),
            ],
            env=environment | {"PREFECT_API_URL": f"{url}/api"},
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        look_at_prefect(browser, url, done.stdout.split()[-1])
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def look_at_prefect(browser: Browser, url: str, flow_run: str) -> None:
    body = {"flow_runs": {"id": {"any_": [flow_run]}}}
    found = httpx.post(f"{url}/api/artifacts/filter", json=body).json()
    artifacts = {one["key"]: one for one in found}
    assert set(artifacts) == {
        "train-progress", "train-metrics", "train-picture",
        "evaluate-progress", "evaluate-metrics", "evaluate-report",
    }  # fmt: skip
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{url}/runs/flow-run/{flow_run}")
    page.get_by_text("Completed", exact=True).first.wait_for()
    page.wait_for_timeout(2000)  # the graph is drawn in steps
    page.screenshot(path=SHOTS / "prefect-run.png")

    for ui in ("", "/v2"):
        page.goto(f"{url}{ui}/artifacts/artifact/{artifacts['train-picture']['id']}")
        page.locator("img[src^='data:image/svg']").wait_for()
        [(natural, _, shown)] = images(page)
        assert natural == 2 * pictures.WIDTH
        assert 12 * shown / natural >= READABLE - 1
        page.screenshot(path=SHOTS / f"prefect-picture{ui.replace('/', '-')}.png")

        page.goto(f"{url}{ui}/artifacts/artifact/{artifacts['evaluate-report']['id']}")
        page.get_by_text("Held-out documents").wait_for()
        page.screenshot(path=SHOTS / f"prefect-evaluation{ui.replace('/', '-')}.png")
    page.close()


def watched(page: Page) -> list[str]:
    """The URLs that a page asks for from now on, but those that hold their content."""
    urls: list[str] = []
    page.on("request", lambda one: None if one.url.startswith("data:") else urls.append(one.url))
    return urls


def overflows(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))


def images(page: Page) -> list[tuple[int, int, float]]:
    """Natural width and height, and the width shown, of every picture of the page."""
    script = """Promise.all([...document.images].filter(one => one.src.startsWith("data:image"))
        .map(one => one.decode().then(() => [one.naturalWidth, one.naturalHeight, one.width])))"""
    return [tuple(one) for one in page.evaluate(script)]


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            httpx.get(url, timeout=5).raise_for_status()
            return
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
