"""Rows -> what charts draw: a number of each run, quality against cost, tasks beside each other.

Pure, and without pandas or plotly: pages and the HTML file draw the same. Next: `ui/charts.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laco.rows import Row, front

COSTS = ("parameters", "bytes", "layers", "peak_memory", "prefill", "decode", "zeros")
QUALITIES = ("perplexity", "kl")  # what a comparison opens with, if it is there


@dataclass(frozen=True)
class Against:
    """Runs that have both numbers: rows of quality and of cost, and places of the Pareto front."""

    quality: tuple[Row, ...]
    cost: tuple[Row, ...]
    front: tuple[int, ...]


def costs(rows: Sequence[Row]) -> list[str]:
    """The metrics that say what a run takes, the usual one first."""
    names = list(dict.fromkeys(row.metric for row in rows))
    return sorted(
        (name for name in names if _head(name) in COSTS), key=lambda name: COSTS.index(_head(name))
    )


def qualities(rows: Sequence[Row]) -> list[str]:
    """The metrics that say how good a run is: perplexity first, what more runs have before others.

    Of a task's metrics, the main one.
    """
    names = [row.metric for row in rows if row.main and _head(row.metric) not in COSTS]
    places = {name: place for place, name in enumerate(QUALITIES)}
    return sorted(
        dict.fromkeys(names),
        key=lambda name: (places.get(_head(name), len(places)), -names.count(name)),
    )


def of_metric(rows: Sequence[Row], metric: str) -> dict[str, Row]:
    """The row of each run that has the metric; of several, one that may be compared."""
    found: dict[str, Row] = {}
    for row in rows:
        if row.metric == metric and (row.key not in found or found[row.key].badge):
            found[row.key] = row
    return found


def against(rows: Sequence[Row], quality: str, cost: str) -> Against:
    """Quality beside cost, for the runs that have both."""
    good, dear = of_metric(rows, quality), of_metric(rows, cost)
    keys = [key for key in good if key in dear]
    points = {key: (_loss(good[key]), _loss(dear[key])) for key in keys}
    best = front(points)
    return Against(
        quality=tuple(good[key] for key in keys),
        cost=tuple(dear[key] for key in keys),
        front=tuple(place for place, key in enumerate(keys) if key in best),
    )


def by_task(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """The main metric of each zero-shot task: rows by the task's name, then by the run's key."""
    names = dict.fromkeys(row.metric for row in rows if row.task and row.main)
    return {name.partition("[")[2].removesuffix("]"): of_metric(rows, name) for name in names}


def _head(name: str) -> str:
    return name.partition("[")[0]


def _loss(row: Row) -> float:
    return row.value if row.better == "lower" else -row.value
