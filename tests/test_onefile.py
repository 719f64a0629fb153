"""The HTML file: whole, without a network, and no text in it is taken for its own signs."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from laco import Metric, ModelRef, Recipe
from laco.report import render, table
from tests.test_report import ORIGINAL, SMALLER, accuracy, answers, leaky

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
    return render(table(runs, answers=given.get), "html", runs)


@pytest.fixture(scope="module")
def outline() -> Outline:
    return Outline(page())


def test_file_is_whole_and_small_enough_to_send(outline):
    assert outline.open == []
    assert len(page().encode()) < 6_000_000


def test_plotly_stands_in_it_once_and_nothing_is_fetched(outline):
    text = page()
    assert text.count("plotly.js v") == 1
    assert not [attributes for _, attributes in outline.tags if {"src", "href"} & set(attributes)]
    assert "@import" not in text.split("</style>")[0]


def test_it_has_tables_charts_recipes_settings_and_commands(outline):
    headings = [text for text in outline.texts if text.strip()]
    for wanted in (
        "Question by question",
        "perplexity[bundled:wikipedia@heldout] against parameters",
        "Tasks",
        "Recipes, and how to have each run again",
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
    assert len(re.findall(r'id="chart-\d"', page())) == 3


def test_charts_have_their_numbers_in_words(outline):
    words = [
        attributes["aria-label"] for _, attributes in outline.tags if "aria-label" in attributes
    ]
    assert len(words) == 3
    assert "model 20" in words[0]


def test_no_text_breaks_out_of_its_place():
    evil = Outline(page(EVIL))
    plain = Outline(page())
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in plain.tags]
    assert evil.open == []
    text = page(EVIL)
    assert "alert(1)</script>" not in text
    assert "<img" not in text


def test_rows_alone_make_a_file_too():
    text = render(table([ORIGINAL, SMALLER]), "html")
    assert "Runs compared" in text
    assert "recipe.json" not in text
    bare = [replace(ORIGINAL, metrics=(Metric("layers", 3, "", "lower"),))]
    assert "plotly" not in render(table(bare), "html")
