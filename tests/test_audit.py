"""Every damage to a store is found, in words; what can be mended is, and nothing else goes."""

import json
import os
import time
from pathlib import Path

import pytest

from laco import Drop, Footprint, Metric, ModelRef, Perplexity, Recipe, Request, WhatIf
from laco.disk import RECIPE, is_sound, sealed, write_json
from laco.errors import StoreError
from laco.queue import Queue
from laco.recipe import chained_key
from laco.store import RunStore
from laco.upkeep import UNFINISHED_SECONDS

MODEL = Recipe(model=ModelRef(path="org/Tiny", revision="content:1", dtype="float32"))
RUN = MODEL.then(Drop(layers=(3,)))
GONE = "k1-" + "0" * 32
METRIC = Metric("perplexity[x]", 12.5, "", "lower", details={"windows": 3})
REPORT = {"kind": "drop", "seconds": 1.0, "cached": False, "peak_bytes": 7, "report": {}}
METRICS = f"metrics/{chained_key(RUN.key, Perplexity())}.json"
ANALYSIS = f"analyses/{chained_key(RUN.key, WhatIf())}.json"
WEIGHTS = f"artifacts/{RUN.key}/model.safetensors"
ABANDONED = "partial-99999999-0"  # by a process that is not there


def write(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "tokenizer.json").write_text("{}")


@pytest.fixture
def store(tmp_path):
    opened = RunStore(tmp_path / "store")
    opened.add_model(MODEL.key, MODEL)
    opened.save(RUN.key, RUN, [REPORT], write)
    for key in (MODEL.key, RUN.key):
        opened.add_metrics(key, Perplexity(), [METRIC], [{"id": "q", "acc": 1}])
        opened.add_analysis(key, WhatIf(), {"layers": 4})
    queue = Queue(opened)
    done = queue.add(Request(recipe=RUN), "done")
    row = queue.claim(1)
    assert row is not None
    write_json(queue.folder / done / "result.json", {"key": RUN.key})
    write_json(queue.folder / done / "status.json", {"attempt": 1, "state": "done"})
    assert queue.settle(row) == "done"
    assert opened.verify() == []
    yield opened
    opened.close()


def flip(path: Path, at: int = 5000) -> None:
    """Turn one bit, and leave the times as they were."""
    times = path.stat()
    held = bytearray(path.read_bytes())
    held[at % len(held)] ^= 4
    path.write_bytes(held)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def statement(store: RunStore, sql: str, *values: object) -> None:
    with store.index.transaction() as index:
        index.execute(sql, values)


def only_job(store: RunStore) -> Path:
    return next((store.folder / "jobs").iterdir())


def dangle(store: RunStore) -> None:
    """A run of a model that lies in the folder of a run that is gone."""
    path = str(store.artifacts / GONE)
    recipe = Recipe(model=ModelRef(path=path, revision="content:9", dtype="float32"))
    store.add_model(recipe.key, recipe)


