"""Keeping a store in order: its index against its files, and the files against themselves.

The files are what counts: every row of the index comes from one of them. `store.py` writes them;
read that first.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from laco.disk import RECIPE, discard, is_abandoned, is_partial, partial_path, read_json, read_whole
from laco.errors import NumericalError, RecipeError
from laco.evaluations import Analysis, Evaluation, Metric
from laco.recipe import Spec, chained_key, parse_recipe

if TYPE_CHECKING:
    from laco.store import RunStore

UNFINISHED_SECONDS = 24 * 3600  # after the last layer written, that a stopped walk is kept

_EVALUATION: TypeAdapter[Evaluation] = TypeAdapter(Evaluation)
_ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)


def index_run(index: sqlite3.Connection, key: str, recipe: str, created: float) -> None:
    """Note a run."""
    index.execute("INSERT OR IGNORE INTO runs VALUES(?, ?, ?)", (key, recipe, created))


def index_metrics(
    index: sqlite3.Connection, key: str, evaluation_key: str, metrics: Sequence[Mapping[str, Any]]
) -> None:
    """Note the metrics that one evaluation gave, instead of those before."""
    index.execute("DELETE FROM metrics WHERE evaluation_key = ?", (evaluation_key,))
    index.executemany(
        "INSERT INTO metrics(evaluation_key, position, key, document) VALUES(?, ?, ?, ?)",
        [
            (evaluation_key, position, key, json.dumps(metric))
            for position, metric in enumerate(metrics)
        ],
    )


def index_analysis(
    index: sqlite3.Connection, key: str, analysis_key: str, analysis: str, created: float
) -> None:
    """Note that an analysis was done."""
    index.execute(
        "INSERT OR REPLACE INTO analyses(analysis_key, key, analysis, created) VALUES(?, ?, ?, ?)",
        (analysis_key, key, analysis, created),
    )


def check_finite(metric: Metric) -> None:
    """Refuse a metric that is no number, with `NumericalError`."""
    for what, value in (("value", metric.value), ("standard error", metric.stderr)):
        if value is not None and not math.isfinite(value):
            raise NumericalError(
                f"The {what} of {metric.name} is {value}, so it was not kept; "
                "look for weights or logits that are not finite."
            )


def metric_from(document: str) -> Metric:
    """The metric that a row holds."""
    return Metric(**json.loads(document))


def remove_run(store: RunStore, index: sqlite3.Connection, key: str) -> None:
    """Remove a run's rows and files."""
    evaluations = index.execute(
        "SELECT DISTINCT evaluation_key FROM metrics WHERE key = ?", (key,)
    ).fetchall()
    analyses = index.execute("SELECT analysis_key FROM analyses WHERE key = ?", (key,)).fetchall()
    folder = store.artifacts / key
    if folder.is_dir():
        gone = partial_path(folder)
        folder.rename(gone)  # in one move, so that nobody meets half of it
        discard(gone)
    for (name,) in evaluations:
        (store.metric_files / f"{name}.json").unlink(missing_ok=True)
    for (name,) in analyses:
        (store.analysis_files / f"{name}.json").unlink(missing_ok=True)
    index.execute("DELETE FROM runs WHERE key = ?", (key,))


def rebuild(store: RunStore) -> int:
    """Make the index of runs, metrics and analyses anew from the files; how many runs.

    Files that `verify` complains of are left out. The queue of jobs stays as it is.
    """
    with store.index.transaction() as index:
        index.execute("DELETE FROM runs")  # metrics and analyses go with them
        keys: set[str] = set()
        for folder in store.artifacts.iterdir():
            document = read_whole(folder)
            if document is None or _complaint_of_run(folder) is not None:
                continue
            recipe = json.dumps(document["recipe"])
            index_run(index, folder.name, recipe, document["created"])
            keys.add(folder.name)
        for path in _in_order_of_time(store.metric_files):
            found = read_json(path)
            if _complaint_of_result(path, "evaluation", _EVALUATION, keys) is None:
                index_metrics(index, found["key"], path.stem, found["metrics"])
        for path in _in_order_of_time(store.analysis_files):
            found = read_json(path)
            if _complaint_of_result(path, "analysis", _ANALYSIS, keys) is None:
                analysis = json.dumps(found["analysis"])
                index_analysis(index, found["key"], path.stem, analysis, found["created"])
    return len(keys)


