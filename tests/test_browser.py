"""The pages in a real browser: gestures on the map, addresses, and that nothing is fetched outside.

One server on a free port over a store made by hand, one Chromium. Skipped, in one line, where
there is no Chromium.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlparse
from urllib.request import urlopen

import psutil
import pytest

from tests.pages import prepared

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ROOT = Path(__file__).parents[1]
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000  # milliseconds
DEPTHS = prepared.LAYERS + 1

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not Path(CHROMIUM).is_file(),
        reason="no Chromium on this machine (apt-get install chromium): browser tests skipped",
    ),
]


@dataclass
class Server:
    """The running app: where it is, its process, and the prepared model."""

    url: str
    process: psutil.Process
    model: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    model = prepared.model_folder(folder / "my-model")
    prepared.fill(folder / "store", model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "LACO_STORE": str(folder / "store"), "LACO_ROOTS": str(folder)},
            stdout=log,
            stderr=log,
        )
    try:
        _wait_until_up(f"http://127.0.0.1:{port}/_stcore/health")
        yield Server(f"http://127.0.0.1:{port}", psutil.Process(process.pid), model)
    finally:
        process.terminate()
        process.wait(timeout=20)


def _wait_until_up(url: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            with urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as tool:
        started = tool.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh visitor; fails at the end if anything but this machine was asked for something."""
    context = browser.new_context(viewport={"width": 1400, "height": 1300})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    asked: set[str] = set()
    opened.on("request", lambda request: asked.add(request.url))
    yield opened
    context.close()
    web = {urlparse(url).hostname for url in asked if url.startswith(("http", "ws"))}
    assert web == {"127.0.0.1"}


def visit(page: Page, server: Server, path: str, query: str = "") -> None:
    page.goto(f"{server.url}/{path}?model={quote(str(server.model))}{query}")
    page.locator("h1").wait_for()


def cell(page: Page, depth_x: float, depth_y: float) -> tuple[float, float]:
    """Where a cell of the map is on the screen."""
    layer = page.locator('.js-plotly-plot .nsewdrag[data-subplot="xy"]').first
    layer.wait_for()
    box, before = layer.bounding_box(), None
    while box != before:  # the page may still be finding its places
        page.wait_for_timeout(300)
        box, before = layer.bounding_box(), box
    assert box is not None
    return (
        box["x"] + (depth_x + 0.5) / DEPTHS * box["width"],
        box["y"] + (depth_y + 0.5) / DEPTHS * box["height"],
    )


def settled(page: Page, text: str) -> None:
    """Wait until the page says this."""
    playwright.expect(page.get_by_text(text, exact=False).first).to_be_visible(timeout=PATIENCE)


def test_first_visitor_by_a_pages_own_address_finds_the_frame(server, page):
    visit(page, server, "jobs")
    settled(page, "Nothing is running.")
    assert page.locator("h1").inner_text() == "Jobs"
    assert page.title() == "laco"


def test_deep_link_opens_the_same_range(server, page):
    visit(page, server, "similarity", "&range=6&range=12")
    settled(page, "Layers 6–11 become layer 6; layers 7, 8, 9, 10, 11 go.")
    assert "range=6&range=12" in page.url


def test_dragging_a_box_chooses_a_range(server, page):
    visit(page, server, "similarity")
    start, stop = cell(page, 9, 9), cell(page, 13, 13)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*cell(page, 11, 11), steps=5)
    page.mouse.move(*stop, steps=5)
    page.mouse.up()
    settled(page, "Layers 9–12 become layer 9; layers 10, 11, 12 go.")
    assert "range=9&range=13" in page.url


def test_clicking_a_cell_chooses_a_range(server, page):
    visit(page, server, "similarity")
    page.get_by_text("Click a cell", exact=True).click()
    page.locator(".js-plotly-plot .scatterlayer .point").first.wait_for(state="attached")
    page.mouse.move(*cell(page, 20, 17))
    page.mouse.click(*cell(page, 20, 17))
    settled(page, "Layers 17–19 become layer 17; layers 18, 19 go.")


def test_slider_moves_by_keyboard_and_the_range_is_carried_to_collapse(server, page):
    visit(page, server, "similarity", "&range=6&range=12")
    settled(page, "Layers 6–11 become layer 6")
    page.locator('[data-testid="stSlider"] input').last.focus()
    page.keyboard.press("ArrowRight")
    settled(page, "Layers 6–12 become layer 6")
    page.get_by_role("button", name="Collapse this range").click()
    settled(page, "Ranges that become one layer")
    playwright.expect(page.get_by_label("Spans", exact=True)).to_have_value(
        "6:13", timeout=PATIENCE
    )


def test_clicking_the_what_if_map_adds_a_range(server, page):
    visit(page, server, "collapse")
    page.get_by_role("tab", name="What-if map").click()
    layer = page.locator('.js-plotly-plot .nsewdrag[data-subplot="xy"]:visible').first
    layer.wait_for()
    page.locator(".js-plotly-plot .scatterlayer .point:visible").first.wait_for(state="attached")
    places = page.evaluate(
        """() => [...document.querySelectorAll('.js-plotly-plot')]
            .filter(plot => plot.offsetParent && plot.data[1]?.mode === 'markers')
            .map(plot => { const box = plot.querySelector('.nsewdrag').getBoundingClientRect();
                const {xaxis, yaxis} = plot._fullLayout;
                return [box.x + xaxis.d2p(10), box.y + yaxis.d2p(3)]; })"""
    )
    page.mouse.move(*places[0])
    page.mouse.click(*places[0])
    settled(page, "10:13")


def test_every_page_opens_from_the_sidebar_and_the_server_holds_no_torch(server, page):
    visit(page, server, "")
    pages = ("Model", "Similarity", "Collapse", "Sparsify", "Compensate", "Evaluate", "Compare")
    pages = (*pages, "Jobs")
    for name in pages:
        page.locator('[data-testid="stSidebarNav"]').get_by_text(name, exact=True).click()
        playwright.expect(page.locator("h1")).to_have_text(name, timeout=PATIENCE)
        page.locator('[data-test-script-state="notRunning"]').wait_for(timeout=PATIENCE)
        assert page.locator('[data-testid="stException"]').count() == 0
    maps = [entry.path for entry in server.process.memory_maps()]
    assert any("python" in path for path in maps), "the memory maps could not be read"
    assert not [path for path in maps if "torch" in path]