DAMAGES = {
    "a bit of the weights flipped": (
        lambda s: flip(s.folder / WEIGHTS),
        f"{WEIGHTS} is not what was saved; run its recipe again",
    ),
    "the last bit of the weights flipped": (
        lambda s: flip(s.folder / WEIGHTS, -1),
        f"{WEIGHTS} is not what was saved",
    ),
    "a bit of a small file flipped": (
        lambda s: flip(s.folder / "artifacts" / RUN.key / "tokenizer.json"),
        "tokenizer.json is not what was saved",
    ),
    "weights cut short": (
        lambda s: os.truncate(s.folder / WEIGHTS, 9),
        "has files missing or cut short; run its recipe again",
    ),
    "weights gone": (lambda s: (s.folder / WEIGHTS).unlink(), "has files missing or cut short"),
    "a file too many": (
        lambda s: (s.artifacts / RUN.key / "extra.bin").write_bytes(b"x"),
        "extra.bin is no file of this run; move it away",
    ),
    "recipe gone": (
        lambda s: (s.artifacts / RUN.key / RECIPE).unlink(),
        "has no readable recipe.json; run its recipe again",
    ),
    "another recipe": (
        lambda s: change(s.artifacts / RUN.key / RECIPE, "[3]", "[2]"),
        "does not match its recipe",
    ),
    "another report in the recipe's file": (
        lambda s: change(s.artifacts / RUN.key / RECIPE, '"peak_bytes": 7', '"peak_bytes": 8'),
        "recipe.json was changed after it was saved",
    ),
    "folder gone": (
        lambda s: (s.artifacts / RUN.key).rename(s.folder / "elsewhere"),
        f"artifacts/{RUN.key} is missing, though the index has it; `laco store prune`",
    ),
    "folder under another name": (
        lambda s: (s.artifacts / RUN.key).rename(s.artifacts / GONE),
        f"artifacts/{GONE} does not match its recipe",
    ),
    "half a folder": (
        lambda s: (s.artifacts / f"{GONE}.{ABANDONED}").mkdir(),
        f"artifacts/{GONE}.{ABANDONED} was left half written; `laco store prune`",
    ),
    "half a metrics file": (
        lambda s: (s.folder / f"{METRICS}.{ABANDONED}").write_text("{"),
        "was left half written; `laco store prune`",
    ),
    "half a status": (
        lambda s: (only_job(s) / f"status.json.{ABANDONED}").write_text("{"),
        "was left half written; `laco store prune`",
    ),
    "half a layer": (
        lambda s: (
            (s.folder / "unfinished" / GONE).mkdir(parents=True)
            or (s.folder / "unfinished" / GONE / f"model.{ABANDONED}").write_text("")
        ),
        "was left half written; `laco store prune`",
    ),
    "half a model": (
        lambda s: (s.folder / "models" / f"gguf-1.{ABANDONED}").mkdir(parents=True),
        "was left half written; `laco store prune`",
    ),
    "lineage without its beginning": (
        dangle,
        f"stands on artifacts/{GONE}, which is missing; bring it back",
    ),
    "row without its artifact": (
        lambda s: statement(s, "INSERT INTO runs VALUES(?, ?, 1.0)", GONE, RUN.model_dump_json()),
        f"artifacts/{GONE} is missing, though the index has it; `laco store prune`",
    ),
    "artifact without its row": (
        lambda s: statement(s, "DELETE FROM runs WHERE key = ?", RUN.key),
        f"artifacts/{RUN.key} is not in the index; `laco store rebuild`",
    ),
    "row with another recipe": (
        lambda s: statement(s, "UPDATE runs SET recipe = ?", MODEL.model_dump_json()),
        f"The index has another recipe for artifacts/{RUN.key}; `laco store rebuild`",
    ),
    "metric changed in its file": (
        lambda s: change(s.folder / METRICS, "12.5", "11.5"),
        f"{METRICS} was changed after it was saved",
    ),
    "answer changed in its file": (
        lambda s: change(s.folder / METRICS, '"acc": 1', '"acc": 0'),
        f"{METRICS} was changed after it was saved",
    ),
    "metric changed in the index": (
        lambda s: statement(s, "UPDATE metrics SET document = replace(document, '12.5', '9.5')"),
        f"{METRICS} has other metrics than the index; `laco store rebuild`",
    ),
    "metrics without rows": (
        lambda s: statement(s, "DELETE FROM metrics"),
        f"{METRICS} is not in the index; `laco store rebuild`",
    ),
    "rows without metrics": (
        lambda s: (s.folder / METRICS).unlink(),
        f"{METRICS} is missing, though the index has it; `laco store rebuild`",
    ),
    "metrics of nothing": (
        lambda s: write_json(
            s.metric_files / f"{chained_key(GONE, Footprint())}.json",
            {"key": GONE, "evaluation": Footprint().model_dump(mode="json"), "metrics": []},
        ),
        f"belongs to {GONE}, which is not there; `laco store prune`",
    ),
    "metrics that are no JSON": (
        lambda s: (s.folder / METRICS).write_text("{"),
        f"{METRICS} cannot be read; `laco store prune`",
    ),
    "metrics of another evaluation": (
        lambda s: change(s.folder / METRICS, "512", "513"),
        f"{METRICS} does not match its evaluation",
    ),
    "analysis changed in its file": (
        lambda s: change(s.folder / ANALYSIS, '"layers": 4', '"layers": 5'),
        f"{ANALYSIS} was changed after it was saved",
    ),
    "analysis without its row": (
        lambda s: statement(s, "DELETE FROM analyses"),
        f"{ANALYSIS} is not in the index; `laco store rebuild`",
    ),
    "analysis gone": (
        lambda s: (s.folder / ANALYSIS).unlink(),
        f"{ANALYSIS} is missing, though the index has it; `laco store rebuild`",
    ),
    "job without its row": (
        lambda s: statement(s, "DELETE FROM jobs"),
        "is not in the index; `laco store rebuild`",
    ),
    "row without its job": (
        lambda s: only_job(s).rename(s.folder / "elsewhere"),
        "is missing, though the index has it; `laco store prune`",
    ),
    "job that asks for something else": (
        lambda s: change(only_job(s) / "job.json", "[3]", "[2]"),
        "job.json is not what was queued; `laco retry",
    ),
    "result of a job gone": (
        lambda s: (only_job(s) / "result.json").unlink(),
        "result.json cannot be read; `laco retry",
    ),
    "a page of the index overwritten": (
        lambda s: (
            s.index.rows("PRAGMA wal_checkpoint(TRUNCATE)"),
            overwrite(s.folder / "runs.sqlite", 4096),
        ),
        "runs.sqlite is damaged",
    ),
}


