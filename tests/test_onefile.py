"""The HTML file: whole, without a network, and no text in it is taken for its own signs."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from laco import Metric, ModelRef, Prune, Recipe
from laco.annotations import Annotation
from laco.onefile import MOST_CHAPTERS
from laco.prompts import PROMPTS
from laco.report import render, table
from laco.story import Story
from tests.browsing import CHROMIUM
from tests.pages import prepared
from tests.test_report import ORIGINAL, SMALLER, accuracy, answers, leaky

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"
VOID = {"meta", "img", "br"}


class Outline(HTMLParser):
    """Tags in order, texts, and what is left open at the end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open:
            self.texts.append(data)


def stories(label: str, layers: int = 8) -> dict[str, Story]:
    """What there could be to tell of the two runs, with a text from outside in every place."""
    similarity, walked = prepared.similarity(layers), prepared.walk("compensate", layers)
    rows = [
        {
            "layer": layer,
            "place": layer,
            "other_place": layer,
            "change": 0.2,
            "tensors": {label: 0.1},
            "unlike": [label] if layer == 1 else [],
        }
        for layer in range(layers)
    ]
    change = {"layers": rows, "rest": {"change": 0.0, "tensors": {}, "unlike": []}}
    step = {"kind": "compensate", "seconds": 12.0, "report": walked}
    dropped = {"kind": "drop", "seconds": 1.0, "report": {"removed": [1], "layers_before": layers}}
    said = Annotation(name=label, note=f"{label}\nsecond line", tags=(label[:40],))
    return {
        ORIGINAL.key: Story(ORIGINAL.key, similarity=similarity, texts={label: label * 2}),
        SMALLER.key: Story(
            SMALLER.key, said, (dropped, step), similarity, change, {label: f"{label} again"}
        ),
    }


def page(label: str = "my/model") -> str:
    model = ModelRef(path=label)
    given = {"a": answers({1, 2, 3}), "b": answers({1, 2})}
    settings = {"data": "bundled", "seed": 0, "digest": "d7", "evil": EVIL}
    first = replace(
        ORIGINAL,
        recipe=Recipe(model=model),
        metrics=(*ORIGINAL.metrics, accuracy(given["a"], "a", **settings)),
    )
    metrics = (leaky(25.0), SMALLER.metrics[1], accuracy(given["b"], "b", **settings))
    second = replace(SMALLER, recipe=Recipe(model=model, steps=SMALLER.recipe.steps))
    second = replace(second, metrics=metrics)
    runs = [first, second]
    return render(table(runs, answers=given.get), "html", runs, lambda: stories(label))


@pytest.fixture(scope="module")
def text() -> str:
    return page()


@pytest.fixture(scope="module")
def outline(text: str) -> Outline:
    return Outline(text)


def test_file_is_whole_and_holds_no_script_and_no_address(outline: Outline, text: str):
    assert outline.open == []
    assert not {tag for tag, _ in outline.tags} & {"script", "img", "link", "iframe", "object"}
    names = {name for _, attributes in outline.tags for name in attributes}
    assert not names & {"src", "href", "srcset", "action", "data"}
    assert not {name for name in names if name.startswith("on")}
    assert "http" not in text
    style = text.split("</style>")[0]
    assert "@import" not in style
    assert "url(" not in style


def test_it_has_tables_figures_recipes_settings_and_commands(outline: Outline):
    headings = [text for text in outline.texts if text.strip()]
    for wanted in (
        "Question by question: gained, lost, and how certain a difference is",
        "perplexity[bundled:wikipedia@heldout] against parameters",
        "Tasks",
        "What they write",
        "Error by layer",
        "How alike its layers are",
        "How far its weights are from the original's",
        "Its recipe, and how to have it again",
        "How it was measured",
        "Versions",
    ):
        assert wanted in headings
    told = "\n".join(outline.texts)
    assert "12 of 200 items share text with the calibration" in told
    assert '"kind": "drop"' in told
    assert "digest d7" in told
    assert "zero-shot:piqa,limit=20" in told
    assert "laco run recipe.json --evaluate" in told
    assert "layers 1 of 8 went" in told
    assert "second line" in told


def test_figures_have_their_numbers_in_words(outline: Outline):
    words = [attributes["aria-label"] for tag, attributes in outline.tags if tag == "svg"]
    assert len(words) == 3 + 2 + 1 + 1  # the runs beside each other, maps, errors, weights
    assert "model 20" in words[0]
    assert all(words)


def test_no_text_breaks_out_of_its_place(outline: Outline):
    evil = page(EVIL)
    found = Outline(evil)
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in outline.tags]
    assert found.open == []
    assert "<script" not in evil
    assert "<img" not in evil


def test_rows_alone_make_a_file_too():
    text = render(table([ORIGINAL, SMALLER]), "html")
    assert "Runs compared" in text
    assert "recipe.json" not in text
    bare = [replace(ORIGINAL, metrics=(Metric("layers", 3, "", "lower"),))]
    assert "<svg" not in render(table(bare), "html")
    assert "recipe.json" in render([], "html", [SMALLER]), "a run that nobody measured"


def many(runs: int, layers: int) -> tuple[list[Any], dict[str, Story]]:
    """So many runs of so many layers, each with all that there can be to tell."""
    label = "a model with a rather long name"
    known = stories(label, layers)[SMALLER.key]
    tensors = {f"self_attn.linear_{number}.weight": 0.123456 for number in range(12)}
    assert known.change is not None
    rows = [{**row, "tensors": tensors, "unlike": []} for row in known.change["layers"]]
    texts = dict.fromkeys(PROMPTS, "words " * 400)
    told: dict[str, Story] = {}
    found: list[Any] = []
    for number in range(runs):
        recipe = Recipe(model=ModelRef(path=label), steps=(Prune(),) * number)
        key = recipe.key
        found.append(replace(SMALLER, key=key, recipe=recipe))
        told[key] = replace(known, key=key, change={**known.change, "layers": rows}, texts=texts)
    return found, told


def test_a_long_story_of_large_models_stays_below_six_megabytes():
    runs, told = many(40, 126)
    text = render(table(runs), "html", runs, lambda: told)
    assert 1_000_000 < len(text.encode()) < 6_000_000
    assert text.count("<section>") == MOST_CHAPTERS
    assert f"40 runs; the first {MOST_CHAPTERS} at length" in text


@pytest.mark.browser
@pytest.mark.skipif(not Path(CHROMIUM).is_file(), reason="there is no Chromium here")
def test_a_browser_opens_it_without_network_light_dark_narrow_and_on_paper(
    tmp_path: Path, text: str, browser: Browser
):
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    asked: list[str] = []
    said: list[str] = []
    seen: dict[str, str] = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(
            color_scheme=scheme, offline=True, viewport={"width": 400, "height": 800}
        )
        tab = context.new_page()
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: said.append(message.text))
        tab.goto(file.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        seen[scheme] = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.emulate_media(media="print")
        paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(255, 255, 255)"
        assert tab.locator("svg").count() == text.count("<svg")
        context.close()
    assert asked == [file.as_uri()] * 2
    assert said == []
    assert seen["light"] != seen["dark"]
