"""Reading many runs: few queries however many there are, and the same as one by one."""

import pytest

from laco import Drop, Footprint, Metric, ModelRef, Perplexity, Recipe
from laco.recipe import chained_key
from laco.store import RunStore

MODEL = Recipe(model=ModelRef(path="org/Tiny", revision="content:1", dtype="float32"))


@pytest.fixture
def store(tmp_path):
    opened = RunStore(tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture
def queries(store, monkeypatch):
    """The queries that were asked from here on."""
    asked: list[str] = []
    whole = store.index.rows

    def rows(query: str, *values: object):
        asked.append(query)
        return whole(query, *values)

    monkeypatch.setattr(store.index, "rows", rows)
    return asked


def fill(store: RunStore, runs: int) -> list[str]:
    store.add_model(MODEL.key, MODEL)
    keys = [MODEL.key]
    for place in range(runs - 1):
        recipe = MODEL.then(Drop(layers=(place,)))
        report = {"kind": "drop", "seconds": 1.0, "cached": False, "peak_bytes": 7, "report": {}}
        store.save(recipe.key, recipe, [report], lambda folder: (folder / "w").touch())
        keys.append(recipe.key)
    for place, key in enumerate(keys[:-1]):
        store.add_metrics(key, Perplexity(), [Metric("perplexity[x]", place, "", "lower")])
        layers = [Metric("layers", 9, "", "lower"), Metric("bytes", 7, "B", "lower")]
        store.add_metrics(key, Footprint(), layers)
    return keys


@pytest.mark.parametrize("runs", [2, 9])
def test_queries_do_not_grow_with_the_runs(store, queries, runs):
    fill(store, runs)
    queries.clear()
    found = store.runs(metrics=False)
    assert (len(found), len(queries)) == (runs, 1)
    store.with_metrics(found)
    assert len(queries) == 2
    assert len(store.runs()) == runs
    assert len(queries) == 4


def test_metrics_are_there_when_they_are_asked_for(store):
    keys = fill(store, 4)
    bare = {run.key: run for run in store.runs(metrics=False)}
    assert [bare[key].measured for key in keys] == [True, True, True, False]
    assert all(run.metrics == () for run in bare.values())
    for run in store.runs():
        assert run.metrics == store.metrics(run.key)
        assert run == store.run(run.key)
    names = [metric.name for metric in store.with_metrics([bare[keys[1]]])[0].metrics]
    assert names == ["perplexity[x]", "layers", "bytes"]


def test_measurements_stand_under_their_evaluations(store):
    keys = fill(store, 3)
    found = store.measurements(keys)
    assert list(found) == keys
    assert found[keys[2]] == {}
    of_run = found[keys[1]]
    assert [metric.value for metric in of_run[chained_key(keys[1], Perplexity())]] == [1]
    assert len(of_run[chained_key(keys[1], Footprint())]) == 2


def test_more_keys_than_a_query_takes_at_once(store, monkeypatch):
    keys = fill(store, 5)
    whole = store.measurements(keys)
    monkeypatch.setattr("laco.listing._AT_ONCE", 2)
    assert store.measurements(keys) == whole
    assert store.measurements([]) == {}


def test_a_run_that_is_not_there_or_cannot_be_read_is_none(store):
    fill(store, 2)
    assert store.run("k1-0") is None
    with store.index.transaction() as index:
        index.execute("INSERT INTO runs VALUES('k1-1', '{\"model\": 3}', 1.0)")
    assert store.run("k1-1") is None
    assert len(store.runs()) == 2


def test_a_run_whose_folder_is_gone_has_no_path(store):
    keys = fill(store, 3)
    (store.artifacts / keys[1] / "w").unlink()
    (store.artifacts / keys[1] / "recipe.json").unlink()
    (store.artifacts / keys[1]).rmdir()
    paths = {run.key: run.path for run in store.runs(metrics=False)}
    assert paths == {keys[0]: None, keys[1]: None, keys[2]: store.artifacts / keys[2]}
    assert store.run(keys[1]).path is None
