"""Runs × evaluations as a grid: what is there, what is on its way, what is missing.

Pure: specs, metrics and requests in, cells out. Next: `evaluating.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pandas as pd

from laco.evaluations import Evaluation, Metric, Request, ZeroShot
from laco.recipe import Recipe, chained_key
from laco.tasks import BUNDLED
from laco.wording import format_value

State = Literal["there", "queued", "running", "missing"]
MARKS: dict[State, str] = {"queued": "⏳ queued", "running": "▶ running", "missing": "–"}
TITLES = {
    "perplexity": "perplexity",
    "divergence": "KL, nats/token",
    "footprint": "parameters",
    "latency": "writing, tokens/s",
    "degeneration": "degenerate",
}
IN_TITLE = ("nats/token", "tokens/s")  # units that a cell need not repeat
SHOWN = {"footprint": ("parameters",), "latency": ("decode[batch 1]",)}  # of several metrics
ASKED = ("task", "data", "shots", "limit", "seed")  # what tells one asking of a task from another


@dataclass(frozen=True)
class Cell:
    """One evaluation of one run: its metrics where they are there, else how far it is."""

    state: State
    metrics: tuple[Metric, ...] = ()

    def text(self, kind: str) -> str:
        """The number that stands for it, or a mark."""
        if self.state != "there":
            return MARKS[self.state]
        metric = shown(self.metrics, kind)
        leak = "‡" if metric.details.get("leak") else ""
        if metric.unit == "share":
            error = f" ± {100 * metric.stderr:.1f}" if metric.stderr else ""
            return f"{100 * metric.value:.1f}{leak}{error} %"
        error = f" ± {format_value(metric.stderr)}" if metric.stderr else ""
        unit = "" if metric.unit in IN_TITLE else metric.unit
        return format_value(metric.value, unit) + leak + error


Grid = dict[str, dict[Evaluation, Cell]]  # by the run's key


def kinds() -> list[type[Evaluation]]:
    """The evaluations that are no tasks, one column each."""
    union = get_args(get_args(Evaluation)[0])
    return [kind for kind in union if kind is not ZeroShot]


def title(spec: Evaluation) -> str:
    """The heading of a column."""
    if isinstance(spec, ZeroShot):
        return spec.task.rsplit("/", 1)[-1]
    return TITLES.get(spec.kind, spec.kind)


def tasks(names: Iterable[str], form: ZeroShot) -> list[ZeroShot]:
    """The same questions asked of each task; one that is not in the bundle comes from the hub."""
    found = []
    for name in dict.fromkeys(names):
        own = name in BUNDLED or name.endswith((".yaml", ".yml"))
        data = "hub" if form.data == "bundled" and not own else form.data
        found.append(form.model_copy(update={"task": name, "data": data}))
    return found


def grid(
    keys: Sequence[str],
    specs: Sequence[Evaluation],
    measured: Mapping[str, Mapping[str, tuple[Metric, ...]]],
    jobs: Sequence[tuple[str, Request, bool]] = (),
) -> Grid:
    """A cell for each run and evaluation.

    `measured` has the metrics by the run's key, then the evaluation's. `jobs` are the run's key,
    the request, and whether it runs already, of each job that is not done.
    """
    found: Grid = {}
    for key in keys:
        of_run = measured.get(key, {})
        asked: dict[Evaluation, State] = {}
        for job_key, request, running in jobs:
            if job_key == key:
                for spec in request.evaluations:
                    if running or spec not in asked:
                        asked[spec] = "running" if running else "queued"
        found[key] = {spec: _cell(key, spec, of_run, asked) for spec in specs}
    return found


def missing(cells: Mapping[Evaluation, Cell]) -> tuple[Evaluation, ...]:
    """The evaluations of a run that nobody has done or asked for."""
    return tuple(spec for spec, cell in cells.items() if cell.state == "missing")


def requests(found: Grid, recipes: Mapping[str, Recipe]) -> list[Request]:
    """One request for each run that lacks something: all that it lacks."""
    return [
        Request(recipe=recipes[key], evaluations=wanted)
        for key, cells in found.items()
        if (wanted := missing(cells))
    ]


def table(found: Grid, names: Mapping[str, str]) -> pd.DataFrame:
    """The grid as texts: a row for each run, a column for each evaluation."""
    specs = list(dict.fromkeys(spec for cells in found.values() for spec in cells))
    titles = [title(spec) for spec in specs]
    columns = {
        spec: name if titles.count(name) == 1 else f"{name} ({place})"
        for place, (spec, name) in enumerate(zip(specs, titles, strict=True), 1)
    }
    return pd.DataFrame(
        {
            columns[spec]: [cells[spec].text(spec.kind) for cells in found.values()]
            for spec in specs
        },
        index=pd.Index([names[key] for key in found], name="run"),
    )


def shown(metrics: Sequence[Metric], kind: str) -> Metric:
    """The metric of an evaluation that a table of papers would have."""
    for name in SHOWN.get(kind, ()):
        for metric in metrics:
            if metric.name == name:
                return metric
    return next((metric for metric in metrics if metric.details.get("main")), metrics[0])


def _cell(
    key: str,
    spec: Evaluation,
    measured: Mapping[str, tuple[Metric, ...]],
    asked: Mapping[Evaluation, State],
) -> Cell:
    metrics = measured.get(chained_key(key, spec))
    if metrics is None and isinstance(spec, ZeroShot):
        metrics = _answered(spec, measured)
    if metrics:
        return Cell("there", metrics)
    return Cell(asked.get(spec, "missing"))


def _answered(
    spec: ZeroShot, measured: Mapping[str, tuple[Metric, ...]]
) -> tuple[Metric, ...] | None:
    """A task's metrics are kept by the digest of its questions too, which is not known here."""
    wanted = {name: getattr(spec, name) for name in ASKED}
    for metrics in reversed(list(measured.values())):
        if metrics and all(metrics[0].details.get(name) == wanted[name] for name in ASKED):
            return metrics
    return None
