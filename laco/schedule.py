"""The scheduler of a store's jobs: `python -m laco.schedule STORE`.

Whoever submits a job starts it; there is one for a store, and it ends when there is nothing to
do. It gives free slots to waiting jobs, one process each, and takes note of their ends; it stops
what was cancelled. Workers go on without it, and the next one finds them again. Jobs for other
places than this machine it leaves to `places/watch.py`. It knows nothing of models and does not
import torch. Next: `worker.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil

from laco import devices, room
from laco.causes import count_oom_kills
from laco.errors import LacoError
from laco.places import LOCAL
from laco.places.watch import Watch
from laco.programs import module_environment, python_module
from laco.queue import ENDED, Queue
from laco.store import RunStore

_TICK_SECONDS = 0.3
_TERMINATE_SECONDS = 3.0  # after the wish to cancel
_KILL_SECONDS = 9.0
_LINGER_SECONDS = 10.0  # that a worker may take to go once its end is written


class Scheduler:
    """Starts, watches and stops workers.

    `slots` has the device of each job that may run at once; None: as chosen for the store, looked
    up anew each time.
    """

    def __init__(self, store: RunStore, slots: list[str] | None = None) -> None:
        self.store = store
        self.queue = Queue(store)
        self._slots = slots
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._terminated: set[int] = set()
        self._oom_kills = count_oom_kills()
        self._elsewhere = Watch(self.queue, store)

    @property
    def slots(self) -> list[str]:
        """The device of each job that may run at once."""
        return devices.slots(self.store.folder) if self._slots is None else self._slots

    def tick(self) -> bool:
        """Do what is due. Whether jobs wait or run."""
        for row in self.queue.live():
            if row["state"] != "queued" and row["place"] == LOCAL:
                try:
                    self._watch(row)
                except Exception:  # what is wrong with one job is not to stop the others
                    traceback.print_exc()
        slots = self.slots
        while (row := self.queue.claim(len(slots), self._fits(slots))) is not None:
            self._launch(row, slots[row["slot"]], len(slots))
        self._elsewhere.tick()
        return bool(self.queue.live())

    def _fits(self, slots: list[str]) -> Callable[[sqlite3.Row, int], str]:
        """Why a job cannot start in a slot now; empty if it can."""

        def reason(row: sqlite3.Row, slot: int) -> str:
            here = (other for other in self.queue.live() if other["place"] == LOCAL)
            running = [other for other in here if other["state"] != "queued"]
            return room.waits_for(row, slots[slot], running, self.queue.report)

        return reason

    def _watch(self, row: sqlite3.Row) -> None:
        if row["pid"] is None:
            self.queue.take_back(row)
            return
        report = self.queue.report(row)
        if not self.queue.is_at_work(row):
            code = self._bury(row["pid"])
            oom_kills = count_oom_kills()
            state = self.queue.settle(row, code, oom_kills - self._oom_kills)
            self._oom_kills = oom_kills
            _say(f"{row['id']}: {state} ({'end not seen' if code is None else code})")
            return
        if report and report["pid"] != row["pid"]:  # of two workers, the one that has the lock
            self.queue.started(row["id"], report["pid"], report["pid_created"])
            return
        now = time.time()
        if report and row["state"] == "starting":
            self.queue.running(row["id"], report["started"])
        if report.get("state") in ENDED:
            if now - report["ended"] > _LINGER_SECONDS:
                self._signal(row["pid"], signal.SIGKILL)
        elif row["cancelled"] is not None:
            if now - row["cancelled"] > _KILL_SECONDS:
                self._signal(row["pid"], signal.SIGKILL)
            elif now - row["cancelled"] > _TERMINATE_SECONDS and row["pid"] not in self._terminated:
                self._terminated.add(row["pid"])
                self._signal(row["pid"], signal.SIGTERM)

    def _launch(self, row: sqlite3.Row, device: str, slots: int) -> None:
        folder = self.queue.folder / row["id"]
        environment = {
            **module_environment(),
            **devices.environment(device, max(1, devices.cores() // slots)),
            "LACO_ATTEMPT": str(row["attempt"]),
        }
        self.queue.placed(row["id"], device)
        try:
            with (folder / "log.txt").open("ab") as log:
                process = subprocess.Popen(
                    [*python_module("laco.worker"), str(folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=row["cwd"] if Path(row["cwd"]).is_dir() else self.store.folder,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            self.queue.fail(row, f"The worker could not be started ({error}); then retry the job.")
            return
        self._children[process.pid] = process
        self.queue.started(row["id"], process.pid, psutil.Process(process.pid).create_time())
        _say(f"{row['id']}: started as process {process.pid}, attempt {row['attempt']}, {device}")

    def _bury(self, pid: int) -> int | None:
        """Take note of a worker's end, and end what it left running; its exit code, if known."""
        self._terminated.discard(pid)
        process = self._children.pop(pid, None)
        if process is None:
            # Its number is nobody's while its children live on, so these are all that is hit.
            if not psutil.pid_exists(pid):
                self._signal(pid, signal.SIGKILL)
            return None
        # Until its end is noted its number is not given to another process.
        self._signal(pid, signal.SIGKILL)
        return process.wait()

    def _signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a worker and to all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def serve(store: RunStore, lock: int, idle_seconds: float) -> None:
    """Schedule until there was nothing to do for `idle_seconds`; `lock` is held and given back."""
    scheduler = Scheduler(store)
    _say(f"scheduler {os.getpid()}: {len(scheduler.slots)} slots, {', '.join(scheduler.slots)}")
    busy_at = time.monotonic()
    while _is_ours(lock, store.folder / "scheduler.lock"):
        try:
            if scheduler.tick():
                busy_at = time.monotonic()
        except (LacoError, OSError):
            traceback.print_exc()
        if time.monotonic() - busy_at > idle_seconds:
            # A submitter writes its row, then tries the lock. Nobody can write a row now, so that
            # either we see the row, or the submitter finds the lock free.
            with store.index.transaction():
                if not scheduler.queue.live():
                    fcntl.flock(lock, fcntl.LOCK_UN)
                    break
        time.sleep(_TICK_SECONDS)
    _say(f"scheduler {os.getpid()}: ends")


def _is_ours(lock: int, path: Path) -> bool:
    """Whether the locked file is still the store's: it is not when the store was removed."""
    try:
        return os.fstat(lock).st_ino == path.stat().st_ino
    except OSError:
        return False


def _say(words: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), words, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Schedule the jobs of the store that is named. 1 when it has a scheduler already."""
    parser = argparse.ArgumentParser(prog="python -m laco.schedule", description=__doc__)
    parser.add_argument("store", type=Path, help="the store's folder")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to wait for more work")
    parser.add_argument("--lock", type=int, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    try:
        store = RunStore(given.store)
        lock = given.lock
        if lock is None:
            lock = os.open(store.folder / "scheduler.lock", os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{store.folder} has a scheduler already.", file=sys.stderr)
                return 1
        with contextlib.suppress(KeyboardInterrupt):
            serve(store, lock, given.idle)
    except LacoError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
