"""How a server answers 20 browser sessions that watch a job each, for five minutes.

The server is started as `laco app` does. A session is a websocket that speaks Streamlit's protocol
(`tests/visitor.py`): it opens the Jobs page of its job and then runs the page's fragments when they
are due, as the page in a browser would: the sidebar's and the page's, each every two seconds. Timed
is the server, from when an answer was due until all of it was there; not what a browser then draws.
The jobs are processes that sleep and tell once a second how far they are. All on this machine.

Told are the median and the 95th percentile, and the server's memory at the start (all sessions
there), in the middle and at the end. Last line: `load SECONDS`, the median (at most 0.5 is asked
for, with flat memory).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from bench.start import free_port, served  # noqa: E402
from laco.evaluations import Request  # noqa: E402
from laco.jobs import LocalRunner  # noqa: E402
from laco.recipe import Drop, ModelRef, Recipe  # noqa: E402
from laco.store import RunStore  # noqa: E402
from tests.visitor import Visitor  # noqa: E402

FLAT = 1.05  # of the memory in the middle, at the end


def megabytes(server: subprocess.Popen[bytes]) -> float:
    """Resident memory of the server, in 10**6 bytes."""
    return psutil.Process(server.pid).memory_info().rss / 1e6


class Sessions:
    """Visitors in threads, and how long each of their answers took."""

    def __init__(self, port: int, jobs: list[str]) -> None:
        self.jobs = jobs
        self.visitors = [Visitor(port) for _ in jobs]
        self.opened: list[float] = []
        self.answers: list[float] = []
        self.failed: list[str] = []

    def arrive(self) -> None:
        """Open the page of each session's job, one after the other."""
        for visitor, job in zip(self.visitors, self.jobs, strict=True):
            self.opened.append(visitor.open("jobs", job=job))

    def stay(self, seconds: float) -> None:
        """Watch for so long."""
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._watch, args=(v, until)) for v in self.visitors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _watch(self, visitor: Visitor, until: float) -> None:
        try:
            self.answers += visitor.polls(until)
        except Exception as error:  # told at the end; the others go on
            self.failed.append(f"{type(error).__name__}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="40 seconds instead of five minutes")
    parser.add_argument("--sessions", type=int, default=20)
    given = parser.parse_args()
    seconds, count = 40.0 if given.quick else 300.0, given.sessions
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        os.environ |= {"LACO_ENGINE": "tests.stand_in", "LACO_SLOTS": str(count)}
        store = RunStore(folder)
        runner = LocalRunner(store)
        stack.callback(store.close)
        model = ModelRef(path=f"asleep:{2 * seconds + 120:.0f}", revision="content:1")
        jobs = [
            runner.submit(Request(recipe=Recipe(model=model, steps=(Drop(layers=(place,)),))))
            for place in range(count)
        ]
        stack.callback(end, runner, jobs)
        port = free_port()
        server = served(stack, port, folder)
        while not all(status.state == "running" for status in runner.jobs()):
            time.sleep(0.5)
        sessions = Sessions(port, jobs)
        sessions.arrive()
        sessions.stay(seconds / 10)  # until all that is loaded once has been
        sessions.answers.clear()
        memory = [megabytes(server)]
        began, used = time.monotonic(), psutil.Process(server.pid).cpu_times()
        for _ in range(2):
            sessions.stay((seconds - seconds / 10) / 2)
            memory.append(megabytes(server))
        now, taken = psutil.Process(server.pid).cpu_times(), time.monotonic() - began
        busy = (now.user + now.system - used.user - used.system) / taken
        for visitor in sessions.visitors:
            visitor.close()
    tell(sessions, memory, seconds, busy)


def end(runner: LocalRunner, jobs: list[str]) -> None:
    """Stop the jobs, and wait until their processes are gone."""
    for job in jobs:
        runner.cancel(job)
    until = time.monotonic() + 30
    while runner.active() and time.monotonic() < until:
        time.sleep(0.5)


def tell(sessions: Sessions, memory: list[float], seconds: float, busy: float) -> None:
    """Print the figures; status 1 when a session failed or memory grew."""
    answers = sorted(sessions.answers)
    if sessions.failed or not answers:
        raise SystemExit(f"{len(sessions.failed)} sessions failed: {sessions.failed[:3]}")
    late = answers[int(0.95 * len(answers))]
    received = sum(visitor.bytes_received for visitor in sessions.visitors) / 1e6
    print(
        f"{len(sessions.visitors)} sessions for {seconds:.0f} s: {len(answers)} answers, "
        f"{received:.1f} MB; a page opened in {statistics.median(sessions.opened):.2f} s"
    )
    print(f"server: {busy:.0%} of a core, memory", " -> ".join(f"{mb:.0f} MB" for mb in memory))
    if memory[2] > FLAT * memory[1]:
        raise SystemExit(f"memory grew from {memory[1]:.0f} MB to {memory[2]:.0f} MB")
    print(f"95 of 100 answers within {late:.3f} s, the slowest in {answers[-1]:.3f} s")
    print(f"load {statistics.median(answers):.3f}")


if __name__ == "__main__":
    main()
