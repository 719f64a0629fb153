"""Makes the README's pictures: one of each step, and the heat map at work as an animation.

The first steps are those of a newcomer, over an empty store; the last two are of real results, from
`--store` (`cache` after `laco demo` and a compensation). Nothing is computed. Writes PNGs below
300 kB and `map.gif` into `docs/pictures`.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent / "pictures"
sys.path.insert(0, str(FOLDER.parent.parent))

from tests.browsing import CHROMIUM, PATIENCE, QUIET, cell, ready, served  # noqa: E402

SIZE = {"width": 1240, "height": 900}
COLOURS = 96  # of a picture: flat areas and one map need no more


def keep(page: Page, name: str) -> None:
    """A picture of the page as a small PNG; whoever's folder it is, it says `cache`."""
    page.locator('[data-testid="stSidebar"] code').last.evaluate("code => code.innerText = 'cache'")
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    file = FOLDER / f"{name}.png"
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB")


def frame(page: Page) -> Image.Image:
    """One picture of the animation: the map and what stands beside it."""
    shot = page.screenshot(clip={"x": 300, "y": 95, "width": 920, "height": 790})
    return Image.open(io.BytesIO(shot)).convert("RGB").resize((736, 632), Image.Resampling.LANCZOS)


def animate(page: Page) -> None:
    """Three ranges dragged on the map, one after the other."""
    frames, lasting = [frame(page)], [1200]
    for first, last, said in ((12, 17, "12–16"), (20, 24, "20–23"), (25, 29, "25–28")):
        page.mouse.move(*cell(page, first, first))
        page.mouse.down()
        for depth in range(first + 1, last + 1, 2):
            page.mouse.move(*cell(page, depth, depth), steps=2)
            frames.append(frame(page))
            lasting.append(150)
        page.mouse.move(*cell(page, last, last), steps=2)
        page.mouse.up()
        page.get_by_text(f"Layers {said} become layer {first}").first.wait_for()
        ready(page)
        frames.append(frame(page))
        lasting.append(1800)
    few = [picture.quantize(200, dither=Image.Dither.NONE) for picture in frames]
    file = FOLDER / "map.gif"
    few[0].save(file, save_all=True, append_images=few[1:], duration=lasting, loop=0, optimize=True)
    print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB, {len(frames)} pictures")


def story(page: Page, url: str) -> None:
    """The first steps, as a visitor takes them; the map is looked at for longer."""
    page.goto(url)
    page.get_by_role("button", name="No, thanks").click()
    ready(page)
    keep(page, "0-home")
    page.get_by_role("link", name="Next: Model").click()
    page.get_by_text("Step 1 of 5").wait_for()
    ready(page)
    keep(page, "1-model")
    page.get_by_role("link", name="Next: Similarity").click()
    page.get_by_text("Step 2 of 5").wait_for()
    ready(page)
    page.locator('[data-testid="stMain"]').evaluate("main => main.scrollTo(0, 190)")
    animate(page)
    page.locator('[data-testid="stMain"]').evaluate("main => main.scrollTo(0, 0)")
    ready(page)
    keep(page, "2-similarity")
    page.get_by_role("button", name="Collapse this range").click()
    page.get_by_text("Step 3 of 5").wait_for()
    ready(page)
    keep(page, "3-collapse")


def results(page: Page, url: str) -> None:
    """What a finished compensation looks like, and a comparison."""
    page.goto(f"{url}/compensate?tab=Results")
    ready(page)
    page.get_by_label("Result", exact=True).click()
    page.get_by_role("option", name="compensated (laco+)").last.click()
    ready(page)
    keep(page, "4-compensate")
    page.goto(f"{url}/compare")
    ready(page)
    keep(page, "5-compare")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=Path("cache"))
    store = str(parser.parse_args().store.resolve())
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        for part, place in ((story, f"{folder}/store"), (results, store)):
            with served(Path(folder), LACO_STORE=place) as server:
                page = browser.new_page(viewport=SIZE)
                page.set_default_timeout(PATIENCE)
                part(page, server.url)
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
