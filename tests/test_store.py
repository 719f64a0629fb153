"""The store keeps what it promises: whole or absent, across processes, and made anew from files."""

import errno
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crowding import missing

from laco import Drop, Footprint, Metric, ModelRef, Perplexity, Recipe, WhatIf
from laco.errors import NumericalError, StoreError
from laco.index import MIGRATIONS
from laco.store import RunStore

MODEL = Recipe(model=ModelRef(path="org/Tiny", revision="content:1", dtype="float32"))
DROPPED = MODEL.then(Drop(layers=(3,)))
PERPLEXITY = Metric("perplexity[x]", 12.5, "", "lower", stderr=0.5, details={"windows": 3})
REPORT = {"kind": "drop", "seconds": 1.0, "cached": False, "peak_bytes": 7, "report": {}}


@pytest.fixture
def store(tmp_path):
    opened = RunStore(tmp_path / "store")
    yield opened
    opened.close()


def write(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "parts").mkdir()
    (folder / "parts" / "a.json").write_text("{}")


def keep(store, recipe=DROPPED):
    return store.save(recipe.key, recipe, [REPORT] * len(recipe.steps), write)


def files_of(store) -> set[str]:
    ours = ("artifacts", "metrics", "analyses")
    found = (path for name in ours for path in (store.folder / name).rglob("*"))
    return {str(path.relative_to(store.folder)) for path in found}


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that has this file in its path and runs `code` on its arguments, `given`."""
    here = Path(__file__).parent
    head = f"import sys; sys.path.insert(0, {str(here)!r}); given = sys.argv[1:]\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def race(processes: list[subprocess.Popen[str]]) -> list[str]:
    """What each printed, when all begin at once: each says "ready" and waits for its input."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    found = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), found
    return found


def test_saved_artifact_comes_back_as_it_was(store):
    saved = keep(store)
    assert saved == store.artifact(DROPPED.key)
    assert saved.recipe == DROPPED
    assert saved.steps == (REPORT,)
    assert saved.path is not None
    assert (saved.path / "model.safetensors").read_bytes() == b"weights"
    assert saved.n_bytes == len(b"weights") + len("{}")
    assert abs(saved.created - time.time()) < 60
    document = json.loads((saved.path / "recipe.json").read_text())
    assert document["key"] == DROPPED.key
    assert Recipe.model_validate(document["recipe"]).key == DROPPED.key


def test_unknown_key_has_nothing(store):
    assert store.artifact(DROPPED.key) is None
    assert store.metrics(DROPPED.key, Footprint()) is None
    assert store.metrics(DROPPED.key) == ()
    assert store.analysis(DROPPED.key, WhatIf()) is None
    assert store.runs() == []


def test_key_of_another_recipe_is_refused(store):
    with pytest.raises(StoreError, match="is not the key of this recipe"):
        store.save(MODEL.key, DROPPED, [REPORT], write)
    assert files_of(store) == set()


def test_untouched_model_is_a_run_without_a_path(store):
    store.add_model(MODEL.key, MODEL)
    store.add_model(MODEL.key, MODEL)
    assert [(run.key, run.path) for run in store.runs()] == [(MODEL.key, None)]
    found = store.artifact(MODEL.key)
    assert found is not None
    assert found.path is None
    with pytest.raises(StoreError, match="has steps"):
        store.add_model(DROPPED.key, DROPPED)


def test_longest_prefix_is_the_last_one_on_disk(store):
    recipe = DROPPED.then(Drop(layers=(2,)), Drop(layers=(1,)))
    keys = recipe.keys()
    assert store.longest_prefix(keys) == 0
    keep(store)
    assert store.longest_prefix(keys) == 1
    keep(store, DROPPED.then(Drop(layers=(2,))))
    assert store.longest_prefix(keys) == 2


def test_prefix_is_found_without_the_index(store):
    keep(store)
    with store.index.transaction() as index:
        index.execute("DELETE FROM runs")
    assert store.runs() == []
    assert store.longest_prefix(DROPPED.keys()) == 1
    store.add_metrics(DROPPED.key, Footprint(), [PERPLEXITY])  # the folder alone makes it a run
    assert [run.key for run in store.runs()] == [DROPPED.key]


