"""The scheduler's part for jobs at other places: sends them, and takes note of what became of them.

Nothing is known there of locks or process numbers of another machine, so whether a worker lives is
decided by two witnesses: the place, and the worker's own status.json, which it renews every few
seconds. Where a place is at a loss, a job is given up, and tried again, only when its worker has
been silent too. A place that does not answer is left alone for a while, and its jobs with it.
Next: `../schedule.py`, which calls this; `place.py`.
"""

from __future__ import annotations

import sqlite3
import time
import traceback
from pathlib import Path
from typing import Any

from laco import places, upkeep
from laco.errors import JobError, LacoError
from laco.places.place import Place, Seen, Work
from laco.queue import ENDED, Queue
from laco.store import RunStore

SILENT_SECONDS = 15.0  # three times what a worker takes between two reports at most
_AWAY_SECONDS = 10.0  # before a place is asked again that did not answer
_STOP_SECONDS = 3.0  # after the wish to cancel, that a worker has to notice by itself
_LINGER_SECONDS = 10.0  # that a worker may take to go once its end is written


class Watch:
    """The jobs of a store that are not for this machine."""

    def __init__(self, queue: Queue, store: RunStore) -> None:
        self.queue = queue
        self.store = store
        self._places: dict[str, tuple[float, Place]] = {}
        self._away: dict[str, float] = {}  # places that did not answer, and until when
        self._next: dict[str, float] = {}  # jobs, and when their place is asked again
        self._heard: dict[str, tuple[Any, float]] = {}  # a job's last report, and when it was new
        self._stopped: set[str] = set()

    def tick(self) -> None:
        """Do what is due."""
        for row in self.queue.live():
            if row["state"] == "queued" or row["place"] == places.LOCAL:
                continue
            try:
                self._look(row)
            except Exception:  # what is wrong with one job is not to stop the others
                traceback.print_exc()
        while (row := self.queue.claim_elsewhere(self._quiet())) is not None:
            self._send(row)

    def _look(self, row: sqlite3.Row) -> None:
        job, now = row["id"], time.monotonic()
        report = self.queue.report(row)
        heard = (report.get("attempt"), report.get("updated"))
        if job not in self._heard or self._heard[job][0] != heard:
            self._heard[job] = (heard, now)
        if report and row["state"] == "starting":
            self.queue.running(job, report["started"])
            self.queue.placed(job, report.get("host", ""))
        if row["place"] in self._quiet() or now < self._next.get(job, 0.0):
            return
        if row["handle"] is None:  # claimed by a scheduler that did not live to send it, or to say
            self._send(row)
            return
        try:
            place = self._place(row["place"])
            self._next[job] = now + place.patience
            seen = place.state(row["handle"])
            self._decide(row, report, place, seen)
        except JobError as error:
            self._away[row["place"]] = now + _AWAY_SECONDS
            if not report:
                self.queue.say(job, str(error))
            elif report.get("state") in ENDED:  # its own word is enough
                self._settle(row, "")

    def _decide(self, row: sqlite3.Row, report: dict[str, Any], place: Place, seen: Seen) -> None:
        job = row["id"]
        silent = time.monotonic() - self._heard[job][1]
        there = seen.state in ("waiting", "running")
        if report.get("state") in ENDED:
            if there and silent < _LINGER_SECONDS:
                return
            if there:
                place.cancel(row["handle"])
            self._settle(row, "")
        elif seen.state == "expired":
            self.queue.sent(job, place.submit(self._work(row)))
        elif seen.state == "failed" or (not there and silent > SILENT_SECONDS):
            self._settle(row, seen.words)
        elif row["cancelled"] is not None and seen.state == "waiting":
            place.cancel(row["handle"])
            self._settle(row, "")
        elif row["cancelled"] is not None:
            if job not in self._stopped and time.time() - row["cancelled"] > _STOP_SECONDS:
                self._stopped.add(job)
                place.cancel(row["handle"])
        elif seen.state == "waiting" and seen.words != row["message"]:
            self.queue.say(job, seen.words)

    def _send(self, row: sqlite3.Row) -> None:
        if row["cancelled"] is not None:
            self._settle(row, "")
            return
        try:
            handle = self._place(row["place"]).submit(self._work(row))
        except JobError as error:
            self._away[row["place"]] = time.monotonic() + _AWAY_SECONDS
            self.queue.postpone(row, str(error))
            return
        self.queue.sent(row["id"], handle)
        self._say(f"{row['id']}: sent to {row['place']} as {handle}, attempt {row['attempt']}")

    def _settle(self, row: sqlite3.Row, told: str) -> None:
        try:  # first, so that a job that is done has its results
            upkeep.adopt(self.store, row["claimed"] or 0.0)
        except LacoError:  # they lie there, and `laco store rebuild` finds them
            traceback.print_exc()
        state = self.queue.settle(row, told=told)
        for kept in (self._next, self._heard):
            kept.pop(row["id"], None)
        self._stopped.discard(row["id"])
        self._say(f"{row['id']}: {state} at {row['place']} {told}".rstrip())

    def _work(self, row: sqlite3.Row) -> Work:
        folder = self.queue.folder / row["id"]
        return Work(row["id"], row["attempt"], folder, Path(row["cwd"]))

    def _place(self, name: str) -> Place:
        """The place of this name, with the settings as they are now or were a moment ago."""
        made, place = self._places.get(name, (0.0, None))
        changed = _changed(self.store.folder)
        if place is None or made != changed:
            place = places.place(self.store.folder, name)
            self._places[name] = (changed, place)
        return place

    def _quiet(self) -> set[str]:
        now = time.monotonic()
        return {name for name, until in self._away.items() if now < until}

    def _say(self, words: str) -> None:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), words, flush=True)


def _changed(store: Path) -> float:
    try:
        return (store / places.kept.FILE).stat().st_mtime
    except OSError:
        return 0.0
