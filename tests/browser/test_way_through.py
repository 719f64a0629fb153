"""From an empty store to a comparison: the whole story, and what may come between.

The engine is a stand-in without torch (`tests/story_engine.py`): what is looked at is the pages.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laco.evaluations import Request
from laco.jobs import LocalRunner
from laco.recipe import Drop, ModelRef, Recipe
from laco.reference import BUNDLED
from laco.store import RunStore
from tests.browsing import PATIENCE, Server, drag, free_port, ready, served, shoot

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ENGINE = "tests.story_engine"
MOST_CLICKS = 10
FIRST_PICTURE_SECONDS = 10.0


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has just started over an empty store."""
    with served(tmp_path_factory.mktemp("fresh"), LACO_ENGINE=ENGINE) as running:
        yield running


def job(server: Server, *layers: int) -> str:
    """Send a job of the stand-in that drops these layers; its id."""
    before = os.environ.get("LACO_ENGINE")
    os.environ["LACO_ENGINE"] = ENGINE
    try:
        recipe = Recipe(model=ModelRef(path=BUNDLED), steps=(Drop(layers=layers),))
        runner = LocalRunner(RunStore(server.store))
        return runner.submit(Request(recipe=recipe), label=f"Drop {layers}", anyway=True)
    finally:
        if before is None:
            del os.environ["LACO_ENGINE"]
        else:
            os.environ["LACO_ENGINE"] = before


def test_a_fresh_machine_shows_a_first_picture_soon(fresh: Server, page: Page):
    page.goto(fresh.url)
    page.locator(".js-plotly-plot .heatmaplayer image").first.wait_for()
    seconds = time.monotonic() - fresh.started
    print(f"first picture {seconds:.1f} s after the server's start")
    shoot(page, "home-first-visit")
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert seconds < FIRST_PICTURE_SECONDS * busy


def test_the_whole_story_takes_ten_clicks_and_no_typing(fresh: Server, page: Page):
    clicks = 0

    def click(target: Locator) -> None:
        nonlocal clicks
        target.click()
        clicks += 1

    def step_on(title: str) -> None:
        click(page.get_by_role("link", name=f"Next: {title}").first)
        page.locator("h1", has_text=title).wait_for()
        ready(page)

    page.goto(fresh.url)
    ready(page)
    page.get_by_text("Five steps lead from a model").wait_for()
    step_on("Model")
    page.get_by_text("Step 1 of 5").wait_for()
    step_on("Similarity")
    page.get_by_text("Step 2 of 5").wait_for()
    drag(page, 20, 24)
    clicks += 1
    page.get_by_text("Layers 20–23 become layer 20; layers 21, 22, 23 go.").first.wait_for()
    page.get_by_text("What if this range alone becomes one layer").wait_for()
    ready(page)
    shoot(page, "story-2-similarity")
    click(page.get_by_role("button", name="Collapse this range"))
    page.get_by_text("Step 3 of 5").wait_for()
    ready(page)
    click(page.get_by_role("button", name="Start", exact=True).first)
    page.get_by_text("Done: this recipe has been run").first.wait_for()
    ready(page)
    shoot(page, "story-3-collapse")
    click(page.get_by_role("link", name="Compensate this result").first)
    page.get_by_text("Step 4 of 5").wait_for()
    ready(page)
    click(page.get_by_role("button", name="Start", exact=True).first)
    page.get_by_text("Done: this recipe has been run").first.wait_for()
    ready(page)
    shoot(page, "story-4-compensate")
    click(page.get_by_role("link", name="Compare it with the original").first)
    page.get_by_text("Step 5 of 5").wait_for()
    ready(page)
    shoot(page, "story-5-compare")
    shown = page.locator('[data-testid="stMultiSelect"]').first.inner_text()
    assert "Compensate" in shown or "compensated" in shown
    assert shown.count("smollm2-135m") == 3
    print(f"{clicks} clicks")
    assert clicks <= MOST_CLICKS


def test_a_failed_job_is_one_sentence(fresh: Server, page: Page):
    failed = job(fresh, 1)
    page.goto(f"{fresh.url}/jobs?job={failed}")
    said = page.locator('[data-testid="stAlert"]').filter(has_text="failed: ").first
    said.wait_for()
    assert said.inner_text().strip().endswith("failed: The model is of cheese; choose another.")
    ready(page)
    shoot(page, "jobs-failed")


def test_reload_restart_and_a_second_browser_find_the_job_again(
    tmp_path: Path, browser: Browser, fresh: Server
):
    port = free_port()
    seen = []
    with served(tmp_path, port, LACO_ENGINE=ENGINE) as server:
        running = job(server, 2)
        address = f"{server.url}/jobs?job={running}"
        for _ in range(2):
            page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
            page.set_default_timeout(PATIENCE)
            page.goto(address)
            page.get_by_text("layer by layer").first.wait_for()
            seen.append(page)
        seen[0].reload()
        seen[0].get_by_text("layer by layer").first.wait_for()
        os.kill(server.process.pid, signal.SIGKILL)
    with served(tmp_path, port, LACO_ENGINE=ENGINE):
        for page in seen:  # both are still open, and come back by themselves
            page.get_by_role("gridcell", name="done", include_hidden=True).first.wait_for(
                state="attached"
            )
            page.context.close()
        store = RunStore(tmp_path / "store")
        assert LocalRunner(store).status(running).state == "done"
        store.close()