def test_artifact_that_lost_a_file_is_not_whole_and_is_replaced(store):
    path = keep(store).path
    assert path is not None
    (path / "model.safetensors").write_bytes(b"we")
    assert store.artifact(DROPPED.key) is None
    assert store.longest_prefix(DROPPED.keys()) == 0
    keep(store)
    assert (path / "model.safetensors").read_bytes() == b"weights"
    assert store.verify() == []


def test_files_reach_the_disk_before_the_artifact_gets_its_name(store, monkeypatch):
    synced: set[int] = set()
    sync, rename = os.fsync, Path.rename

    def note(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        sync(handle)

    def check(path: Path, target: Path) -> Path:
        assert {file.stat().st_ino for file in path.rglob("*")} <= synced
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", check)
    assert keep(store).path == store.artifacts / DROPPED.key


def test_first_artifact_wins(store):
    first = keep(store)
    second = store.save(
        DROPPED.key, DROPPED, [], lambda folder: (folder / "other").write_text("late")
    )
    assert second == first
    assert len(list(store.artifacts.iterdir())) == 1


def test_failing_writer_leaves_nothing(store):
    def fail(folder: Path) -> None:
        write(folder)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.save(DROPPED.key, DROPPED, [REPORT], fail)
    assert files_of(store) == set()
    assert store.runs() == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("I/O error: No space left on device (os error 28)"),  # as safetensors says it
    ],
)
def test_full_disk_while_saving_is_said_and_leaves_nothing(store, error):
    def fill(folder: Path) -> None:
        write(folder)
        raise error

    with pytest.raises(StoreError, match=r"No space left.* MB .* free.*nothing was saved.*--store"):
        store.save(DROPPED.key, DROPPED, [REPORT], fill)
    assert files_of(store) == set()
    assert store.runs() == []


def test_disk_that_fills_up_with_the_last_file_leaves_nothing(store, monkeypatch):
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        keep(store)
    assert files_of(store) == set()


def test_full_disk_while_keeping_metrics_keeps_those_before(store, monkeypatch):
    keep(store)
    store.add_metrics(DROPPED.key, Footprint(), [PERPLEXITY])

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = files_of(store)
    monkeypatch.setattr(os, "fsync", full)
    worse = Metric("perplexity[x]", 99.0, "", "lower")
    with pytest.raises(StoreError, match="No space left"):
        store.add_metrics(DROPPED.key, Footprint(), [worse])
    monkeypatch.undo()
    assert store.metrics(DROPPED.key, Footprint()) == (PERPLEXITY,)
    assert files_of(store) == before
    assert store.verify() == []


def test_full_index_is_said(store):
    keep(store)
    store.index.rows("PRAGMA max_page_count = 1")  # SQLite then says "database or disk is full"
    with pytest.raises(StoreError, match="No space left"), store.index.transaction() as index:
        index.execute("CREATE TABLE more AS SELECT randomblob(100000)")
    store.index.rows("PRAGMA max_page_count = 1000000")
    assert store.verify() == []


