"""What people say of runs: kept, limited, theirs alone to change, and there after a rebuild."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from laco import annotations
from laco.access import Person
from laco.annotations import NOTHING, Annotation, Exported
from laco.context import Context
from laco.errors import AccessError, StoreError
from laco.evaluations import Request
from laco.jobs import InlineRunner
from laco.queue import Queue
from laco.recipe import Drop, ModelRef, Recipe
from laco.store import INDEX, RunStore

MODEL = Recipe(model=ModelRef(path="org/tiny", revision="content:1", dtype="float32"))
RUN = MODEL.then(Drop(layers=(3,)))
ADA, BOB = Person("ada@example.org", "runner"), Person("bob@example.org", "runner")
ADMIN, VIEWER = Person("root@example.org", "admin"), Person("eve@example.org", "viewer")


def write(folder: Path) -> None:
    (folder / "w").write_text("weights")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    opened = RunStore(tmp_path / "store", owner=ADA.name)
    opened.add_model(MODEL.key, MODEL)
    opened.save(RUN.key, RUN, [], write)
    return opened


def test_what_is_said_is_kept_and_the_rest_stays(store: RunStore):
    annotations.annotate(store, RUN.key, name="  The\n one ", tags=["a", " b  c ", "a"])
    said = annotations.annotate(store, RUN.key, note="two\nlines\n", archived=True)
    assert said == Annotation(name="The one", note="two\nlines", tags=("a", "b c"), archived=True)
    assert annotations.read(store, RUN.key) == said
    assert annotations.read_all(store) == {RUN.key: said}
    assert store.verify() == []
    annotations.annotate(store, RUN.key, name="", note="", tags=(), archived=False)
    assert annotations.read_all(store) == {}
    assert not list(store.annotation_files.iterdir())


def test_a_rebuilt_index_loses_no_name_owner_or_label(store: RunStore):
    annotations.annotate(store, RUN.key, name="The one")
    job = Queue(store).add(Request(recipe=RUN), "My own words", memory=7, owner=ADA.name)
    store.close()
    (store.folder / INDEX).unlink()
    again = RunStore(store.folder)
    assert annotations.read(again, RUN.key).name == "The one"
    assert annotations.owner_of(again, RUN.key) == ADA.name
    row = Queue(again).row(job)
    assert (row["label"], row["owner"], row["memory"]) == ("My own words", ADA.name, 7)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "x" * 121},
        {"note": "x" * 4001},
        {"tags": [""]},
        {"tags": ["x" * 41]},
        {"tags": [str(number) for number in range(13)]},
        {"name": "a\0b"},
        {"colour": "red"},
    ],
    ids=lambda fields: next(iter(fields)) + str(len(next(iter(fields.values())))),
)
def test_what_does_not_fit_is_refused_in_a_sentence(store: RunStore, fields: dict):
    annotations.annotate(store, RUN.key, name="before")
    with pytest.raises(StoreError, match="cannot be kept of a result"):
        annotations.annotate(store, RUN.key, **fields)
    assert annotations.read(store, RUN.key) == Annotation(name="before")


@pytest.mark.parametrize("key", ["k1-" + "0" * 32, "", ".", "..", "../metrics", "k1-/../.."])
def test_no_word_is_kept_of_what_is_not_there(store: RunStore, key: str):
    with pytest.raises(StoreError, match="There is no run"):
        annotations.annotate(store, key, name="x")
    assert not list(store.annotation_files.iterdir())


def test_only_the_owner_and_an_admin_may_change_a_result(store: RunStore):
    for who in (BOB, VIEWER):
        with pytest.raises(AccessError):
            annotations.annotate(store, RUN.key, who, name="mine")
        with pytest.raises(AccessError):
            store.remove(RUN.key, who=who)
    annotations.annotate(store, RUN.key, ADA, name="Ada's")
    annotations.annotate(store, RUN.key, ADMIN, note="seen")
    assert annotations.read(store, RUN.key) == Annotation(name="Ada's", note="seen")
    store.remove(RUN.key, who=ADMIN)
    assert store.artifact(RUN.key) is None


def test_what_nobody_owns_is_for_whoever_sits_there(tmp_path: Path):
    store = RunStore(tmp_path / "store")
    store.add_model(MODEL.key, MODEL)
    with pytest.raises(AccessError, match="whoever runs this machine"):
        annotations.annotate(store, MODEL.key, ADA, name="mine")
    assert annotations.annotate(store, MODEL.key, name="ours").name == "ours"


def test_what_a_job_makes_belongs_to_who_sent_it(tmp_path: Path):
    store = RunStore(tmp_path / "store")

    def make(request: Request, inside: RunStore, _context: Context) -> dict:
        inside.save(request.recipe.key, request.recipe, [], write)
        return {"key": request.recipe.key}

    Queue(store).add(Request(recipe=RUN), "a job", owner=ADA.name)
    InlineRunner(store, make)._start()
    assert annotations.owner_of(store, RUN.key) == ADA.name
    assert store.verify() == []


def test_an_export_is_noted_once_for_each_folder(store: RunStore):
    for created in (1.0, 2.0):
        annotations.add_export(store, RUN.key, Exported(folder="/out/a", created=created))
    annotations.add_export(store, RUN.key, Exported(folder="/out/b", created=3.0))
    found = annotations.read(store, RUN.key).exports
    assert [(one.folder, one.created) for one in found] == [("/out/a", 2.0), ("/out/b", 3.0)]


def test_of_many_at_once_none_is_lost(store: RunStore):
    def tag(number: int) -> None:
        annotations.add_export(store, RUN.key, Exported(folder=f"/out/{number}", created=1.0))

    threads = [threading.Thread(target=tag, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(annotations.read(store, RUN.key).exports) == 12


def test_a_spoilt_file_says_nothing_and_that_of_a_lost_run_goes(store: RunStore):
    file = store.annotation_files / f"{RUN.key}.json"
    for text in ("", "{", "[]", '{"name": 3}', '{"nane": "x"}'):
        file.write_text(text)
        assert annotations.read(store, RUN.key) == NOTHING
    annotations.annotate(store, RUN.key, name="x")
    (store.annotation_files / f"k1-{'0' * 32}.json").write_text('{"name": "of nothing"}')
    assert store.prune() > 0
    assert [path.name for path in store.annotation_files.iterdir()] == [file.name]
