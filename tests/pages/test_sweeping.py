"""The Sweeps page: building one, its members, its curves, what failed once more."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from laco import sweeps
from laco.context import Context
from laco.errors import ModelError
from laco.evaluations import Metric, Request
from laco.jobs import InlineRunner
from laco.recipe import Collapse, Recipe
from laco.store import RunStore
from laco.sweep import parse_sweep
from laco.sweeps import Standing
from laco.ui import session, swept
from laco.ui.sweeping import fields_of

Opener = Callable[..., AppTest]
LAYERS, MERGE = "steps.0.target_layers", "steps.0.merge"
PERPLEXITY = "perplexity[x]"


def measured(request: Request, _store: RunStore, _context: Context) -> dict[str, Any]:
    """Twice the perplexity for each layer that goes; twenty layers fail."""
    layers = 30
    for step in request.recipe.steps:
        if isinstance(step, Collapse):
            layers = step.target_layers or 0
    if layers == 20:
        raise ModelError("Twenty layers are of cheese; choose others.")
    found = (
        Metric(PERPLEXITY, 10.0 * 2 ** (30 - layers), "", "lower", stderr=0.5),
        Metric("parameters", 1000 * layers, "", "lower"),
    )
    return {"key": request.recipe.key, "metrics": [one.document() for one in found]}


def started(model: Path, vary: dict[str, list[Any]], **fields: Any) -> str:
    steps = [{"kind": "collapse", "target_layers": 29}]
    recipe = {"model": {"path": str(model)}, "steps": steps}
    sweep = parse_sweep({"recipe": recipe, "vary": vary, "name": "Depth", **fields})
    return sweeps.start(sweep, InlineRunner(session.store(), measured))


def found_of(model: Path, vary: dict[str, list[Any]], **fields: Any) -> list[Standing]:
    sweep_id = started(model, vary, **fields)
    runner = InlineRunner(session.store(), measured)
    return sweeps.standing(sweeps.read(session.store(), sweep_id), runner)


def drawn(found: list[Standing], axis: str, how: str = "grid") -> tuple[list[Any], Any]:
    """The lines of the curves, and the layout."""
    figure = swept.curves(found, PERPLEXITY, axis, how).figure
    return list(figure.data), figure.layout


def box(at: AppTest, label: str) -> Any:
    return next(one for one in at.selectbox if one.label == label)


def press(at: AppTest, label: str) -> AppTest:
    next(one for one in at.button if one.label == label).click().run()
    assert not at.exception, [error.value for error in at.exception]
    return at


def test_an_empty_page_says_what_to_do(open_page: Opener):
    at = open_page("sweeps")
    assert "Under New sweep choose a recipe" in at.info[0].value


def test_a_sweep_is_built_from_a_preset_and_two_fields_and_started(
    open_page: Opener, model: Path, waiting: Any
):
    at = open_page("sweeps", model=str(model), tab="New sweep")
    box(at, "Start from").set_value("sleb").run()
    box(at, "Field").set_value("steps.0.target_share").run()
    at.text_input(key="sweep.values.0.steps.0.target_share").set_value("0.5:0.7:0.1").run()
    box(at, "Second field, a line for each of its values").set_value(MERGE).run()
    at.text_input(key=f"sweep.values.1.{MERGE}").set_value("drop, rdsc").run()
    assert any("7 jobs" in one.value for one in at.markdown)
    text = next(one.value for one in at.code if '"vary"' in one.value)
    assert json.loads(text)["vary"] == {
        "steps.0.target_share": [0.5, 0.6, 0.7],
        MERGE: ["drop", "rdsc"],
    }
    press(at, "Start")
    assert {one.label.partition(":")[0] for one in waiting.active()} == {"target_share × merge"}
    assert len(waiting.active()) == 7
    (one,) = sweeps.started(session.store())
    assert at.query_params["sweep"] == one.id


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "Write the values"),
        ("0", "cannot be"),
        ("20, 20", "has 20 twice"),
        ("1:2:0", "A range|a range"),
    ],
    ids=["nothing", "refused", "twice", "no range"],
)
def test_values_that_cannot_be_are_said_and_start_nothing(
    open_page: Opener, model: Path, waiting: Any, typed: str, words: str
):
    at = open_page("sweeps", model=str(model), tab="New sweep")
    box(at, "Field").set_value(LAYERS).run()
    at.text_input(key=f"sweep.values.0.{LAYERS}").set_value(typed).run()
    said = " ".join(one.value for one in [*at.error, *at.info])
    assert any(word in said for word in words.split("|"))
    assert not any(one.label == "Start" for one in at.button)
    assert not waiting.jobs()


def test_a_sweep_is_shown_with_what_failed_and_that_runs_again_alone(
    open_page: Opener, model: Path, waiting: Any
):
    sweep_id = started(model, {LAYERS: [29, 20, 27]})
    at = open_page("sweeps", sweep=sweep_id)
    assert "Twenty layers are of cheese" in at.error[0].value
    frame = at.dataframe[-1].value
    assert list(frame["state"]) == ["done (original)", "done", "failed", "done"]
    assert list(frame["target_layers"])[1:] == [29, 20, 27]
    press(at, "Run the failed again")
    (again,) = waiting.active()
    assert again.label == "Depth: target_layers 20"


def test_while_members_wait_there_are_no_curves_yet_and_the_rest_can_be_cancelled(
    open_page: Opener, model: Path, waiting: Any
):
    recipe = {"model": {"path": str(model)}, "steps": [{"kind": "collapse", "target_layers": 29}]}
    sweeps.start(parse_sweep({"recipe": recipe, "vary": {LAYERS: [29, 28]}}), waiting)
    at = open_page("sweeps")
    assert any("Curves appear here" in one.value for one in at.info)
    press(at, "Cancel the rest")
    assert not waiting.active()


def test_curves_have_a_line_for_each_value_of_the_second_field_and_the_original(
    open_page: Opener, model: Path
):
    found = found_of(model, {LAYERS: [28, 29], MERGE: ["drop", "rdsc"]})
    lines, layout = drawn(found, LAYERS)
    assert [line.name for line in lines] == ["merge drop", "merge rdsc", "original 10"]
    assert list(lines[0].x) == [28, 29]
    assert list(lines[0].y) == [40, 20]
    assert list(lines[0].error_y.array) == [0.5, 0.5]
    assert list(lines[2].y) == [10, 10]
    assert layout.yaxis.type != "log"


def test_curves_over_the_share_of_parameters_and_over_decades(model: Path, no_scheduler: None):
    found = found_of(model, {LAYERS: [27, 24, 20], MERGE: ["drop", "rdsc"]})
    assert swept.axes(found) == [LAYERS, MERGE, swept.GONE]
    lines, layout = drawn(found, swept.GONE)
    assert list(lines[0].x) == pytest.approx([0.1, 0.2])
    assert layout.yaxis.type == "log"
    words = swept.curves(found, PERPLEXITY, swept.GONE).words
    assert "merge rdsc: 10.0% 80, 20.0% 640" in words
    lines, layout = drawn(found, MERGE)
    assert layout.xaxis.type == "category"
    assert [line.name for line in lines][:2] == ["target_layers 27", "target_layers 24"]


def test_a_list_is_one_line(model: Path, no_scheduler: None):
    seed = "steps.0.calibration.seed"
    found = found_of(model, {LAYERS: [28, 29], seed: [1, 2]}, how="list")
    assert len(drawn(found, LAYERS, "list")[0]) == 2


def test_parallel_coordinates_place_words_and_take_logarithms(model: Path, no_scheduler: None):
    found = found_of(model, {LAYERS: [29, 24], MERGE: ["drop", "rdsc"]})
    data: Any = swept.parallel(found, PERPLEXITY).figure.data
    by_name = {one.label: one for one in data[0].dimensions}
    assert list(by_name) == ["target_layers", "merge", "perplexity (log)", "parameters"]
    assert list(by_name["merge"].ticktext) == ["drop", "rdsc"]
    assert list(by_name["merge"]["values"]) == [0, 1, 0, 1]
    assert by_name["perplexity (log)"]["values"][0] == pytest.approx(math.log10(20))


def test_a_field_that_is_called_as_a_metric_keeps_its_column(model: Path, no_scheduler: None):
    found = [
        replace(one, values={"steps.0.parameters": "all"} if one.values else {})
        for one in found_of(model, {LAYERS: [29]})
    ]
    frame = swept.frame(found)
    assert list(frame["steps.0.parameters"]) == ["", "all"]
    assert list(frame["parameters"]) == [30000, 29000]
    headings, lines = sweeps.lines(found)
    assert headings[0] == "steps.0.parameters"
    assert lines[1][0] == "all"


def test_the_original_alone_is_no_curve(model: Path, no_scheduler: None):
    (original, _) = found_of(model, {LAYERS: [29]})
    assert swept.qualities([original]) == []


def test_every_field_of_every_step_can_be_chosen():
    step = {"kind": "prune", "compensation": {"kind": "compensate"}}
    recipe = Recipe.model_validate({"model": {"path": "x"}, "steps": [step]})
    places = dict(fields_of(recipe))
    wanted = ("method.sparsity", "calibration.seed", "compensation.alpha", "allocation")
    assert {f"steps.0.{name}" for name in wanted} <= set(places)
    assert places["steps.0.method.sparsity"][0] == "0.5"
    assert "uniform" in places["steps.0.allocation"][1]
