"""Runs as the index tells them: many at once, and their metrics where they are asked for.

It reads rows and writes nothing; `store.py` keeps them, and answers through it: read that next.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from laco.errors import RecipeError, StoreError
from laco.evaluations import Metric
from laco.index import Index
from laco.recipe import Recipe, parse_recipe
from laco.upkeep import metric_from
from laco.wording import describe

_RUNS = (
    "SELECT runs.key, runs.recipe, runs.created,"
    " EXISTS(SELECT 1 FROM metrics WHERE metrics.key = runs.key) AS measured FROM runs"
)
_AT_ONCE = 500  # keys in one query

Measurements = dict[str, tuple[Metric, ...]]  # of one run: what each evaluation gave, by its key


@dataclass(frozen=True)
class Run:
    """A recipe that has been carried out, with its metrics and a few words to know it by.

    `measured` says whether there are metrics of it, also where they were not asked for.
    """

    key: str
    recipe: Recipe
    path: Path | None
    created: float
    metrics: tuple[Metric, ...]
    label: str
    measured: bool = False


def list_runs(index: Index, artifacts: Path) -> list[Run]:
    """All runs without their metrics, newest first; those that cannot be read are left out."""
    with os.scandir(artifacts) as entries:
        there = {entry.name for entry in entries}
    rows = index.rows(f"{_RUNS} ORDER BY created DESC, rowid DESC")
    return list(_read(rows, artifacts, there))


def find_run(index: Index, artifacts: Path, key: str) -> Run | None:
    """The run under `key` without its metrics, if there is one that can be read."""
    rows = index.rows(f"{_RUNS} WHERE key = ?", key)
    there = {key} if (artifacts / key).is_dir() else set[str]()
    return next(_read(rows, artifacts, there), None)


def keys_from(index: Index, beginning: str) -> list[str]:
    """The key that begins so, if there is one. Raises `StoreError` for several."""
    rows = index.rows("SELECT key FROM runs ORDER BY key")
    found = [row["key"] for row in rows if row["key"].startswith(beginning)]
    if len(found) > 1:
        raise StoreError(
            f"{beginning} is the beginning of {len(found)} keys ({', '.join(found[:3])}); "
            "give more of it."
        )
    return found


def measurements(index: Index, keys: Sequence[str]) -> dict[str, Measurements]:
    """What each evaluation gave, by the run's key and then the evaluation's; oldest first."""
    found: dict[str, dict[str, list[Metric]]] = {key: {} for key in keys}
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        rows = index.rows(
            "SELECT key, evaluation_key, document FROM metrics"
            f" WHERE key IN ({', '.join('?' * len(some))}) ORDER BY rowid",
            *some,
        )
        for row in rows:
            of_run = found[row["key"]]
            of_run.setdefault(row["evaluation_key"], []).append(metric_from(row["document"]))
    return {
        key: {evaluation: tuple(metrics) for evaluation, metrics in of_run.items()}
        for key, of_run in found.items()
    }


def with_metrics(index: Index, runs: Sequence[Run]) -> list[Run]:
    """The same runs with their metrics."""
    found = measurements(index, [run.key for run in runs])
    return [
        replace(run, metrics=tuple(metric for group in found[run.key].values() for metric in group))
        for run in runs
    ]


def _read(rows: Sequence[sqlite3.Row], artifacts: Path, there: set[str]) -> Iterator[Run]:
    for row in rows:
        read = _recipe(row["recipe"])
        if read is not None:
            recipe, label = read
            key: str = row["key"]
            yield Run(
                key=key,
                recipe=recipe,
                path=artifacts / key if recipe.steps and key in there else None,
                created=row["created"],
                metrics=(),
                label=label,
                measured=bool(row["measured"]),
            )


@lru_cache(maxsize=4096)
def _recipe(text: str) -> tuple[Recipe, str] | None:
    """A recipe and its label; None if this version of laco cannot read it. A page asks again."""
    try:
        recipe = parse_recipe(text)
    except RecipeError:
        return None
    return recipe, describe(recipe)
