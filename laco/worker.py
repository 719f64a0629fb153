"""One job, in a process of its own: `python -m laco.worker STORE/jobs/ID`.

Reads the request from the job's folder, has the engine carry it out, and writes how far it is,
what there is so far, what came out, or why not, into the same folder. It does not touch the
queue: `schedule.py` reads what it leaves. For as long as it lives it holds the folder's lock, so
that nobody else does the same job. Next: `engine.py`.

`LACO_ENGINE` names another module than `laco.engine` to take `run` from; the tests of the queue
use it to put a small function where the engine is. Such a run gets the device "cpu".
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import psutil
from pydantic import ValidationError

from laco import locks
from laco.causes import of_error
from laco.context import Context
from laco.devices import free_memory
from laco.disk import read_json, write_json
from laco.errors import Cancelled, JobError, LacoError
from laco.evaluations import Request
from laco.imports import imported
from laco.places.place import PLACE
from laco.queue import LOCK, own_identity
from laco.recipe import complaints
from laco.store import RunStore

Engine = Callable[[Request, RunStore, Context], dict[str, Any]]

_REPORT_SECONDS = 0.5
_ALIVE_SECONDS = 5.0  # between two reports at most; see places/watch.py
_LOG_SECONDS = 5.0
_LOCK_TRIES, _LOCK_SECONDS = 20, 0.1  # a scheduler that looks has the lock for a moment
SURPLUS = 75  # exit status of a worker whose job is another's


def carry_out(
    folder: Path,
    attempt: int,
    engine: Engine,
    log: TextIO,
    device: str = "cpu",
    before_end: Callable[[], object] = lambda: None,
) -> None:
    """Do the job in `folder` and leave its end there: result.json, and a state in status.json.

    If the work is stopped and nobody asked for that, no end is written and `Cancelled` is raised:
    the queue then treats the job like one whose worker died. `before_end` is called once, when it
    is too late to stop.
    """
    reporter = Reporter(folder, attempt, log)
    reporter.start()
    try:
        request = _request(folder / "job.json")
        about = read_json(folder / "about.json") or {}
        store = RunStore(folder.parent.parent, about.get("owner", ""), _own_index())
        cancelled = (folder / "cancel").exists
        context = Context(device, reporter.progress, cancelled, reporter.publish)
        result = engine(request, store, context)
        before_end()
        write_json(folder / "result.json", result)
        reporter.end("done", None)
    except Cancelled:
        before_end()
        if (folder / "cancel").exists():
            reporter.end("cancelled", None)
        else:
            reporter.end("running", None)
            raise
    except Exception as error:
        before_end()
        traceback.print_exc(file=log)
        log.flush()
        reporter.end("failed", of_error(error, reporter.message))


class Reporter:
    """Writes progress to status.json at most twice a second, from a thread of its own.

    Without news it says every few seconds that it is alive, for whoever cannot see the process.

    What there is of a result so far goes to live.json by the same thread.
    """

    def __init__(self, folder: Path, attempt: int, log: TextIO) -> None:
        self.message = "Starting"
        self._path = folder / "status.json"
        self._live_path = folder / "live.json"
        self._live: Mapping[str, Any] | None = None
        self._live_written: Mapping[str, Any] | None = None
        self._attempt = attempt
        self._log = log
        self._fraction = 0.0
        self._started = time.time()
        self._logged = (0.0, "")  # when, and the message
        self._identity = own_identity()
        self._process = psutil.Process()
        self._news = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)

    def start(self) -> None:
        """Write the first report at once, later ones as they come."""
        self._write("running", None)
        self._thread.start()

    def progress(self, fraction: float, message: str) -> None:
        """Note how far the work is, 0 to 1. Costs nothing; writes nothing itself."""
        self._fraction, self.message = fraction, message
        self._news.set()

    def publish(self, document: Mapping[str, Any]) -> None:
        """Take what there is of a result so far; the newest is what will be written."""
        self._live = document
        self._news.set()

    def end(self, state: str, error: str | None) -> None:
        """Write the last report."""
        self._over.set()
        self._news.set()
        self._thread.join()
        if state == "done":
            self._fraction = 1.0
        self._write_live()
        self._say(f"{state}{f': {error}' if error else ''}")
        self._write(state, error)

    def _report(self) -> None:
        while not self._over.is_set():
            self._news.wait(_ALIVE_SECONDS)
            self._news.clear()
            self._write_live()
            try:
                self._write("running", None)
            except LacoError as error:  # a full disk ends the work where it saves, not here
                self._say(str(error))
            when, message = self._logged
            if time.time() - when >= _LOG_SECONDS and message != self.message:
                self._logged = (time.time(), self.message)
                self._say(f"{self._fraction:4.0%} {self.message}")
            self._over.wait(_REPORT_SECONDS)

    def _write_live(self) -> None:
        document = self._live
        if document is None or document is self._live_written:
            return
        self._live_written = document
        try:
            write_json(self._live_path, document, durable=False)
        except LacoError as error:  # whoever watches sees less; the work goes on
            self._say(str(error))

    def _write(self, state: str, error: str | None) -> None:
        now = time.time()
        pid, pid_created = self._identity
        left = None
        if self._fraction > 0.01:
            left = (now - self._started) * (1 - self._fraction) / self._fraction
        report = {
            "attempt": self._attempt,
            "state": state,
            "fraction": self._fraction,
            "message": self.message,
            "seconds_left": left,
            "started": self._started,
            "updated": now,
            "ended": None if state == "running" else now,
            "error": error,
            "pid": pid,
            "pid_created": pid_created,
            "host": platform.node(),
            "memory": self._process.memory_info().rss,
            "memory_free": free_memory(),
            "memory_total": psutil.virtual_memory().total,
            "device_memory": _device_memory(),
        }
        write_json(self._path, report, durable=state != "running")

    def _say(self, words: str) -> None:
        self._log.write(f"{time.strftime('%H:%M:%S')} {words}\n")
        self._log.flush()


def _own_index() -> Path | None:
    """Where the index lies for a worker on another machine than the store's; None on that.

    SQLite's index cannot be shared between machines. What this worker saves lies in files that
    they share, and the scheduler puts it into the store's index at the end (`upkeep.adopt`).
    """
    if PLACE not in os.environ:
        return None
    folder = Path(tempfile.mkdtemp(prefix="laco-index-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _request(path: Path) -> Request:
    try:
        return Request.model_validate(read_json(path))
    except ValidationError as error:
        raise JobError(f"{path} cannot be carried out: {complaints(error)}.") from None


def _device_memory() -> int | None:
    """Bytes that this process has taken on a GPU; None where it uses none, or not yet."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    return torch.cuda.memory_reserved()


