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

from laco.disk import explained, is_full, no_space
from laco.errors import StoreError

_BUSY_SECONDS = 30.0
_HINTS = {  # by SQLite's name for the kind of error
    "BUSY": "another process holds it for long, so look what that does, and try again",
    "LOCKED": "another process holds it for long, so look what that does, and try again",
    "READONLY": "make it writable or choose another --store",
    "CANTOPEN": "make it readable and writable or choose another --store",
    "IOERR": "look after the disk or choose another --store",
    "CORRUPT": "if that lasts, run `laco store rebuild`, which makes it anew from the files",
}
_DANGLING = 'SELECT DISTINCT "table" FROM pragma_foreign_key_check'


class Index:
    """An SQLite file at its newest shape, safe across threads and processes.

    One connection for the process: closing the last one would write out the whole log each time.
    It is opened anew where the file was replaced meanwhile (`set_aside`). Raises `StoreError` when
    the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        with locked(path):
            self._open()

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """What a query finds."""
        with self._lock, self._explained():
            return self._current().execute(query, values).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """For changes that happen all or not at all; meanwhile no other process writes."""
        with self._lock, self._explained():
            connection = self._current()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite itself takes it back on a full disk
                    connection.execute("ROLLBACK")
                raise

    def damage(self) -> str:
        """What SQLite finds wrong with the file; empty if nothing."""
        try:
            found = [row[0] for row in self.rows("PRAGMA integrity_check(3)")]
            found += [f"a row of {row[0]} without its run" for row in self.rows(_DANGLING)]
        except StoreError as error:
            return str(error.__cause__ or error)
        return "; ".join(line for line in found if line != "ok").replace("\n", " ")

    def close(self) -> None:
        """Close the file. The index cannot be used any more."""
        with self._lock:
            self._connection.close()

    def _open(self) -> None:
        """Connect, and bring the file to the newest shape. The caller holds `locked`."""
        with self._explained():
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")  # a queued job survives a power cut
                connection.execute("PRAGMA foreign_keys = ON")
                migrate(connection)
                self._inode = _inode(self.path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection

    def _current(self) -> sqlite3.Connection:
        if _inode(self.path) != self._inode and not self._connection.in_transaction:
            with locked(self.path):
                self._connection.close()
                self._open()
        return self._connection

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if is_full(error):
                raise no_space(self.path) from error
            name = (getattr(error, "sqlite_errorname", None) or "").removeprefix("SQLITE_")
            hint = _HINTS.get(name.partition("_")[0], _HINTS["CORRUPT"])
            raise StoreError(f"The index {self.path} cannot be used ({error}); {hint}.") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """While this lasts, no other process opens the index `path` or sets it aside.

    SQLite does not wait when two processes turn a blank file to WAL at once, so we do.
    """
    with explained(path):
        lock = path.with_suffix(".lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_aside(path: Path) -> bool:
    """Move an index that SQLite cannot read out of the way, to `runs.sqlite.broken-TIME`.

    Whether it had to be. An index that can be read, or is of a newer laco, stays.
    """
    with locked(path):
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as connection:
                broken = connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok"
        except sqlite3.DatabaseError as error:
            name = getattr(error, "sqlite_errorname", None) or ""
            broken = name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
        if broken:
            ending = f".broken-{time.time_ns()}"
            for tail in ("-wal", "-shm", ""):
                file = path.with_name(path.name + tail)
                if file.exists():
                    file.rename(file.with_name(file.name + ending))
        return broken


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


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


def m003_devices(index: sqlite3.Connection) -> None:
    """What a job runs on, and the bytes that it is expected to take there."""
    index.execute("ALTER TABLE jobs ADD COLUMN device TEXT")
    index.execute("ALTER TABLE jobs ADD COLUMN memory REAL")


def m004_owners(index: sqlite3.Connection) -> None:
    """Who started a job; nobody's name where there is no sign-in."""
    index.execute("ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT ''")


def m005_places(index: sqlite3.Connection) -> None:
    """Where a job runs, and by what name that place knows it."""
    index.execute("ALTER TABLE jobs ADD COLUMN place TEXT NOT NULL DEFAULT 'local'")
    index.execute("ALTER TABLE jobs ADD COLUMN handle TEXT")


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    m001_runs,
    m002_jobs,
    m003_devices,
    m004_owners,
    m005_places,
)


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
            if index.in_transaction:
                index.execute("ROLLBACK")
            raise
        index.execute("COMMIT")
