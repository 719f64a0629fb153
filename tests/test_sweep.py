"""Sweeps: what they stand for, what is refused before any job, shared work, failed members."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from laco import sweeps
from laco.cli import app
from laco.cli.terminal import speak
from laco.context import Context
from laco.errors import AccessError, JobError, ModelError, RecipeError, StoreError
from laco.evaluations import Footprint, Metric, Perplexity, Request
from laco.jobs import InlineRunner
from laco.recipe import Collapse, Drop, Magnitude, ModelRef, Prune, Recipe
from laco.spec import shortest
from laco.store import RunStore
from laco.sweep import Sweep, field_names, in_order, members, parse_sweep, read_values, told
from tests.pages import prepared

LAYERS, SPARSITY = "steps.0.target_layers", "steps.1.method.sparsity"
BASE: dict[str, Any] = {
    "model": {"path": "org/model"},
    "steps": [{"kind": "collapse", "target_layers": 20}, {"kind": "prune"}],
}


def sweep_of(vary: dict[str, list[Any]], **fields: Any) -> Sweep:
    return parse_sweep({"recipe": BASE, "vary": vary, **fields})


def test_a_grid_has_every_value_with_every_other_and_the_original_first():
    found = members(sweep_of({LAYERS: [20, 21], SPARSITY: [0.2, 0.3, 0.4]}))
    assert [told(one.values) for one in found[:3]] == [
        "the original",
        "target_layers 20, sparsity 0.2",
        "target_layers 20, sparsity 0.3",
    ]
    assert len(found) == 1 + 6
    assert not found[0].request.recipe.steps
    collapse, prune = found[-1].request.recipe.steps
    assert isinstance(collapse, Collapse)
    assert isinstance(prune, Prune)
    assert (collapse.target_layers, prune.method) == (21, prune.method)
    assert prune.method.model_dump()["sparsity"] == 0.4
    assert {one.request.evaluations for one in found} == {(Perplexity(), Footprint())}


def test_a_list_takes_first_with_first():
    found = members(sweep_of({LAYERS: [20, 21], SPARSITY: [0.2, 0.3]}, how="list"))
    assert [dict(one.values) for one in found] == [
        {},
        {LAYERS: 20, SPARSITY: 0.2},
        {LAYERS: 21, SPARSITY: 0.3},
    ]


def test_fields_that_follow_a_varied_one_follow_it():
    found = members(sweep_of({"steps.0.order": ["best_first", "top_down"]}))
    first, second = (one.request.recipe.steps[0] for one in found[1:])
    assert isinstance(first, Collapse)
    assert isinstance(second, Collapse)
    assert (first.objective, first.span) == ("kl", 2)
    assert (second.objective, second.span) == ("cosine", 4)


def test_a_field_inside_a_spec_that_goes_without_saying_keeps_the_specs_other_fields():
    base = {"model": {"path": "x"}, "steps": [{"kind": "collapse", "order": "top_down"}]}
    found = members(parse_sweep({"recipe": base, "vary": {"steps.0.calibration.windows": [3]}}))
    (step,) = found[1].request.recipe.steps
    assert isinstance(step, Collapse)
    assert (step.calibration.windows, step.calibration.unit) == (3, "sentence")


def test_each_model_has_its_own_original():
    found = members(sweep_of({"model.path": ["a", "b"]}))
    assert [one.request.recipe.model.path for one in found] == ["a", "b", "a", "b"]


def test_a_sweep_reads_back_as_the_same():
    sweep = sweep_of({LAYERS: [20, 21], "steps.0.merge": ["drop", "rdsc"]}, name="two")
    assert Sweep.model_validate_json(sweep.model_dump_json()) == sweep


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a field that is not there": ({"vary": {"steps.0.spam": [1]}}, "there is no such field"),
    "a step that is not there": ({"vary": {"steps.7.span": [1]}}, "there is no item 7"),
    "inside a plain value": ({"vary": {f"{LAYERS}.x": [1]}}, "lies inside a plain value"),
    "a value that a field refuses": ({"vary": {LAYERS: [0]}}, "target_layers 0 cannot be"),
    "a share of two": ({"vary": {SPARSITY: [0.2, 2]}}, "sparsity 2 cannot be: .*less than"),
    "an empty list": ({"vary": {LAYERS: []}}, "target_layers has no values"),
    "nothing varied": ({"vary": {}}, "at least 1"),
    "a value twice": ({"vary": {LAYERS: [20, 21, 20]}}, "has 20 twice"),
    "the same recipe twice": ({"vary": {LAYERS: [20, 20.0]}}, "is the same recipe as"),
    "too many": ({"vary": {"steps.1.calibration.seed": list(range(201))}}, "has 201 members, and"),
    "too many together": (
        {"vary": {LAYERS: list(range(1, 29)), SPARSITY: [i / 10 for i in range(1, 9)]}},
        "has 224 members",
    ),
    "lists of unlike length": (
        {"vary": {LAYERS: [20, 21], SPARSITY: [0.1]}, "how": "list"},
        "as many values of each field, and there are",
    ),
    "nothing measured": ({"vary": {LAYERS: [20]}, "evaluations": []}, "at least 1"),
    "no place": ({"vary": {"": [1]}}, "at least 1 character"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(case: str):
    document, words = REFUSED[case]
    with pytest.raises(RecipeError, match=words) as raised:
        parse_sweep({"recipe": BASE, **document})
    assert str(raised.value).startswith("The sweep cannot be read: ")
    assert "\n" not in str(raised.value)
    assert str(raised.value).count(". ") == 0


def test_names_of_fields_are_as_short_as_tells_them_apart():
    assert field_names([LAYERS, SPARSITY]) == {LAYERS: "target_layers", SPARSITY: "sparsity"}
    seeds = ["steps.0.calibration.seed", "steps.1.calibration.seed"]
    assert list(field_names(seeds).values()) == seeds
    assert field_names(["steps.0.layers.1"]) == {"steps.0.layers.1": "layers.1"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("10, 20, 30", [10, 20, 30]),
        ("0.1:0.5:0.1", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("29:26:-1", [29, 28, 27, 26]),
        ("1:4:2, 9", [1, 3, 9]),
        ("rdsc, drop", ["rdsc", "drop"]),
        ("[1], [2, 3]", [[1], [2, 3]]),
        ("true, null", [True, None]),
        (" ", []),
    ],
)
def test_values_are_read_as_people_type_them(text: str, values: list[Any]):
    assert read_values(text) == values


@pytest.mark.parametrize("text", ["1:2:0", "2:1:1", "1:1e9:1", "a:b:c", "1:nan:1", "[1, 2"])
def test_a_range_that_is_none_is_refused(text: str):
    if text == "[1, 2":
        assert read_values(text) == ["[1", 2]
        return
    with pytest.raises(RecipeError, match="range"):
        read_values(text)


def test_what_members_share_is_made_before_it_is_needed():
    chains = [["m"], ["m", "a", "a1"], ["m", "a", "a2"], ["m", "b", "b1"], ["m", "b", "b2"]]
    order = in_order(chains)
    assert order == [0, 1, 3, 2, 4]
    assert in_order([["m", "a", "b"], ["m", "a"]]) == [0, 1]
    assert in_order([]) == []


# Started: jobs, failures, the same again.


class Engine:
    """Stands for the engine: perplexity is 100 without the layers; some members fail."""

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.done: list[Recipe] = []

    def __call__(self, request: Request, _store: RunStore, _context: Context) -> dict[str, Any]:
        recipe = request.recipe
        layers = 30
        for step in recipe.steps:
            if isinstance(step, Collapse):
                layers = step.target_layers or 0
        if layers in self.failing:
            raise ModelError(f"{layers} layers are of cheese; choose others.")
        self.done.append(recipe)
        found = (Metric("perplexity[x]", 100.0 - layers, "", "lower", stderr=0.5),)
        size = (Metric("parameters", 1000 * layers, "", "lower"),)
        return {"key": recipe.key, "metrics": [one.document() for one in (*found, *size)]}


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared.model_folder(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def runner(tmp_path: Path, engine: Engine):
    store = RunStore(tmp_path / "store")
    yield InlineRunner(store, engine)
    store.close()


def layers_sweep(model: Path, values: list[int]) -> Sweep:
    recipe = {"model": {"path": str(model)}, "steps": BASE["steps"][:1]}
    return parse_sweep({"recipe": recipe, "vary": {LAYERS: values}, "name": "Depth"})


def test_a_sweep_is_a_job_for_each_member_and_a_table(
    runner: InlineRunner, engine: Engine, model: Path
):
    sweep_id = sweeps.start(layers_sweep(model, [29, 28]), runner)
    started = sweeps.read(runner.store, sweep_id[:4])
    found = sweeps.standing(started, runner)
    assert [one.state for one in found] == ["done"] * 3
    headings, lines = sweeps.table(found)
    assert headings == ["target_layers", "state", "perplexity[x]", "parameters", "key"]
    assert [line[:4] for line in lines] == [
        [None, "done", 70, 30000],
        [29, "done", 71, 29000],
        [28, "done", 72, 28000],
    ]
    labels = {status.label for status in runner.jobs()}
    assert labels == {"Depth: the original", "Depth: target_layers 29", "Depth: target_layers 28"}
    assert all(recipe.model.revision.startswith("content:") for recipe in engine.done)
    assert [one.id for one in sweeps.started(runner.store)] == [sweep_id]


def test_a_failed_member_stops_no_other_and_runs_again_alone(
    runner: InlineRunner, engine: Engine, model: Path
):
    engine.failing = {28}
    sweep_id = sweeps.start(layers_sweep(model, [29, 28, 27]), runner)
    found = sweeps.standing(sweeps.read(runner.store, sweep_id), runner)
    assert [one.state for one in found] == ["done", "done", "failed", "done"]
    assert found[2].error == "28 layers are of cheese; choose others."
    assert sweeps.summary(found) == "3 done, 1 failed"
    engine.failing.clear()
    engine.done.clear()
    assert sweeps.retry(sweep_id, runner) == 1
    assert len(engine.done) == 1
    after = sweeps.standing(sweeps.read(runner.store, sweep_id), runner)
    assert [one.state for one in after] == ["done"] * 4
    assert [one.job for one in after[:2]] == [one.job for one in found[:2]]
    assert sweeps.retry(sweep_id, runner) == 0


def test_a_member_whose_job_is_lost_can_run_again(
    runner: InlineRunner, engine: Engine, model: Path
):
    sweep_id = sweeps.start(layers_sweep(model, [29]), runner)
    job = sweeps.read(runner.store, sweep_id).members[1].job
    with runner.store.index.transaction() as index:
        index.execute("DELETE FROM jobs WHERE id = ?", (job,))
    found = sweeps.standing(sweeps.read(runner.store, sweep_id), runner)
    assert [one.state for one in found] == ["done", "lost"]
    assert sweeps.retry(sweep_id, runner) == 1


def test_if_one_member_cannot_be_queued_none_is(
    runner: InlineRunner, model: Path, monkeypatch: pytest.MonkeyPatch
):
    submit, labels = runner.submit, []

    def refusing(request: Request, label: str = "", **options: Any) -> str:
        labels.append(label)
        if label.endswith("28"):
            raise JobError("This needs 900 GB, and no device has so much.")
        return submit(request, label, **options)

    monkeypatch.setattr(runner, "_start", lambda: None)
    monkeypatch.setattr(runner, "submit", refusing)
    with pytest.raises(JobError, match="900 GB"):
        sweeps.start(layers_sweep(model, [29, 28, 27]), runner)
    assert {status.state for status in runner.jobs()} == {"cancelled"}
    assert sweeps.started(runner.store) == []


def test_what_is_no_sweep_is_said(runner: InlineRunner, model: Path):
    with pytest.raises(StoreError, match="There is no sweep beef"):
        sweeps.read(runner.store, "beef")
    sweep_id = sweeps.start(layers_sweep(model, [29]), runner)
    (runner.store.folder / "sweeps" / f"{sweep_id}.json").write_text('{"sweep": 1}')
    with pytest.raises(StoreError, match="cannot be read by this version"):
        sweeps.read(runner.store, sweep_id)
    assert sweeps.started(runner.store) == []


def test_who_only_looks_starts_nothing(runner: InlineRunner, model: Path):
    from laco.access import Person

    runner.who = Person(name="eve", role="viewer")
    with pytest.raises(AccessError):
        sweeps.start(layers_sweep(model, [29]), runner)


# The command.


@pytest.fixture
def typed(tmp_path: Path, engine: Engine, model: Path, monkeypatch: pytest.MonkeyPatch):
    """`laco sweep` with these arguments in this process, whose jobs end at once."""
    monkeypatch.setattr("laco.jobs.LocalRunner", lambda store, **_: InlineRunner(store, engine))
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(shortest(layers_sweep(model, [29, 28]))))

    def run(*arguments: str) -> int:
        given = [str(file) if word == "FILE" else word for word in arguments]
        return speak(app, [*given, "--store", str(tmp_path / "store")])

    return run


def test_the_command_ends_with_a_table_and_says_who_failed(typed, engine, capsys):
    engine.failing = {28}
    assert typed("sweep", "FILE") == 1
    told_, said = capsys.readouterr()
    assert "original" in told_
    assert "28 layers are of cheese" in told_
    assert "2 done, 1 failed" in said
    engine.failing.clear()
    sweep_id = said.partition("Sweep ")[2].partition(":")[0]
    assert typed("sweep", sweep_id, "--retry", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["id"] == sweep_id
    assert [one["state"] for one in found["members"]] == ["done"] * 3
    assert found["members"][1]["values"] == {LAYERS: 29}
    assert found["members"][1]["metrics"][0]["value"] == 71
    assert typed("sweeps", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["id"], one["states"]) == (sweep_id, "3 done")


def test_a_sweeps_file_may_name_a_preset_and_leave_the_model_to_the_command(
    typed, engine, model, tmp_path, capsys
):
    file = tmp_path / "preset.json"
    file.write_text(json.dumps({"recipe": "laco-default", "vary": {LAYERS: [20, 19]}}))
    assert typed("sweep", str(file)) == 1
    assert "names no model; give one with --model" in capsys.readouterr().err
    file.write_text(json.dumps({"recipe": "sleb", "vary": {"steps.0.target_share": [0.8, 0.7]}}))
    assert typed("sweep", str(file), "--model", str(model), "--evaluate", "footprint") == 0
    assert len(engine.done) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing.json",), "is not there"),
        (("FILE", "--retry"), "--retry goes with the id of a sweep"),
        (("beef",), "There is no sweep beef"),
    ],
    ids=["no file", "retry of a file", "no id"],
)
def test_what_the_command_cannot_do_is_said(typed, capsys, arguments, words):
    assert typed("sweep", *arguments) == 1
    assert words in capsys.readouterr().err


# Shared work.


def test_two_members_at_once_compute_what_they_share_once(
    runner: InlineRunner, model: Path, monkeypatch: pytest.MonkeyPatch
):
    from laco import engine

    made: list[str] = []
    waits = threading.Event()

    def step(recipe: Recipe, keys: list[str], index: int, store: RunStore, _context: Context):
        kind = recipe.steps[index].kind
        if kind == "drop":
            assert waits.wait(20), "the second member came to the shared step"
        made.append(kind)
        so_far = Recipe(model=recipe.model, steps=recipe.steps[: index + 1])
        store.save(keys[index + 1], so_far, [{"kind": kind, "seconds": 1.0}] * (index + 1), empty)

    def empty(_folder: Path) -> None:
        pass

    def progress(_fraction: float, message: str) -> None:
        if "waiting for another job" in message:
            waits.set()

    monkeypatch.setattr(engine, "STEPS", dict.fromkeys(engine.STEPS, step))
    steps = (Drop(layers=(2,)), Prune(method=Magnitude(sparsity=0.5)))
    recipe = Recipe(model=ModelRef(path=str(model)), steps=steps)
    wanted = members(Sweep(recipe=recipe, vary={SPARSITY: (0.2, 0.6)}))[1:]
    context = Context(progress=progress)
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(engine.run, Request(recipe=one.request.recipe), runner.store, context)
            for one in wanted
        ]
        keys = {one.result()["key"] for one in running}
    assert len(keys) == 2
    assert sorted(made) == ["drop", "prune", "prune"]
