"""How long a user waits: from the server's start to a page's first answer, and for `laco --help`.

The server is started as `make run` does, on a free port and an empty store. Where Chromium is
installed, a headless one says when the Home page is drawn too, and when its first picture is: the
map of the bundled model (at most 10 are asked for).

Last line: `start SECONDS`, from the server's start to the first answer (at most 2 are asked for);
the line above it says the same of `laco --help` (at most 0.5).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent


def served(stack: contextlib.ExitStack, port: int, folder: str) -> subprocess.Popen[bytes]:
    """The server of the pages, once it answers; `stack` ends it."""
    server = subprocess.Popen(
        [sys.executable, "-m", "laco", "app", "--port", str(port), "--store", folder],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(server.wait)
    stack.callback(server.terminate)
    first_answer(f"http://127.0.0.1:{port}/")
    return server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def seconds_of_help(times: int) -> float:
    """The median over several starts of the command."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "laco", "--help"], cwd=ROOT, check=True, capture_output=True
        )
        taken.append(time.perf_counter() - began)
    return sorted(taken)[times // 2]


def first_answer(url: str) -> None:
    """Return once the server answers at all."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                answer.read()
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.01)


def seconds_of_page(chromium: str | None) -> tuple[float, float | None, float | None]:
    """From the server's start to its first answer, to Home in a browser, to its first picture."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    with tempfile.TemporaryDirectory() as store, contextlib.ExitStack() as stack:
        page = None
        if chromium is not None:
            from playwright.sync_api import sync_playwright

            browser = stack.enter_context(sync_playwright()).chromium.launch(
                executable_path=chromium,
                args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            )
            stack.callback(browser.close)
            page = browser.new_page()
        began = time.perf_counter()
        server = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "LACO_STORE": store},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(server.wait)
        stack.callback(server.kill)
        first_answer(url)
        answered = time.perf_counter() - began
        if page is None:
            return answered, None, None
        page.goto(url)
        page.get_by_role("heading", name="laco", exact=True).wait_for()
        shown = time.perf_counter() - began
        page.locator(".js-plotly-plot .heatmaplayer image").first.wait_for()
        return answered, shown, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer starts of the command")
    quick = parser.parse_args().quick
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    seconds_of_page(chromium)  # fills the caches of the disk and of Python
    answered, shown, drawn = seconds_of_page(chromium)
    if shown is not None:
        print(f"Home shown in a browser after {shown:.2f} s, its first picture after {drawn:.2f} s")
    print(f"help {seconds_of_help(3 if quick else 9):.2f} s")
    print(f"start {answered:.2f}")


if __name__ == "__main__":
    main()
