"""The store's index: one SQLite file, its shape, and the steps that led to that shape.

Each migration takes the index from the shape before it to the next, and never changes once it is
released: a new shape is a new function at the end of `MIGRATIONS`. This module does not know
what the rows mean. Next: `store.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from laco.disk import is_full, no_space
from laco.errors import StoreError

_BUSY_SECONDS = 30.0


class Index:
    """An SQLite file at its newest shape, safe across threads and processes.

    One connection for the process: closing the last one would write out the whole log each time.
    Raises `StoreError` when the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        # SQLite does not wait when two processes turn a blank file to WAL at once, so we do.
        with path.with_suffix(".lock").open("w") as lock, self._explained():
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._connection.row_factory = sqlite3.Row
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.execute("PRAGMA foreign_keys = ON")
                migrate(self._connection)
            except BaseException:
                self._connection.close()
                raise

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """What a query finds."""
        with self._lock, self._explained():
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """For changes that happen all or not at all; meanwhile no other process writes."""
        with self._lock, self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself takes it back on a full disk
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file. The index cannot be used any more."""
        with self._lock:
            self._connection.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if is_full(error):
                raise no_space(self.path) from error
            raise StoreError(
                f"The index {self.path} cannot be used ({error}); if that lasts, move the file "
                "away and run `laco store rebuild`."
            ) from error


def m001_runs(index: sqlite3.Connection) -> None:
    """Runs, and what is known of them."""
    index.execute(
        "CREATE TABLE runs(key TEXT PRIMARY KEY, recipe TEXT NOT NULL, created REAL NOT NULL)"
    )
    index.execute(
        "CREATE TABLE metrics("
        "evaluation_key TEXT NOT NULL, position INTEGER NOT NULL,"
        "key TEXT NOT NULL REFERENCES runs(key) ON DELETE CASCADE,"
        "document TEXT NOT NULL, PRIMARY KEY(evaluation_key, position))"
    )
    index.execute("CREATE INDEX metrics_of_run ON metrics(key)")
    index.execute(
        "CREATE TABLE analyses(analysis_key TEXT PRIMARY KEY,"
        "key TEXT NOT NULL REFERENCES runs(key) ON DELETE CASCADE,"
        "analysis TEXT NOT NULL, created REAL NOT NULL)"
    )
    index.execute("CREATE INDEX analyses_of_run ON analyses(key)")


def m002_jobs(index: sqlite3.Connection) -> None:
    """The queue. `cancelled` is when someone asked; `pid` and `pid_created` name the worker."""
    index.execute(
        "CREATE TABLE jobs("
        "id TEXT PRIMARY KEY, label TEXT NOT NULL, request TEXT NOT NULL, cwd TEXT NOT NULL,"
        "state TEXT NOT NULL, created REAL NOT NULL, claimed REAL, started REAL, ended REAL,"
        "attempt INTEGER NOT NULL DEFAULT 0, slot INTEGER, pid INTEGER, pid_created REAL,"
        "cancelled REAL, fraction REAL NOT NULL DEFAULT 0, message TEXT NOT NULL DEFAULT '',"
        "error TEXT)"
    )
    index.execute("CREATE INDEX jobs_by_state ON jobs(state, created)")


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (m001_runs, m002_jobs)


def migrate(index: sqlite3.Connection) -> None:
    """Bring an index to the newest shape; each migration happens whole or not at all.

    The caller makes sure that one process at a time does this. Raises `StoreError` for an index
    that a newer laco has been at.
    """
    index.execute("CREATE TABLE IF NOT EXISTS migrations(name TEXT PRIMARY KEY, applied REAL)")
    applied = {name for (name,) in index.execute("SELECT name FROM migrations")}
    unknown = sorted(applied - {migration.__name__ for migration in MIGRATIONS})
    if unknown:
        raise StoreError(
            f"This store was made by a newer laco (it has {unknown[-1]}); "
            "update laco or choose another --store."
        )
    for migration in MIGRATIONS:
        if migration.__name__ in applied:
            continue
        index.execute("BEGIN IMMEDIATE")
        try:
            migration(index)
            index.execute("INSERT INTO migrations VALUES(?, ?)", (migration.__name__, time.time()))
        except BaseException:
            index.execute("ROLLBACK")
            raise
        index.execute("COMMIT")
