"""The queue of jobs: a row in the store's index and a folder for each.

    jobs/<id>/job.json      the request, written before the row
    jobs/<id>/status.json   the worker's word on how far it is, replaced at most twice a second
    jobs/<id>/log.txt       what the worker says
    jobs/<id>/result.json   what came out
    jobs/<id>/cancel        there when someone asked for the job to stop

Every change of a row is guarded, so that what has ended stays ended. The queue does not know how
processes are started; `jobs.py` puts jobs in, `schedule.py` takes them out, `worker.py` does them.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

from laco.disk import explained, read_json, write_json
from laco.errors import JobError
from laco.evaluations import Request
from laco.store import RunStore

ENDED = ("done", "failed", "cancelled")
ATTEMPTS = 2  # a worker that dies twice has most likely no memory for this job
_ORPHANED_SECONDS = 30.0
_LIVE = "state IN ('queued', 'starting', 'running')"
_LOG_LINES = 15


class Queue:
    """The jobs of a store. Safe across processes."""

    def __init__(self, store: RunStore) -> None:
        self.index = store.index
        self.folder = store.folder / "jobs"

    def add(self, request: Request, label: str) -> str:
        """Put a job at the end of the queue; its id."""
        job = uuid.uuid4().hex[:12]
        folder = self.folder / job
        document = request.model_dump(mode="json")
        try:
            with explained(folder):
                folder.mkdir(parents=True)
            write_json(folder / "job.json", document)
            with self.index.transaction() as index:
                index.execute(
                    "INSERT INTO jobs(id, label, request, cwd, state, created)"
                    " VALUES(?, ?, ?, ?, 'queued', ?)",
                    (job, label, request.model_dump_json(), str(Path.cwd()), time.time()),
                )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return job

    def row(self, job: str) -> sqlite3.Row:
        """A job's row. Raises `JobError` if there is none."""
        found = self.index.rows("SELECT * FROM jobs WHERE id = ?", job)
        if not found:
            raise JobError(f"There is no job {job} in {self.folder}; `laco jobs` lists them.")
        return found[0]

    def rows(self) -> list[sqlite3.Row]:
        """All jobs, newest first."""
        return self.index.rows("SELECT * FROM jobs ORDER BY created DESC, rowid DESC")

    def live(self) -> list[sqlite3.Row]:
        """The jobs that wait or run, oldest first."""
        return self.index.rows(f"SELECT * FROM jobs WHERE {_LIVE} ORDER BY created, rowid")

    def report(self, row: sqlite3.Row) -> dict[str, Any]:
        """What the worker of this attempt wrote of itself last; empty if nothing yet."""
        report = read_json(self.folder / row["id"] / "status.json")
        if not isinstance(report, dict) or report.get("attempt") != row["attempt"]:
            return {}
        return report

    def claim(self, slots: int) -> sqlite3.Row | None:
        """The oldest waiting job, given a free slot and marked as starting; None if there is none.

        However many processes ask at once, a job goes to one of them.
        """
        with self.index.transaction() as index:
            taken = {
                row["slot"]
                for row in index.execute(
                    "SELECT slot FROM jobs WHERE state IN ('starting', 'running')"
                )
            }
            free = [slot for slot in range(slots) if slot not in taken]
            waiting = index.execute(
                "SELECT id FROM jobs WHERE state = 'queued' ORDER BY created, rowid LIMIT 1"
            ).fetchone()
            if not free or waiting is None:
                return None
            index.execute(
                "UPDATE jobs SET state = 'starting', slot = ?, claimed = ?,"
                " attempt = attempt + 1, pid = NULL, pid_created = NULL WHERE id = ?",
                (free[0], time.time(), waiting["id"]),
            )
        return self.row(waiting["id"])

    def started(self, job: str, pid: int, pid_created: float) -> None:
        """Note which process works on a job."""
        self._change(job, "pid = ?, pid_created = ?", pid, pid_created)

    def running(self, job: str, since: float) -> None:
        """Note that the worker has begun."""
        self._change(job, "state = 'running', started = ?", since)

    def ask_to_cancel(self, job: str) -> None:
        """Take a waiting job off the queue, or leave word for the worker and the scheduler."""
        with self.index.transaction() as index:
            index.execute(
                "UPDATE jobs SET state = 'cancelled', ended = ? WHERE id = ? AND state = 'queued'",
                (time.time(), job),
            )
            asked = index.execute(
                "UPDATE jobs SET cancelled = ? WHERE id = ? AND cancelled IS NULL"
                " AND state IN ('starting', 'running')",
                (time.time(), job),
            ).rowcount
        if asked:
            (self.folder / job / "cancel").touch()

    def settle(self, row: sqlite3.Row, ending: str = "") -> str:
        """Decide what becomes of a job whose worker is gone; the new state.

        What the worker wrote last holds. If it wrote no end, it died: the job is cancelled if that
        was asked for, waits again if this was its first attempt, and has failed otherwise.
        `ending` says how the process ended, where that is known.
        """
        job, report = row["id"], self.report(row)
        state = report.get("state")
        if state in ENDED:
            self._end(row, state, report.get("error"), report)
        elif row["cancelled"] is not None:
            state = "cancelled"
            self._end(row, state, None, report)
        elif row["attempt"] < ATTEMPTS:
            state = "queued"
            # Unless someone asks to cancel right now: then the job is settled at the next look.
            self._change(
                job,
                "state = 'queued', pid = NULL, pid_created = NULL, slot = NULL, message = ?",
                f"The worker ended early{ending}; trying once more",
                condition="cancelled IS NULL",
            )
        else:
            state = "failed"
            self._end(row, state, self._epitaph(row, ending), report)
        return state

    def take_back(self, row: sqlite3.Row) -> bool:
        """Let a job wait again that was claimed, but whose worker was never started.

        That is certain only some time after the claim: False until then. If a worker was started
        after all, it is adopted.
        """
        report = self.report(row)
        if report:
            self.started(row["id"], report["pid"], report["pid_created"])
            return True
        if time.time() - row["claimed"] < _ORPHANED_SECONDS:
            return False
        self._change(row["id"], "state = 'queued', slot = NULL, attempt = attempt - 1")
        return True

    def fail(self, row: sqlite3.Row, error: str) -> None:
        """End a job whose worker could not even be started."""
        self._end(row, "failed", error, {})

    def log(self, job: str, tail: int | None = None) -> str:
        """The job's log, or its last `tail` lines."""
        try:
            text = (self.folder / job / "log.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return text if tail is None else "\n".join(text.splitlines()[-tail:])

    def _epitaph(self, row: sqlite3.Row, ending: str) -> str:
        tail = self.log(row["id"], _LOG_LINES)
        return (
            f"The worker ended early{ending}, {row['attempt']} times; the machine may be out of "
            "memory, so try a smaller model or fewer windows."
            + (f" The end of its log:\n{tail}" if tail else "")
        )

    def _end(self, row: sqlite3.Row, state: str, error: str | None, report: dict[str, Any]) -> None:
        self._change(
            row["id"],
            "state = ?, error = ?, ended = ?, started = coalesce(?, started),"
            " fraction = ?, message = ?",
            state,
            error,
            report.get("ended") or time.time(),
            report.get("started"),
            report.get("fraction", 0.0),
            report.get("message", ""),
        )

    def _change(self, job: str, assignments: str, *values: Any, condition: str = "TRUE") -> None:
        with self.index.transaction() as index:
            index.execute(
                f"UPDATE jobs SET {assignments} WHERE id = ? AND {_LIVE} AND {condition}",
                (*values, job),
            )


def is_alive(pid: int, created: float) -> bool:
    """Whether the process that got this number at that time still runs; a zombie does not."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - created) < 2
    except psutil.Error:
        return False


def own_identity() -> tuple[int, float]:
    """The number of this process, and when it got it."""
    return os.getpid(), psutil.Process().create_time()
