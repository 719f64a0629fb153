"""The scheduler and its workers as real processes, with a small function for an engine."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from laco import devices, schedule
from laco.errors import StoreError
from laco.jobs import LocalRunner, module_environment, python_module, start_scheduler
from laco.queue import Queue, is_alive
from laco.schedule import Scheduler
from laco.store import RunStore
from tests.test_jobs import ended, request_for, wait_for


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("LACO_ENGINE", "tests.fake_engine")
    monkeypatch.setenv("LACO_SLOTS", "2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def runner(tmp_path):
    store = RunStore(tmp_path)
    runner = LocalRunner(store, idle_seconds=0.5)
    yield runner
    for row in Queue(store).live():  # of a test that failed
        if row["pid"] is not None and is_alive(row["pid"], row["pid_created"]):
            os.killpg(row["pid"], signal.SIGKILL)
    for process in schedulers(store):
        process.kill()
        process.wait(10)
    store.close()


def schedulers(store: RunStore) -> list[psutil.Process]:
    """The processes that hold the store's lock open."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if "laco.schedule" in line and str(store.folder) in line:
            found.append(process)
    return found


def pid_of(runner: LocalRunner, job: str) -> int:
    """The process that works on a job, once it says that it does."""
    wait_for(lambda: runner.status(job).state == "running")
    return Queue(runner.store).row(job)["pid"]


def test_job_is_done_by_another_process_without_waiting_for_it(runner):
    begin = time.monotonic()
    job = runner.submit(request_for("sleep:0.5"))
    assert time.monotonic() - begin < 0.5
    status = ended(runner, job)
    assert status.state == "done"
    assert status.result is not None
    assert status.result["pid"] != os.getpid()
    assert status.result["cwd"] == str(Path.cwd())  # relative paths in a request hold
    assert status.attempt == 1


def test_running_job_tells_how_far_it_is(runner):
    job = runner.submit(request_for("sleep:30"))
    wait_for(lambda: runner.status(job).fraction > 0.02)
    status = runner.status(job)
    assert status.message == "asleep for 30 s"
    assert status.seconds_left is not None
    assert 10 < status.seconds_left < 60
    runner.cancel(job)
    assert ended(runner, job, 5).state == "cancelled"


def test_neither_scheduler_nor_idle_worker_imports_torch(runner):
    job = runner.submit(request_for("sleep:0"))
    result = ended(runner, job).result
    assert result is not None
    assert result["torch"] is False
    code = "import sys, laco.schedule, laco.worker, laco.jobs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_killed_worker_is_tried_again_and_succeeds(runner):
    job = runner.submit(request_for("die:1"))
    status = ended(runner, job)
    assert (status.state, status.attempt) == ("done", 2)


def test_worker_that_keeps_dying_fails_with_the_end_of_its_log(runner):
    job = runner.submit(request_for("die:9"))
    status = ended(runner, job)
    assert (status.state, status.attempt) == ("failed", 3)
    assert status.error is not None
    cause, _, rest = status.error.partition("\n")
    assert "killed by signal 9" in cause or "killed for memory" in cause
    assert "in attempt 3 of 3" in cause
    assert "last words" in rest


def test_worker_killed_from_outside_is_tried_again(runner):
    job = runner.submit(request_for("sleep:1"))
    os.kill(pid_of(runner, job), signal.SIGKILL)
    status = ended(runner, job)
    assert (status.state, status.attempt) == ("done", 2)


def test_worker_told_to_go_without_a_wish_to_cancel_is_tried_again(runner):
    job = runner.submit(request_for("sleep:1"))
    pid = pid_of(runner, job)
    wait_for(lambda: runner.status(job).fraction > 0)
    os.kill(pid, signal.SIGTERM)  # as when the machine goes down
    status = ended(runner, job)
    assert (status.state, status.attempt) == ("done", 2)


def test_error_in_the_work_is_not_tried_again(runner):
    job = runner.submit(request_for("fail"))
    status = ended(runner, job)
    assert (status.state, status.attempt) == ("failed", 1)
    assert status.error == "The model is of cheese; choose another."
    assert "Traceback" in runner.log(job)


