"""Jobs at SLURM: through submitit, with programs that stand where SLURM's are, and without them."""

import gc
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from laco.errors import JobError
from laco.jobs import LocalRunner
from laco.places import kept, slurm, watch
from laco.places.kept import Places, SlurmOptions
from laco.places.place import Capacity, Work
from laco.places.slurm import Slurm
from laco.schedule import Scheduler
from laco.store import RunStore
from tests import fake_slurm
from tests.test_jobs import request_for

pytest.importorskip("submitit", reason="the extra `slurm` is not installed")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A SLURM of this test's own: the folder that it keeps."""
    folder, programs = tmp_path / "slurm", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    fake_slurm.install(programs)
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """A runner whose scheduler is in this process and looks often."""
    monkeypatch.setenv("LACO_ENGINE", "tests.fake_engine")
    monkeypatch.setattr("laco.jobs.start_scheduler", lambda *_: False)
    store = RunStore(tmp_path / "store")
    yield LocalRunner(store)
    store.close()
    for process in gc.get_objects():  # which submitit leaves to whoever started it
        if type(process) is subprocess.Popen and "submitit" in str(process.args):
            process.kill()
            process.wait()


def settings(runner: LocalRunner, **options) -> None:
    kept.keep(runner.store.folder, Places(slurm=SlurmOptions(gpus=0, **options)))


def until(runner: LocalRunner, condition, scheduler: Scheduler | None = None, seconds=30.0):
    """Let a scheduler work until it is so."""
    scheduler = scheduler or Scheduler(runner.store, [])
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, [vars(status) for status in runner.jobs()]
        scheduler._elsewhere._next.clear()  # no patience
        scheduler.tick()
        time.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def calls(fake: Path) -> list[str]:
    return (fake / "calls.txt").read_text().splitlines()


def test_job_runs_with_the_options_of_the_settings_and_is_told_apart_by_its_attempt(fake, runner):
    settings(runner, partition="short", minutes=30, cpus=2, memory_gb=8, account="lab")
    job = runner.submit(request_for("sleep:0.2"), on="slurm")
    until(runner, lambda: not runner.status(job).active)
    status = runner.status(job)
    assert (status.state, status.attempt, status.place) == ("done", 1, "slurm"), status.error
    assert status.result is not None
    assert (status.result["threads"], status.result["device"]) == ("2", "")
    assert status.result["torch"] is False
    text = (fake / "101.sh").read_text()
    for line in (
        f"--job-name=laco-{job}-a1",
        "--partition=short",
        "--time=30",
        "--cpus-per-task=2",
        "--mem=8GB",
        "--account=lab",
        "--no-requeue",
    ):
        assert f"#SBATCH {line}\n" in text
    assert sum(call.startswith("sbatch") for call in calls(fake)) == 1


def test_waiting_job_says_what_it_asks_for_and_what_there_is_and_can_be_cancelled(fake, runner):
    (fake / "full").touch()
    kept.keep(runner.store.folder, Places(slurm=SlurmOptions(gpus=2)))
    job = runner.submit(request_for("sleep:0"), on="slurm")
    until(runner, lambda: runner.status(job).message != "")
    status = runner.status(job)
    assert status.state == "queued"
    assert status.message == (
        "Waits for resources (Resources): it asks for 2 GPUs; slurm has 3 nodes, 8 GPUs, "
        "24 CPUs (21 free)"
    )
    runner.cancel(job)
    until(runner, lambda: not runner.status(job).active)
    assert runner.status(job).state == "cancelled"
    assert "scancel 101" in calls(fake)
    assert not (status.folder / "status.json").exists()


def test_running_job_hears_of_the_cancel_through_its_folder(fake, runner):
    settings(runner)
    job = runner.submit(request_for("sleep:60"), on="slurm")
    until(runner, lambda: runner.status(job).fraction > 0)
    runner.cancel(job)
    until(runner, lambda: not runner.status(job).active)
    assert runner.status(job).state == "cancelled"
    assert not [call for call in calls(fake) if call.startswith("scancel")]


def test_job_that_does_not_look_is_stopped_by_slurm(fake, runner, monkeypatch):
    monkeypatch.setattr(watch, "_STOP_SECONDS", 0.1)
    settings(runner)
    job = runner.submit(request_for("deaf:60"), on="slurm")
    until(runner, lambda: runner.status(job).message == "hears nothing")
    runner.cancel(job)
    until(runner, lambda: not runner.status(job).active)
    assert runner.status(job).state == "cancelled"
    assert [call for call in calls(fake) if call.startswith("scancel")]


