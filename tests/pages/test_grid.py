"""The grid of Evaluate, without a page: which cells are there, on their way or missing."""

from laco import Drop, Metric, ModelRef, Recipe
from laco.evaluations import Divergence, Footprint, Latency, Perplexity, Request, ZeroShot
from laco.recipe import chained_key
from laco.ui import grid
from laco.ui.grid import Cell

MODEL = Recipe(model=ModelRef(path="org/Tiny", revision="content:1", dtype="float32"))
DROPPED = MODEL.then(Drop(layers=(3,)))
KEY, OTHER = MODEL.key, DROPPED.key
TASK = ZeroShot(task="piqa")


def number(name: str = "perplexity[x]", **details: object) -> Metric:
    return Metric(name, 12.5, "", "lower", stderr=0.5, details=details)


def answered(task: str = "piqa", **details: object) -> tuple[Metric, ...]:
    asked = {"task": task, "data": "bundled", "shots": 0, "limit": 200, "seed": 0, **details}
    return tuple(
        Metric(f"{name}[{task}]", value, "share", "higher", 0.03, {**asked, "main": main})
        for name, value, main in (("acc", 0.5, False), ("acc_norm", 0.625, True))
    )


def state(found: grid.Grid, spec, key: str = KEY) -> str:
    return found[key][spec].state


def test_a_number_counts_for_its_own_settings_alone():
    measured = {KEY: {chained_key(KEY, Perplexity()): (number(),)}}
    specs = [Perplexity(), Perplexity(window=9), Divergence()]
    found = grid.grid([KEY, OTHER], specs, measured)
    assert [state(found, spec) for spec in specs] == ["there", "missing", "missing"]
    assert state(found, Perplexity(), OTHER) == "missing"
    assert found[KEY][Perplexity()].text("perplexity") == "12.5 ± 0.5"


def test_tasks_are_found_though_their_key_has_a_digest():
    measured = {KEY: {chained_key(KEY, TASK.model_copy(update={"pinned": "d"})): answered()}}
    found = grid.grid([KEY], [TASK], measured)
    assert found[KEY][TASK].text("zero_shot") == "62.5 ± 3.0 %"
    for change in ({"shots": 5}, {"limit": None}, {"seed": 1}, {"data": "hub"}, {"task": "boolq"}):
        other = TASK.model_copy(update=change)
        assert state(grid.grid([KEY], [other], measured), other) == "missing", change


def test_of_two_measurements_of_a_task_the_newer_one_is_shown():
    older, newer = answered(), tuple(m for m in answered(leak={"items": 1, "of": 9}))
    measured = {KEY: {"k1-1": older, "k1-2": newer}}
    assert grid.grid([KEY], [TASK], measured)[KEY][TASK].text("zero_shot") == "62.5‡ ± 3.0 %"


def test_what_is_asked_for_is_marked_and_not_asked_again():
    specs = [Perplexity(), Divergence(), Footprint()]
    jobs = [
        (KEY, Request(recipe=MODEL, evaluations=(Perplexity(),)), False),
        (KEY, Request(recipe=MODEL, evaluations=(Divergence(),)), True),
        (OTHER, Request(recipe=DROPPED, evaluations=(Perplexity(window=9),)), True),
    ]
    found = grid.grid([KEY, OTHER], specs, {}, jobs)
    assert [state(found, spec) for spec in specs] == ["queued", "running", "missing"]
    assert state(found, Perplexity(), OTHER) == "missing"
    recipes = {KEY: MODEL, OTHER: DROPPED}
    assert grid.requests(found, recipes) == [
        Request(recipe=MODEL, evaluations=(Footprint(),)),
        Request(recipe=DROPPED, evaluations=(Perplexity(), Divergence(), Footprint())),
    ]


def test_nothing_missing_asks_for_nothing():
    specs = [Perplexity(), Footprint()]
    measured = {KEY: {chained_key(KEY, Perplexity()): (number(),)}}
    jobs = [(KEY, Request(recipe=MODEL, evaluations=(Footprint(),)), True)]
    found = grid.grid([KEY], specs, measured, jobs)
    assert grid.requests(found, {KEY: MODEL}) == []


def test_a_cell_shows_the_number_that_people_ask_for():
    sizes = (number("layers"), Metric("parameters", 134.5e6, "", "lower"), number("bytes"))
    speeds = (
        number("prefill[batch 1]"),
        Metric("decode[batch 1]", 20.5, "tokens/s", "higher", 1.0),
    )
    assert Cell("there", sizes).text("footprint") == "134.5 M"
    assert Cell("there", speeds).text("latency") == "20.5 ± 1"
    marks = [Cell(state).text("x") for state in ("queued", "running", "missing")]
    assert marks == ["⏳ queued", "▶ running", "–"]


def test_a_task_outside_the_bundle_is_asked_of_the_hub():
    found = grid.tasks(["piqa", "truthfulqa_mc1", "piqa", "/a/own.yaml"], ZeroShot(limit=9))
    assert [(spec.task, spec.data) for spec in found] == [
        ("piqa", "bundled"),
        ("truthfulqa_mc1", "hub"),
        ("/a/own.yaml", "bundled"),
    ]
    assert {spec.limit for spec in found} == {9}
    (own,) = grid.tasks(["piqa"], ZeroShot(data="file:/x"))
    assert own.data == "file:/x"


def test_table_has_a_row_a_run_and_a_column_an_evaluation():
    specs = [
        Perplexity(),
        Latency(),
        TASK,
        ZeroShot(task="/a/own.yaml"),
        ZeroShot(task="/b/own.yaml"),
    ]
    table = grid.table(grid.grid([KEY, OTHER], specs, {}), {KEY: "one", OTHER: "two"})
    assert list(table.index) == ["one", "two"]
    assert list(table) == [
        "perplexity",
        "writing, tokens/s",
        "piqa",
        "own.yaml (4)",
        "own.yaml (5)",
    ]