def test_running_job_is_cancelled_within_seconds(runner):
    job = runner.submit(request_for("sleep:60"))
    pid_of(runner, job)
    begin = time.monotonic()
    runner.cancel(job)
    assert time.monotonic() - begin < 0.5
    assert ended(runner, job, 3).state == "cancelled"


def test_job_that_hears_nothing_is_killed(runner, monkeypatch):
    monkeypatch.setattr("laco.schedule._TERMINATE_SECONDS", 0.2)
    monkeypatch.setattr("laco.schedule._KILL_SECONDS", 0.6)
    monkeypatch.setattr("laco.jobs.start_scheduler", lambda *_: False)
    scheduler = Scheduler(runner.store, ["cpu"])  # in this process, so that it is that impatient
    job = runner.submit(request_for("stubborn:60"))
    scheduler.tick()
    wait_for(lambda: runner.status(job).message == "hears nothing")
    runner.cancel(job)
    wait_for(lambda: not scheduler.tick(), 5)
    status = runner.status(job)
    assert (status.state, status.error) == ("cancelled", None)


def test_what_a_worker_started_does_not_outlive_it(runner):
    job = runner.submit(request_for("child"))
    folder = ended(runner, job).folder
    child = int((folder / "child").read_text())
    wait_for(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie", 5)


def test_jobs_beyond_the_slots_wait_their_turn(runner):
    jobs = [runner.submit(request_for("sleep:0.3")) for _ in range(3)]
    most = 0
    while any(runner.status(job).active for job in jobs):
        working = [s for s in runner.active() if s.state in ("starting", "running")]
        most = max(most, len(working))
        time.sleep(0.05)
    assert most == 2
    assert {runner.status(job).state for job in jobs} == {"done"}


def test_scheduler_ends_when_idle_and_the_next_submit_starts_another(runner):
    ended(runner, runner.submit(request_for("sleep:0")))
    (first,) = schedulers(runner.store)
    wait_for(lambda: not schedulers(runner.store))
    job = runner.submit(request_for("sleep:0"))
    wait_for(lambda: len(schedulers(runner.store)) == 1)
    (second,) = schedulers(runner.store)
    assert second.pid != first.pid
    assert ended(runner, job).state == "done"


def test_lock_is_given_back_while_nobody_can_queue(runner, monkeypatch):
    released = []
    monkeypatch.setattr("laco.index._BUSY_SECONDS", 0.0)
    submitter = LocalRunner(RunStore(runner.store.folder))

    def flock(_lock: int, operation: int) -> None:
        with pytest.raises(StoreError, match="locked"):
            submitter.queue.add(request_for("x"), "")
        released.append(operation)

    with (runner.store.folder / "scheduler.lock").open("w") as lock:
        monkeypatch.setattr(schedule.fcntl, "flock", flock)
        schedule.serve(runner.store, lock.fileno(), idle_seconds=0.0)
    assert released == [fcntl.LOCK_UN]
    submitter.store.close()


def test_scheduler_does_not_go_when_a_job_came_at_the_last_moment(runner, monkeypatch):
    monkeypatch.setattr("laco.jobs.start_scheduler", lambda *_: False)
    jobs = []

    def tick(scheduler: Scheduler) -> bool:
        if not jobs:  # nothing was seen, and right afterwards something comes
            jobs.append(runner.submit(request_for("x")))
            return False
        runner.cancel(jobs[0])
        return False

    monkeypatch.setattr(Scheduler, "tick", tick)
    with (runner.store.folder / "scheduler.lock").open("w") as lock:
        schedule.serve(runner.store, lock.fileno(), idle_seconds=-1.0)
    assert runner.status(jobs[0]).state == "cancelled"  # so there was a second look


def test_submits_while_the_scheduler_goes_are_not_left_behind(tmp_path):
    store = RunStore(tmp_path)
    runner = LocalRunner(store, idle_seconds=0.0)  # goes whenever it sees an empty queue
    queue = Queue(store)
    jobs = []
    for _ in range(4):
        jobs.append(runner.submit(request_for("sleep:0")))
        # Looked at through the queue: the runner itself would start a scheduler again.
        wait_for(lambda: queue.row(jobs[-1])["state"] == "done")
    assert [queue.row(job)["attempt"] for job in jobs] == [1] * 4
    wait_for(lambda: not schedulers(store))
    store.close()


def test_many_submitters_at_once_start_one_scheduler(runner, tmp_path):
    code = f"""
import sys
from laco import ModelRef, Recipe, Request
from laco.jobs import LocalRunner
from laco.store import RunStore
runner = LocalRunner(RunStore({str(tmp_path)!r}), idle_seconds=0.5)
print("ready", flush=True)
sys.stdin.read()
for _ in range(2):
    print(runner.submit(Request(recipe=Recipe(model=ModelRef(path="sleep:0")))))
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    printed = [process.communicate(timeout=30)[0] for process in processes]
    assert sum(len(text.split()) for text in printed) == 6
    wait_for(lambda: len(runner.jobs()) == 6 and not runner.active())
    assert {status.state for status in runner.jobs()} == {"done"}
    assert {status.attempt for status in runner.jobs()} == {1}
    said = (tmp_path / "scheduler.log").read_text()
    assert said.count(" slots") == 1, said
    assert "Traceback" not in said


def test_worker_goes_on_without_its_scheduler_and_the_next_one_finds_it(runner):
    job = runner.submit(request_for("sleep:5"))
    pid = pid_of(runner, job)
    (scheduler,) = schedulers(runner.store)
    scheduler.kill()
    wait_for(lambda: not schedulers(runner.store))
    assert psutil.pid_exists(pid)

    def found() -> bool:
        """Looking is enough to start the next one, once the dead one's lock is free."""
        assert runner.status(job).state in ("running", "done")
        return len(schedulers(runner.store)) == 1

    wait_for(found)
    status = ended(runner, job)
    assert (status.state, status.attempt) == ("done", 1)
    assert status.result is not None
    assert status.result["pid"] == pid


def test_second_scheduler_by_hand_is_refused(runner):
    job = runner.submit(request_for("sleep:30"))
    command = [*python_module("laco.schedule"), str(runner.store.folder)]
    second = subprocess.run(
        command, env=module_environment(), capture_output=True, text=True, check=False
    )
    assert second.returncode == 1
    assert "has a scheduler already" in second.stderr
    assert start_scheduler(runner.store) is False
    runner.cancel(job)
    ended(runner, job)


def test_folder_that_is_no_job_is_said(tmp_path):
    command = [*python_module("laco.worker"), str(tmp_path)]
    done = subprocess.run(
        command, env=module_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "holds no job.json" in done.stderr


def test_request_that_cannot_be_read_fails_with_its_fault(runner):
    job = runner.queue.add(request_for("sleep:0"), "broken")
    file = runner.store.folder / "jobs" / job / "job.json"
    file.write_text(json.dumps({"recipe": {"model": {"path": "x"}, "stepps": []}}))
    start_scheduler(runner.store, 0.5)
    error = ended(runner, job).error
    assert error is not None
    assert "recipe.stepps: there is no such field" in error


def test_worker_gets_a_gpu_of_its_own_and_its_share_of_cores(runner, monkeypatch):
    monkeypatch.setattr("laco.jobs.start_scheduler", lambda *_: False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(devices, "cores", lambda: 16)
    scheduler = Scheduler(runner.store, ["0", "GPU-b"])
    jobs = [runner.submit(request_for("sleep:0.5")) for _ in range(2)]
    wait_for(lambda: not scheduler.tick())
    results = [runner.status(job).result or {} for job in jobs]
    assert [result["device"] for result in results] == ["0", "GPU-b"]
    assert [result["threads"] for result in results] == ["8", "8"]


def test_number_of_another_process_is_not_taken_for_the_worker():
    own = psutil.Process()
    assert is_alive(own.pid, own.create_time())
    assert not is_alive(own.pid, own.create_time() - 100)
    child = subprocess.Popen([sys.executable, "-c", ""])
    created = psutil.Process(child.pid).create_time()
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert not is_alive(child.pid, created)
    child.wait()
