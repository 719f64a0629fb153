"""Processes killed for real, in the worst moments: no job is lost, none runs twice, all end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from laco import causes, engine, locks, worker
from laco.context import Context
from laco.evaluations import Perplexity, Request
from laco.jobs import LocalRunner, module_environment, python_module
from laco.queue import LOCK, Queue
from laco.recipe import (
    Calibration,
    Collapse,
    Compensate,
    ModelRef,
    Prune,
    Recipe,
    Wanda,
)
from laco.rework import STATE
from laco.schedule import Scheduler
from laco.store import RunStore
from tests import tiny
from tests.test_jobs import ended, request_for, wait_for
from tests.test_schedule import pid_of, schedulers


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LACO_ENGINE", "tests.fake_engine")
    monkeypatch.setenv("LACO_SLOTS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[LocalRunner]:
    store = RunStore(tmp_path)
    runner = LocalRunner(store, idle_seconds=0.5)
    yield runner
    for process in schedulers(store):  # of a test that failed
        process.kill()
        process.wait(10)
    for row in Queue(store).live():
        if row["pid"] is not None and Queue(store).is_at_work(row):
            os.killpg(row["pid"], signal.SIGKILL)
    store.close()


@pytest.fixture
def still(runner: LocalRunner, monkeypatch: pytest.MonkeyPatch) -> LocalRunner:
    """A runner that starts no scheduler: the test's own `Scheduler` is the one."""
    monkeypatch.setattr("laco.jobs.start_scheduler", lambda *_: False)
    monkeypatch.setattr("laco.queue._ORPHANED_SECONDS", 0.0)
    return runner


def runs(runner: LocalRunner, job: str) -> int:
    """How often the engine was begun for a job."""
    return len((runner.status(job).folder / "runs.txt").read_text().splitlines())


def begun(runner: LocalRunner, job: str) -> bool:
    return (runner.status(job).folder / "runs.txt").exists()


