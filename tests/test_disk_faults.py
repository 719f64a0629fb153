"""A store whose disk fails at any one write, in four ways, is afterwards as before or as wished.

Each operation of store and queue is done once to count its writes (`faults.py` says what counts),
then again for every write, each time in a process of its own on a copy of the same store: stopped
there, and at every third write failing in one of three ways in turn; with LACO_ALL_FAULTS=1, at
every write in all of them.
`pytest -s` prints how many faults that makes.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from faults import BROKEN, COUNT, FULL, READ_ONLY, STOP, STOPPED, Connection, Disk

from laco import Drop, Footprint, Metric, ModelRef, Perplexity, Recipe, Request, WhatIf, annotations
from laco.disk import write_json
from laco.errors import LacoError, StoreError
from laco.index import MIGRATIONS
from laco.queue import Queue
from laco.store import RunStore
from laco.wording import describe

MODEL = Recipe(model=ModelRef(path="org/Tiny", revision="content:1", dtype="float32"))
OTHER = Recipe(model=ModelRef(path="org/Other", revision="content:2", dtype="float32"))
ONE, TWO = MODEL.then(Drop(layers=(1,))), MODEL.then(Drop(layers=(2,)))
GOOD, BETTER = (Metric("perplexity[x]", value, "", "lower") for value in (12.5, 9.0))
REPORT = {"kind": "drop", "seconds": 1.0, "cached": False, "peak_bytes": 7, "report": {}}
ANSWERS = ({"id": "q1", "acc": 1},)
ERROR, BUG = 1, 2  # exit statuses


def write(folder: Path) -> None:
    with (folder / "model.safetensors").open("wb") as file:
        file.write(b"weights of some length")
    (folder / "parts").mkdir()
    (folder / "parts" / "a.json").write_text("{}")


def keep(store: RunStore, recipe: Recipe) -> None:
    store.save(recipe.key, recipe, [REPORT], write)


def job(store: RunStore, label: str) -> sqlite3.Row:
    return next(row for row in Queue(store).rows() if row["label"] == label)


def fill(store: RunStore) -> None:
    """Two runs with all that belongs to them, and jobs in three states."""
    store.add_model(MODEL.key, MODEL)
    keep(store, ONE)
    store.add_metrics(ONE.key, Perplexity(), [GOOD], ANSWERS)
    store.add_metrics(ONE.key, Footprint(), [Metric("layers", 9, "", "lower")])
    store.add_analysis(ONE.key, WhatIf(), {"kl": [1.0]})
    queue = Queue(store)
    for label in ("running", "starting", "waiting"):
        queue.add(Request(recipe=ONE), label)
    for label in ("running", "starting"):
        assert queue.claim(2) is not None, label
    queue.started(job(store, "running")["id"], 1, 1.0)
    queue.running(job(store, "running")["id"], 1.0)


def spoil(folder: Path) -> None:
    """What a killed writer leaves, results of nothing, and an artifact that lost a file."""
    (folder / "artifacts" / f"{TWO.key}.partial-99999999-0").mkdir()
    (folder / "artifacts" / f"{TWO.key}.partial-99999999-0" / "half").write_text("ha")
    (folder / "metrics" / "k1-0.json.partial-99999999-1").write_text("{")
    (folder / "metrics" / "k1-0.json").write_text("{}")
    (folder / "jobs" / "abc.partial-99999999-2").mkdir()
    (folder / "artifacts" / ONE.key / "model.safetensors").unlink()


def blank(folder: Path) -> None:
    shutil.rmtree(folder)


def first_shape(folder: Path) -> None:
    """The index as the first laco left it; the jobs are of later ones."""
    shutil.rmtree(folder / "jobs")
    with sqlite3.connect(folder / "runs.sqlite") as index:
        index.execute("DROP TABLE jobs")
        index.execute("DELETE FROM migrations WHERE name != ?", (MIGRATIONS[0].__name__,))
    index.close()


def lost(folder: Path) -> None:
    for file in folder.glob("runs.sqlite*"):
        file.unlink()


def forgotten(folder: Path) -> None:
    with sqlite3.connect(folder / "runs.sqlite") as index:
        index.execute("DELETE FROM runs")
        index.execute("DELETE FROM metrics")
        index.execute("DELETE FROM analyses")
    index.close()


def over(folder: Path) -> None:
    """No job uses a run any more."""
    with sqlite3.connect(folder / "runs.sqlite") as index:
        index.execute("UPDATE jobs SET state = 'failed'")
    index.close()


def report(store: RunStore, state: str, durable: bool) -> None:
    row = job(store, "running")
    path = Queue(store).folder / row["id"] / "status.json"
    write_json(path, {"attempt": 1, "state": state, "pid": 1, "pid_created": 1.0}, durable)


def export(store: RunStore) -> None:
    """As `laco.export.export` writes; what it writes, and its checks, need a model."""
    from laco.export import _placed

    with _placed(store.folder / "out" / "exported") as folder:
        with (folder / "model.safetensors").open("wb") as file:
            file.write(b"weights")
        write_json(folder / "laco.json", {"key": "k"})


# What is done, on a store that was prepared so.
Operation = tuple[Callable[[RunStore], Any] | None, Callable[[Path], None] | None]
OPERATIONS: dict[str, Operation] = {
    "open a blank folder": (None, blank),
    "open a store": (None, None),
    "open a store of the first shape": (None, first_shape),
    "open a store that lost its index": (None, lost),
    "save an artifact": (lambda store: keep(store, TWO), None),
    "save it where a broken one lies": (lambda store: keep(store, ONE), spoil),
    "add a model": (lambda store: store.add_model(OTHER.key, OTHER), None),
    "add metrics": (
        lambda store: store.add_metrics(MODEL.key, Perplexity(), [GOOD], ANSWERS),
        None,
    ),
    "replace metrics": (lambda store: store.add_metrics(ONE.key, Perplexity(), [BETTER]), None),
    "add an analysis": (lambda store: store.add_analysis(MODEL.key, WhatIf(), {"kl": []}), None),
    "remove a run": (lambda store: store.remove(MODEL.key), over),
    "remove a branch": (lambda store: store.remove(ONE.key, MODEL.key), over),
    "annotate": (lambda store: annotations.annotate(store, ONE.key, name="x"), None),
    "prune": (lambda store: store.prune(), spoil),
    "rebuild": (lambda store: store.rebuild(), forgotten),
    "queue a job": (lambda store: Queue(store).add(Request(recipe=TWO), describe(TWO)), None),
    "claim a job": (lambda store: Queue(store).claim(4), None),
    "note a worker": (
        lambda store: Queue(store).started(job(store, "starting")["id"], 5, 2.0),
        None,
    ),
    "cancel a job": (lambda store: Queue(store).ask_to_cancel(job(store, "running")["id"]), None),
    "take a job off": (lambda store: Queue(store).ask_to_cancel(job(store, "waiting")["id"]), None),
    "settle a job": (lambda store: Queue(store).settle(job(store, "running")), None),
    "fail a job": (lambda store: Queue(store).fail(job(store, "starting"), "no"), None),
    "write a status": (lambda store: report(store, "running", False), None),
    "write an end": (lambda store: report(store, "done", True), None),
    "export": (export, None),  # last: its import makes every fork dearer
}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder in memory where there is such a place: what is tested is the order of the writes."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def template(place: Path) -> Path:
    store = RunStore(place / "template")
    fill(store)
    store.close()
    return store.folder


def shown(store: RunStore) -> dict[str, Any]:
    """What the pages would show of a store: runs, their numbers, jobs and what workers said."""
    folder, runs = store.folder, {}
    for run in store.runs():
        whole = store.artifact(run.key) is not None
        metrics = [{**m.document(), "details": None} for m in run.metrics]
        documents = [store.analysis(run.key, spec) for spec, _ in store.analyses(run.key)]
        runs[run.key] = (whole, metrics, documents)
    jobs = sorted(
        (row["label"], row["state"], row["attempt"], row["pid"], row["cancelled"] is not None)
        for row in Queue(store).rows()
    )
    said = [json.loads(path.read_text()) for path in sorted(folder.glob("jobs/*/status.json"))]
    exported = {path.name: path.read_bytes() for path in folder.glob("out/exported/*")}
    return {"runs": runs, "jobs": jobs, "said": said, "exported": exported}


def carry_out(folder: Path, do: Callable[[RunStore], Any] | None, disk: Disk) -> int:
    """Do it in a process of its own; its exit status. Writes are reported through a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads; there are none to matter
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = BUG
    try:
        connect = sqlite3.connect
        with patch.object(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Connection)):
            store = None if do is None else RunStore(folder)
        try:
            if store is None or do is None:
                with disk.failing():
                    RunStore(folder)
            else:
                with disk.failing(store.index._connection):
                    do(store)
            status = 0
        except LacoError as error:
            status = ERROR if str(error) and "\n" not in str(error) else BUG
        if disk.mode == COUNT:
            folder.with_suffix(".writes").write_text(" ".join(disk.writes))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def found(folder: Path, broken: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is shown of a store, and what once leftovers are dealt with as `verify` says.

    `broken`: it has an artifact that lost a file.
    """
    store = RunStore(folder)
    at_first = shown(store)
    for complaint in store.verify():
        allowed = "`laco store |run its recipe again" if broken else "`laco store "
        assert re.search(allowed, complaint), complaint
    store.prune()
    store.rebuild()
    again = store.verify()
    assert again == [] or (broken and ONE.key in again[0] and len(again) == 1)
    mended = shown(store)
    store.close()
    return at_first, mended


@pytest.mark.parametrize("name", OPERATIONS)
def test_store_is_as_before_or_as_wished_whichever_write_fails(place, template, name):
    do, prepare = OPERATIONS[name]
    if do is export:
        importlib.import_module("laco.export")  # its import is no part of what is counted

    def fresh(label: str) -> Path:
        folder = place / label
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        if prepare is not None:
            prepare(folder)
        return folder

    untouched = fresh("before")
    nothing: dict[str, Any] = {"runs": {}, "jobs": [], "said": [], "exported": {}}
    before, mended_before = found(untouched, prepare is spoil)
    if prepare is blank:
        before = nothing
    counted = fresh("counted")
    assert carry_out(counted, do, Disk()) == 0
    writes = counted.with_suffix(".writes").read_text().split()
    after, mended_after = found(counted, prepare is spoil)
    errors = (FULL, READ_ONLY, BROKEN)
    faults = 0
    for at in range(1, len(writes) + 1):
        one = (errors[at // 3 % 3],) if at % 3 == 1 else ()
        for mode in (STOP, *(errors if os.environ.get("LACO_ALL_FAULTS") else one)):
            faults += 1
            what = f"{mode} at write {at}, {writes[at - 1]}, of {writes}"
            folder = fresh("failing")
            status = carry_out(folder, do, Disk(mode, at))
            assert status in ((STOPPED,) if mode == STOP else (0, ERROR)), what
            now, mended = found(folder, prepare is spoil)
            assert now in (before, after), what
            assert mended in (mended_before, mended_after), what
            if do is export:  # what a killed one left goes with the next
                store = RunStore(folder)
                if not (folder / "out" / "exported").exists():
                    export(store)
                    there = [path.name for path in (folder / "out").iterdir()]
                    assert there == ["exported"], what
                store.close()
    print(f"{name}: {len(writes)} writes, {faults} faults, lost: 0")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB of its own; skipped where none can be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def write_much(folder: Path) -> None:
    (folder / "w").write_bytes(bytes(100_000))


def occupy(disk: Path, spare: int) -> Path:
    """A file that leaves `spare` bytes free."""
    filler = disk / "filler"
    free = shutil.disk_usage(disk).free
    filler.write_bytes(bytes(free - spare))
    return filler


@pytest.mark.skipif(shutil.which("mount") is None, reason="no disk can be mounted here")
@pytest.mark.parametrize("spare", [0, 4096, 20480, 65536])
def test_a_disk_that_is_really_full_keeps_what_was_there(small_disk, spare):
    store = RunStore(small_disk / "store")
    fill(store)
    before = shown(store)
    filler = occupy(small_disk, spare)
    big = [{"id": "q", "text": "x" * 100_000}]
    for do in (
        lambda: store.save(TWO.key, TWO, [REPORT], write_much),
        lambda: store.add_metrics(MODEL.key, Perplexity(), [GOOD], big),
        lambda: store.add_analysis(MODEL.key, WhatIf(), {"text": "x" * 100_000}),
        lambda: [Queue(store).add(Request(recipe=ONE), "x" * 10_000) for _ in range(30)],
    ):
        with pytest.raises(StoreError, match=r"No space left.*MB that are free"):
            do()
    queued = [row for row in Queue(store).rows() if row["label"].startswith("xxx")]
    for row in queued:  # those that there was room for are whole
        assert (Queue(store).folder / row["id"] / "job.json").is_file()
    filler.unlink()
    store.prune()
    assert store.verify() == []
    now = shown(store)
    now["jobs"] = [line for line in now["jobs"] if not line[0].startswith("xxx")]
    assert now == before
    keep(store, TWO)  # and there is room again
    store.close()


@pytest.mark.skipif(shutil.which("mount") is None, reason="no disk can be mounted here")
def test_a_read_only_disk_is_said_and_nothing_on_it_changes(small_disk):
    store = RunStore(small_disk / "store")
    fill(store)
    store.close()
    before = files(store.folder)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match=r"cannot be written \(Read-only.* choose another --store"):
        RunStore(store.folder)
    assert files(store.folder) == before
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    again = RunStore(store.folder)
    assert again.verify() == []
    again.close()


def files(folder: Path) -> dict[str, bytes]:
    """What lies in a store, but for the index's own."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("runs.")
    }
