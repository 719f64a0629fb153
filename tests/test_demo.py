"""The demo's requests are a chain, and its table sets what they gave side by side."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from laco import Collapse, Drop, Metric, ModelRef, Recipe, Similarity
from laco.demo import EVALUATIONS, TARGETS, compared, demo_requests
from laco.report import render


@dataclass(frozen=True)
class FakeRun:
    key: str
    recipe: Recipe
    metrics: tuple[Metric, ...] = ()


def report(key: str, value: float, *seconds: float) -> dict[str, Any]:
    metric = Metric("perplexity[text]", value, unit="", better="lower").document()
    steps = [{"kind": "drop", "seconds": second} for second in seconds]
    return {"key": key, "path": None, "steps": steps, "metrics": [metric], "analyses": []}


def test_every_run_is_measured_alike():
    assert {request.evaluations for request in demo_requests()} == {EVALUATIONS}


def test_only_the_original_is_mapped():
    first, *others = demo_requests()
    assert first.recipe.steps == ()
    assert first.analyses == (Similarity(),)
    assert not any(request.analyses for request in others)


def test_each_target_goes_on_from_the_one_before():
    keys = [request.recipe.keys() for request in demo_requests()[: 1 + len(TARGETS)]]
    assert all(later[:-1] == earlier for earlier, later in pairwise(keys))


def test_the_papers_search_is_the_last():
    (step,) = demo_requests()[-1].recipe.steps
    assert isinstance(step, Collapse)
    assert (step.order, step.span, step.interval) == ("top_down", 4, 2)
    assert (step.threshold, step.merge) == (0.65, "telescoped")


def test_table_has_the_original_first_and_the_seconds_of_all_steps():
    original = Recipe(model=ModelRef(path="org/name"))
    runs = [FakeRun("k1-b", original.then(Drop(layers=(1,)))), FakeRun("k1-a", original)]
    rows = compared([report("k1-a", 20.0), report("k1-b", 25.0, 1.5, 2.0)], runs)
    assert [(row.key, row.metric, row.value) for row in rows] == [
        ("k1-a", "perplexity[text]", 20.0),
        ("k1-b", "perplexity[text]", 25.0),
        ("k1-b", "seconds", 3.5),
    ]
    assert rows[1].delta == 5.0
    assert "25 (+25.0 %)" in render(rows)
