"""Locks between processes, each on an empty file: whoever has one loses it with its end, any end.

They are POSIX record locks: a killed process, or a machine that went down, leaves none behind, and
what a worker started does not hold its worker's. Within a process they hold between threads too.
Where a file system knows no locks, as some that machines share, whoever asks has one: work may be
done twice there, and nothing is lost by it, since what is saved is whole or absent.
Nothing here knows what is locked. Next: `queue.py`, `engine.py`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from laco.disk import explained

_LOOK_SECONDS = 0.2
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_guard = threading.Lock()
_mine: dict[Path, int] = {}  # closing any handle of a file would give its lock back


def take(path: Path) -> bool:
    """Take the lock `path` until `give_back` or the end of this process; False if it is taken."""
    with _guard, explained(path):
        if path in _mine:
            return False
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = _is_at(handle, path)  # not if whoever had it took the file away
        except OSError as error:
            if error.errno in _NO_LOCKS:
                held = True
            else:
                os.close(handle)
                if isinstance(error, BlockingIOError | PermissionError):
                    return False
                raise
        if held:
            _mine[path] = handle
        else:
            os.close(handle)
        return held


def give_back(path: Path) -> None:
    """Give a lock back and remove its file."""
    with _guard:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(_mine.pop(path))


def is_taken(path: Path) -> bool:
    """Whether some process has the lock; this one counts."""
    with _guard:
        if path in _mine:
            return True
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError | PermissionError):
                return True
            if error.errno not in _NO_LOCKS:
                raise
        finally:
            os.close(handle)
        return False


@contextlib.contextmanager
def alone(path: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Have the lock meanwhile. `waiting` is called while another has it, and may raise."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    while not take(path):
        waiting()
        time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        give_back(path)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.fstat(handle).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
