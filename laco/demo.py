"""The main job on the bundled model, as requests: what `laco demo` and the first page start.

It only describes the work; `engine.py` carries it out, in this process (`laco demo`) or in jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from laco.evaluations import Footprint, Metric, Perplexity, Request, Similarity
from laco.recipe import Calibration, Collapse, ModelRef, Recipe
from laco.report import Measured, Row, table

MODEL = ModelRef(path="bundled:smollm2-135m")
EVALUATIONS = (Perplexity(window=256, windows=16), Footprint())
CALIBRATION = Calibration(windows=4, length=128)  # half of the default, to take minutes
TARGETS = (27, 24, 21)  # layers left of 30: 10, 20 and 30 % fewer


def demo_requests() -> list[Request]:
    """The original first, then best-first collapses one on top of the other, then the paper's.

    Each target's recipe begins with the steps of the one before it, so that its search starts
    from what that one left.
    """
    original = Recipe(model=MODEL)
    requests = [Request(recipe=original, evaluations=EVALUATIONS, analyses=(Similarity(),))]
    recipe = original
    for layers in TARGETS:
        recipe = recipe.then(Collapse(target_layers=layers, calibration=CALIBRATION))
        requests.append(Request(recipe=recipe, evaluations=EVALUATIONS))
    paper = Collapse(order="top_down", interval=2, threshold=0.65, merge="telescoped")
    return [*requests, Request(recipe=original.then(paper), evaluations=EVALUATIONS)]


@dataclass(frozen=True)
class _Timed:
    """A run with the seconds of its steps as one more metric."""

    key: str
    recipe: Recipe
    metrics: tuple[Metric, ...]


def compared(reports: Sequence[Mapping[str, Any]], runs: Sequence[Measured]) -> list[Row]:
    """What the engine reported of each demo run, as rows against the first, with its seconds.

    `runs` are the store's; only the demo's own measurements are taken, and in the demo's order.
    """
    recipes = {run.key: run.recipe for run in runs}
    timed: list[_Timed] = []
    for report in reports:
        metrics = [Metric(**metric) for metric in report["metrics"]]
        if report["steps"]:
            seconds = sum(step["seconds"] for step in report["steps"])
            metrics.append(Metric("seconds", seconds, unit="s", better="lower"))
        key = report["key"]
        timed.append(_Timed(key=key, recipe=recipes[key], metrics=tuple(metrics)))
    return table(timed)
