"""From a gesture or a text to a range, and into words."""

import pytest

from laco.errors import RecipeError
from laco.recipe import Drop, Merge
from laco.ui.spans import (
    clamped,
    in_ranges,
    kept,
    listed,
    parse_layers,
    parse_spans,
    removed_by,
    span_of_candidate,
    span_of_selection,
    spoken,
    text_of_spans,
)


def box(x: tuple[float, float], y: tuple[float, float], yref: str = "y") -> dict:
    return {"box": [{"xref": "x", "yref": yref, "x": list(x), "y": list(y)}], "points": []}


def test_box_becomes_the_depths_whose_cells_it_touches():
    assert span_of_selection(box((4.27, 8.27), (4.3, 9.08)), layers=30) == (4, 9)


def test_box_drawn_backwards_is_the_same():
    assert span_of_selection(box((8.27, 4.27), (9.08, 4.3)), layers=30) == (4, 9)


def test_box_past_the_edge_ends_at_the_last_depth():
    assert span_of_selection(box((-3, 12), (-0.4, 44)), layers=30) == (0, 30)


def test_box_within_two_cells_is_no_range():
    assert span_of_selection(box((4.1, 4.9), (4.1, 4.2)), layers=30) is None


def test_box_over_the_bars_takes_the_layers_it_touches():
    assert span_of_selection(box((4.6, 8.3), (0.0, 0.1), yref="y2"), layers=30) == (4, 9)


def test_the_last_box_counts():
    both = {"box": [*box((1, 3), (1, 3))["box"], *box((6, 12), (6, 12))["box"]]}
    assert span_of_selection(both, layers=30) == (6, 12)


def test_cell_stands_for_the_layers_between_its_two_depths():
    assert span_of_selection({"box": [], "points": [{"x": 12, "y": 6}]}, layers=30) == (6, 12)


@pytest.mark.parametrize("point", [{"x": 6, "y": 6}, {"x": 7, "y": 6}, {"x": 6.5, "y": 0.02}])
def test_cell_on_or_beside_the_diagonal_and_a_bar_are_no_range(point):
    assert span_of_selection({"points": [point]}, layers=30) is None


def test_empty_selection_is_no_range():
    assert span_of_selection({"box": [], "points": []}, layers=30) is None
    assert span_of_candidate({"points": []}) is None


def test_candidate_is_a_start_and_a_length():
    assert span_of_candidate({"points": [{"x": 6, "y": 4}]}) == (6, 10)


def test_clamped_stays_inside_the_model_and_in_order():
    assert clamped((99, 3), layers=12) == (3, 12)
    assert clamped((-5, 4), layers=12) == (0, 4)


@pytest.mark.parametrize("text", ["6:10, 20:22", "[6, 10), [20, 22)", "[[6, 10], [20, 22]]"])
def test_spans_are_read_in_each_way_they_are_written(text):
    assert parse_spans(text) == ((6, 10), (20, 22))


def test_spans_survive_being_written_and_read():
    assert parse_spans(text_of_spans([(0, 4), (7, 9)])) == ((0, 4), (7, 9))
    assert parse_spans("") == ()


@pytest.mark.parametrize("text", ["six", "6:", "6-10", "6:10 20:22"])
def test_unreadable_span_is_named(text):
    with pytest.raises(RecipeError, match="is no range"):
        parse_spans(text)


def test_layers_are_read_and_a_bad_one_is_named():
    assert parse_layers("7, 8;12") == (7, 8, 12)
    with pytest.raises(RecipeError, match="'x' is no layer"):
        parse_layers("7, x")


def test_removed_layers_of_spans_and_of_a_drop():
    assert removed_by(Merge(spans=((6, 9), (20, 22))), 30) == (7, 8, 21)
    assert removed_by(Merge(spans=((6, 8), (5, 9))), 30) == (6, 7, 8)
    assert removed_by(Drop(layers=(9, 3)), 30) == (3, 9)


@pytest.mark.parametrize("step", [Merge(spans=((8, 13),)), Drop(layers=(12,))])
def test_step_past_the_end_is_refused(step):
    with pytest.raises(RecipeError, match=r"12|13"):
        removed_by(step, 12)


def test_dropping_every_layer_is_refused():
    with pytest.raises(RecipeError, match="No layer would be left"):
        removed_by(Drop(layers=(0, 1, 2)), 3)


def test_words_name_what_goes_and_what_stays():
    assert spoken((6, 10)) == "Layers 6–9 become layer 6; layers 7, 8, 9 go."
    assert spoken((6, 8)) == "Layers 6–7 become layer 6; layer 7 goes."
    assert "two layers at least" in spoken((6, 7))
    assert listed(kept((1, 2), 5)) == "layers 0, 3, 4"
    assert listed(()) == "no layer"


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((), "no layer"),
        ((7,), "layer 7"),
        ((7, 8), "layers 7 and 8"),
        ((0, 1, 2), "layers 0–2"),
        ((0, 1, 2, 5, 7, 8, 9), "layers 0–2, 5 and 7–9"),
    ],
)
def test_many_layers_are_said_in_few_words(layers, said):
    assert in_ranges(layers) == said


def test_a_long_range_is_no_wall_of_numbers():
    assert spoken((40, 60)) == "Layers 40–59 become layer 40; layers 41–59 go."
