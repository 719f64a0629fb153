"""Where jobs run: settings, names, who may use them; what a worker on another machine leaves."""

import errno
import fcntl
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from laco import Metric, Perplexity, Similarity, access, locks, places, upkeep
from laco.access import Person
from laco.errors import JobError
from laco.jobs import LocalRunner
from laco.places import kept
from laco.places.kept import Places, RayOptions, SlurmOptions
from laco.places.place import PLACE, Capacity, Seen
from laco.places.watch import Watch
from laco.programs import module_environment, python_module
from laco.queue import Queue
from laco.recipe import Drop, ModelRef, Recipe
from laco.store import RunStore
from tests.test_jobs import request_for, wait_for

ADDRESS = "http://head.lab:8265"
MODEL = Recipe(model=ModelRef(path="org/Tiny", revision="content:1", dtype="float32"))
METRIC = Metric("perplexity[x]", 12.5, "", "lower")


class Pretended:
    """A place that says what a test wants it to, and notes what it is told."""

    name = f"ray:{ADDRESS}"
    patience = 0.0

    def __init__(self) -> None:
        self.says: Seen | JobError = Seen("waiting", "Waits for resources")
        self.told: list[str] = []

    def check(self) -> None:
        if isinstance(self.says, JobError):
            raise self.says

    def submit(self, work) -> str:
        self.check()
        self.told.append(f"submit {work.attempt}")
        return work.name

    def state(self, _handle: str) -> Seen:
        self.check()
        assert isinstance(self.says, Seen)
        return self.says

    def cancel(self, _handle: str) -> None:
        self.told.append("cancel")

    def capacity(self) -> Capacity:
        return Capacity(1, 1, 8, 0, 8, 1)


@pytest.fixture
def store(tmp_path):
    opened = RunStore(tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture
def far(store, monkeypatch):
    """A place that is pretended, and a job that was sent to it."""
    place = Pretended()
    monkeypatch.setattr("laco.jobs.start_scheduler", lambda *_: False)
    monkeypatch.setattr(places, "place", lambda *_: place)
    kept.keep(store.folder, Places(ray=RayOptions(address=ADDRESS)))
    runner = LocalRunner(store)
    return place, runner, runner.submit(request_for("x"), on=place.name), Watch(runner.queue, store)


@pytest.mark.parametrize(
    "text",
    [
        "head:8265",
        "ftp://head:8265",
        "file:///etc/passwd",
        "http://",
        "http://head:8265/api",
        "http://user:word@head:8265",
        "http://head:82a65",
        "http://head:8265?x=1",
        "",
    ],
)
def test_only_the_address_of_a_dashboard_is_taken(text):
    with pytest.raises(JobError, match=r"no address of a Ray cluster|No Ray cluster is named"):
        places.place(Path("/nowhere"), f"ray:{text}")


def test_names_of_places(store):
    assert places.configured(store.folder) == ["local"]
    with pytest.raises(JobError, match="No Ray cluster is named; write ray:http"):
        places.place(store.folder, "ray")
    with pytest.raises(JobError, match="moon is no place for jobs; choose local, ray:http"):
        places.named(store.folder, "moon")
    chosen = Places(ray=RayOptions(address=ADDRESS + "/", gpus=4), slurm=SlurmOptions())
    kept.keep(store.folder, chosen)
    assert kept.read(store.folder) == chosen
    assert places.configured(store.folder) == ["local", f"ray:{ADDRESS}", "slurm"]
    for name in ("ray", f"ray:{ADDRESS}"):
        assert places.place(store.folder, name).options.gpus == 4  # type: ignore[attr-defined]
    other = places.place(store.folder, "ray:https://other:1")
    assert other.options.gpus == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ('{"ray": {}}', "ray.address"),
        ('{"ray": {"address": "http://a:1", "token": "x"}}', "ray.token"),
        ('{"slurm": {"partition": "a b; rm"}}', "slurm.partition"),
        ('{"slurm": {"gpus": -1}}', "slurm.gpus"),
    ],
)
def test_settings_that_cannot_be_used_are_one_sentence(store, text, words):
    (store.folder / kept.FILE).write_text(text)
    with pytest.raises(JobError, match=words) as told:
        places.configured(store.folder)
    assert "\n" not in str(told.value)


def test_visitor_sends_jobs_to_named_places_alone_and_names_none(store, far):
    place, _, _, _ = far
    visitor = LocalRunner(store, who=Person("a@lab.org", "runner"))
    assert visitor.submit(request_for("y"), on=place.name)
    with pytest.raises(JobError, match="not among the places that the settings"):
        visitor.submit(request_for("y"), on="ray:http://elsewhere:8265")
    roles = [Person("a", "viewer"), Person("a", "runner"), Person("a", "admin"), access.LOCAL]
    assert [who.may_set for who in roles] == [False, False, True, True]


def test_local_slots_pass_over_jobs_for_other_places(far):
    place, runner, _, watch = far
    assert runner.queue.claim(slots=1) is None
    watch.tick()
    here = runner.submit(request_for("x"))
    row = runner.queue.claim(slots=1)  # what runs elsewhere takes no slot
    assert row is not None
    assert row["id"] == here
    assert place.told == ["submit 1"]