def test_killed_worker_is_tried_again_by_laco_and_the_words_are_slurms(fake, runner, capsys):
    settings(runner)
    job = runner.submit(request_for("die:1"), on="slurm")
    until(runner, lambda: not runner.status(job).active)
    assert (runner.status(job).state, runner.status(job).attempt) == ("done", 2)
    told = capsys.readouterr().out  # submitit's process may end well all the same
    assert "at slurm ended by SLURM (FAILED)" in told or "SLURM says that it ended well" in told


def test_next_scheduler_finds_the_job_and_one_that_died_before_it_could_say(fake, runner):
    settings(runner)
    job = runner.submit(request_for("sleep:2"), on="slurm")
    until(runner, lambda: runner.status(job).state == "running")
    with runner.store.index.transaction() as index:  # as if the first had died right after sbatch
        index.execute("UPDATE jobs SET handle = NULL")
    until(runner, lambda: not runner.status(job).active, Scheduler(runner.store, []))
    assert (runner.status(job).state, runner.status(job).attempt) == ("done", 1)
    assert sum(call.startswith("sbatch") for call in calls(fake)) == 1


def test_submitits_own_executor_does_the_same_here(runner):
    settings(runner, executor="local")
    job = runner.submit(request_for("sleep:1"), on="slurm")
    first = Scheduler(runner.store, [])
    until(runner, lambda: runner.status(job).state == "running", first)
    os.kill(runner.queue.report(runner.queue.row(job))["pid"], signal.SIGKILL)
    until(runner, lambda: not runner.status(job).active, first)
    assert (runner.status(job).state, runner.status(job).attempt) == ("done", 2)
    other = runner.submit(request_for("sleep:60"), on="slurm")
    until(runner, lambda: runner.status(other).state == "running", first)
    pid = runner.queue.report(runner.queue.row(other))["pid"]
    place = first._elsewhere._place("slurm")
    place.cancel(runner.queue.row(other)["handle"])  # without a word in the folder
    until(runner, lambda: not lives(pid), first)
    runner.cancel(other)
    until(runner, lambda: not runner.status(other).active, first)
    assert runner.status(other).state == "cancelled"


def test_missing_package_or_programs_are_one_sentence(runner, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match="There is no sbatch here; start laco on a machine"):
        runner.submit(request_for("x"), on="slurm")
    monkeypatch.setitem(__import__("sys").modules, "submitit", None)
    with pytest.raises(JobError, match=r"submitit, which is not installed; run `pip install"):
        runner.submit(request_for("x"), on="slurm")
    assert runner.jobs() == []


def test_slurm_that_says_no_is_told_and_the_job_waits(fake, runner, monkeypatch):
    settings(runner)
    job = runner.submit(request_for("x"), on="slurm")
    (fake.parent / "bin" / "squeue").write_text("#!/bin/sh\necho 'no controller.' >&2; exit 1\n")
    Scheduler(runner.store, []).tick()
    status = runner.status(job)
    assert (status.state, status.attempt) == ("queued", 0)
    assert status.message == "squeue says no (no controller); see that SLURM runs."


def test_capacity_is_read_from_sinfo(fake):
    assert Slurm(SlurmOptions()).capacity() == Capacity(3, 8, 24, None, 21, 4)
    (fake.parent / "bin" / "sinfo").write_text("#!/bin/sh\necho 'n/a|?|?'\n")
    with pytest.raises(JobError, match=r"sinfo tells no nodes and processors .n/a"):
        Slurm(SlurmOptions()).capacity()


def test_what_slurm_starts_becomes_the_worker(fake, tmp_path):
    """SIGTERM has to reach Python: no shell and no submitit may stand in between."""
    line = Work("x", 1, tmp_path / "a b", tmp_path).shell("slurm", "", 3, gpu=False)
    assert "; exec env LACO_ATTEMPT=1 LACO_PLACE=slurm" in line
    assert f">>'{tmp_path}/a b/log.txt' 2>&1" in line
    assert "CUDA_VISIBLE_DEVICES= " in line
    assert slurm.TIMEOUT < 60
