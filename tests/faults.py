"""A disk that fails on purpose: at the k-th write of whatever is done while it lasts.

A write is anything that changes the disk: opening a file to write, writing to it, `fsync`, `mkdir`,
`rename`, `replace`, `unlink`, `rmdir`, and each statement that changes the index. `COUNT` only
counts. `STOP` ends the process there and then, as a power cut or `kill -9` does. `FULL` fails
once; `READ_ONLY` and `BROKEN` fail from there on. Of a text that is being written, half is.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

COUNT, STOP, FULL, READ_ONLY, BROKEN = "count", "stop", "full", "read-only", "broken"
STOPPED = 99  # the exit status of a process that was stopped

_ERRORS = {
    FULL: (errno.ENOSPC, "database or disk is full", "SQLITE_FULL"),
    READ_ONLY: (errno.EROFS, "attempt to write a readonly database", "SQLITE_READONLY"),
    BROKEN: (errno.EIO, "disk I/O error", "SQLITE_IOERR"),
}
_CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "link")
_CHANGES = ("BEGIN", "COMMIT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER")


class Disk:
    """Counts writes, and fails at number `at` in the way of `mode`."""

    def __init__(self, mode: str = COUNT, at: int = 0) -> None:
        self.mode, self.at = mode, at
        self.writes: list[str] = []

    def due(self, what: str) -> bool:
        """Note a write. Whether it is to fail; a stop does not return."""
        self.writes.append(what)
        number = len(self.writes)
        if self.mode == STOP and number == self.at:
            os._exit(STOPPED)
        once = self.mode == FULL
        return self.mode in _ERRORS and (number == self.at if once else number >= self.at)

    def error(self) -> OSError:
        """What a call raises now."""
        number = _ERRORS[self.mode][0]
        return OSError(number, os.strerror(number))

    def sqlite_error(self) -> sqlite3.OperationalError:
        """What a statement raises now."""
        _, words, name = _ERRORS[self.mode]
        error = sqlite3.OperationalError(words)
        error.sqlite_errorname = name
        return error

    @contextlib.contextmanager
    def failing(self, connection: Any = None) -> Iterator[Disk]:
        """While this lasts, writes are counted and fail; those of an open index too."""
        with contextlib.ExitStack() as stack:
            for name in _CALLS:
                stack.enter_context(patch.object(os, name, self._call(name, getattr(os, name))))
            stack.enter_context(patch.object(io, "open", self._open(io.open)))
            stack.enter_context(patch.object(sqlite3, "connect", self._connect(sqlite3.connect)))
            if connection is not None:
                connection.disk = self
                stack.callback(setattr, connection, "disk", None)
            yield self

    def _call(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            if self.due(name):
                raise self.error()
            return call(*given, **named)

        return counted

    def _open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
            if mode.strip("bt") == "r":
                return call(file, mode, *given, **named)
            if self.due("open"):
                raise self.error()
            return _Written(call(file, mode, *given, **named), self)

        return counted

    def _connect(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            connection = call(*given, **named, factory=Connection)
            connection.disk = self
            return connection

        return counted


class Connection(sqlite3.Connection):
    """A connection whose changes are writes of `disk`, where there is one."""

    disk: Disk | None = None

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self._note(sql)
        return super().execute(sql, *values)

    def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self._note(sql)
        return super().executemany(sql, *values)

    def _note(self, sql: str) -> None:
        if self.disk is not None and sql.startswith(_CHANGES) and self.disk.due(sql.split()[0]):
            raise self.disk.sqlite_error()


class _Written:
    """A file whose writes may fail halfway."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, text: Any) -> Any:
        half = text[: len(text) // 2]
        if self._disk.mode == STOP and len(self._disk.writes) + 1 == self._disk.at:
            self._file.write(half)
            self._file.flush()
        if self._disk.due("write"):
            self._file.write(half)
            self._file.flush()
            raise self._disk.error()
        return self._file.write(text)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