def is_first(folder: Path, attempt: int) -> bool:
    """Whether nobody else does or did this attempt at the job; then its lock is this process's.

    A worker may be started twice for one attempt when a scheduler dies at the wrong moment.
    """
    for _ in range(_LOCK_TRIES):
        if locks.take(folder / LOCK):
            report = read_json(folder / "status.json")
            return not (isinstance(report, dict) and report.get("attempt", 0) >= attempt)
        time.sleep(_LOCK_SECONDS)
    return False


def _ignore_stop() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def offer_to_be_killed() -> None:
    """Where memory ends, the kernel is to kill this process, not the server or the scheduler."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise Cancelled


def _engine() -> tuple[Engine, str]:
    other = os.environ.get("LACO_ENGINE")
    if other is not None:
        return importlib.import_module(other).run, "cpu"
    engine, models = imported("laco.engine", "laco.models")
    return engine.run, models.best_device()


def _engine_at_work(request: Request, store: RunStore, context: Context) -> dict[str, Any]:
    """The engine, imported when the job has already reported that it runs."""
    context.step(0.0, "Loading libraries")
    engine, device = _engine()
    return engine(request, store, replace(context, device=device))


def main(arguments: list[str] | None = None) -> int:
    """Do the job whose folder is the one argument.

    0: its end is written; 1: it was stopped; 75: another process does it, or did this attempt.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        print("usage: python -m laco.worker STORE/jobs/ID", file=sys.stderr)
        return 2
    folder = Path(given[0]).resolve()
    if not (folder / "job.json").is_file():
        raise JobError(f"{folder} holds no job.json; give the folder of a job.")
    faulthandler.enable()  # a crash inside a library says in the log where
    signal.signal(signal.SIGTERM, _stop)
    offer_to_be_killed()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    attempt = int(os.environ.get("LACO_ATTEMPT", "1"))
    if not is_first(folder, attempt):
        print(f"Another process does attempt {attempt} at this job.", file=sys.stderr)
        return SURPLUS
    try:
        carry_out(folder, attempt, _engine_at_work, sys.stderr, before_end=_ignore_stop)
    except Cancelled:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
