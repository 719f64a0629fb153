"""Jobs at a real Ray cluster: two nodes on this machine with a pretended GPU each, and a token."""

import contextlib
import http.server
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from laco.errors import JobError
from laco.jobs import JobStatus, LocalRunner
from laco.places import kept, ray, watch
from laco.places.kept import Places, RayOptions
from laco.places.ray import Ray
from laco.schedule import Scheduler
from laco.store import RunStore
from tests.test_jobs import request_for, wait_for
from tests.test_schedule import schedulers

RAY = Path(sys.executable).with_name("ray")
needs_ray = pytest.mark.skipif(not RAY.exists(), reason="the extra `ray` is not installed")


@dataclass(frozen=True)
class Cluster:
    """Where the cluster answers, the file with its token, and the second node's raylet."""

    address: str
    token: Path
    second: psutil.Process


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    folder = Path("/tmp") / f"laco-ray-{os.getpid()}"  # a socket's path may have 107 letters
    folder.mkdir()
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    environment = {
        **os.environ,
        "HOME": str(folder),
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "2",
    }
    environment.pop("RAY_AUTH_TOKEN", None)
    gcs, dashboard, client, *ports = free_ports(22)

    def start(*words: str) -> None:
        taken, listening = [ports.pop() for _ in range(6)], [ports.pop() for _ in range(2)]
        done = subprocess.run(
            [
                *(str(RAY), "start", "--num-cpus=1", "--num-gpus=1", "--disable-usage-stats"),
                *("--object-store-memory=80000000", *words),
                f"--worker-port-list={','.join(map(str, taken))}",
                f"--dashboard-agent-listen-port={listening[0]}",
                f"--dashboard-agent-grpc-port={listening[1]}",
            ],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    before = set(raylets(folder))
    try:
        start(
            *("--head", f"--port={gcs}", f"--dashboard-port={dashboard}"),
            *("--dashboard-host=127.0.0.1", f"--temp-dir={folder / 't'}"),
            f"--ray-client-server-port={client}",
        )
        head = set(raylets(folder)) - before
        start(f"--address=127.0.0.1:{gcs}")
        (second,) = set(raylets(folder)) - head
        yield Cluster(f"http://127.0.0.1:{dashboard}", token, second)
    finally:
        # `ray stop` would end every cluster of this machine.
        for process in of_cluster(folder, gcs):
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def of_cluster(folder: Path, gcs: int) -> list[psutil.Process]:
    """The processes of the cluster, by its folder or its port, with all that they started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if process.pid != os.getpid() and (str(folder) in line or f"127.0.0.1:{gcs}" in line):
                found += [process, *process.children(recursive=True)]
    return found


def raylets(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "raylet" and str(folder) in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.fixture
def runner(tmp_path, monkeypatch, cluster) -> Iterator[LocalRunner]:
    """A runner whose scheduler is in this process, unless a test lets it have its own."""
    monkeypatch.setenv("LACO_ENGINE", "tests.fake_engine")
    monkeypatch.setenv("LACO_SLOTS", "1")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(cluster.token))
    monkeypatch.setattr("laco.jobs.start_scheduler", lambda *_: False)
    monkeypatch.setattr(watch, "SILENT_SECONDS", 6.0)
    store = RunStore(tmp_path / "store")
    kept.keep(store.folder, Places(ray=RayOptions(address=cluster.address)))
    runner = LocalRunner(store, idle_seconds=0.5)
    yield runner
    for status in runner.active():
        runner.cancel(status.id)
    until(runner, lambda: not runner.active())
    store.close()


def until(runner: LocalRunner, condition: Callable[[], object], seconds: float = 150.0) -> None:
    """Let a scheduler work until it is so."""
    scheduler, end = Scheduler(runner.store, []), time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, [vars(status) for status in runner.jobs()]
        scheduler.tick()
        time.sleep(0.1)


def end_of(runner: LocalRunner, job: str) -> JobStatus:
    until(runner, lambda: not runner.status(job).active)
    return runner.status(job)


def pid_of(runner: LocalRunner, job: str) -> int:
    return runner.queue.report(runner.queue.row(job))["pid"]


@needs_ray
def test_jobs_have_a_gpu_each_and_those_beyond_wait_and_say_for_what(runner, cluster):
    jobs = [runner.submit(request_for("sleep:4"), on="ray") for _ in range(3)]
    until(runner, lambda: [runner.status(job).state for job in jobs].count("running") == 2)
    (waiting,) = [job for job in jobs if runner.status(job).state == "queued"]
    until(runner, lambda: "0 free" in runner.status(waiting).message)
    message = runner.status(waiting).message
    assert message == (
        f"Waits for resources: it asks for 1 GPU; ray:{cluster.address} has 2 nodes, "
        "2 GPUs (0 free), 2 CPUs (2 free)"
    )
    ends = [end_of(runner, job) for job in jobs]
    assert [(end.state, end.attempt) for end in ends] == [("done", 1)] * 3
    assert {end.place for end in ends} == {f"ray:{cluster.address}"}
    for end in ends:
        assert end.result is not None
        assert end.result["device"] == "0"  # of its node
        assert end.result["torch"] is False
        assert end.result["cwd"] == str(Path.cwd())


@needs_ray
def test_cancel_reaches_the_one_that_runs_and_the_one_that_waits(runner, monkeypatch):
    monkeypatch.setattr(watch, "_STOP_SECONDS", 0.5)
    running = [runner.submit(request_for(path), on="ray") for path in ("sleep:60", "deaf:60")]
    until(runner, lambda: all(runner.status(job).fraction > 0 for job in running))
    waiting = runner.submit(request_for("sleep:60"), on="ray")
    until(runner, lambda: "0 free" in runner.status(waiting).message)
    pids = [pid_of(runner, job) for job in running]
    for job in (waiting, *running):
        runner.cancel(job)
        assert end_of(runner, job).state == "cancelled"
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10)


@needs_ray
def test_killed_worker_is_tried_again_though_its_scheduler_was_killed_too(
    runner, cluster, monkeypatch
):
    monkeypatch.undo()
    monkeypatch.setenv("LACO_ENGINE", "tests.fake_engine")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(cluster.token))
    job = runner.submit(request_for("sleep:3"), on="ray")
    wait_for(lambda: runner.status(job).fraction > 0)
    (scheduler,) = schedulers(runner.store)
    scheduler.kill()
    wait_for(lambda: not schedulers(runner.store))
    os.kill(pid_of(runner, job), signal.SIGKILL)
    said: list[str] = []
    wait_for(lambda: said.append(runner.status(job).message) or not runner.status(job).active, 90)
    assert (runner.status(job).state, runner.status(job).attempt) == ("done", 2)
    assert any("The worker was killed by signal 9" in words for words in said), set(said)
    wait_for(lambda: not schedulers(runner.store))


@needs_ray
def test_gpus_that_no_node_has_are_said_to_be_waited_for(runner, cluster):
    kept.keep(runner.store.folder, Places(ray=RayOptions(address=cluster.address, gpus=9)))
    job = runner.submit(request_for("x"), on=f"ray:{cluster.address}")
    until(runner, lambda: "no node has as many: it waits until one joins" in said(runner, job))
    assert runner.status(job).state == "queued"
    runner.cancel(job)
    assert end_of(runner, job).state == "cancelled"


def said(runner: LocalRunner, job: str) -> str:
    return runner.status(job).message


@needs_ray
def test_wrong_or_missing_token_is_one_sentence_and_nothing_is_queued(runner, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    with pytest.raises(JobError, match=r"does not take this token; set RAY_AUTH_TOKEN, or"):
        runner.submit(request_for("x"), on="ray")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    with pytest.raises(JobError, match="needs a token; set RAY_AUTH_TOKEN"):
        runner.submit(request_for("x"), on="ray")
    assert runner.jobs() == []


@needs_ray
def test_attempt_that_ray_has_already_is_not_sent_twice(runner, cluster):
    job = runner.submit(request_for("sleep:2"), on="ray")
    until(runner, lambda: runner.status(job).state == "running")
    with runner.store.index.transaction() as index:  # as if the first had died before it could say
        index.execute("UPDATE jobs SET handle = NULL")
    assert (end_of(runner, job).state, runner.status(job).attempt) == ("done", 1)
    assert len((runner.status(job).folder / "runs.txt").read_text().split()) == 1


@needs_ray
def test_job_of_a_lost_node_goes_on_at_another(runner, cluster):
    """Last, since the second node stays lost."""
    jobs = [runner.submit(request_for("sleep:8"), on="ray") for _ in range(2)]
    until(runner, lambda: all(runner.status(job).fraction > 0 for job in jobs))
    lost = next(
        job
        for job in jobs
        if cluster.second.pid in [p.pid for p in psutil.Process(pid_of(runner, job)).parents()]
    )
    words: list[str] = []
    cluster.second.kill()
    until(runner, lambda: words.append(said(runner, lost)) or not runner.status(lost).active)
    assert [(end_of(runner, job).state) for job in jobs] == ["done", "done"]
    assert sorted(runner.status(job).attempt for job in jobs) == [1, 2]
    assert runner.status(lost).attempt == 2
    assert any("lost with its node" in word or "was ended: ray" in word for word in words)


# --- without a cluster ----------------------------------------------------------------------------


class Dashboard(http.server.BaseHTTPRequestHandler):
    """Answers each question with what `answers` has for it, and notes what came."""

    answers: dict[str, tuple[int, str]]
    came: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.came.append((f"{self.command} {self.path}", self.headers["Authorization"]))
        code, body = self.answers[f"{self.command} {self.path}"]
        self.send_response(code)
        if code == 302:
            self.send_header("Location", body)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
        if self.path == "/api/jobs/":  # the second time it is taken
            self.answers["POST /api/jobs/"] = (200, "{}")

    do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *_: object) -> None:
        pass


@pytest.fixture
def dashboard() -> Iterator[tuple[Ray, type[Dashboard]]]:
    kind = type("Kind", (Dashboard,), {"answers": {}, "came": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Ray(RayOptions(address=f"http://127.0.0.1:{server.server_port}")), kind
        server.shutdown()
        thread.join()


def test_token_does_not_follow_a_redirect(dashboard, monkeypatch):
    place, server = dashboard
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    server.answers["GET /api/cluster_status"] = (302, f"{place.options.address}/elsewhere")
    with pytest.raises(JobError, match=r"refuses .302"):
        place.check()
    assert server.came == [("GET /api/cluster_status", "Bearer secret")]


def test_what_is_no_dashboard_or_does_not_answer_is_said(dashboard, monkeypatch):
    place, server = dashboard
    for body in ("<html>", "[]"):
        server.answers["GET /api/cluster_status"] = (200, body)
        with pytest.raises(JobError, match="is no Ray dashboard"):
            place.check()
    with pytest.raises(JobError, match=r"does not answer .*Connection refused"):
        Ray(RayOptions(address=f"http://127.0.0.1:{free_ports(1)[0]}")).check()
    silent = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(ray, "TIMEOUT", 0.2)
    with silent, pytest.raises(JobError, match=r"does not answer .*timed out"):
        Ray(RayOptions(address=f"http://127.0.0.1:{silent.getsockname()[1]}")).check()


def test_attempt_that_ray_gave_up_before_it_began_is_sent_anew(dashboard, tmp_path):
    """Ray fails a job that waits for 15 minutes; laco's waits on, as the same attempt."""
    place, server = dashboard
    gone = '{"status": "FAILED", "error_type": "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"}'
    server.answers |= {
        "POST /api/jobs/": (500, "ValueError: laco-x-a1 already exists."),
        "GET /api/jobs/laco-x-a1": (200, gone),
        "DELETE /api/jobs/laco-x-a1": (200, "{}"),
    }
    assert place.state("laco-x-a1").state == "expired"
    assert place.submit(ray.Work("x", 1, tmp_path, tmp_path)) == "laco-x-a1"
    assert [came for came, _ in server.came][1:] == [
        "POST /api/jobs/",
        "GET /api/jobs/laco-x-a1",
        "DELETE /api/jobs/laco-x-a1",
        "POST /api/jobs/",
    ]


def test_token_file_that_is_not_there_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(JobError, match=r"token file .* cannot be read"):
        Ray(RayOptions(address="http://127.0.0.1:1")).check()