def test_killed_writer_leaves_no_artifact_and_prune_cleans_up(store):
    process = python(
        """
from test_store import *
def linger(folder):
    write(folder)
    print("writing", flush=True)
    time.sleep(60)
RunStore(given[0]).save(DROPPED.key, DROPPED, [REPORT], linger)
""",
        store.folder,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    assert store.prune() == 0  # its writer lives
    assert "is being written" in " ".join(store.verify())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert store.longest_prefix(DROPPED.keys()) == 0
    assert store.artifact(DROPPED.key) is None
    assert "left half written" in " ".join(store.verify())
    assert store.prune() == len(b"weights") + len("{}")
    assert files_of(store) == set()
    assert store.verify() == []


def test_metrics_are_replaced_by_evaluation(store):
    keep(store)
    other = Metric("perplexity[x]", 9.0, "", "lower")
    size = Metric("bytes", 8.0, "B", "lower")
    store.add_metrics(DROPPED.key, Perplexity(), [PERPLEXITY])
    store.add_metrics(DROPPED.key, Footprint(), [size, other])
    store.add_metrics(DROPPED.key, Perplexity(), [other])
    assert store.metrics(DROPPED.key, Perplexity()) == (other,)
    assert store.metrics(DROPPED.key, Footprint()) == (size, other)
    assert store.metrics(DROPPED.key, Perplexity(windows=2)) is None
    assert sorted(metric.value for metric in store.metrics(DROPPED.key) or ()) == [8.0, 9.0, 9.0]


@pytest.mark.parametrize(
    "metric",
    [
        Metric("perplexity[x]", math.nan, "", "lower"),
        Metric("perplexity[x]", math.inf, "", "lower"),
        Metric("perplexity[x]", 1.0, "", "lower", stderr=math.nan),
    ],
)
def test_number_that_is_not_finite_is_refused_by_name(store, metric):
    keep(store)
    store.add_metrics(DROPPED.key, Perplexity(), [PERPLEXITY])
    with pytest.raises(NumericalError, match=re.escape("perplexity[x]")):
        store.add_metrics(DROPPED.key, Perplexity(), [PERPLEXITY, metric])
    assert store.metrics(DROPPED.key, Perplexity()) == (PERPLEXITY,)


def test_analysis_with_a_number_that_is_not_finite_is_refused(store):
    keep(store)
    with pytest.raises(NumericalError, match="not finite"):
        store.add_analysis(DROPPED.key, WhatIf(), {"kl": [math.nan]})
    assert store.analyses(DROPPED.key) == []
    assert store.verify() == []


def test_metrics_of_nothing_are_refused(store):
    with pytest.raises(StoreError, match="There is no run"):
        store.add_metrics(DROPPED.key, Footprint(), [PERPLEXITY])
    assert files_of(store) == set()


def test_analysis_comes_back(store):
    keep(store)
    store.add_analysis(DROPPED.key, WhatIf(), {"kl": [1.0, None]})
    assert store.analysis(DROPPED.key, WhatIf()) == {"kl": [1.0, None]}
    assert store.analysis(DROPPED.key, WhatIf(longest=3)) is None
    assert [analysis for analysis, _when in store.analyses(DROPPED.key)] == [WhatIf()]


def test_runs_are_newest_first_with_metrics_and_words(store):
    store.add_model(MODEL.key, MODEL)
    keep(store)
    store.add_metrics(DROPPED.key, Perplexity(), [PERPLEXITY])
    newest, oldest = store.runs()
    assert (newest.key, oldest.key) == (DROPPED.key, MODEL.key)
    assert (newest.metrics, oldest.metrics) == ((PERPLEXITY,), ())
    assert newest.label == "Tiny, drop 1 layer (3)"
    assert newest.path == store.artifacts / DROPPED.key


def test_listing_takes_two_queries_however_many_runs(store, monkeypatch):
    for number in range(5):
        recipe = MODEL.then(Drop(layers=(number,)))
        keep(store, recipe)
        store.add_metrics(recipe.key, Footprint(), [PERPLEXITY])
    asked = []
    rows = store.index.rows
    monkeypatch.setattr(store.index, "rows", lambda *query: asked.append(query) or rows(*query))
    assert len(store.runs()) == 5
    assert len(asked) == 2


def test_beginning_of_a_key_stands_for_it_unless_it_is_that_of_two(store):
    store.add_model(MODEL.key, MODEL)
    assert store.resolve(MODEL.key) == MODEL.key
    assert store.resolve(MODEL.key[:7]) == MODEL.key
    assert store.resolve("k1-zz") is None
    assert store.resolve("org/Tiny") is None
    assert store.resolve("") is None
    with store.index.transaction() as index:
        twin = MODEL.key[:-1] + ("0" if MODEL.key[-1] != "0" else "1")
        index.execute("INSERT INTO runs VALUES(?, ?, 1.0)", (twin, MODEL.model_dump_json()))
    with pytest.raises(StoreError, match="beginning of 2 keys"):
        store.resolve(MODEL.key[:7])


def test_removed_run_takes_its_results_and_no_others(store):
    store.add_model(MODEL.key, MODEL)
    store.add_metrics(MODEL.key, Footprint(), [PERPLEXITY])
    before = files_of(store)
    keep(store)
    store.add_metrics(DROPPED.key, Footprint(), [PERPLEXITY])
    store.add_analysis(DROPPED.key, WhatIf(), {"kl": []})
    store.remove(DROPPED.key)
    assert files_of(store) == before
    assert [run.key for run in store.runs()] == [MODEL.key]
    assert store.verify() == []
    for key in (DROPPED.key, "", ".", "../metrics"):
        with pytest.raises(StoreError, match="There is no run"):
            store.remove(key)
    assert files_of(store) == before


def filled(store) -> None:
    store.add_model(MODEL.key, MODEL)
    keep(store)
    for key in (MODEL.key, DROPPED.key):
        store.add_metrics(key, Perplexity(), [PERPLEXITY])
        store.add_analysis(key, WhatIf(), {"layers": 4})


def test_whole_store_has_nothing_to_complain_of(store):
    filled(store)
    assert store.verify() == []
    assert store.prune() == 0


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("rm -r artifacts/{key}", "artifacts/{key} is missing"),
        ("rm artifacts/{key}/recipe.json", "artifacts/{key} has no readable recipe.json"),
        ("rm artifacts/{key}/parts/a.json", "artifacts/{key} has files missing"),
        ("truncate -s 3 artifacts/{key}/model.safetensors", "artifacts/{key} has files missing"),
        ("sed -i 's/\\[3\\]/[2]/' artifacts/{key}/recipe.json", "does not match its recipe"),
        ("echo '{{' > artifacts/{key}/recipe.json", "no readable recipe.json"),
        ("mv artifacts/{key} artifacts/k1-0", "artifacts/k1-0 does not match its recipe"),
        ("mkdir artifacts/{key}.partial-99999999-0", "left half written"),
        ("rm metrics/*", "is missing, though the index has it"),
        ("sed -i 's/512/513/' metrics/*", "does not match its evaluation"),
        ("echo > metrics/k1-0.json", "metrics/k1-0.json cannot be read"),
        ("sed -i 's/what_if/why_not/' analyses/*", "does not know"),
        ("sqlite", "is not in the index"),
    ],
)
def test_verify_names_each_damage(store, damage, complaint):
    filled(store)
    if damage == "sqlite":
        with store.index.transaction() as index:
            index.execute("DELETE FROM runs WHERE key = ?", (DROPPED.key,))
    else:
        subprocess.run(damage.format(key=DROPPED.key), shell=True, check=True, cwd=store.folder)
    complaints = store.verify()
    assert any(complaint.format(key=DROPPED.key) in found for found in complaints), complaints