def overwrite(path: Path, start: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xa5" * 4096)


@pytest.mark.parametrize("name", DAMAGES)
def test_verify_finds_the_damage_and_says_what_to_do(store, name):
    harm, sentence = DAMAGES[name]
    harm(store)
    again = RunStore(store.folder)  # a page of the old one's may be in memory
    found = again.verify()
    again.close()
    assert any(sentence in complaint for complaint in found), found
    assert all(complaint.endswith(".") and "\n" not in complaint for complaint in found)


MENDED = [name for name, (_, sentence) in DAMAGES.items() if "`laco store " in sentence]


@pytest.mark.parametrize("name", MENDED)
def test_what_verify_sends_to_prune_or_rebuild_is_mended_there(store, name):
    DAMAGES[name][0](store)
    store.prune()
    store.rebuild()
    assert store.verify() == []


def test_verify_changes_nothing(store):
    def everything() -> dict[str, bytes]:
        found = (path for path in store.folder.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found if "runs." not in path.name}

    flip(store.folder / WEIGHTS)
    before = everything()
    store.verify()
    assert everything() == before


def test_artifacts_of_before_there_were_digests_are_taken_as_they_are(store):
    path = store.artifacts / RUN.key / RECIPE
    document = json.loads(path.read_text())
    for name in ("seal", "digests"):
        del document[name]
    write_json(path, document)
    assert store.verify() == []
    assert store.artifact(RUN.key) is not None


@pytest.mark.parametrize(
    "document", [{}, {1: 2, "b": [1.5, None, "é"]}, {"nested": {"2": 1e300, "1": -0.0}}]
)
def test_a_sealed_document_is_sound_once_it_was_written_and_read(document):
    held = json.loads(json.dumps(sealed(document)))
    assert is_sound(held)
    assert not is_sound({**held, "more": 1})
    assert not is_sound({**held, "seal": "0"})


def test_rebuild_brings_a_lost_index_back_as_it_was(store):
    def told() -> tuple:
        return (
            store.runs(),
            store.metrics(RUN.key),
            store.analyses(RUN.key),
            [(row["id"], row["state"], row["attempt"]) for row in Queue(store).rows()],
        )

    before = told()
    for table in ("runs", "metrics", "analyses", "jobs"):
        statement(store, f"DELETE FROM {table}")
    assert store.rebuild() == 2
    assert told() == before
    assert store.verify() == []


def test_rebuild_puts_a_job_back_as_its_worker_left_it(store):
    queue = Queue(store)
    waiting, running = (queue.add(Request(recipe=MODEL), "x") for _ in range(2))
    report = {"attempt": 1, "state": "running", "started": 2.0, "pid": 1, "pid_created": 1.0}
    write_json(queue.folder / running / "status.json", report)
    statement(store, "DELETE FROM jobs WHERE label = 'x'")
    store.rebuild()
    assert queue.row(waiting)["state"] == "queued"
    row = queue.row(running)
    assert (row["state"], row["attempt"], row["pid"], row["slot"]) == ("running", 1, 1, 0)
    assert queue.settle(row) == "queued"  # its process is not the one that got the number


def test_prune_frees_what_nothing_needs_and_nothing_else(store):
    later = RUN.then(Drop(layers=(1,)))
    store.save(later.key, later, [REPORT, REPORT], write)
    queue = Queue(store)
    queue.add(Request(recipe=later), "waits")
    old = time.time() - 2 * UNFINISHED_SECONDS
    for name in ("walk", "unfinished-of-old"):
        folder = store.unfinished(name)
        folder.mkdir(parents=True)
        (folder / "layer").write_bytes(b"weights")
        for path in (folder / "layer", folder):
            os.utime(path, (old, old))
    (store.artifacts / f"{GONE}.{ABANDONED}").mkdir()
    (store.artifacts / f"{GONE}.{ABANDONED}" / "half").write_bytes(bytes(1000))
    (store.artifacts / f"{GONE}.partial-{os.getpid()}-77").mkdir()  # ours, and we live

    def files() -> set[Path]:
        return {path for path in store.folder.rglob("*") if "runs." not in path.name}

    before = files()
    assert store.prune() == 1000
    gone = {store.artifacts / f"{GONE}.{ABANDONED}"}
    assert before - files() == gone | {next(iter(gone)) / "half"}
    assert [run.key for run in store.runs()] == [later.key, RUN.key, MODEL.key]
    statement(store, "UPDATE jobs SET state = 'done'")
    assert store.prune() == 2 * len(b"weights")  # no job may go on from there any more
    assert not list(store.folder.glob("unfinished/*"))


def test_a_run_that_others_need_is_not_removed(store):
    path = str(store.artifacts / RUN.key)
    on_it = Recipe(model=ModelRef(path=path, revision="content:9", dtype="float32"))
    store.add_model(on_it.key, on_it)
    with pytest.raises(StoreError, match=f"{RUN.key} is needed by the run {on_it.key}"):
        store.remove(RUN.key)
    store.remove(on_it.key)
    asked = Recipe(model=ModelRef(path=RUN.key[:12]), steps=(Drop(layers=(1,)),))
    job = Queue(store).add(Request(recipe=asked), "from a result")
    with pytest.raises(StoreError, match=f"is needed by the job {job}"):
        store.remove(RUN.key)
    Queue(store).ask_to_cancel(job)
    store.remove(RUN.key)
    assert [run.key for run in store.runs()] == [MODEL.key]