def verify(store: RunStore) -> list[str]:
    """A sentence for everything that is broken, half written, missing or in the wrong place."""
    complaints: list[str] = []
    keys: set[str] = set()
    for folder in sorted(store.artifacts.iterdir()):
        complaint = _complaint_of_run(folder)
        if complaint is None:
            keys.add(folder.name)
        else:
            complaints.append(complaint)
    indexed = {row["key"] for row in store.index.rows("SELECT key FROM runs")}
    for key in sorted(indexed - keys):
        if not (store.artifacts / key).exists():
            complaints.append(f"artifacts/{key} is missing, though the index has it.")
    for key in sorted(keys - indexed):
        complaints.append(f"artifacts/{key} is not in the index; `laco store rebuild` adds it.")
    for folder, field, kind, table, column in (
        (store.metric_files, "evaluation", _EVALUATION, "metrics", "evaluation_key"),
        (store.analysis_files, "analysis", _ANALYSIS, "analyses", "analysis_key"),
    ):
        rows = {row[0] for row in store.index.rows(f"SELECT {column} FROM {table}")}
        names = {path.stem for path in folder.glob("*.json")}
        for path in sorted(folder.iterdir()):
            complaint = _complaint_of_result(path, field, kind, keys | indexed)
            if complaint is None and path.stem not in rows:
                complaint = f"{_place(path)} is not in the index; `laco store rebuild` adds it."
            if complaint is not None:
                complaints.append(complaint)
        for name in sorted(rows - names):
            complaints.append(f"{folder.name}/{name}.json is missing, though the index has it.")
    return complaints


def prune(store: RunStore) -> int:
    """Remove what a dead process left half written, and results of runs that are not there.

    Returns the bytes that became free. What a living process is writing stays, and so does what a
    stopped walk over a model may go on from, for a day.
    """
    freed = 0
    for folder in store.folder.glob("unfinished/*"):
        latest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
        if time.time() - latest > UNFINISHED_SECONDS:
            freed += discard(folder)
    places = (store.artifacts, store.metric_files, store.analysis_files)
    with store.index.transaction() as index:
        leftovers = [path for place in places for path in place.iterdir()]
        leftovers += store.folder.glob("jobs/*/*")
        for path in leftovers:
            if is_abandoned(path):
                freed += discard(path)
        for (key,) in index.execute("SELECT key FROM runs").fetchall():
            if not (store.artifacts / key).exists():
                index.execute("DELETE FROM runs WHERE key = ?", (key,))
        there = {folder.name for folder in store.artifacts.iterdir()}
        for place in places[1:]:
            for path in place.glob("*.json"):
                found = read_json(path)
                if not isinstance(found, dict) or found.get("key") not in there:
                    freed += discard(path)
    return freed


def _complaint_of_run(folder: Path) -> str | None:
    place = _place(folder)
    if is_partial(folder):
        if is_abandoned(folder):
            return f"{place} was left half written; `laco store prune` removes it."
        return f"{place} is being written."
    document = read_json(folder / RECIPE)
    if document is None:
        return f"{place} has no readable {RECIPE}."
    try:
        recipe = parse_recipe(document["recipe"])
    except RecipeError as error:
        return f"{place}: {error}"
    except (KeyError, TypeError):
        return f"{place}/{RECIPE} does not hold a recipe."
    if recipe.key != folder.name:
        return f"{place} does not match its recipe, whose key is {recipe.key}."
    if read_whole(folder) is None:
        return f"{place} has files missing or cut short; remove the run and make it again."
    return None


def _complaint_of_result(
    path: Path, field: str, kind: TypeAdapter[Any], keys: set[str]
) -> str | None:
    place = _place(path)
    if is_partial(path):
        return f"{place} is half written."
    document = read_json(path)
    try:
        spec: Spec = kind.validate_python(document[field])
        key: str = document["key"]
    except ValidationError:
        return f"{place} holds an {field} that this version of laco does not know."
    except (KeyError, TypeError):
        return f"{place} cannot be read."
    if chained_key(key, spec) != path.stem:
        return f"{place} does not match its {field}, whose key is {chained_key(key, spec)}."
    if key not in keys:
        return f"{place} belongs to {key}, which is not there; `laco store prune` removes it."
    return None


def _in_order_of_time(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime))


def _place(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