def test_rebuild_restores_what_the_index_lost(store):
    filled(store)
    before = (store.runs(), store.metrics(DROPPED.key), store.analyses(DROPPED.key))
    with store.index.transaction() as index:
        index.execute("DELETE FROM runs")
    assert store.runs() == []
    assert store.rebuild() == 2
    assert (store.runs(), store.metrics(DROPPED.key), store.analyses(DROPPED.key)) == before
    assert store.verify() == []


def test_rebuild_leaves_out_what_is_damaged(store):
    filled(store)
    (store.artifacts / DROPPED.key / "model.safetensors").unlink()
    assert store.rebuild() == 1
    assert [run.key for run in store.runs()] == [MODEL.key]


def test_prune_removes_results_of_nothing(store):
    filled(store)
    subprocess.run(["rm", "-r", str(store.artifacts / DROPPED.key)], check=True)
    assert store.prune() > 0
    assert [run.key for run in store.runs()] == [MODEL.key]
    assert store.verify() == []


def test_blank_store_takes_every_migration_once(store):
    applied = [row["name"] for row in store.index.rows("SELECT name FROM migrations ORDER BY name")]
    assert applied == [migration.__name__ for migration in MIGRATIONS]
    assert applied == sorted(applied)
    assert store.index.rows("PRAGMA journal_mode")[0][0] == "wal"
    assert store.index.rows("PRAGMA foreign_keys")[0][0] == 1
    RunStore(store.folder).close()


