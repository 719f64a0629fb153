"""Runs are removed all or none; a crash half way is made good by whoever opens the store next."""

from __future__ import annotations

from pathlib import Path

import pytest

from laco import annotations, removal
from laco.errors import StoreError
from laco.evaluations import Footprint, Metric, Request, WhatIf
from laco.queue import Queue
from laco.recipe import Compensate, Drop, ModelRef, Prune, Recipe
from laco.store import RunStore

MODEL = Recipe(model=ModelRef(path="org/tiny", revision="content:1", dtype="float32"))
DROPPED = MODEL.then(Drop(layers=(3,)))
PRUNED = DROPPED.then(Prune())
METRIC = Metric("layers", 3, "", "lower")


def write(folder: Path) -> None:
    (folder / "w").write_text("weights")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    opened = RunStore(tmp_path / "store")
    opened.add_model(MODEL.key, MODEL)
    for recipe in (DROPPED, PRUNED):
        opened.save(recipe.key, recipe, [], write)
        opened.add_metrics(recipe.key, Footprint(), [METRIC])
        opened.add_analysis(recipe.key, WhatIf(), {"kl": []})
        annotations.annotate(opened, recipe.key, name="x")
    return opened


def files(store: RunStore) -> set[str]:
    found = {str(path.relative_to(store.folder)) for path in store.folder.rglob("*")}
    return {path for path in found if path.partition("/")[0] not in ("runs.sqlite", "runs.lock")}


def test_a_branch_goes_with_all_that_was_measured_and_said(store: RunStore):
    store.remove(PRUNED.key, DROPPED.key)
    assert [run.key for run in store.runs()] == [MODEL.key]
    assert not [path for path in files(store) if DROPPED.key in path or PRUNED.key in path]
    assert not list(store.metric_files.iterdir())
    assert not list(store.analysis_files.iterdir())
    assert not list((store.folder / removal.FOLDER).iterdir())
    assert store.verify() == []


@pytest.mark.parametrize("recipe", [PRUNED, PRUNED.then(Compensate())], ids=["same", "goes on"])
def test_what_a_job_goes_by_way_of_stays_with_all_the_rest(store: RunStore, recipe: Recipe):
    unpinned = recipe.model_copy(update={"model": ModelRef(path="org/tiny")})
    job = Queue(store).add(Request(recipe=unpinned), "at work")
    before = files(store)
    for keys in ((DROPPED.key,), (PRUNED.key, DROPPED.key), (MODEL.key,)):
        with pytest.raises(StoreError, match=f"is needed by the job {job}"):
            store.remove(*keys)
    assert files(store) - {removal.FOLDER} == before
    assert len(store.runs()) == 3
    Queue(store).ask_to_cancel(job)
    store.remove(PRUNED.key, DROPPED.key)


def test_what_another_run_lies_on_goes_only_with_it(store: RunStore):
    path = str(store.artifacts / DROPPED.key)
    on_it = Recipe(model=ModelRef(path=path, revision="content:9", dtype="float32"))
    store.add_model(on_it.key, on_it)
    with pytest.raises(StoreError, match=f"is needed by the run {on_it.key}"):
        store.remove(DROPPED.key)
    store.remove(on_it.key, DROPPED.key)
    assert {run.key for run in store.runs()} == {MODEL.key, PRUNED.key}


def killed(*_given: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("way", ["opened", "pruned", "rebuilt"])
def test_a_removal_that_was_cut_short_is_finished(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, way: str
):
    with monkeypatch.context() as patch:
        patch.setattr(removal, "_clear", killed)
        with pytest.raises(KeyboardInterrupt):
            store.remove(PRUNED.key, DROPPED.key)
    assert [run.key for run in store.runs()] == [MODEL.key], "the index forgets them at once"
    assert (store.artifacts / DROPPED.key).is_dir()
    if way == "opened":
        store.close()
        store = RunStore(store.folder)
    else:
        store.prune() if way == "pruned" else store.rebuild()
    assert [run.key for run in store.runs()] == [MODEL.key]
    assert not [path for path in files(store) if DROPPED.key in path or PRUNED.key in path]
    assert store.verify() == []


def test_before_it_is_written_down_nothing_has_happened(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
):
    before = files(store)
    with monkeypatch.context() as patch:
        patch.setattr(removal, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            store.remove(PRUNED.key, DROPPED.key)
    assert files(store) - {removal.FOLDER} == before
    assert len(store.runs()) == 3
    assert store.verify() == []


def test_what_was_made_anew_meanwhile_stays(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(removal, "_clear", killed)
        with pytest.raises(KeyboardInterrupt):
            store.remove(DROPPED.key)
    (store.artifacts / DROPPED.key / "w").unlink()  # so that it is not adopted as it lies
    store.save(DROPPED.key, DROPPED, [], write)
    store.prune()
    assert store.artifact(DROPPED.key) is not None
    assert {run.key for run in store.runs()} == {MODEL.key, DROPPED.key, PRUNED.key}
