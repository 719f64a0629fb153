"""The index: earlier shapes are brought to the newest, a broken one is said and made anew."""

import sqlite3
import sys
import threading
import time
from pathlib import Path

import pytest

from laco import Drop, Metric, ModelRef, Perplexity, Recipe, Request
from laco.cli import app
from laco.cli.terminal import speak
from laco.errors import StoreError
from laco.index import MIGRATIONS, Index
from laco.queue import Queue
from laco.recipe import chained_key
from laco.store import RunStore

MODEL = Recipe(model=ModelRef(path="org/Tiny", revision="content:1", dtype="float32"))
RUN = MODEL.then(Drop(layers=(3,)))
METRIC = Metric("perplexity[x]", 12.5, "", "lower")
REPORT = {"kind": "drop", "seconds": 1.0, "cached": False, "peak_bytes": 7, "report": {}}

# What each released migration left, as SQLite keeps it: a released migration never changes.
SHAPES = {
    "m001_runs": {
        "runs": "key recipe created",
        "metrics": "evaluation_key position key document",
        "analyses": "analysis_key key analysis created",
    },
    "m002_jobs": {
        "jobs": "id label request cwd state created claimed started ended attempt slot pid"
        " pid_created cancelled fraction message error"
    },
    "m003_devices": {
        "jobs": "id label request cwd state created claimed started ended attempt slot pid"
        " pid_created cancelled fraction message error device memory"
    },
    "m004_owners": {
        "jobs": "id label request cwd state created claimed started ended attempt slot pid"
        " pid_created cancelled fraction message error device memory owner"
    },
    "m005_places": {
        "jobs": "id label request cwd state created claimed started ended attempt slot pid"
        " pid_created cancelled fraction message error device memory owner place handle"
    },
}
NAMES = [migration.__name__ for migration in MIGRATIONS]


def laco(monkeypatch, *words: str) -> int:
    """The exit status of a command, carried out here."""
    monkeypatch.setattr(sys, "argv", ["laco", *words])
    return speak(app)


def columns(index: sqlite3.Connection) -> dict[str, str]:
    tables = [row[0] for row in index.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    return {
        table: " ".join(row[1] for row in index.execute(f"PRAGMA table_info({table})"))
        for table in tables
        if table != "migrations"
    }


def test_every_migration_leaves_the_shape_that_was_released():
    index = sqlite3.connect(":memory:", isolation_level=None)
    expected: dict[str, str] = {}
    for migration in MIGRATIONS:
        migration(index)
        expected |= SHAPES[migration.__name__]
        assert columns(index) == expected
    index.close()


@pytest.mark.parametrize("applied", range(len(MIGRATIONS) + 1))
def test_a_store_of_every_earlier_shape_keeps_all_it_has(tmp_path, applied):
    index = sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None)
    index.execute("CREATE TABLE migrations(name TEXT PRIMARY KEY, applied REAL)")
    for migration in MIGRATIONS[:applied]:
        migration(index)
        index.execute("INSERT INTO migrations VALUES(?, 0)", (migration.__name__,))
    if applied >= 1:
        index.execute("INSERT INTO runs VALUES(?, ?, 1.0)", (RUN.key, RUN.model_dump_json()))
        index.execute(
            "INSERT INTO metrics VALUES(?, 0, ?, ?)",
            (
                chained_key(RUN.key, Perplexity()),
                RUN.key,
                '{"name": "perplexity[x]", "value": 12.5, "unit": "", "better": "lower"}',
            ),
        )
    if applied >= 2:
        index.execute(
            "INSERT INTO jobs(id, label, request, cwd, state, created)"
            " VALUES('a', 'Drop', ?, '/', 'queued', 1.0)",
            (Request(recipe=RUN).model_dump_json(),),
        )
    index.close()
    store = RunStore(tmp_path)
    assert [row["name"] for row in store.index.rows("SELECT name FROM migrations")] == NAMES
    assert [run.key for run in store.runs()] == [RUN.key][: min(applied, 1)]
    assert store.metrics(RUN.key) == ((METRIC,) if applied else ())
    assert [row["state"] for row in Queue(store).rows()] == ["queued"][: max(applied - 1, 0)]
    Queue(store).add(Request(recipe=RUN), "new")
    assert store.index.damage() == ""
    store.close()


def test_an_index_of_a_newer_laco_is_refused_in_one_sentence(tmp_path, capsys, monkeypatch):
    store = RunStore(tmp_path)
    with store.index.transaction() as index:
        index.execute("INSERT INTO migrations VALUES('m999_later', 0)")
    store.close()
    for command in (["runs"], ["store", "verify"], ["store", "rebuild"], ["jobs"]):
        assert laco(monkeypatch, *command, "--store", str(tmp_path)) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.count("\n") == 1
        assert "newer laco (it has m999_later); update laco" in told.err