def test_store_of_the_first_shape_is_brought_to_the_newest(tmp_path):
    index = sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None)
    index.execute("CREATE TABLE migrations(name TEXT PRIMARY KEY, applied REAL)")
    MIGRATIONS[0](index)
    index.execute("INSERT INTO migrations VALUES('m001_runs', 0)")
    index.execute("INSERT INTO runs VALUES(?, ?, 1.0)", (MODEL.key, MODEL.model_dump_json()))
    index.close()
    store = RunStore(tmp_path)
    assert [run.key for run in store.runs()] == [MODEL.key]
    assert store.index.rows("SELECT * FROM jobs") == []
    store.close()


def test_failing_migration_changes_nothing(tmp_path, monkeypatch):
    def m999_half(index: sqlite3.Connection) -> None:
        index.execute("CREATE TABLE half(a)")
        raise sqlite3.OperationalError("broken")

    RunStore(tmp_path).close()
    monkeypatch.setattr("laco.index.MIGRATIONS", (*MIGRATIONS, m999_half))
    with pytest.raises(StoreError, match="broken"):
        RunStore(tmp_path)
    monkeypatch.undo()
    store = RunStore(tmp_path)
    assert store.index.rows("SELECT * FROM sqlite_master WHERE name = 'half'") == []
    store.close()


def test_store_of_a_newer_laco_is_refused(store):
    with store.index.transaction() as index:
        index.execute("INSERT INTO migrations VALUES('m999_later', 0)")
    with pytest.raises(StoreError, match=r"newer laco .*m999_later"):
        RunStore(store.folder)


def test_index_that_is_no_database_is_said(tmp_path):
    (tmp_path / "runs.sqlite").write_text("this is a text file, of some length, and no database")
    with pytest.raises(StoreError, match=r"runs\.sqlite cannot be used.*laco store rebuild"):
        RunStore(tmp_path)


def test_store_where_a_file_is_in_the_way_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another --store"):
        RunStore(tmp_path / "file")


def test_eight_processes_may_open_a_blank_store_at_once(tmp_path):
    code = """
from laco.store import RunStore
print("ready", flush=True)
sys.stdin.read()
stores = [RunStore(f"{given[0]}/{number}") for number in range(20)]
print({len(store.index.rows("SELECT * FROM migrations")) for store in stores})
"""
    processes = [python(code, tmp_path) for _ in range(8)]
    assert race(processes) == [f"{{{len(MIGRATIONS)}}}\n"] * 8


def test_two_processes_may_fill_one_store(tmp_path):
    code = """
from test_store import *
store, mine = RunStore(given[0]), int(given[1])
print("ready", flush=True)
sys.stdin.read()
store.add_model(MODEL.key, MODEL)
for number in range(30):
    recipe = MODEL.then(Drop(layers=(number,)))
    keep(store, recipe)  # both want to
    store.add_metrics(recipe.key, Perplexity(windows=mine), [PERPLEXITY])
    store.add_metrics(MODEL.key, Perplexity(window=100 * mine + number), [PERPLEXITY])
"""
    race([python(code, tmp_path, mine) for mine in (1, 2)])
    store = RunStore(tmp_path)
    assert len(store.runs()) == 31
    assert store.verify() == []
    assert len(store.metrics(MODEL.key) or ()) == 60
    assert all(len(run.metrics) == 2 for run in store.runs() if run.key != MODEL.key)
    store.close()


def test_six_processes_at_once_lose_nothing(tmp_path):
    code = """
from pathlib import Path
from crowding import fill
print("ready", flush=True)
sys.stdin.read()
fill(Path(given[0]), int(given[1]), Path(given[2]), 3.0)
"""
    folder = tmp_path / "store"
    store = RunStore(folder)
    books = [tmp_path / f"book-{writer}" for writer in range(1, 7)]
    race([python(code, folder, writer, books[writer - 1]) for writer in range(1, 7)])
    assert missing(store, books) == []
    assert store.verify() == []
    assert store.prune() == 0
    kept = {run.key: run.metrics for run in store.runs()}
    store.rebuild()
    assert {run.key for run in store.runs()} == kept.keys()
    told = sum(len(book.read_text().splitlines()) for book in books)
    assert told >= 6 * 4
    print(f"{told} things kept or removed by six processes, {len(missing(store, books))} lost")
    store.close()
