"""Runs taken out of a store: all of those that are named, or none, whatever happens half way.

A removal is written down first (`removals/<key>.json`), then the index forgets the runs, then the
files go. Whoever opens the store after a crash in between finishes what was written down. What
depends on what is in `lineage.py`; read `store.py` next, which asks here.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laco.disk import RECIPE, discard, partial_path, read_json, write_json
from laco.errors import StoreError

if TYPE_CHECKING:
    from laco.store import RunStore

LIVE = "state IN ('queued', 'starting', 'running')"
FOLDER = "removals"


def remove(store: RunStore, keys: Sequence[str]) -> None:
    """Remove runs with their models, metrics, analyses and what was said of them.

    Raises `StoreError`, and removes nothing, if a job that is not over uses one of them, or a run
    that stays lies on the files of one.
    """
    (store.folder / FOLDER).mkdir(exist_ok=True)
    journal = store.folder / FOLDER / f"{keys[0]}.json"
    try:
        with store.index.transaction() as index:
            for key in keys:
                if user := _user_of(store, index, key, keys):
                    raise StoreError(
                        f"{key} is needed by {user}; remove that first, or wait for its end."
                    )
            results = [name for key in keys for name in _results(index, key)]
            write_json(journal, {"keys": list(keys), "results": results, "when": time.time()})
            index.executemany("DELETE FROM runs WHERE key = ?", [(key,) for key in keys])
    except BaseException:
        discard(journal)
        raise
    _clear(store, journal)


def finish(store: RunStore) -> None:
    """Bring removals to their end that a crash has cut short."""
    for journal in store.folder.glob(f"{FOLDER}/k1-*.json"):
        _clear(store, journal)


def _clear(store: RunStore, journal: Path) -> None:
    """Remove what a journal names, then the journal. Twice, or by two at once, does no harm."""
    found = read_json(journal)
    if isinstance(found, dict):
        for key in found["keys"]:
            _discard_run(store, key, found["when"])
        for name in found["results"]:
            (store.folder / name).unlink(missing_ok=True)
        old = [(key, found["when"]) for key in found["keys"]]
        with store.index.transaction() as index:  # also of what was adopted in between
            index.executemany("DELETE FROM runs WHERE key = ? AND created <= ?", old)
    journal.unlink(missing_ok=True)


def _discard_run(store: RunStore, key: str, when: float) -> None:
    """Remove a run's folder and what is said of it, unless it was made anew after `when`."""
    folder = store.artifacts / key
    document: Any = read_json(folder / RECIPE)
    if isinstance(document, dict) and document.get("created", 0) > when:
        return
    gone = partial_path(folder)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)  # in one move, so that nobody meets half of it
    discard(gone)
    discard(store.annotation_files / f"{key}.json")


def _results(index: sqlite3.Connection, key: str) -> Iterator[str]:
    """The files of what was measured and analysed of a run, as paths in the store."""
    for place, table, column in (
        ("metrics", "metrics", "evaluation_key"),
        ("analyses", "analyses", "analysis_key"),
    ):
        query = f"SELECT DISTINCT {column} FROM {table} WHERE key = ?"
        for (name,) in index.execute(query, (key,)).fetchall():
            yield f"{place}/{name}.json"


def _user_of(
    store: RunStore, index: sqlite3.Connection, key: str, gone: Sequence[str]
) -> str | None:
    """Who stands on a run: a job that is not over, or a run that stays and lies on its files."""
    found = index.execute("SELECT recipe FROM runs WHERE key = ?", (key,)).fetchone()
    recipe = json.loads(found[0]) if found else None
    folder = str(store.artifacts / key)
    for job, text in index.execute(f"SELECT id, request FROM jobs WHERE {LIVE}").fetchall():
        asked = json.loads(text)["recipe"]
        path = str(asked["model"]["path"])
        named = path.startswith("k1-") and key.startswith(path)
        if key in text or named or (recipe is not None and _begins_with(asked, recipe)):
            return f"the job {job}"
    for other, text in index.execute("SELECT key, recipe FROM runs").fetchall():
        if other not in gone and json.loads(text)["model"]["path"] == folder:
            return f"the run {other}"
    return None


def _begins_with(asked: dict[str, Any], recipe: dict[str, Any]) -> bool:
    """Whether a recipe goes by way of another; that of a job may not be pinned yet."""
    steps = recipe["steps"]
    same = asked["model"]["path"] == recipe["model"]["path"]
    return same and asked["steps"][: len(steps)] == steps
