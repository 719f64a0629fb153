"""Figures as SVG: places of marks, round ticks, gaps, and texts that stay texts."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from laco.drawing import (
    HEIGHT,
    LEFT,
    LEVELS,
    RIGHT,
    WIDTH,
    Bar,
    Point,
    bars,
    heat_map,
    lines,
    points,
)

EVIL = "<script>&\"'"


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{text}</div>")


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.?\d*", text)]


def spots(element: ElementTree.Element) -> list[tuple[float, float]]:
    found = numbers(element.attrib["points"])
    return list(zip(found[::2], found[1::2], strict=True))


def test_bars_are_as_long_as_their_values():
    drawn = parsed(bars({"": [Bar("a", 10, "10", 0), Bar("b", 5, "5", 1)]}, "words"))
    found = [float(one.attrib["width"]) for one in drawn.iter("rect")]
    assert found == pytest.approx([WIDTH - RIGHT, (WIDTH - RIGHT) / 2], abs=0.1)


def test_a_line_goes_through_its_values_and_breaks_at_a_gap():
    drawn = parsed(lines({"one": [0.0, 1.0, None, 4.0, 2.0]}, ("layer", "error"), "words"))
    polylines = [spots(one) for one in drawn.iter("polyline")]
    first, second, legend = polylines
    assert [len(one) for one in polylines] == [2, 2, 2]
    assert first[0] == pytest.approx((LEFT, HEIGHT - 46))
    top = 40 + (HEIGHT - 46 - 40) * 0
    assert second[0] == pytest.approx((LEFT + 0.75 * (WIDTH - RIGHT - LEFT), top), abs=0.1)
    assert legend[0][1] == legend[1][1]


def test_values_far_apart_get_a_logarithmic_axis_that_says_so():
    far = lines({"one": [0.001, 0.01, 1.0]}, ("layer", "error"), "words")
    (line, _) = (spots(one) for one in parsed(far).iter("polyline"))
    steps = [one[1] for one in line]
    assert steps[0] - steps[1] == pytest.approx((steps[1] - steps[2]) / 2, abs=0.2)
    assert "error (logarithmic)" in far
    assert "logarithmic" not in lines({"one": [0.2, 1.0]}, ("layer", "error"), "words")


def test_points_keep_their_order_on_both_axes_and_are_named():
    found = [Point("a", 100e6, 20.0, "20", 0), Point("b", 130e6, 10.0, "10", 1, error=1.0)]
    text = points(found, [0, 1], ("parameters", "perplexity"), "words")
    drawn = parsed(text)
    first, second = (numbers(f"{c.attrib['cx']} {c.attrib['cy']}") for c in drawn.iter("circle"))
    assert first[0] < second[0]
    assert first[1] < second[1]
    assert [item.text or (item[0].tail or "") for item in drawn.iter("li")] == ["a: 20", "b: 10"]
    assert "110 M" in text


def test_a_map_has_a_path_for_each_shade_and_covers_every_cell():
    size = 9
    matrix: list[list[float | None]] = [
        [1.0 if row == column else 0.0 for column in range(size)] for row in range(size)
    ]
    matrix[0][8] = None
    drawn = parsed(heat_map(matrix, (0.0, 1.0), "depth", "words"))
    paths = [one.attrib["d"] for one in drawn.iter("path")]
    widths = [sum(map(int, re.findall(r"h(\d+)v", path))) for path in paths]
    assert sorted(widths) == [size, size * size - size - 1]
    assert len(paths) <= LEVELS


@pytest.mark.parametrize(
    "drawn",
    [
        bars({EVIL: [Bar(EVIL, 1.0, EVIL, 0)]}, EVIL),
        points([Point(EVIL, 1.0, 2.0, EVIL, 0)], [0], (EVIL, EVIL), EVIL),
        lines({EVIL: [1.0]}, (EVIL, EVIL), EVIL),
        heat_map([[1.0]], (1.0, 1.0), EVIL, EVIL),
        bars({}, "nothing"),
        lines({"empty": []}, ("x", "y"), "nothing"),
        points([], [], ("x", "y"), "nothing"),
    ],
    ids=["bars", "points", "lines", "map", "no bars", "no line", "no points"],
)
def test_what_is_from_outside_is_text_and_nothing_is_drawn_of_nothing(drawn: str):
    assert "script" not in {element.tag for element in parsed(drawn).iter()}
    assert "nan" not in drawn