def write(folder: Path) -> None:
    (folder / "w").write_bytes(b"weights")


def filled(folder: Path) -> RunStore:
    store = RunStore(folder)
    store.add_model(MODEL.key, MODEL)
    store.save(RUN.key, RUN, [REPORT], write)
    store.add_metrics(RUN.key, Perplexity(), [METRIC])
    Queue(store).add(Request(recipe=RUN), "Tiny, drop 1 layer (3)")
    return store


def told(store: RunStore) -> tuple:
    jobs = [(row["id"], row["label"], row["state"]) for row in Queue(store).rows()]
    return store.runs(), store.metrics(RUN.key), jobs


def closed(store: RunStore) -> Path:
    """The index's file, with everything in it."""
    store.index.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    return store.folder / "runs.sqlite"


GARBAGE = {
    "text": lambda data: b"this is a text file, and no database at all" * 100,
    "noise": lambda data: bytes((7 * place + 13) % 256 for place in range(len(data))),
    "cut within the first page": lambda data: data[:1000],
    "cut after the first page": lambda data: data[:4096],
    "cut in the middle": lambda data: data[: len(data) // 2],
    "header overwritten": lambda data: b"x" * 100 + data[100:],
    "pages overwritten": lambda data: data[:4096] + b"\xa5" * (len(data) - 4096),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_broken_index_is_said_and_rebuild_makes_it_anew(tmp_path, capsys, monkeypatch, kind):
    store = filled(tmp_path)
    before = told(store)
    path = closed(store)
    path.write_bytes(GARBAGE[kind](path.read_bytes()))
    assert laco(monkeypatch, "store", "verify", "--store", str(tmp_path)) == 1
    said = "".join(capsys.readouterr())
    assert "runs.sqlite" in said
    assert "`laco store rebuild`" in said
    assert "Traceback" not in said
    assert laco(monkeypatch, "store", "rebuild", "--store", str(tmp_path)) == 0
    assert "lies beside the new one" in capsys.readouterr().err
    assert len(list(tmp_path.glob("runs.sqlite.broken-*"))) == 1
    again = RunStore(tmp_path)
    assert told(again) == before
    assert again.verify() == []
    again.close()


@pytest.mark.parametrize("loss", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_lost_or_blank_index_is_made_anew_when_the_store_is_opened(tmp_path, loss):
    store = filled(tmp_path)
    before = told(store)
    loss(closed(store))
    again = RunStore(tmp_path)
    assert told(again) == before
    assert again.verify() == []
    again.close()


def test_a_sound_index_is_not_set_aside(tmp_path, capsys, monkeypatch):
    filled(tmp_path).close()
    assert laco(monkeypatch, "store", "rebuild", "--store", str(tmp_path)) == 0
    assert capsys.readouterr().err == ""
    assert not list(tmp_path.glob("*.broken-*"))


def test_who_has_the_index_open_goes_on_with_the_new_one(tmp_path):
    server = filled(tmp_path)
    before = told(server)
    (tmp_path / "runs.sqlite").rename(tmp_path / "old")
    for tail in ("-wal", "-shm"):
        (tmp_path / f"runs.sqlite{tail}").unlink()
    other = RunStore(tmp_path)  # made anew
    assert told(server) == before
    server.add_metrics(MODEL.key, Perplexity(), [METRIC])
    assert other.metrics(MODEL.key) == (METRIC,)
    other.close()
    server.close()


def test_an_index_that_another_process_holds_is_waited_for_and_then_said(tmp_path, monkeypatch):
    store = filled(tmp_path)
    holder = sqlite3.connect(
        tmp_path / "runs.sqlite", isolation_level=None, check_same_thread=False
    )
    holder.execute("BEGIN IMMEDIATE")
    assert len(store.runs()) == 2  # reading goes on
    store.index.rows("PRAGMA busy_timeout = 100")
    with pytest.raises(StoreError, match=r"database is locked.*another process holds it"):
        store.add_metrics(MODEL.key, Perplexity(), [METRIC])
    store.index.rows("PRAGMA busy_timeout = 30000")
    release = threading.Timer(0.3, lambda: holder.execute("ROLLBACK"))
    release.start()
    began = time.monotonic()
    store.add_metrics(MODEL.key, Perplexity(), [METRIC])
    assert 0.2 < time.monotonic() - began < 20
    release.join()
    holder.close()
    assert store.verify() == []
    store.close()


def test_a_store_that_is_removed_under_a_process_is_said(tmp_path):
    index = Index(tmp_path / "runs.sqlite")
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    with pytest.raises(StoreError, match="choose another --store"):
        index.rows("SELECT 1 FROM runs")
    tmp_path.mkdir()
    index.close()
