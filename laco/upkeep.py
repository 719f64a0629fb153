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
from laco.disk import discard, is_abandoned, is_partial, read_json, read_whole
from laco.errors import NumericalError
from laco.evaluations import Metric, Request
from laco.removal import LIVE, finish
from laco.wording import describe

if TYPE_CHECKING:
    from laco.store import RunStore

_CLOCKS_SECONDS = 300.0
UNFINISHED_SECONDS = 24 * 3600  # after the last layer written, that a stopped walk is kept


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


def rebuild(store: RunStore) -> int:
    """Make the index of runs, metrics and analyses anew from the files; how many runs.

    Files that `verify` complains of are left out. Jobs that the index lost are put back: as they
    ended, or into the queue again, under the names and owners that they had.
    """
    finish(store)
    with store.index.transaction() as index:
        index.execute("DELETE FROM runs")  # metrics and analyses go with them
        keys = _index_files(store, index, math.inf)
        known = _column(index, "SELECT id FROM jobs")
        for folder in store.folder.glob("jobs/*"):
            request = None if is_partial(folder) else request_of(folder)
            if folder.name not in known and request is not None:
                _index_job(index, folder, request)
    return len(keys)


def adopt(store: RunStore, since: float) -> None:
    """Put into the index what another machine saved into the store's folder.

    That is every file that the index does not know, and, since what is measured anew takes the old
    one's place, every one written after `since`, with some minutes for clocks that differ.
    """
    with store.index.transaction() as index:
        _index_files(store, index, since - _CLOCKS_SECONDS)


def _index_files(store: RunStore, index: sqlite3.Connection, since: float) -> set[str]:
    """Note every whole file that is unknown or was written after `since`; the keys of all runs."""

    def files(folder: Path, query: str) -> Iterator[Path]:
        known = _column(index, query)
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
            if path.stem not in known or path.stat().st_mtime > since:
                yield path

    keys = _column(index, "SELECT key FROM runs")
    for folder in store.artifacts.iterdir():
        there = folder.name in keys or is_partial(folder) or of_run(folder) is not None
        document = None if there else read_whole(folder)
        if document is not None:
            index_run(index, folder.name, json.dumps(document["recipe"]), document["created"])
            keys.add(folder.name)
    for path in files(store.metric_files, "SELECT evaluation_key FROM metrics"):
        found = read_json(path)
        if of_metrics(path) is None and found["key"] in keys:
            index_metrics(index, found["key"], path.stem, found["metrics"])
    for path in files(store.analysis_files, "SELECT analysis_key FROM analyses"):
        found = read_json(path)
        if of_analysis(path) is None and found["key"] in keys:
            analysis = json.dumps(found["analysis"])
            index_analysis(index, found["key"], path.stem, analysis, found["created"])
    return keys


def _column(index: sqlite3.Connection, query: str) -> set[str]:
    return {value for (value,) in index.execute(query).fetchall()}


def rebuild_if_lost(store: RunStore) -> None:
    """Make the index anew where it knows of nothing, and something lies there."""
    finish(store)
    known = "SELECT 1 FROM runs UNION ALL SELECT 1 FROM jobs LIMIT 1"
    there = (path for place in ("artifacts", "jobs") for path in store.folder.glob(f"{place}/*"))
    if not store.index.rows(known) and any(not is_partial(path) for path in there):
        rebuild(store)


def _index_job(index: sqlite3.Connection, folder: Path, request: Request) -> None:
    """Note a job that the index lost, as its worker left it; the scheduler takes it from there."""
    report = read_json(folder / "status.json")
    report = report if isinstance(report, dict) else {"state": "queued"}
    about = read_json(folder / "about.json")
    about = about if isinstance(about, dict) else {}  # of a job from before there was such a file
    row = {
        "id": folder.name,
        "label": about.get("label") or describe(request.recipe),
        "owner": about.get("owner", ""),
        "memory": about.get("memory"),
        "place": about.get("place", "local"),
        "request": request.model_dump_json(),
        "cwd": str(folder.parent.parent),
        "state": report["state"],
        "created": (folder / "job.json").stat().st_mtime,
        "claimed": report.get("started"),
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
    finish(store)
    places = (store.artifacts, store.metric_files, store.analysis_files, store.annotation_files)
    jobs = store.folder / "jobs"
    with store.index.transaction() as index:
        live = index.execute(f"SELECT count(*) FROM jobs WHERE {LIVE}").fetchone()[0]
        away = f"SELECT count(*) FROM jobs WHERE {LIVE} AND place <> 'local'"
        elsewhere = index.execute(away).fetchone()[0]  # whose processes cannot be seen from here
        for folder in () if live else store.folder.glob("unfinished/*"):
            latest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            if time.time() - latest > UNFINISHED_SECONDS:
                freed += discard(folder)
        leftovers = [path for place in (*places, jobs) for path in place.glob("*")]
        for path in (*leftovers, *half_written(store)):
            if not elsewhere and is_partial(path) and is_abandoned(path):
                freed += discard(path)
        for (key,) in index.execute("SELECT key FROM runs").fetchall():
            if not (store.artifacts / key).exists():
                index.execute("DELETE FROM runs WHERE key = ?", (key,))
        there = {folder.name for folder in store.artifacts.iterdir()}
        for path in store.annotation_files.glob("*.json"):
            if path.stem not in there:
                freed += discard(path)
        for place in (store.metric_files, store.analysis_files):
            for path in place.glob("*.json"):
                found = read_json(path)
                if not isinstance(found, dict) or found.get("key") not in there:
                    freed += discard(path)
        # Nobody is making a job's folder now: it gets its name while the index is held.
        known = _column(index, "SELECT id FROM jobs")
        for folder in jobs.glob("*"):
            if folder.name not in known and not is_partial(folder) and request_of(folder) is None:
                freed += discard(folder)
        for job in known - {folder.name for folder in jobs.glob("*")}:
            index.execute(f"DELETE FROM jobs WHERE id = ? AND NOT {LIVE}", (job,))
    return freed
