"""Figures of a comparison: colours by run, hatching, axes, words, and that no label is markup."""

import json
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from laco import ModelRef, Recipe
from laco.report import table
from laco.ui import charts, pictures
from tests.test_report import ORIGINAL, SMALLER, accuracy, answers, parameters, perplexity

PPL = perplexity(0).name


def traces(figure) -> list[Any]:
    return list(figure.data)


def layout(picture: pictures.Picture) -> Any:
    return picture.figure.layout


def rows_of(*values: float):
    runs = [
        replace(ORIGINAL, key=f"k1-{place:06}", metrics=(perplexity(value, stderr=0.5),))
        for place, value in enumerate(values)
    ]
    return table(runs)


def test_equal_labels_keep_their_own_bars_and_the_baseline_its_colour():
    (bars,) = traces(pictures.run_bars(rows_of(19.5, 25), PPL).figure)
    assert len(set(bars.y)) == 2
    assert "<b>19.5</b>" in bars.y[0]
    assert list(bars.x) == [19.5, 25]
    assert list(bars.error_x.array) == [0.5, 0.5]
    assert bars.marker.color == (charts.ORANGE, pictures.COLOURS[0])


def test_one_huge_value_makes_the_axis_logarithmic_and_it_says_so():
    def axis(*values: float):
        return layout(pictures.run_bars(rows_of(*values), PPL)).xaxis

    assert axis(20, 199).type is None
    assert axis(20, 199).title.text == "perplexity, lower is better"
    far = axis(20, 15_315)
    assert far.type == "log"
    assert far.title.text == "perplexity, lower is better (logarithmic)"
    assert far.range[0] < 1.4 < 4.1 < far.range[1]  # log10 of both ends


def test_what_was_measured_otherwise_is_hatched_and_hollow():
    other = replace(SMALLER, metrics=(perplexity(25, window=9), parameters(9e6)))
    rows = table([ORIGINAL, other])
    (bars,) = traces(pictures.run_bars(rows, PPL).figure)
    assert bars.marker.pattern.shape == ("", "/")
    _, first, second = traces(pictures.trade_off(rows, PPL, "parameters").figure)
    assert (first.marker.symbol, second.marker.symbol) == ("diamond", "diamond-open")


def test_trade_off_joins_the_front_in_order_of_cost():
    beaten = replace(SMALLER, key="k1-c", metrics=(perplexity(26), parameters(95e6)))
    picture = pictures.trade_off(table([ORIGINAL, SMALLER, beaten]), PPL, "parameters")
    front, *points = traces(picture.figure)
    assert list(front.x) == [90e6, 100e6]
    assert [point.marker.symbol for point in points] == ["diamond", "diamond", "circle"]
    assert picture.words.startswith(f"{PPL} against parameters of 3 runs; no run beats ")


def test_a_run_has_one_colour_in_all_figures():
    def run(key: str, *metrics):
        return replace(SMALLER, key=key, metrics=metrics)

    task, size = accuracy(answers({1}), ""), parameters(9)
    runs = [ORIGINAL, run("k1-1", size), run("k1-2", perplexity(9), size, task)]
    rows = table(runs)
    (bars,) = traces(pictures.run_bars(rows, PPL).figure)
    *_, point = traces(pictures.trade_off(rows, PPL, "parameters").figure)
    (of_task,) = traces(pictures.task_bars(rows).figure)
    assert bars.marker.color[1] == point.marker.color == of_task.marker.color[0]
    assert bars.marker.color[1] == pictures.COLOURS[1]


def test_tasks_stand_in_groups_a_bar_a_run():
    def run(start, *tasks: str):
        return replace(
            start,
            metrics=tuple(
                replace(accuracy(answers({1, 2}), "", task=task), name=f"acc[{task}]")
                for task in tasks
            ),
        )

    picture = pictures.task_bars(table([run(ORIGINAL, "a", "b"), run(SMALLER, "b", "c")]))
    first, second = traces(picture.figure)
    assert (list(first.x), list(second.x)) == (["a", "b"], ["b", "c"])
    assert layout(picture).xaxis.categoryarray == ("a", "b", "c")
    assert layout(picture).yaxis.tickformat == ".0%"
    assert list(first.error_y.array) == [0.1, 0.1]
    assert list(picture.numbers["of"]) == ["a", "b", "b", "c"]
    assert "a: smollm2-135m 10.0 %; b: " in picture.words


@pytest.mark.parametrize("evil", ["<b>x</b> <a href='javascript:1'>", "%{x} </script>"])
def test_no_label_is_taken_for_markup(evil: str):
    model = Recipe(model=ModelRef(path=evil.replace("/", "⁄")))
    metrics = (perplexity(9), parameters(9), accuracy(answers({1}), ""))
    rows = table([replace(ORIGINAL, recipe=model, metrics=metrics)])
    for picture in (
        pictures.run_bars(rows, PPL),
        pictures.trade_off(rows, PPL, "parameters"),
        pictures.task_bars(rows),
    ):
        told = json.loads(str(picture.figure.to_json()))["data"][-1]
        label = told.get("name") or told["y"][0].rsplit("<br>", 1)[0]
        assert "<" not in label.replace("<br>", "")
        assert unescape(label.replace("<br>", " ")) == rows[0].label


def test_nothing_to_draw_gives_an_empty_figure():
    picture = pictures.run_bars(rows_of(3.0), "no such metric")
    assert len(picture.numbers) == 0
    assert list(picture.numbers) == ["of", "run", "value", "standard error", "not comparable"]
