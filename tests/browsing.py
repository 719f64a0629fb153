"""A server of the pages and a browser before it: what the browser tests share.

`served` starts the app over a store; `ready` waits until a page has all of its parts; `shoot` keeps
a picture of it for whoever reviews, in `tests/screenshots` or where `LACO_SCREENSHOTS` says.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlparse
from urllib.request import urlopen

import psutil

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page

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
PATIENCE = 90_000  # milliseconds
WHOLE = """() => {
  const seen = kind => [...document.querySelectorAll(`[data-testid="${kind}"]`)]
    .some(element => element.checkVisibility());
  return document.querySelector('h1') && !seen('stSkeleton') && !seen('stSpinner')
    && document.querySelector('[data-test-script-state="notRunning"]');
}"""
PROBES = ("/_stcore/health", "/_stcore/host-config")
"""What Streamlit's own frontend asks below a page's address first, to learn where the server is.

It gets a 404, asks again at the root, and goes on. No setting of the server spares it that.
"""


@dataclass
class Server:
    """A running app: where it is, its process, and the folders that it shows."""

    url: str
    process: psutil.Process
    folder: Path
    started: float = field(default_factory=time.monotonic)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def model(self) -> Path:
        return self.folder / "my-model"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def served(folder: Path, port: int | None = None, **environment: str) -> Iterator[Server]:
    """The app over the store in `folder`, on a free port, until this ends."""
    port = port or free_port()
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    places = {"LACO_STORE": str(folder / "store"), "LACO_ROOTS": str(folder)}
    began = time.monotonic()
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **places, **environment}, stdout=log, stderr=log
        )
    try:
        wait_until_up(f"http://127.0.0.1:{port}/_stcore/health")
        yield Server(f"http://127.0.0.1:{port}", psutil.Process(process.pid), folder, began)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # a browser that is still connected holds it up
            process.kill()
            process.wait(timeout=10)


def wait_until_up(url: str, seconds: float = 90) -> None:
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


@dataclass
class Watched:
    """What a visitor's browser asked for, and what it complained about."""

    asked: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    def follow(self, page: Page) -> None:
        page.on("request", lambda request: self.asked.add(request.url))
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def check(self) -> None:
        """Nothing but this machine was asked, and the console holds no error of ours."""
        web = {urlparse(url).hostname for url in self.asked if url.startswith(("http", "ws"))}
        assert web == {"127.0.0.1"}
        assert not self.complaints

    def _note(self, message: ConsoleMessage) -> None:
        address = urlparse(message.location.get("url", "")).path
        if message.type == "error" and not address.endswith(PROBES):
            self.complaints.append(f"{message.text} ({address})")


def visit(page: Page, server: Server, path: str, query: str = "") -> None:
    """Open a page by its own address, with the prepared model chosen."""
    page.goto(f"{server.url}/{path}?model={quote(str(server.model))}{query}")
    page.locator("h1").wait_for()


def turn_to(page: Page, title: str) -> None:
    """Go to a page by the sidebar, and wait until it is whole."""
    page.locator('[data-testid="stSidebarNav"]').get_by_text(title, exact=True).click()
    heading = "laco" if title == "Home" else title
    page.locator("h1", has_text=heading).first.wait_for()
    ready(page)


def ready(page: Page) -> None:
    """Wait until the script is done and everything in sight is drawn."""
    page.wait_for_timeout(200)
    page.wait_for_function(WHOLE, timeout=PATIENCE)
    page.wait_for_timeout(200)


def cell(page: Page, depth_x: float, depth_y: float, depths: int = 31) -> tuple[float, float]:
    """Where a cell of the first map in sight is on the screen."""
    layer = page.locator('.js-plotly-plot .nsewdrag[data-subplot="xy"]:visible').first
    layer.wait_for()
    box, before = layer.bounding_box(), None
    while box != before:  # the page may still be finding its places
        page.wait_for_timeout(300)
        box, before = layer.bounding_box(), box
    assert box is not None
    return (
        box["x"] + (depth_x + 0.5) / depths * box["width"],
        box["y"] + (depth_y + 0.5) / depths * box["height"],
    )


def drag(page: Page, first: float, last: float, depths: int = 31) -> None:
    """Drag a box on that map from the diagonal's one depth to its other."""
    start, middle, end = (
        cell(page, depth, depth, depths) for depth in (first, (first + last) / 2, last)
    )
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*middle, steps=5)
    page.mouse.move(*end, steps=5)
    page.mouse.up()


def shoot(page: Page, name: str) -> Path:
    """Keep a picture of the page under this name."""
    folder = Path(os.environ.get("LACO_SCREENSHOTS") or ROOT / "tests" / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.png"
    page.screenshot(path=file)
    return file
