"""One server a module over a store made by hand.

Skipped, in one line, where there is no Chromium.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browsing import CHROMIUM, PATIENCE, Server, Watched, served
from tests.pages import prepared

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    skip = pytest.mark.skipif(
        not Path(CHROMIUM).is_file(),
        reason="no Chromium on this machine (apt-get install chromium): browser tests skipped",
    )
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(skip)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app over a model and a store with six runs of it."""
    folder = tmp_path_factory.mktemp("served")
    prepared.fill(folder / "store", prepared.model_folder(folder / "my-model"))
    with served(folder) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh visitor; fails at the end if the network was asked, or the console complained."""
    context = browser.new_context(viewport={"width": 1400, "height": 1300})
    opened, watched = context.new_page(), Watched()
    opened.set_default_timeout(PATIENCE)
    watched.follow(opened)
    yield opened
    context.close()
    watched.check()
