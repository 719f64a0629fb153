"""Jobs: work that goes on without whoever asked for it.

A page or a command submits a `Request` and looks at its `JobStatus` now and then; the work is
done in other processes (`schedule.py` starts them, `worker.py` is one), so nothing here waits,
and nothing here imports torch. What a request is, is in `evaluations.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from pydantic import ValidationError

from laco import access, devices, places, room
from laco.access import LOCAL, Person
from laco.context import Context
from laco.disk import explained, read_json
from laco.errors import JobError
from laco.evaluations import Request
from laco.places import LOCAL as HERE
from laco.programs import module_environment, python_module
from laco.queue import ENDED, RETRIES, Queue
from laco.recipe import complaints
from laco.store import RunStore
from laco.wording import describe
from laco.worker import carry_out

State = Literal["queued", "starting", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class JobStatus:
    """A job as it stands. Times are seconds since the epoch; `fraction` is 0 to 1.

    `attempt` counts how often a worker was started for it, of at most `attempts`. `error` says why
    it failed: the cause in its first line, after that the end of the log where there is one.
    `place` is where it was sent; `device` what it runs on there, once it does: a device of this
    machine, or a node's name. `memory` is in bytes, as it was expected.
    """

    id: str
    label: str
    state: State
    fraction: float
    message: str
    seconds_left: float | None
    created: float
    started: float | None
    ended: float | None
    error: str | None
    attempt: int
    device: str | None
    memory: int | None
    request: Request
    folder: Path
    attempts: int = RETRIES + 1
    owner: str = ""  # who started it, where people sign in
    place: str = HERE

    @property
    def active(self) -> bool:
        """Whether it waits or runs."""
        return self.state not in ENDED

    @property
    def result(self) -> dict[str, Any] | None:
        """What the engine gave back; None unless the job is done. Read when asked for."""
        return read_json(self.folder / "result.json") if self.state == "done" else None

    @property
    def live(self) -> dict[str, Any] | None:
        """What there is of a result so far; None before its first part. Read when asked for."""
        return read_json(self.folder / "live.json")


class JobRunner(Protocol):
    """Takes requests and carries them out, here or elsewhere."""

    def submit(self, request: Request, label: str = "") -> str: ...

    def status(self, job: str) -> JobStatus: ...

    def cancel(self, job: str) -> None: ...


class LocalRunner:
    """Jobs of a store, which its scheduler starts: here, one process each, or at another place.

    `on` is the place of what is submitted. The scheduler is a process of its own. It is started
    when there is work and none is there, also by whoever only looks, so that a job whose scheduler
    was killed is not forgotten.
    """

    def __init__(
        self,
        store: RunStore,
        idle_seconds: float = 10.0,
        who: Person = LOCAL,
        on: str = HERE,
    ) -> None:
        self.who = who
        self.on = on
        self.store = store
        self.queue = Queue(store)
        self.idle_seconds = idle_seconds

    def submit(self, request: Request, label: str = "", anyway: bool = False, on: str = "") -> str:
        """Queue a request, to run at the place `on`, else the runner's; the job's id, at once.

        JobError, with the numbers, when it needs more memory than any device has that takes jobs;
        `anyway` queues it all the same, and starts it without asking for memory. JobError too for
        a place that takes no jobs now: that costs an answer of the place, or some seconds.
        """
        access.require_runner(self.who)
        on = on or self.on
        if not self.who.is_local and on not in places.configured(self.store.folder):
            raise JobError(f"{on} is not among the places that the settings of this store name.")
        checked = _checked(request)
        place = places.named(self.store.folder, on)
        memory = None if anyway else room.expected_peak(checked, self.store)
        if place == HERE:
            room.check(memory, devices.slots(self.store.folder))
        named = label or describe(request.recipe)
        job = self.queue.add(checked, named, memory, self.who.name, place)
        self._start()
        return job

    def status(self, job: str) -> JobStatus:
        """How a job stands. Raises `JobError` if there is no such job."""
        row = self.queue.row(job)
        if row["state"] not in ENDED:
            self._start()
        return self._status(row)

    def jobs(self) -> list[JobStatus]:
        """All jobs, newest first; without those of another version that cannot be read here."""
        rows = self.queue.rows()
        if any(row["state"] not in ENDED for row in rows):
            self._start()
        return self._statuses(rows)

    def active(self) -> list[JobStatus]:
        """The jobs that wait or run, oldest first."""
        rows = self.queue.live()
        if rows:
            self._start()
        return [status for status in self._statuses(rows) if status.active]

    def cancel(self, job: str) -> None:
        """Ask a job to stop; returns at once. What has ended stays as it is.

        A waiting job is cancelled at once. A running one sees the wish at its next step; the
        scheduler makes sure of it after some seconds.
        """
        access.require_owner(self.who, self.queue.row(job)["owner"])
        self.queue.ask_to_cancel(job)
        self._start()

    def retry(self, job: str) -> str:
        """Queue what an ended job did once more; the new job's id."""
        status = self._status(self.queue.row(job))
        access.require_owner(self.who, status.owner)
        if status.active:
            raise JobError(f"Job {job} is {status.state}; wait for its end, or cancel it first.")
        anyway = status.memory is None
        return self.submit(status.request, status.label, anyway, on=status.place)

    def log(self, job: str, tail: int | None = None) -> str:
        """What the worker wrote, or the last `tail` lines of it."""
        self.queue.row(job)
        return self.queue.log(job, tail)

    def _start(self) -> None:
        start_scheduler(self.store, self.idle_seconds)

    def _statuses(self, rows: list[sqlite3.Row]) -> list[JobStatus]:
        found: list[JobStatus] = []
        for row in rows:
            with contextlib.suppress(JobError):
                found.append(self._status(row))
        return found

    def _status(self, row: sqlite3.Row) -> JobStatus:
        """The row, and for a job at work what its worker says, which is newer."""
        try:
            request = Request.model_validate_json(row["request"])
        except ValidationError:
            raise JobError(
                f"Job {row['id']} was queued by another version of laco and cannot be read here."
            ) from None
        state, error, started, ended = row["state"], row["error"], row["started"], row["ended"]
        fraction, message, left = row["fraction"], row["message"], None
        report = self.queue.report(row) if state in ("starting", "running") else {}
        if report:
            state, error = report["state"], report["error"]
            fraction, message = report["fraction"], report["message"]
            started, ended = report["started"], report["ended"]
            if report["seconds_left"] is not None:
                left = max(0.0, report["seconds_left"] - (time.time() - report["updated"]))
        if state == "starting" and row["place"] != HERE:
            state = "queued"  # sent, and waiting there
        if row["cancelled"] is not None and state not in ENDED:
            message, left = "Stopping", None
        return JobStatus(
            id=row["id"],
            label=row["label"],
            state=cast("State", state),
            fraction=fraction,
            message=message,
            seconds_left=left if state == "running" else None,
            created=row["created"],
            started=started,
            ended=ended,
            error=error,
            attempt=row["attempt"],
            owner=row["owner"],
            place=row["place"],
            device=row["device"],
            memory=row["memory"],
            request=request,
            folder=self.queue.folder / row["id"],
        )


