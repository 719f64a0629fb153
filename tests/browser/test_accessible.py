"""Every page for everybody: axe-core in light and dark, narrow screens, a quiet console.

The pages are those of `laco/ui/frame.py`, so that a new one is covered by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest

from laco.ui.frame import PAGES
from tests.browsing import PATIENCE, Server, Watched, ready, shoot, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe
WIDE: Any = {"width": 1400, "height": 2200}
OF_STREAMLIT = {  # faults of elements that we cannot reach; docs/pages.md says why
    "color-contrast": 'button[data-selected="true"]',
}


@dataclass
class Opened:
    """A page that was opened by its own address."""

    name: str
    page: Page
    watched: Watched


@pytest.fixture(scope="module")
def visitor(browser: Browser) -> Iterator[tuple[Page, Watched]]:
    """One visitor for all pages, so that scripts are loaded once."""
    context = browser.new_context(viewport=WIDE)
    page, watched = context.new_page(), Watched()
    page.set_default_timeout(PATIENCE)
    watched.follow(page)
    yield page, watched
    context.close()


@pytest.fixture(scope="module", params=[page.name for page in PAGES])
def opened(request: pytest.FixtureRequest, server: Server, visitor: tuple[Page, Watched]) -> Opened:
    page, watched = visitor
    watched.complaints.clear()
    visit(page, server, "" if request.param == "home" else request.param)
    ready(page)
    return Opened(request.param, page, watched)


def faults(page: Page) -> list[str]:
    """What axe-core finds, a line for each element, but for what is Streamlit's own."""
    options = {"resultTypes": ["violations"]}
    found: list[dict[str, Any]] = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:160]} {' '.join(c['message'] for c in node['any'])[:160]}"
        for rule in found
        for node in rule["nodes"]
        if not page.evaluate(
            "([element, within]) => within && !!document.querySelector(element)?.closest(within)",
            [node["target"][0], OF_STREAMLIT.get(rule["id"], "")],
        )
    ]


def test_console_is_quiet_and_nothing_is_asked_of_the_network(opened: Opened):
    assert opened.page.locator('[data-testid="stException"]').count() == 0
    opened.watched.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(opened: Opened, scheme: Literal["light", "dark"]):
    opened.page.emulate_media(color_scheme=scheme)
    ready(opened.page)
    shoot(opened.page, f"{opened.name}-{scheme}")
    found = "\n".join(faults(opened.page))
    opened.page.emulate_media(color_scheme="light")
    assert not found, found


def test_a_narrow_screen_needs_no_scrolling_sideways(opened: Opened):
    opened.page.set_viewport_size({"width": 390, "height": 844})
    ready(opened.page)
    shoot(opened.page, f"{opened.name}-narrow")
    wide = opened.page.evaluate(
        """() => [...document.querySelectorAll('[data-testid="stMain"]')]
            .map(main => main.scrollWidth - main.clientWidth)"""
    )
    opened.page.set_viewport_size(WIDE)
    assert max(wide) <= 0
