"""Which devices take jobs, what is known of their memory, and whether a job has room there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laco import (
    Collapse,
    Compensate,
    Divergence,
    ModelRef,
    Perplexity,
    Recipe,
    Request,
    card,
    devices,
    room,
)
from laco.devices import Device, choose, slots
from laco.errors import JobError, LacoError
from laco.jobs import LocalRunner
from laco.queue import Queue
from laco.store import RunStore
from tests import tiny

GPUS = "0, GPU-aaaa-1, NVIDIA H200, 143771, 143000\n1, GPU-bbbb-2, NVIDIA H200, 143771, 1000\n"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LACO_SLOTS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two GPUs, as `nvidia-smi` tells of them."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{GPUS}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-bbbb")
    devices._gpu_table.cache_clear()
    yield
    devices._gpu_table.cache_clear()


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("laco.jobs.start_scheduler", lambda *_: False)
    store = RunStore(tmp_path / "store")
    yield LocalRunner(store)
    store.close()


def request(path: str, **parts: Any) -> Request:
    return Request(recipe=Recipe(model=ModelRef(path=path)), **parts)


def test_every_device_takes_one_job_until_others_are_chosen(tmp_path: Path, gpus: None):
    assert slots(tmp_path) == ["0", "GPU-bbbb"]
    choose(tmp_path, ["GPU-bbbb"], jobs=2)
    assert slots(tmp_path) == ["GPU-bbbb"] * 2
    choose(tmp_path, [])
    assert slots(tmp_path) == ["0", "GPU-bbbb"]
    with pytest.raises(JobError, match=r"no device '7' here; choose of 0, GPU-bbbb or cpu"):
        choose(tmp_path, ["7"])


def test_a_chosen_device_that_has_gone_takes_no_jobs(
    tmp_path: Path, gpus: None, monkeypatch: pytest.MonkeyPatch
):
    choose(tmp_path, ["0"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb")
    assert slots(tmp_path) == ["GPU-bbbb"]


def test_number_of_jobs_at_once_is_said_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert slots(tmp_path) == ["cpu"]
    monkeypatch.setenv("LACO_SLOTS", "3")
    assert slots(tmp_path) == ["cpu"] * 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert slots(tmp_path) == ["0", "1", "0"]
    monkeypatch.setenv("LACO_SLOTS", "many")
    with pytest.raises(LacoError, match="LACO_SLOTS"):
        slots(tmp_path)


def test_memory_of_a_gpu_is_what_its_driver_says(gpus: None):
    assert devices.about("0") == Device("0", "NVIDIA H200", 143771 << 20, 143000 << 20)
    assert devices.about("GPU-bbbb").memory_free == 1000 << 20
    assert devices.about("MIG-x").memory_free is None
    cpu = devices.about("cpu")
    assert cpu.memory_free is not None
    assert cpu.memory_total is not None
    assert 0 < cpu.memory_free < cpu.memory_total


def test_a_worker_sees_its_device_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert devices.environment("1", 4) == {
        "OMP_NUM_THREADS": "4",
        "OMP_WAIT_POLICY": "PASSIVE",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert devices.environment("cpu", 4)["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert devices.environment("cpu", 4)["OMP_NUM_THREADS"] == "2"


def test_memory_is_told_from_the_recipe_and_the_headers(tmp_path: Path, runner: LocalRunner):
    model = str(tiny.save(tiny.redundant(), tmp_path / "tiny"))
    small = room.expected_peak(request(model, evaluations=(Perplexity(),)), runner.store)
    both = room.expected_peak(request(model, evaluations=(Divergence(),)), runner.store)
    assert small is not None
    assert both is not None
    assert 100e6 < small < 2e9
    assert 100e6 < both < 2e9
    long = Compensate(batch_tokens=1 << 20)
    recipe = Recipe(model=ModelRef(path=model), steps=(long,))
    more = room.expected_peak(Request(recipe=recipe), runner.store)
    assert more is not None
    assert more > 100e6
    assert room.expected_peak(request(model), runner.store) is None, "nothing is to be done"
    assert (
        room.expected_peak(request("org/not-here", evaluations=(Perplexity(),)), runner.store)
        is None
    )


def test_a_model_that_no_device_can_hold_is_read_layer_by_layer(
    tmp_path: Path, runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
):
    model = str(tiny.save(tiny.redundant(), tmp_path / "tiny"))
    known = card.inspect(ModelRef(path=model), tmp_path)
    large = {**known, "layers": 80, "layer_parameters": [10**9] * 80, "parameters": 80 * 10**9}
    monkeypatch.setattr(card, "inspect", lambda *_: large)

    def peak(work: Perplexity | Collapse) -> int:
        steps, asked = ((work,), ()) if isinstance(work, Collapse) else ((), (work,))
        recipe = Recipe(model=ModelRef(path=model), steps=steps)
        return room.expected_peak(Request(recipe=recipe, evaluations=asked), runner.store) or 0

    total = devices.about("cpu").memory_total
    assert total is not None
    assert peak(Perplexity()) < 20e9
    assert peak(Collapse(order="influence", target_layers=70, merge="rdsc")) < 20e9
    assert peak(Collapse(merge="rdsc")) > total, "a search that merges holds the model"


def test_a_job_that_no_device_can_hold_is_refused_with_the_numbers(
    runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(room, "expected_peak", lambda *_: 500 * 10**9)
    place = Device("cpu", "processor", 64 * 10**9, 60 * 10**9)
    monkeypatch.setattr(room, "about", lambda _: place)
    with pytest.raises(JobError, match=r"about 500\.0 GB of memory and cpu has 64\.0 GB; .*anyway"):
        runner.submit(request("x"))
    assert runner.jobs() == []
    status = runner.status(runner.submit(request("x"), anyway=True))
    assert (status.state, status.memory) == ("queued", None)
    runner.cancel(status.id)
    assert runner.status(runner.retry(status.id)).state == "queued", "it is asked for no more"


def test_a_job_waits_for_memory_in_words_and_lets_others_pass(
    runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
):
    sizes = iter([8, 1])
    monkeypatch.setattr(room, "expected_peak", lambda *_: next(sizes) * 10**9)
    free = {"bytes": 4 * 10**9}
    monkeypatch.setattr(room, "about", lambda n: Device(n, n, 64 * 10**9, free["bytes"]))
    large, small = runner.submit(request("large")), runner.submit(request("small"))
    queue = Queue(runner.store)

    def claim() -> Any:
        def fits(row: Any, _slot: int) -> str:
            running = [other for other in queue.live() if other["state"] != "queued"]
            return room.waits_for(row, "cpu", running, queue.report)

        return queue.claim(2, fits)

    assert claim()["id"] == small
    assert claim() is None
    words = "Waits for memory: about 8.0 GB are needed and 4.0 GB are free on cpu"
    assert runner.status(large).message.startswith(words)
    free["bytes"] = int(8.5e9)  # and 1 GB of it are the small job's
    assert claim() is None
    assert "1.0 GB more are set aside for jobs that run" in runner.status(large).message
    status = {"attempt": 1, "memory": int(0.9e9), "state": "running"}
    (runner.store.folder / "jobs" / small / "status.json").write_text(json.dumps(status))
    row = claim()
    assert row["id"] == large
    assert row["message"] == ""
