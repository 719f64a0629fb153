"""Kill workers, the scheduler and the server at random while tiny jobs run; count what is lost.

    python bench/faults.py --seconds 60 --jobs 40

Jobs are of a small function in the engine's place (`tests/fake_engine.py`), so that what is tried
is the queue. Afterwards each job must have ended: done, or failed after three deaths; none may
have been begun more often than it was attempted. Prints what was killed, how jobs ended, and
`jobs_lost 0`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from laco.evaluations import Request
from laco.jobs import LocalRunner, module_environment
from laco.queue import RETRIES, Queue
from laco.recipe import ModelRef, Recipe
from laco.store import RunStore

WORK_SECONDS = 0.5
SERVER = """
import sys, time
from laco.jobs import LocalRunner
from laco.store import RunStore
runner = LocalRunner(RunStore(sys.argv[1]), idle_seconds=1.0)
while True:
    runner.active()  # as a page does, which also brings a scheduler back
    time.sleep(0.2)
"""


def main() -> int:
    """Run it; the exit status is 1 when a job was lost or begun too often."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to kill")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ |= {"LACO_ENGINE": "tests.fake_engine", "LACO_SLOTS": "3"}
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Path(folder), given.seconds, given.jobs, random.Random(given.seed))
    print(json.dumps(found))
    print("jobs_lost", found["jobs_lost"])
    return 1 if found["jobs_lost"] or found["begun_too_often"] or found["two_at_once"] else 0


def soak(folder: Path, seconds: float, count: int, dice: random.Random) -> dict[str, object]:
    """Submit, kill for some seconds, then let all end."""
    store = RunStore(folder)
    runner = LocalRunner(store, idle_seconds=1.0)
    request = Request(recipe=Recipe(model=ModelRef(path=f"sleep:{WORK_SECONDS}")))
    jobs = [runner.submit(request) for _ in range(count)]
    queue, killed, server = Queue(store), Counter[str](), serve(folder)
    two_at_once = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end and queue.live():
        time.sleep(dice.uniform(0.2, 1.5))
        rows = [row for row in queue.live() if row["pid"] is not None]
        pids = [row["pid"] for row in rows if queue.is_at_work(row)]
        two_at_once += len(pids) - len(set(pids))
        choices = {"worker": pids[:1], "scheduler": schedulers(folder), "server": [server.pid]}
        names = list(choices) if dice.random() < 0.2 else [dice.choice(list(choices))]
        for name in names:  # all three at once, now and then
            for pid in choices[name]:
                if kill(pid):
                    killed[name] += 1
        killed["all at once"] += len(names) == 3
        if server.poll() is not None:
            server = serve(folder)
    deadline = time.monotonic() + 300
    while runner.active() and time.monotonic() < deadline:
        time.sleep(0.2)
    server.kill()
    server.wait()
    states = Counter(runner.status(job).state for job in jobs)
    ok = {
        job
        for job in jobs
        if runner.status(job).state == "done"
        or (runner.status(job).state == "failed" and runner.status(job).attempt == RETRIES + 1)
    }
    begun = {job: begun_of(folder, job) for job in jobs}
    return {
        "jobs": count,
        "killed": dict(killed),
        "states": dict(states),
        "attempts": dict(Counter(str(runner.status(job).attempt) for job in jobs)),
        "begun_too_often": sum(begun[job] > runner.status(job).attempt for job in jobs),
        "two_at_once": two_at_once,
        "jobs_lost": count - len(ok),
    }


def serve(folder: Path) -> subprocess.Popen[bytes]:
    """Something that looks at the jobs, as a page does."""
    return subprocess.Popen([sys.executable, "-c", SERVER, str(folder)], env=module_environment())


def schedulers(folder: Path) -> list[int]:
    """The scheduler of the store."""
    found: list[int] = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "laco.schedule" in line and str(folder) in line:
            found.append(process.pid)
    return found


def kill(pid: int) -> bool:
    """Whether there was such a process to kill."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def begun_of(folder: Path, job: str) -> int:
    """How often the engine was begun for a job."""
    file = folder / "jobs" / job / "runs.txt"
    return len(file.read_text().splitlines()) if file.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
