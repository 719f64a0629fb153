"""Many processes on one store at once, and what was lost by it: counted afterwards.

Each writer keeps a book of its own, outside the store, of what the store said it had kept: a line
once the call or command came back, not before. `missing` holds the books against the store.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from laco.evaluations import Footprint, Metric, Perplexity, WhatIf
from laco.jobs import LocalRunner
from laco.queue import ENDED, Queue
from laco.recipe import Drop, ModelRef, Recipe
from laco.store import RunStore

MODEL = Recipe(model=ModelRef(path="org/Tiny", revision="content:1", dtype="float32"))
REPORT = {"kind": "drop", "seconds": 1.0, "cached": False, "peak_bytes": 7, "report": {}}


def recipe(writer: int, number: int) -> Recipe:
    """One that no other writer makes."""
    return MODEL.then(Drop(layers=(1000 * writer + number,)))


def fill(folder: Path, writer: int, book: Path, seconds: float) -> None:
    """Save, measure, measure anew, analyse, remove and look, for so long, as one of many."""
    store = RunStore(folder)
    until, number = time.monotonic() + seconds, 0
    with book.open("a") as lines:

        def note(*words: object) -> None:
            print(*words, file=lines, flush=True)

        while time.monotonic() < until:
            mine, shared = recipe(writer, number), recipe(0, number)
            for made in (mine, shared):  # all want to make the shared one
                store.save(made.key, made, [REPORT], _write)
                note("run", made.key)
            metric = Metric("perplexity[x]", 10.0 + number, "", "lower")
            store.add_metrics(mine.key, Perplexity(), [metric], [{"id": "q", "of": number}])
            store.add_metrics(shared.key, Perplexity(window=1000 * writer), [metric])
            note("metrics", shared.key, 1000 * writer, metric.value)
            store.add_metrics(mine.key, Footprint(), [metric])
            store.add_metrics(mine.key, Footprint(), [Metric("layers", number, "", "lower")])
            store.add_analysis(mine.key, WhatIf(), {"number": number})
            note("measured", mine.key, number)
            assert store.metrics(mine.key, Footprint()) is not None
            if number % 4 == 3:
                gone = recipe(writer, number - 1).key
                store.remove(gone)
                note("removed", gone)
            if number % 5 == writer % 5:
                store.prune()
            if number % 7 == writer % 7:
                store.rebuild()
            assert len(store.runs()) > number // 2
            number += 1
    store.close()


def missing(store: RunStore, books: list[Path]) -> list[str]:
    """What the books say was kept and the store has not, or has though it was removed."""
    lines = [line.split() for book in books for line in book.read_text().splitlines()]
    removed = {line[1] for line in lines if line[0] == "removed"}
    lost = [f"removed and there: {key}" for key in removed if store.artifact(key) is not None]
    there = {run.key for run in store.runs(metrics=False)}
    for kind, key, *rest in lines:
        if kind == "job":
            continue
        if key not in removed and (store.artifact(key) is None or key not in there):
            lost.append(f"run {key}")
        if kind == "metrics":
            found = store.metrics(key, Perplexity(window=int(rest[0]))) or ()
            if [metric.value for metric in found] != [float(rest[1])]:
                lost.append(f"metrics {key} {rest}")
        if kind == "measured" and key not in removed:
            found = store.metrics(key, Footprint()) or ()
            analysis = store.analysis(key, WhatIf())
            if [m.value for m in found] != [float(rest[0])] or analysis != {"number": int(rest[0])}:
                lost.append(f"results of {key}")
    return lost


def unfinished(store: RunStore, books: list[Path], patience: float) -> list[str]:
    """The jobs in the books that are not over, were lost, or were carried out not just once."""
    asked = [
        line.split()[1]
        for book in books
        for line in book.read_text().splitlines()
        if line.startswith("job ")
    ]
    runner, until = LocalRunner(store), time.monotonic() + patience
    while runner.queue.live() and time.monotonic() < until:
        runner.active()  # which starts a scheduler where there is none
        time.sleep(0.3)
    rows = {row["id"]: row for row in Queue(store).rows()}
    done = store.folder / "carried-out.txt"
    times = Counter(done.read_text().split() if done.exists() else [])
    wrong = [f"job {job} is lost" for job in asked if job not in rows]
    wrong += [
        f"job {job} is {row['state']}" for job, row in rows.items() if row["state"] not in ENDED
    ]
    wrong += [
        f"job {job}, {row['state']}, was carried out {times[job]} times"
        for job, row in rows.items()
        if times[job] > 1 or (row["state"] == "done" and times[job] != 1)
    ]
    wrong += [f"job {job} failed: {row['error']}" for job, row in rows.items() if row["error"]]
    return wrong


def _write(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(bytes(10_000))
