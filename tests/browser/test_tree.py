"""The tree of results in a real browser: a mark is clicked; a report is taken away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.browsing import visit

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_a_click_on_a_mark_chooses_its_result_and_a_reload_keeps_it(server, page: Page):
    visit(page, server, "results")
    marks = page.locator(".js-plotly-plot .scatterlayer .point")
    marks.first.wait_for(state="attached")
    label = page.locator(".js-plotly-plot .textpoint", has_text="LoRA r 8").first
    box = label.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] - 12, box["y"] + box["height"] / 2)
    heading = page.locator("h2", has_text="LoRA r 8")
    heading.wait_for()
    page.wait_for_url("**run=k1-*")
    page.reload()
    heading.wait_for()


def test_a_report_is_taken_away_from_its_page(server, page: Page, tmp_path: Path):
    visit(page, server, "results")
    page.get_by_role("link", name="Show it as a report").click()
    page.get_by_role("heading", name="Numbers").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as one HTML file").click()
    download.value.save_as(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "drop 2 layers (3, 4)" in text
    assert "<script" not in text
