"""Charts by layer: which lines they draw, on which axis, and what is said of them."""

import re
from dataclasses import replace

from laco import Compensate, Prune, Structured
from laco.machine import ASSUMED
from laco.recipe import Calibration
from laco.ui import curves, savings, tables, told
from tests.pages import prepared
from tests.pages.test_maps import traces

COMPENSATED = prepared.walk("compensate")["layers"]
PRUNED = prepared.walk("prune")["layers"]


def test_compensation_is_drawn_beside_what_it_came_with():
    lines = curves.through_depth(COMPENSATED)
    assert list(lines) == ["as it came", "compensated"]
    assert lines["as it came"] == [row["alone"] for row in COMPENSATED]
    assert lines["compensated"] == [row["error"] for row in COMPENSATED]
    agreement = curves.through_depth(COMPENSATED, "cka")
    assert agreement["as it came"][5] == COMPENSATED[5]["alone_cka"]


def test_pruning_has_one_line_and_with_compensation_two():
    assert list(curves.through_depth(PRUNED)) == ["pruned"]
    both = [{**row, "pruned": 0.5, "kept": "adam"} for row in PRUNED]
    assert list(curves.through_depth(both)) == ["pruned", "compensated"]
    assert list(curves.through_depth(both, "cka")) == ["compensated"]


def test_errors_that_grow_a_hundredfold_are_on_a_logarithmic_axis():
    figure = curves.layer_lines(curves.through_depth(COMPENSATED), 30, "error")
    assert figure.layout.yaxis.type == "log"
    few = curves.layer_lines(curves.through_depth(PRUNED[:3]), 30, "error")
    assert few.layout.yaxis.type != "log"


def test_axis_has_room_for_every_layer_from_the_start():
    figure = curves.layer_lines(curves.through_depth(COMPENSATED[:4]), 30, "error")
    assert tuple(figure.layout.xaxis.range) == (-0.5, 29.5)
    assert list(traces(figure)[0].x) == [0, 1, 2, 3]


def test_lines_differ_by_more_than_colour():
    figure = curves.layer_lines(curves.by_stage(COMPENSATED), 30, "error")
    assert [line.name for line in traces(figure)] == ["before", "closed form", "gradient"]
    assert len({line.marker.symbol for line in traces(figure)}) == 3
    assert len({line.line.dash for line in traces(figure)}) == 3


def test_cka_shows_the_one_that_it_can_reach():
    figure = curves.layer_lines(curves.through_depth(PRUNED, "cka"), 30, "CKA", most=1.0)
    low, high = figure.layout.yaxis.range
    assert low < min(row["cka"] for row in PRUNED)
    assert high >= 1


def test_layers_without_losses_have_no_line_of_theirs():
    figure = curves.one_line_a_layer([1, 2, 3], [[0.3, 0.2, 0.1], [], [0.3]], ("epoch", "loss"))
    assert [len(line.x) for line in traces(figure)] == [3, 0, 1]
    assert len({line.line.color for line in traces(figure)}) == 3


def test_training_is_drawn_with_the_originals_loss():
    report = prepared.training()
    figure = curves.training(report)
    held_out = traces(figure)[1]
    assert list(held_out.x) == [0, 4, 8]
    assert list(held_out.y) == [3.4, 3.05, 3.1]
    assert figure.layout.shapes[0].y0 == 2.8
    del report["original_held_out"]
    assert not curves.training(report).layout.shapes


def test_rows_without_a_cka_are_drawn_and_told():
    """A layer whose states are all alike has none."""
    rows = [{**row, "cka": None} for row in PRUNED[:2]]
    curves.layer_lines(curves.through_depth(rows, "cka"), 30, "CKA", most=1.0)
    assert "CKA" not in told.walk_summary(rows, 30)


def test_walk_that_has_not_begun_is_told():
    assert told.walk_summary([], 30) == "None of 30 layers is done yet."


def test_note_of_many_layers_is_told_once():
    rows = [{"layer": layer, "notes": ["No bias."]} for layer in range(3)]
    rows[1]["notes"] = ["No bias.", "Damped."]
    assert told.notes(rows) == ["All layers: No bias.", "Layer 1: Damped."]
    rows[2]["notes"] = []
    assert told.notes(rows)[0] == "Layers 0, 1: No bias."


def test_table_of_narrower_layers_tells_what_went():
    rows = [{**PRUNED[0], "channels": {"of": 64, "kept": 48, "lost": 0.125}}]
    cell = tables.layers_table(rows).loc[0, "channels left"]
    assert cell == "48 of 64, 12.5 % of importance gone"


def test_table_of_layers_leaves_out_what_no_row_has():
    table = tables.layers_table(PRUNED)
    assert "kept" not in table.columns
    assert table.loc[3, "zeros"] == "50.0 %"
    assert "kept" in tables.layers_table(COMPENSATED).columns


CARD = {
    "layers": 2,
    "dtype": "bfloat16",
    "parameters": 1000,
    "bytes": 2000,
    "layer_parameters": [100, 300],
    "parts": {"attention": 100, "mlp": 300},
    "hidden_size": 8,
    "intermediate_size": 64,
    "kv_heads": 4,
    "vocab_size": 50,
}


def test_what_a_step_takes_is_a_sentence_with_units():
    step = Compensate(epochs=3, held_out=2, calibration=Calibration(windows=6, length=10))
    card = {**CARD, "heads": 4, "head_dim": 2, "active_share": 1.0}
    found = savings.takes(card, step, ASSUMED)
    assert re.search(r"about [\d.]+ (MB|GB) of memory and .* on this machine's processor", found)
    assert "laco doctor" in found
    assert "laco doctor" not in savings.takes(card, step, replace(ASSUMED, machine="this one"))


def test_narrower_layers_are_told_with_their_bytes():
    method = Structured(channels=0.25, groups=0.5, multiple=16)
    text = " ".join(savings.promised(CARD, Prune(method=method)))
    gone = 300 * 0.25 + 100 * 0.5
    assert f"About {gone:.0f} of 1,000 parameters go" in text
    assert "48 of 64 channels" in text
    assert "2 of 4 groups" in text
