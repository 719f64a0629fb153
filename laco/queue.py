"""The queue of jobs: a row in the store's index and a folder for each.

    jobs/<id>/job.json      the request
    jobs/<id>/about.json    its label, its owner and its expected memory, for a lost index
    jobs/<id>/lock          taken by the worker for as long as it lives
    jobs/<id>/status.json   the worker's word on how far it is, replaced at most twice a second
    jobs/<id>/log.txt       what the worker says
    jobs/<id>/result.json   what came out
    jobs/<id>/cancel        there when someone asked for the job to stop
    jobs/<id>/submitit/     what SLURM was given, for a job that runs there

Whoever submits owns a job until it is claimed, then the scheduler does: it alone moves a row from
one state to the next, and the worker writes into the folder alone. Every change of a row is
guarded, so that what has ended stays ended. The queue does not know how processes are started, here
or at another place; `jobs.py` puts jobs in, `schedule.py` takes them out, `worker.py` does them.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import psutil

from laco import causes, locks
from laco.disk import discard, explained, partial_path, read_json, write_json
from laco.errors import JobError
from laco.evaluations import Request
from laco.store import RunStore

ENDED = ("done", "failed", "cancelled")
RETRIES = 2  # after a worker's death; a job whose work raised an error is not tried again
LOCK = "lock"
_ORPHANED_SECONDS = 10.0
_HERE = "place = 'local'"
_LIVE = "state IN ('queued', 'starting', 'running')"
_LOG_LINES = 15


class Queue:
    """The jobs of a store. Safe across processes."""

    def __init__(self, store: RunStore) -> None:
        self.index = store.index
        self.folder = store.folder / "jobs"

    def add(
        self,
        request: Request,
        label: str,
        memory: int | None = None,
        owner: str = "",
        place: str = "local",
    ) -> str:
        """Put a job at the end of the queue; its id. `memory`: bytes that it is expected to take.

        Its folder gets its name and its row together, so that there is no half job.
        """
        job = uuid.uuid4().hex[:12]
        folder = self.folder / job
        partial = partial_path(folder)
        try:
            with explained(folder):
                partial.mkdir(parents=True)
            write_json(partial / "job.json", request.model_dump(mode="json"))
            about = {"label": label, "owner": owner, "memory": memory, "place": place}
            write_json(partial / "about.json", about)
            document = request.model_dump_json()
            with self.index.transaction() as index, explained(folder):
                index.execute(
                    "INSERT INTO jobs"
                    "(id, label, request, cwd, state, created, memory, owner, place)"
                    " VALUES(?, ?, ?, ?, 'queued', ?, ?, ?, ?)",
                    (job, label, document, str(Path.cwd()), time.time(), memory, owner, place),
                )
                partial.rename(folder)
        except BaseException:
            discard(partial)
            discard(folder)  # named already when there was no room for the row
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

    def is_at_work(self, row: sqlite3.Row) -> bool:
        """Whether a process works on a job, or is about to.

        Its lock tells, whatever happened to clocks and process numbers; a worker that has just
        been started has not taken it yet, so its number and its start count too.
        """
        if locks.is_taken(self.folder / row["id"] / LOCK):
            return True
        return row["pid"] is not None and is_alive(row["pid"], row["pid_created"])

    def claim(
        self, slots: int, fits: Callable[[sqlite3.Row, int], str] = lambda _row, _slot: ""
    ) -> sqlite3.Row | None:
        """The oldest waiting job, given a free slot and marked as starting; None if there is none.

        However many processes ask at once, a job goes to one of them. `fits` says why a job cannot
        start in a slot now, in words that become its message; empty if it can. One that cannot is
        passed over.
        """
        with self.index.transaction() as index:
            taken = {
                row["slot"]
                for row in index.execute(
                    f"SELECT slot FROM jobs WHERE state IN ('starting', 'running') AND {_HERE}"
                )
            }
            free = [slot for slot in range(slots) if slot not in taken]
            waiting = index.execute(
                f"SELECT * FROM jobs WHERE state = 'queued' AND {_HERE} ORDER BY created, rowid"
            ).fetchall()
            for row in waiting if free else ():
                reasons = {slot: fits(row, slot) for slot in free}
                slot = next((slot for slot in free if not reasons[slot]), None)
                if slot is not None:
                    index.execute(
                        "UPDATE jobs SET state = 'starting', slot = ?, claimed = ?,"
                        " message = CASE attempt WHEN 0 THEN '' ELSE message END,"
                        " attempt = attempt + 1, pid = NULL, pid_created = NULL WHERE id = ?",
                        (slot, time.time(), row["id"]),
                    )
                    break
                if row["message"] != reasons[free[0]]:
                    index.execute(
                        "UPDATE jobs SET message = ? WHERE id = ?", (reasons[free[0]], row["id"])
                    )
            else:
                return None
        return self.row(row["id"])

    def claim_elsewhere(self, leave: Collection[str] = ()) -> sqlite3.Row | None:
        """The oldest job that waits to be sent to another place, marked as starting.

        Those for the places in `leave` are passed over.
        """
        with self.index.transaction() as index:
            waiting = index.execute(
                f"SELECT * FROM jobs WHERE state = 'queued' AND NOT {_HERE} ORDER BY created, rowid"
            ).fetchall()
            row = next((row for row in waiting if row["place"] not in leave), None)
            if row is None:
                return None
            index.execute(
                "UPDATE jobs SET state = 'starting', slot = NULL, claimed = ?, handle = NULL,"
                " attempt = attempt + 1, pid = NULL, pid_created = NULL WHERE id = ?",
                (time.time(), row["id"]),
            )
        return self.row(row["id"])

    def sent(self, job: str, handle: str) -> None:
        """Note by what name another place knows a job."""
        self._change(job, "handle = ?", handle)

    def say(self, job: str, message: str) -> None:
        """Note why a job waits, for as long as no worker has begun."""
        self._change(job, "message = ?", message)

    def postpone(self, row: sqlite3.Row, message: str) -> None:
        """Let a job wait again that could not be sent; its attempt does not count.

        Unless someone asks to cancel right now: then it is settled at the next look.
        """
        self._change(row["id"], "state = 'queued', attempt = attempt - 1, message = ?", message)

    def started(self, job: str, pid: int, pid_created: float) -> None:
        """Note which process works on a job."""
        self._change(job, "pid = ?, pid_created = ?", pid, pid_created)

    def placed(self, job: str, device: str) -> None:
        """Note what a job is about to run on."""
        self._change(job, "device = ?", device)

    def running(self, job: str, since: float) -> None:
        """Note that the worker has begun."""
        self._change(job, "state = 'running', started = ?", since)

    def ask_to_cancel(self, job: str) -> None:
        """Take a waiting job off the queue, or leave word for the worker and the scheduler."""
        now = time.time()
        with self.index.transaction() as index:
            asked = index.execute(
                "UPDATE jobs SET state = 'cancelled', ended = ? WHERE id = ? AND state = 'queued'",
                (now, job),
            ).rowcount
            asked += index.execute(
                "UPDATE jobs SET cancelled = ? WHERE id = ? AND cancelled IS NULL"
                " AND state IN ('starting', 'running')",
                (now, job),
            ).rowcount
        if asked and (self.folder / job).is_dir():
            (self.folder / job / "cancel").touch()  # a waiting job may have a worker that is late

    def settle(
        self, row: sqlite3.Row, code: int | None = None, oom_kills: int = 0, told: str = ""
    ) -> str:
        """Decide what becomes of a job whose worker is gone; the new state.

        What the worker wrote last holds. If it wrote no end, it died: the job is cancelled if that
        was asked for, waits again if it has been tried no more than `RETRIES` times, and has
        failed otherwise. `code` and `oom_kills` are what `causes.of_death` asks for; `told` is
        what became of it in the words of another place.
        """
        job, report = row["id"], self.report(row)
        state = report.get("state")
        if state in ENDED:
            self._end(row, state, report.get("error"), report)
        elif row["cancelled"] is not None:
            state = "cancelled"
            self._end(row, state, None, report)
        elif row["attempt"] <= RETRIES:
            state = "queued"
            words = told or causes.of_death(code, oom_kills, report)[0]
            # Unless someone asks to cancel right now: then the job is settled at the next look.
            self._change(
                job,
                "state = 'queued', pid = NULL, pid_created = NULL, slot = NULL, message = ?",
                f"The worker was {words}; trying again, {_attempt(row['attempt'] + 1)}",
                condition="cancelled IS NULL",
            )
        else:
            state = "failed"
            words, advice = (told, "") if told else causes.of_death(code, oom_kills, report)
            self._end(row, state, self._epitaph(row, words, advice, report), report)
        return state

    def take_back(self, row: sqlite3.Row) -> bool:
        """Let a job wait again that was claimed, but whose worker was never started.

        That is likely only some time after the claim: False until then. If a worker was started
        after all, it is adopted; if it comes later than its successor, the lock sends it away.
        """
        report = self.report(row)
        if report:
            self.started(row["id"], report["pid"], report["pid_created"])
            return True
        recent = abs(time.time() - row["claimed"]) < _ORPHANED_SECONDS
        if recent or locks.is_taken(self.folder / row["id"] / LOCK):
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

    def _epitaph(self, row: sqlite3.Row, words: str, advice: str, report: dict[str, Any]) -> str:
        """What a user is told when there are no more attempts: the cause, then the log's end."""
        where = f" at \u201c{report['message']}\u201d" if report.get("message") else ""
        tail = self.log(row["id"], _LOG_LINES)
        return f"The worker was {words}{where}, in {_attempt(row['attempt'])}. {advice}".strip() + (
            f"\nThe end of its log:\n{tail}" if tail else ""
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


def _attempt(number: int) -> str:
    return f"attempt {number} of {RETRIES + 1}"


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
