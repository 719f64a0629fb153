"""The pages in a real browser: gestures on the maps, keys, addresses, downloads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from laco.ui.frame import PAGES
from tests.browsing import PATIENCE, cell, drag, ready, shoot, turn_to, visit
from tests.pages import prepared

if TYPE_CHECKING:
    from playwright.sync_api import Page

DEPTHS = prepared.LAYERS + 1


def settled(page: Page, text: str) -> None:
    """Wait until the page says this."""
    page.get_by_text(text, exact=False).first.wait_for()


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
    drag(page, 9, 13)
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
    assert page.get_by_label("Ranges", exact=True).input_value() == "6:13"


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


def test_a_range_is_chosen_and_carried_over_by_keys_alone(server, page):
    visit(page, server, "similarity", "&range=6&range=12")
    ready(page)
    page.locator('[data-testid="stSlider"] input').first.focus()
    page.keyboard.press("ArrowLeft")
    settled(page, "Layers 5–11 become layer 5")
    reached = ""
    for _ in range(12):  # from the slider's first end to the button
        page.keyboard.press("Tab")
        reached = page.evaluate("document.activeElement.innerText || ''")
        if reached == "Collapse this range":
            break
    assert reached == "Collapse this range"
    page.keyboard.press("Enter")
    settled(page, "Ranges that become one layer")
    assert page.get_by_label("Ranges", exact=True).input_value() == "5:12"


def saved(page: Page, press: Callable[[], None]) -> str:
    """What a browser puts into the file that it gets when something is pressed."""
    with page.expect_download(timeout=PATIENCE) as download:
        press()
    path = download.value.path()
    return path.read_bytes().decode("latin-1")


def test_maps_are_saved_as_picture_and_as_numbers(server, page):
    page.add_init_script("delete window.showSaveFilePicker")  # no one is there to answer it
    visit(page, server, "similarity", "&range=6&range=12")
    ready(page)
    chart = page.locator(".js-plotly-plot:visible").first
    chart.hover()
    picture = saved(page, chart.locator('.modebar-btn[data-title*="ownload"]').first.click)
    assert picture[1:4] == "PNG"
    page.get_by_text("The map as a table", exact=True).first.click()
    table = page.locator('[data-testid="stDataFrame"]:visible').first
    table.hover()
    button = page.get_by_role("button", name="Download as CSV").first
    # The toolbar appears while the pointer is on the table, which a moving pointer then covers.
    lines = saved(page, lambda: button.dispatch_event("click")).splitlines()
    assert len(lines) == DEPTHS + 1
    assert re.fullmatch(r"0,1(\.0)?,0?\.\d+,.*", lines[1]), lines[1]


def test_comparison_opens_by_its_address_and_is_saved(server, page):
    visit(page, server, "compare", "&diff=false")
    ready(page)
    address = page.url
    text = saved(page, page.get_by_role("button", name="JSON", exact=True).click)
    assert {row["metric"] for row in json.loads(text)} >= {"parameters", "layers"}
    html = saved(page, page.get_by_role("button", name="HTML report", exact=True).click)
    assert html.lower().startswith("<!doctype html>")
    page.goto(address)
    ready(page)
    assert page.url == address
    shoot(page, "compare")


def test_every_page_opens_from_the_sidebar_and_the_server_holds_no_torch(server, page):
    visit(page, server, "")
    for title in [each.title for each in PAGES]:
        turn_to(page, title)
        assert page.locator('[data-testid="stException"]').count() == 0
    maps = [entry.path for entry in server.process.memory_maps()]
    assert any("python" in path for path in maps), "the memory maps could not be read"
    assert not [path for path in maps if "torch" in path]