def start_worker(runner: LocalRunner, job: str, attempt: int = 1) -> subprocess.Popen[bytes]:
    """A worker as the scheduler starts it, of which nothing is noted."""
    folder = runner.store.folder / "jobs" / job
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [*python_module("laco.worker"), str(folder)],
            env={**module_environment(), "LACO_ATTEMPT": str(attempt)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def test_server_scheduler_and_worker_killed_at_once_lose_no_job(
    runner: LocalRunner, tmp_path: Path
):
    code = f"""
import time
from laco.jobs import LocalRunner
from laco.store import RunStore
from tests.test_jobs import request_for
runner = LocalRunner(RunStore({str(tmp_path)!r}), idle_seconds=0.5)
for seconds in (60, 60, 0):
    print(runner.submit(request_for(f"sleep:{{seconds}}")), flush=True)
time.sleep(600)
"""
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    jobs = [server.stdout.readline().strip() for _ in range(3)]
    queue = Queue(runner.store)
    wait_for(lambda: [queue.row(job)["state"] for job in jobs[:2]] == ["running"] * 2)
    wait_for(lambda: all(begun(runner, job) for job in jobs[:2]))
    victims = [server.pid, *(p.pid for p in schedulers(runner.store))]
    victims += [queue.row(job)["pid"] for job in jobs[:2]]
    assert len(victims) == 4
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    server.communicate()
    assert [status.state for status in runner.jobs()] == ["queued", "running", "running"]
    # As pages do, look until a scheduler is there: the killed one may still be on its way out.
    wait_for(lambda: bool(runner.jobs()) and all(queue.row(j)["attempt"] == 2 for j in jobs[:2]))
    for job in jobs[:2]:
        wait_for(lambda job=job: runs(runner, job) == 2)
        runner.cancel(job)
        assert ended(runner, job).state == "cancelled"
        assert runs(runner, job) == 2
    last = ended(runner, jobs[2])
    assert (last.state, last.attempt) == ("done", 1)


def test_scheduler_killed_between_claim_and_start_loses_no_job(still: LocalRunner):
    job = still.submit(request_for("sleep:0"))
    assert Queue(still.store).claim(1) is not None  # and then it is gone
    scheduler = Scheduler(still.store, ["cpu"])
    wait_for(lambda: not scheduler.tick())
    assert (still.status(job).state, still.status(job).attempt) == ("done", 1)
    assert runs(still, job) == 1


def test_worker_that_was_started_but_never_noted_is_found(still: LocalRunner):
    job = still.submit(request_for("sleep:0.5"))
    assert Queue(still.store).claim(1) is not None
    process = start_worker(still, job)
    wait_for(lambda: locks.is_taken(still.store.folder / "jobs" / job / LOCK))
    scheduler = Scheduler(still.store, ["cpu"])
    wait_for(lambda: bool(process.poll() is not None) or not scheduler.tick())
    wait_for(lambda: not scheduler.tick())
    status = still.status(job)
    assert (status.state, status.attempt) == ("done", 1)
    assert status.result is not None
    assert status.result["pid"] == process.pid
    assert runs(still, job) == 1


def test_worker_that_comes_too_late_is_sent_away(still: LocalRunner):
    job = still.submit(request_for("sleep:0"))
    assert Queue(still.store).claim(1) is not None
    late = start_worker(still, job)
    late.send_signal(signal.SIGSTOP)  # as on a machine that is short of everything
    scheduler = Scheduler(still.store, ["cpu"])
    wait_for(lambda: not scheduler.tick())
    assert still.status(job).state == "done"
    late.send_signal(signal.SIGCONT)
    assert late.wait(30) == worker.SURPLUS
    assert runs(still, job) == 1
    assert still.status(job).state == "done"


def test_second_worker_of_a_job_leaves_it_to_the_first(still: LocalRunner):
    job = still.submit(request_for("sleep:30"))
    queue = Queue(still.store)
    assert queue.claim(1) is not None
    first = start_worker(still, job)
    wait_for(lambda: bool(queue.report(queue.row(job))))
    second = start_worker(still, job)
    queue.started(job, second.pid, psutil.Process(second.pid).create_time())
    assert second.wait(30) == worker.SURPLUS
    scheduler = Scheduler(still.store, ["cpu"])
    scheduler.tick()
    assert queue.row(job)["pid"] == first.pid
    assert runs(still, job) == 1
    still.cancel(job)
    wait_for(lambda: first.poll() is not None or not scheduler.tick())
    wait_for(lambda: not scheduler.tick())
    assert still.status(job).state == "cancelled"


def test_after_a_restart_of_the_machine_stale_numbers_and_locks_hold_nothing(still: LocalRunner):
    job, queue = still.submit(request_for("sleep:0")), Queue(still.store)
    assert queue.claim(1) is not None
    own = psutil.Process()  # a process that has the worker's number since
    queue.started(job, own.pid, own.create_time() - 1e5)
    folder = still.store.folder / "jobs" / job
    report = {"attempt": 1, "state": "running", "fraction": 0.5, "message": "far"}
    report |= {"started": 1.0, "ended": None, "error": None, "seconds_left": None}
    report |= {"pid": own.pid, "pid_created": own.create_time() - 1e5, "updated": 1.0}
    (folder / "status.json").write_text(json.dumps(report))
    (folder / LOCK).touch()
    (still.store.folder / "scheduler.lock").touch()
    (still.store.folder / "locks").mkdir()
    assert still.status(job).state == "running"
    scheduler = Scheduler(still.store, ["cpu"])
    wait_for(lambda: not scheduler.tick())
    assert (still.status(job).state, still.status(job).attempt) == ("done", 2)
    assert own.is_running()


def test_job_whose_files_are_spoilt_does_not_stop_the_others(still: LocalRunner):
    spoilt, sound = still.submit(request_for("sleep:0")), still.submit(request_for("sleep:0"))
    queue = Queue(still.store)
    assert queue.claim(1) is not None
    queue.started(spoilt, os.getpid(), psutil.Process().create_time())
    folder = still.store.folder / "jobs" / spoilt
    (folder / "status.json").write_text('{"attempt": 1}')
    scheduler = Scheduler(still.store, ["cpu", "cpu"])
    for _ in range(100):
        scheduler.tick()
        if queue.row(sound)["state"] == "done":
            break
        time.sleep(0.1)
    assert queue.row(sound)["state"] == "done"
    queue.fail(queue.row(spoilt), "over")


def test_clock_that_was_set_does_not_make_a_worker_dead(still: LocalRunner):
    job, queue = still.submit(request_for("sleep:30")), Queue(still.store)
    scheduler = Scheduler(still.store, ["cpu"])
    scheduler.tick()
    wait_for(lambda: bool(queue.report(queue.row(job))))
    row = queue.row(job)
    queue.started(job, row["pid"], row["pid_created"] - 3600)
    scheduler.tick()
    assert (queue.row(job)["attempt"], queue.is_at_work(queue.row(job))) == (1, True)
    still.cancel(job)
    wait_for(lambda: not scheduler.tick())


def test_lock_ends_with_its_process_and_not_with_its_children(tmp_path: Path):
    code = f"""
import os, sys, time
from pathlib import Path
from laco import locks
assert locks.take(Path({str(tmp_path / "lock")!r}))
if os.fork():
    print("taken", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"taken\n"
    assert locks.is_taken(tmp_path / "lock")
    assert not locks.take(tmp_path / "lock")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not locks.is_taken(tmp_path / "lock")
    with locks.alone(tmp_path / "lock", lambda: pytest.fail("nobody has it")):
        assert locks.is_taken(tmp_path / "lock"), "it holds within this process too"
    assert not (tmp_path / "lock").exists()
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()


@pytest.mark.parametrize(
    ("code", "oom_kills", "report", "words"),
    [
        (-9, 1, {}, "killed for memory: the machine had none left"),
        (-9, 0, {"memory": 9e9, "memory_free": 1e8, "memory_total": 16e9}, "it held 9.0 GB"),
        (-9, 0, {"memory": 1e9, "memory_free": 9e9, "memory_total": 16e9}, "by signal 9: by some"),
        (-11, 0, {}, "killed by signal 11: a crash inside a library"),
        (-7, 0, {}, "killed by signal 7: a file or shared memory that had no room"),
        (-15, 0, {}, "killed by signal 15: as when the machine goes down"),
        (-64, 0, {}, "killed by signal 64"),
        (3, 0, {}, "ended early, with exit status 3"),
        (None, 0, {}, "gone when nobody watched it"),
        (None, 2, {}, "killed for memory"),
    ],
)
def test_death_is_told_in_words(code: Any, oom_kills: int, report: Any, words: str):
    assert words in causes.of_death(code, oom_kills, report)[0]


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            OutOfMemoryError("CUDA out of memory. Tried 2 GiB.\nmore"),
            "CUDA out of memory while: la",
        ),
        (MemoryError(), "Out of memory while: layer 3"),
        (OSError(28, "No space left on device"), "No space left on the disk while: layer 3"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_error_is_told_in_words(error: Exception, words: str):
    assert causes.of_error(error, "layer 3").startswith(words)


def test_killed_compensation_goes_on_at_its_layer_and_ends_bit_for_bit_the_same(
    runner: LocalRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("LACO_ENGINE")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "text.txt").write_text(
        "\n\n".join(f"The {n} small birds sat in the {n % 7} trees. " * 3 for n in range(200))
    )
    text = Calibration(source=f"file:{tmp_path / 'text.txt'}", windows=8, length=16)
    repair = Compensate(epochs=10, batch_tokens=16, held_out=2, calibration=text)
    model = ModelRef(path=str(tiny.save(tiny.redundant(), tmp_path / "tiny")))
    steps = (
        Collapse(target_layers=5, calibration=text),
        Prune(method=Wanda(), calibration=text),
        repair,
    )
    perplexity = Perplexity(source=text.source, window=16, windows=4)
    request = Request(recipe=Recipe(model=model, steps=steps), evaluations=(perplexity,))
    keys = engine.settle(request.recipe, runner.store).keys()
    walk = runner.store.unfinished(keys[3]) / STATE

    job = runner.submit(request)
    pid = pid_of(runner, job)
    while not (walk.exists() and len(json.loads(walk.read_text())["layers"]) >= 2):
        assert psutil.pid_exists(pid)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    done = len(json.loads(walk.read_text())["layers"])
    assert 2 <= done < 5, "it was killed inside the step"
    first = len(runner.log(job).splitlines())
    status = ended(runner, job, 120)
    assert (status.state, status.attempt) == ("done", 2), status.error
    assert status.result is not None
    again = "\n".join(runner.log(job).splitlines()[first:])
    assert f"layer {done - 1}: epoch" not in again

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    other = RunStore(tmp_path / "other")
    try:
        whole = engine.run(request, other, Context())
    finally:
        torch.set_num_threads(threads)
    assert whole["key"] == status.result["key"]
    assert whole["metrics"] == status.result["metrics"]
    for key in keys[1:]:
        assert contents(runner.store, key) == contents(other, key)
    other.close()


def contents(store: RunStore, key: str) -> dict[str, bytes]:
    """The bytes of a result's files, but for recipe.json, which tells of times."""
    artifact = store.artifact(key)
    assert artifact is not None
    assert artifact.path is not None
    found = {
        path.name: path.read_bytes()
        for path in artifact.path.iterdir()
        if path.name != "recipe.json"
    }
    assert any(name.endswith(".safetensors") for name in found)
    return found
