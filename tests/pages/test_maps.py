"""Figures from numbers: what they hold, without a browser."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from laco.ui import charts, maps, words
from laco.ui.spans import span_of_candidate
from tests.pages import prepared


def traces(figure: go.Figure) -> list[Any]:
    """What a figure draws; plotly's own types do not say that these are traces."""
    return list(figure.data)


@pytest.fixture(scope="module")
def document() -> dict:
    return prepared.similarity()


def test_depth_map_says_which_way_is_removable(document):
    for measure, colour in (("cosine", "high"), ("angular", "low"), ("relative_l2", "low")):
        heat = traces(maps.depth_map(document, measure))[0]
        assert f"{colour} = similar = removable" in heat.colorbar.title.text
        assert bool(heat.reversescale) is (colour == "low"), "bright must always mean similar"


def test_depth_map_and_bars_share_one_axis(document):
    figure = maps.depth_map(document, "cosine")
    heat, bars = traces(figure)
    assert list(heat.x) == list(range(31))
    assert list(bars.x) == [layer + 0.5 for layer in range(30)], "layer k lies between k and k+1"
    assert bars.xaxis in (None, "x")
    assert bars.yaxis == "y2"
    assert list(bars.error_y.array) == document["influence_spread"]


def test_uncertain_ranks_are_hatched(document):
    bars = traces(maps.depth_map(document, "cosine"))[1]
    hatched = [layer for layer, shape in enumerate(bars.marker.pattern.shape) if shape]
    assert hatched == [4, 5, 6, 7, 8]


def test_layer_without_influence_keeps_a_bar_on_the_log_axis(document):
    figure = maps.depth_map({**document, "influence": [0.0, *document["influence"][1:]]}, "cosine")
    bars = traces(figure)[1]
    assert figure.layout.yaxis2.type == "log"
    assert bars.y[0] > 0
    assert list(bars.customdata[0]) == [0, 0.0], "what is shown on hovering stays exact"


def test_drag_and_click_are_not_on_together(document):
    dragging = maps.depth_map(document, "cosine", cells=False)
    clicking = maps.depth_map(document, "cosine", cells=True)
    assert (dragging.layout.dragmode, len(traces(dragging))) == ("select", 2)
    assert (clicking.layout.dragmode, len(traces(clicking))) == ("pan", 3)
    targets = traces(clicking)[2]
    assert len(targets.x) == 31 * 31
    assert targets.marker.opacity == 0


def test_the_range_is_outlined_from_depth_to_depth(document):
    figure = maps.depth_map(document, "cosine", span=(6, 12))
    inner = figure.layout.shapes[1]
    assert (inner.x0, inner.x1, inner.y0, inner.y1) == (5.5, 12.5, 5.5, 12.5)


def test_map_of_eighty_layers_stays_below_a_megabyte():
    big = maps.depth_map(prepared.similarity(80), "cosine", (6, 12), cells=True)
    assert len(str(big.to_json())) < 1_000_000


def test_maps_side_by_side_share_a_scale():
    matrices = [[[1.0, 0.5], [0.5, 1.0]], [[1.0, 0.2], [0.2, 0.9]]]
    limits = maps.limits_of(matrices)
    assert limits == (0.2, 1.0)
    for matrix in matrices:
        heat = traces(maps.square_map(matrix, "cosine", "depth", limits))[0]
        assert (heat.zmin, heat.zmax) == limits


def test_what_if_map_takes_clicks_only_where_a_range_fits():
    document = prepared.what_if()
    figure = maps.what_if_map(document, "kl", chosen=[(6, 10)])
    targets = traces(figure)[1]
    there = sum(cell is not None for row in document["kl"] for cell in row)
    assert len(targets.x) == there
    cells = zip(targets.x, targets.y, strict=True)
    ends = [span_of_candidate({"points": [{"x": x, "y": y}]}) for x, y in cells]
    assert max(end[1] for end in ends if end) == prepared.LAYERS
    assert traces(figure)[0].customdata[0][15] == pytest.approx(document["kl"][0][15])


def test_candidates_are_told_apart_by_shape_as_well_as_colour():
    plan = prepared.plan()
    accepted, others, early = traces(charts.candidate_scores(plan))
    assert len(accepted.x) == 3
    assert len(early.x) == sum(not item["exact"] for item in plan["candidates"])
    assert len(accepted.x) + len(others.x) + len(early.x) == len(plan["candidates"])
    assert len({trace.marker.symbol for trace in (accepted, others, early)}) == 3


def test_summary_names_the_least_influential_layers_and_the_doubt(document):
    least = np.argsort(document["influence"], kind="stable")[:5]
    text = words.map_summary(document, "cosine")
    assert ", ".join(map(str, least)) in text
    assert "layers 4, 5, 6, 7, 8 the rank lies within the spread" in text


def test_summary_counts_the_doubtful_layers_when_they_are_many(document):
    text = words.map_summary({**document, "rank_uncertain": [True] * 30}, "cosine")
    assert "For 30 layers the rank lies within the spread" in text


def test_most_alike_reads_a_distance_the_other_way_round(document):
    assert words.most_alike(document, "cosine") == words.most_alike(document, "angular")


def test_what_if_summary_names_the_mildest_range():
    assert "15:17 (0.08)" in words.what_if_summary(prepared.what_if(), "kl")


def test_what_a_range_would_cost_is_read_off_the_what_if_map():
    document = prepared.what_if()
    row = document["lengths"].index(4)
    assert f"KL {document['kl'][row][6]:.3g} nats" in words.what_if_of(document, (6, 10))
    assert "ends at 8 layers" in words.what_if_of(document, (6, 20))
    assert "does not have" in words.what_if_of(document, (28, 32))
    assert "no map yet" in words.what_if_of(None, (6, 10))


def test_pointing_at_a_cell_names_the_layers_between_its_depths(document):
    heat = traces(maps.depth_map(document, "cosine"))[0]
    assert "%{text}" in heat.hovertemplate
    assert (heat.text[6][10], heat.text[10][6]) == ("6 to 9", "6 to 9")
    assert (heat.text[3][4], heat.text[5][5]) == ("3", "none")


def test_spread_is_bright_where_it_is_small(document):
    heat = traces(maps.square_map(document["spread"]["cosine"], "spread", "depth"))[0]
    assert heat.reversescale
    assert heat.colorbar.title.text == "Standard deviation: low = certain"
