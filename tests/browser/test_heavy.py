"""Much to show: a model of 80 layers, and a store that holds 500 runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from laco import reference
from laco.evaluations import Similarity, WhatIf
from laco.recipe import ModelRef, Recipe
from laco.store import RunStore
from tests.browsing import Server, cell, drag, ready, served, shoot, turn_to
from tests.pages import prepared

if TYPE_CHECKING:
    from playwright.sync_api import Page, WebSocket

LAYERS, RUNS = 80, 500
MOST_BYTES = 1_000_000
SECONDS = 2.0
BUSY = 4.0  # times as long a test may take on a machine that does other things too


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app over 500 runs of one model, and a model of 80 layers with its maps."""
    folder = tmp_path_factory.mktemp("heavy")
    prepared.crowd(folder / "store", prepared.model_folder(folder / "my-model"), RUNS, answered=1)
    tall = prepared.model_folder(folder / "tall", LAYERS)
    store = RunStore(folder / "store")
    original = Recipe(model=reference.pin(ModelRef(path=str(tall)), store.folder))
    store.add_model(original.key, original)
    store.add_analysis(original.key, Similarity(), prepared.similarity(LAYERS))
    store.add_analysis(original.key, WhatIf(), prepared.what_if(LAYERS))
    store.close()
    with served(folder) as running:
        yield running


def test_a_model_of_80_layers_is_light_and_quick(heavy: Server, page: Page):
    received = 0

    def count(frame: str | bytes) -> None:
        nonlocal received
        received += len(frame)

    def listen(socket: WebSocket) -> None:
        socket.on("framereceived", count)

    page.on("websocket", listen)
    page.goto(f"{heavy.url}/model?model={quote(str(heavy.folder / 'tall'))}")
    ready(page)
    seconds, took = [], []
    for _ in range(3):  # the first time nothing is in the browser's cache
        before = received
        began = time.monotonic()
        page.locator('[data-testid="stSidebarNav"]').get_by_text("Similarity", exact=True).click()
        page.locator(".js-plotly-plot .heatmaplayer image").first.wait_for()
        seconds.append(time.monotonic() - began)
        ready(page)
        took.append(received - before)
        turn_to(page, "Model")
    print(f"80 layers: {took[0] / 1e3:.0f} kB, map after {min(seconds):.2f} s")
    assert 50_000 < took[0] < MOST_BYTES
    assert min(seconds) < SECONDS * BUSY
    turn_to(page, "Similarity")
    drag(page, 40, 60, LAYERS + 1)
    page.get_by_text("Layers 40–59 become layer 40").first.wait_for()
    page.mouse.move(*cell(page, 60, 40, LAYERS + 1))
    page.locator(".hoverlayer").get_by_text("layers between: 40 to 59").wait_for()
    shoot(page, "similarity-80-layers")


def test_pages_with_500_runs_open(heavy: Server, page: Page):
    page.goto(f"{heavy.url}/?model={quote(str(heavy.model))}")
    ready(page)
    for title in ("Compare", "Evaluate", "Results", "Home"):
        began = time.monotonic()
        turn_to(page, title)
        print(f"{title}: {time.monotonic() - began:.1f} s with {RUNS} runs")
        assert page.locator('[data-testid="stException"]').count() == 0
        shoot(page, f"{title.lower()}-500-runs")