class InlineRunner(LocalRunner):
    """Jobs done in this process before `submit` returns: for tests, with a tiny model.

    The same queue, files and states as with `LocalRunner`; `run` stands for the engine.
    """

    def __init__(
        self, store: RunStore, run: Callable[[Request, RunStore, Context], dict[str, Any]]
    ) -> None:
        super().__init__(store)
        self.run = run

    def _start(self) -> None:
        while (row := self.queue.claim(slots=1)) is not None:
            folder = self.queue.folder / row["id"]
            with (folder / "log.txt").open("a", encoding="utf-8") as log:
                carry_out(folder, row["attempt"], self.run, log)
            self.queue.settle(self.queue.row(row["id"]))


def start_scheduler(store: RunStore, idle_seconds: float = 10.0) -> bool:
    """Start the store's scheduler, detached, unless it has one. Whether it was started.

    The lock is taken here and handed down, so that of several callers one starts it.
    """
    with explained(store.folder):
        lock = os.open(store.folder / "scheduler.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        with explained(store.folder), (store.folder / "scheduler.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    *python_module("laco.schedule"),
                    str(store.folder),
                    f"--idle={idle_seconds}",
                    f"--lock={lock}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=store.folder,
                env=module_environment(),
                pass_fds=(lock,),
                start_new_session=True,
            )
    finally:
        os.close(lock)
    # Someone has to take note of its end, or it stays in the process table.
    threading.Thread(target=process.wait, daemon=True).start()
    return True


def _checked(request: Request) -> Request:
    """The request as a worker will read it. Raises `JobError` if it could not."""
    try:
        return Request.model_validate_json(request.model_dump_json())
    except ValidationError as error:
        raise JobError(f"The request cannot be carried out: {complaints(error)}.") from None
