"""Keeping a store in order: rows for its files, a lost index made anew, leftovers removed.

The files are what counts: every row of the index comes from one of them. `store.py` writes them;
read that first. What is wrong with a store is said by `audit.py`.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laco.audit import half_written, of_analysis, of_metrics, of_run, request_of
from laco.disk import discard, is_abandoned, is_partial, partial_path, read_json, read_whole
from laco.errors import NumericalError, StoreError
from laco.evaluations import Metric, Request
from laco.wording import describe

if TYPE_CHECKING:
    from laco.store import RunStore

UNFINISHED_SECONDS = 24 * 3600  # after the last layer written, that a stopped walk is kept
_LIVE = "state IN ('queued', 'starting', 'running')"


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


def remove_run(store: RunStore, key: str) -> None:
    """Forget a run, then remove its files. `StoreError` if something still needs it."""
    folder = store.artifacts / key
    with store.index.transaction() as index:
        if user := _user_of(store, index, folder):
            raise StoreError(f"{key} is needed by {user}; remove that first, or wait for its end.")
        results = [
            place / f"{name}.json"
            for place, table, column in (
                (store.metric_files, "metrics", "evaluation_key"),
                (store.analysis_files, "analyses", "analysis_key"),
            )
            for (name,) in index.execute(
                f"SELECT DISTINCT {column} FROM {table} WHERE key = ?", (key,)
            ).fetchall()
        ]
        index.execute("DELETE FROM runs WHERE key = ?", (key,))
    if folder.is_dir():
        gone = partial_path(folder)
        folder.rename(gone)  # in one move, so that nobody meets half of it
        discard(gone)
    for path in results:
        path.unlink(missing_ok=True)


def _user_of(store: RunStore, index: sqlite3.Connection, folder: Path) -> str | None:
    """Who stands on a run: a job that is not over, or a run whose model lies in its folder."""
    for job, text in index.execute(f"SELECT id, request FROM jobs WHERE {_LIVE}").fetchall():
        path = str(json.loads(text)["recipe"]["model"]["path"])
        if path == str(folder) or (path.startswith("k1-") and folder.name.startswith(path)):
            return f"the job {job}"
    for key, text in index.execute("SELECT key, recipe FROM runs").fetchall():
        if json.loads(text)["model"]["path"] == str(folder):
            return f"the run {key}"
    return None


def rebuild(store: RunStore) -> int:
    """Make the index of runs, metrics and analyses anew from the files; how many runs.

    Files that `verify` complains of are left out. Jobs that the index lost are put back: as they
    ended, or into the queue again.
    """
    with store.index.transaction() as index:
        index.execute("DELETE FROM runs")  # metrics and analyses go with them
        keys: set[str] = set()
        for folder in store.artifacts.iterdir():
            document = None if is_partial(folder) or of_run(folder) else read_whole(folder)
            if document is not None:
                index_run(index, folder.name, json.dumps(document["recipe"]), document["created"])
                keys.add(folder.name)
        for path in _in_order_of_time(store.metric_files):
            found = read_json(path)
            if of_metrics(path) is None and found["key"] in keys:
                index_metrics(index, found["key"], path.stem, found["metrics"])
        for path in _in_order_of_time(store.analysis_files):
            found = read_json(path)
            if of_analysis(path) is None and found["key"] in keys:
                analysis = json.dumps(found["analysis"])
                index_analysis(index, found["key"], path.stem, analysis, found["created"])
        known = {job for (job,) in index.execute("SELECT id FROM jobs").fetchall()}
        for folder in store.folder.glob("jobs/*"):
            request = None if is_partial(folder) else request_of(folder)
            if folder.name not in known and request is not None:
                _index_job(index, folder, request)
    return len(keys)


def rebuild_if_lost(store: RunStore) -> None:
    """Make the index anew where it knows of nothing, and something lies there."""
    known = "SELECT 1 FROM runs UNION ALL SELECT 1 FROM jobs LIMIT 1"
    there = (path for place in ("artifacts", "jobs") for path in store.folder.glob(f"{place}/*"))
    if not store.index.rows(known) and any(not is_partial(path) for path in there):
        rebuild(store)


def _index_job(index: sqlite3.Connection, folder: Path, request: Request) -> None:
    """Note a job that the index lost, as its worker left it; the scheduler takes it from there."""
    report = read_json(folder / "status.json")
    report = report if isinstance(report, dict) else {"state": "queued"}
    row = {
        "id": folder.name,
        "label": describe(request.recipe),
        "request": request.model_dump_json(),
        "cwd": str(folder.parent.parent),
        "state": report["state"],
        "created": (folder / "job.json").stat().st_mtime,
        "slot": 0 if report["state"] == "running" else None,
        "cancelled": time.time() if (folder / "cancel").exists() else None,
        "fraction": report.get("fraction", 0.0),
        "message": report.get("message", ""),
        **{name: report.get(name) for name in ("started", "ended", "error", "pid", "pid_created")},
        "attempt": report.get("attempt", 0),
    }
    names = ", ".join(row)
    places = ", ".join(f":{name}" for name in row)
    index.execute(f"INSERT INTO jobs({names}) VALUES({places})", row)


def prune(store: RunStore) -> int:
    """Remove what a dead process left half written, and results of runs that are not there.

    Returns the bytes that became free. What a living process is writing stays, and so does what a
    stopped walk over a model may go on from: for a day, and while any job waits or runs. No run
    that is whole goes, whoever made it: `laco store remove` is for those.
    """
    freed = 0
    places = (store.artifacts, store.metric_files, store.analysis_files)
    jobs = store.folder / "jobs"
    with store.index.transaction() as index:
        live = index.execute(f"SELECT count(*) FROM jobs WHERE {_LIVE}").fetchone()[0]
        for folder in () if live else store.folder.glob("unfinished/*"):
            latest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            if time.time() - latest > UNFINISHED_SECONDS:
                freed += discard(folder)
        leftovers = [path for place in (*places, jobs) for path in place.glob("*")]
        for path in (*leftovers, *half_written(store)):
            if is_partial(path) and is_abandoned(path):
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
        # Nobody is making a job's folder now: it gets its name while the index is held.
        known = {job for (job,) in index.execute("SELECT id FROM jobs").fetchall()}
        for folder in jobs.glob("*"):
            if folder.name not in known and not is_partial(folder) and request_of(folder) is None:
                freed += discard(folder)
        for job in known - {folder.name for folder in jobs.glob("*")}:
            index.execute(f"DELETE FROM jobs WHERE id = ? AND NOT {_LIVE}", (job,))
    return freed


def _in_order_of_time(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime))