def test_place_that_does_not_answer_keeps_its_jobs_waiting_and_no_attempt_is_lost(far):
    place, runner, job, watch = far
    place.says = JobError("The Ray cluster does not answer.")
    watch.tick()
    watch.tick()  # left alone for a while
    status = runner.status(job)
    assert (status.state, status.attempt) == ("queued", 0)
    assert status.message == "The Ray cluster does not answer."
    watch._away.clear()
    place.says = Seen("waiting", "Waits for 1 GPU")
    watch.tick()
    watch.tick()
    assert (runner.status(job).attempt, runner.status(job).message) == (1, "Waits for 1 GPU")
    assert runner.status(job).state == "queued"  # to who looks: it has not begun


def test_lost_job_is_given_up_only_when_its_worker_is_silent(far, monkeypatch):
    place, runner, job, watch = far
    watch.tick()
    report = {"attempt": 1, "state": "running", "started": 1.0, "updated": 1.0, "host": "n1"}
    report |= {"fraction": 0.5, "message": "m", "error": None, "ended": None, "seconds_left": None}
    file = runner.status(job).folder / "status.json"
    file.write_text(json.dumps(report))
    watch.tick()
    assert runner.status(job).device == "n1"
    place.says = Seen("lost", "lost with its node")
    watch.tick()
    assert runner.status(job).state == "running"
    monkeypatch.setattr("laco.places.watch.SILENT_SECONDS", -1.0)
    watch.tick()
    assert runner.status(job).message.startswith("The worker was lost with its node; trying again")
    assert place.told == ["submit 1", "submit 2"]


def test_end_in_the_folder_counts_though_the_place_is_gone(far):
    place, runner, job, watch = far
    watch.tick()
    folder = runner.status(job).folder
    now = time.time()
    report = {"attempt": 1, "state": "done", "started": now, "updated": now, "ended": now}
    report |= {"fraction": 1.0, "message": "m", "error": None, "seconds_left": None}
    (folder / "status.json").write_text(json.dumps(report))
    place.says = JobError("The Ray cluster does not answer.")
    watch.tick()
    assert Queue(runner.store).row(job)["state"] == "done"


def test_wish_to_cancel_what_waits_is_granted_at_once(far):
    place, runner, job, watch = far
    watch.tick()
    runner.cancel(job)
    watch.tick()
    assert runner.status(job).state == "cancelled"
    assert place.told == ["submit 1", "cancel"]


def test_retry_goes_to_the_same_place(far):
    place, runner, job, watch = far
    watch.tick()
    runner.cancel(job)
    watch.tick()
    assert runner.status(runner.retry(job)).place == place.name


def test_place_is_known_after_the_index_was_lost(far):
    place, runner, job, _ = far
    with runner.store.index.transaction() as index:
        index.execute("DELETE FROM jobs")
    runner.store.rebuild()
    assert runner.status(job).place == place.name


def test_worker_on_another_machine_leaves_the_index_alone(store, monkeypatch):
    """SQLite's WAL cannot be shared between machines; the files can, and are taken in later."""
    queue = Queue(store)
    job = queue.add(request_for("sleep:0"), "x", place="slurm")
    folder = store.folder / "jobs" / job
    told = {**module_environment(), "LACO_ENGINE": "tests.saving_engine", PLACE: "slurm"}
    done = subprocess.run([*python_module("laco.worker"), str(folder)], env=told, check=False)
    assert done.returncode == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["index"] != str(store.index.path)
    assert not os.path.exists(result["index"])  # noqa: PTH110
    assert store.index.rows("SELECT * FROM runs") == []
    upkeep.adopt(store, time.time())
    run = store.run(result["key"])
    assert run is not None
    assert [metric.value for metric in run.metrics] == [12.5]
    assert store.analyses(result["key"])[0][0] == Similarity()


def test_what_was_measured_anew_elsewhere_takes_the_place_of_the_old(store, tmp_path):
    run = MODEL.then(Drop(layers=(1,)))
    store.save(run.key, run, [{}], lambda folder: None)
    store.add_metrics(run.key, Perplexity(), [METRIC])
    elsewhere = RunStore(store.folder, index=tmp_path)
    elsewhere.add_metrics(run.key, Perplexity(), [Metric("perplexity[x]", 9.0, "", "lower")])
    elsewhere.close()
    assert store.metrics(run.key, Perplexity()) == (METRIC,)
    upkeep.adopt(store, time.time())
    found = store.metrics(run.key, Perplexity()) or ()
    assert [metric.value for metric in found] == [9.0]


def test_half_written_files_of_another_machine_are_not_tidied_away(far):
    """Whose process writes them cannot be seen from here."""
    _, runner, job, watch = far
    watch.tick()
    half = runner.store.artifacts / "k1-ab.partial-999999999-1"
    half.mkdir()
    runner.store.prune()
    assert half.exists()
    runner.cancel(job)
    watch.tick()
    runner.store.prune()
    assert not half.exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_no_reason_not_to_work(tmp_path, monkeypatch, code):
    def lockf(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    assert locks.take(tmp_path / "lock")
    locks.give_back(tmp_path / "lock")
    (tmp_path / "other").touch()
    assert not locks.is_taken(tmp_path / "other")


def test_worker_without_news_says_that_it_is_alive(tmp_path, monkeypatch):
    from laco import worker

    monkeypatch.setattr(worker, "_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(worker, "_REPORT_SECONDS", 0.05)
    with (tmp_path / "log").open("w") as log:
        reporter = worker.Reporter(tmp_path, 1, log)
        reporter.start()
        first = json.loads((tmp_path / "status.json").read_text())["updated"]
        wait_for(lambda: json.loads((tmp_path / "status.json").read_text())["updated"] > first, 5)
        reporter.end("running", None)
