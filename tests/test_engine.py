"""Requests carried out on a tiny model: what is run, what is taken from the store, what is kept."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from laco import engine, layerfiles, locks, models, parallel
from laco.context import Context
from laco.errors import CalibrationError, Cancelled, LacoError, NumericalError, RecipeError
from laco.evaluations import (
    Divergence,
    Footprint,
    ParameterSimilarity,
    Perplexity,
    Request,
    Similarity,
    WhatIf,
)
from laco.recipe import (
    Calibration,
    Collapse,
    Compensate,
    Drop,
    Finetune,
    Merge,
    ModelRef,
    Prune,
    Recipe,
    Wanda,
)
from laco.store import RunStore
from tests import tiny

LINES = [f"The {n} small birds sat in the {n % 7} old trees and sang. " * 3 for n in range(200)]


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(LINES))
    return f"file:{path}"


@pytest.fixture
def model(tmp_path: Path) -> ModelRef:
    return ModelRef(path=str(tiny.save(tiny.redundant(), tmp_path / "tiny")))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    store = RunStore(tmp_path / "store")
    yield store
    store.close()


def measures(source: str) -> dict[str, Any]:
    calibration = Calibration(source=source, windows=3, length=16)
    return {
        "evaluations": (
            Perplexity(source=source, window=16, windows=4),
            Divergence(source=source, window=16, windows=4),
            Footprint(),
        ),
        "analyses": (
            Similarity(calibration=calibration, shards=3),
            ParameterSimilarity(),
            WhatIf(calibration=calibration, longest=3),
        ),
    }


def collapse(source: str, layers: int) -> Collapse:
    return Collapse(
        target_layers=layers, calibration=Calibration(source=source, windows=2, length=16)
    )


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the steps that were run, as they are run."""
    kinds: list[str] = []
    for spec, function in engine.STEPS.items():

        def counted(recipe: Recipe, keys: Any, index: int, *rest: Any, function: Any = function):
            kinds.append(recipe.steps[index].kind)
            return function(recipe, keys, index, *rest)

        monkeypatch.setitem(engine.STEPS, spec, counted)
    return kinds


def test_a_request_gives_a_model_metrics_and_documents(
    model: ModelRef, source: str, store: RunStore
) -> None:
    recipe = Recipe(model=model, steps=(collapse(source, 4),))
    result = engine.run(Request(recipe=recipe, **measures(source)), store, Context())
    values = {metric["name"].split("[")[0]: metric["value"] for metric in result["metrics"]}
    assert values["layers"] == 4
    assert values["perplexity"] > 1
    assert values["kl"] > 0
    assert [a["kind"] for a in result["analyses"]] == [
        "similarity",
        "parameter_similarity",
        "what_if",
    ]
    (step,) = result["steps"]
    assert (step["kind"], step["cached"]) == ("collapse", False)
    assert len(step["report"]["candidates"]) == 4 + 3
    assert step["peak_bytes"] > 0
    lm = models.load_folder(Path(result["path"]), model, "cpu")
    assert len(lm.layers) == 4


def test_what_was_done_is_not_done_again(
    model: ModelRef, source: str, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(recipe=Recipe(model=model, steps=(Drop(layers=(3,)),)), **measures(source))
    first = engine.run(request, store, Context())
    monkeypatch.setattr(engine.models, "load", None)
    monkeypatch.setattr(engine.models, "load_folder", None)
    second = engine.run(request, store, Context())
    assert [step["cached"] for step in second["steps"]] == [True]
    assert second["metrics"] == first["metrics"]


def test_recipes_that_begin_alike_share_their_beginning(
    model: ModelRef, store: RunStore, applied: list[str]
) -> None:
    one = Recipe(model=model, steps=(Drop(layers=(3,)), Merge(spans=((2, 4),))))
    engine.run(Request(recipe=one), store, Context())
    engine.run(Request(recipe=one.then(Drop(layers=(0,)))), store, Context())
    assert applied == ["drop", "merge", "drop"]


def test_a_result_can_be_gone_on_from_by_its_key(
    model: ModelRef, store: RunStore, applied: list[str]
) -> None:
    first = Recipe(model=model, steps=(Drop(layers=(3,)),))
    key = engine.run(Request(recipe=first), store, Context())["key"]
    more = Recipe(model=ModelRef(path=key[:12]), steps=(Drop(layers=(2,)),))
    found = engine.run(Request(recipe=more), store, Context())
    whole = engine.run(Request(recipe=first.then(Drop(layers=(2,)))), store, Context())
    assert found["key"] == whole["key"]
    assert applied == ["drop", "drop"]


def test_numbers_are_of_the_file_and_equal_those_of_the_model_in_memory(
    model: ModelRef, source: str, store: RunStore
) -> None:
    request = Request(
        recipe=Recipe(model=model, steps=(Drop(layers=(3,)),)),
        evaluations=(Perplexity(source=source, window=16, windows=4),),
    )
    found = engine.run(request, store, Context())["metrics"][0]["value"]
    lm = tiny.loaded("redundant")
    lm.layers.keep([lm.layers[i] for i in (0, 1, 2, 4, 5)], (0, 1, 2, 4, 5))
    expected = parallel.evaluate(lm, request.evaluations[0], Context()).metrics[0].value
    assert found == pytest.approx(expected, rel=1e-6)


def test_the_untouched_model_is_a_run_too(model: ModelRef, source: str, store: RunStore) -> None:
    request = Request(recipe=Recipe(model=model), **measures(source))
    result = engine.run(request, store, Context())
    assert result["path"] is None
    kl = next(m for m in result["metrics"] if m["name"].startswith("kl"))
    assert kl["value"] == pytest.approx(0, abs=1e-6)
    assert [run.key for run in store.runs()] == [result["key"]]


@pytest.mark.parametrize("after", [1, 3, 6])
def test_cancelling_leaves_nothing_half_done(
    model: ModelRef, source: str, store: RunStore, after: int
) -> None:
    asked = iter(range(10**6))
    context = Context(cancelled=lambda: next(asked) >= after)
    recipe = Recipe(model=model, steps=(collapse(source, 3),))
    with pytest.raises(Cancelled):
        engine.run(Request(recipe=recipe, **measures(source)), store, context)
    assert [run.recipe.steps for run in store.runs()] == [()]
    assert store.verify() == []


def test_a_model_folder_that_moved_has_the_same_key(
    model: ModelRef, store: RunStore, tmp_path: Path
) -> None:
    step = Drop(layers=(3,))
    first = engine.run(Request(recipe=Recipe(model=model, steps=(step,))), store, Context())
    moved = Path(model.path).rename(tmp_path / "elsewhere")
    again = Recipe(model=ModelRef(path=str(moved)), steps=(step,))
    assert engine.run(Request(recipe=again), store, Context())["key"] == first["key"]


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        (Drop(layers=(9,)), RecipeError, "past the end"),
        (Merge(spans=((4, 9),)), RecipeError, "past the end"),
        (Collapse(threshold=0.0), RecipeError, "no candidate met the threshold"),
        (Collapse(target_layers=6), RecipeError, "ask for 5 or fewer"),
        (
            Collapse(target_layers=5, calibration=Calibration(source="file:/no/such.txt")),
            CalibrationError,
            "no/such.txt",
        ),
    ],
)
def test_a_step_that_cannot_be_done_says_so_and_keeps_what_was_done(
    model: ModelRef, source: str, store: RunStore, step: Any, error: type[LacoError], words: str
) -> None:
    if step.kind == "collapse" and "no/such" not in step.calibration.source:
        text = Calibration(source=source, windows=2, length=16)
        step = step.model_copy(update={"calibration": text})
    recipe = Recipe(model=model, steps=(Drop(layers=(3,)), step))
    if step.kind == "collapse" and step.target_layers == 6:
        recipe = Recipe(model=model, steps=(step,))
    with pytest.raises(error, match=words) as caught:
        engine.run(Request(recipe=recipe), store, Context())
    assert f"step {len(recipe.steps) - 1} ({step.kind})" in caught.value.__notes__[0]
    assert len(store.runs()) == len(recipe.steps)


def test_a_model_that_is_not_finite_ends_with_the_place_named(
    source: str, store: RunStore, tmp_path: Path
) -> None:
    broken = tiny.redundant()
    with torch.no_grad():
        broken.get_parameter("model.layers.2.mlp.down_proj.weight").fill_(float("inf"))
    model = ModelRef(path=str(tiny.save(broken, tmp_path / "broken")))
    request = Request(recipe=Recipe(model=model), **measures(source))
    with pytest.raises(NumericalError):
        engine.run(request, store, Context())
    assert store.runs()[0].metrics == ()


@pytest.mark.parametrize("step", [Drop(layers=(3,)), Merge(spans=((2, 4),), merge="mean")])
def test_layers_go_without_the_model_in_memory(
    model: ModelRef, store: RunStore, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engine.models, "load_folder", None)
        found = engine.run(Request(recipe=Recipe(model=model, steps=(step,))), store, Context())
    assert len(models.load_folder(Path(found["path"]), model, "cpu").layers) == 5
    assert not (store.folder / "unfinished" / found["key"]).exists()


def test_a_search_does_not_go_on_with_what_an_earlier_one_wrote(
    model: ModelRef, source: str, store: RunStore
) -> None:
    recipe = engine.settle(Recipe(model=model, steps=(collapse(source, 5),)), store)
    place = store.unfinished(recipe.key)
    place.mkdir(parents=True)
    (place / "model-00002-of-00006.safetensors").write_bytes(b"of another plan")
    found = engine.run(Request(recipe=recipe), store, Context())
    assert len(models.load_folder(Path(found["path"]), model, "cpu").layers) == 5


def test_a_full_disk_while_saving_leaves_no_half_result(
    model: ModelRef, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_tensors: Any, file: Path, **_: Any) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(layerfiles, "save_file", full)
    recipe = Recipe(model=model, steps=(Drop(layers=(3,)),))
    with pytest.raises(LacoError, match="space"):
        engine.run(Request(recipe=recipe), store, Context())
    assert [run.recipe.steps for run in store.runs()] == [()]
    assert store.verify() == []


def recovered(source: str) -> tuple[Any, ...]:
    text = Calibration(source=source, windows=6, length=16)
    repair = Compensate(epochs=1, batch_tokens=32, held_out=2, calibration=text)
    distil = Finetune(loss="kl", epochs=1, batch_tokens=32, held_out=2, calibration=text)
    return (Drop(layers=(3,)), Prune(method=Wanda(), calibration=text), repair, distil)


def test_a_model_is_dropped_pruned_compensated_and_distilled(
    model: ModelRef, store: RunStore, source: str
):
    request = Request(
        recipe=Recipe(model=model, steps=recovered(source)), evaluations=(Footprint(),)
    )
    found = engine.run(request, store, Context())
    assert [step["kind"] for step in found["steps"]] == ["drop", "prune", "compensate", "finetune"]
    prune, compensate, distil = (step["report"] for step in found["steps"][1:])
    assert prune["sparsity"] == compensate["sparsity"] == pytest.approx(0.5, abs=1e-3)
    assert [row["original"] for row in compensate["layers"]] == [0, 1, 3, 4, 5]
    assert distil["zeros_filled"] == 0
    assert distil["zeros_after"] == distil["zeros_before"] > 0
    assert not list((store.folder / "unfinished").iterdir())
    again = engine.run(request, store, Context())
    assert all(step["cached"] for step in again["steps"])
    lm = models.load_folder(Path(found["path"]), model, "cpu")
    assert len(lm.layers) == 5


def test_a_walk_that_was_cancelled_goes_on_where_it_stopped(
    model: ModelRef, store: RunStore, source: str, tmp_path: Path
):
    steps = recovered(source)[1:3]
    request = Request(recipe=Recipe(model=model, steps=steps))
    seen: list[str] = []
    context = Context(
        progress=lambda _f, message: seen.append(message),
        cancelled=lambda: any(message.startswith("layer 3: epoch") for message in seen),
    )
    with pytest.raises(Cancelled):
        engine.run(request, store, context)
    (left,) = (store.folder / "unfinished").iterdir()
    assert len(list(left.glob("*.safetensors"))) == 3
    again: list[str] = []
    found = engine.run(request, store, Context(progress=lambda _f, m: again.append(m)))
    assert not any(message.startswith("layer 2: epoch") for message in again)
    assert not left.exists()
    other = RunStore(tmp_path / "other")
    whole = engine.run(request, other, Context())
    other.close()
    one, two = (
        models.load_folder(Path(result["path"]), model, "cpu").model.state_dict()
        for result in (found, whole)
    )
    assert all(torch.equal(one[name], two[name]) for name in two)


def test_a_walk_whose_result_could_not_be_saved_is_not_done_again(
    model: ModelRef, store: RunStore, source: str, monkeypatch: pytest.MonkeyPatch
):
    request = Request(recipe=Recipe(model=model, steps=recovered(source)[1:3]))
    save, full = store.save, [True]

    def refusing(key: str, recipe: Recipe, *rest: Any) -> Any:
        if full[0] and len(recipe.steps) == 2:
            full[0] = False
            raise OSError(28, "No space left on device")
        return save(key, recipe, *rest)

    monkeypatch.setattr(store, "save", refusing)
    with pytest.raises(OSError, match="No space"):
        engine.run(request, store, Context())
    seen: list[str] = []
    found = engine.run(request, store, Context(progress=lambda _f, m: seen.append(m)))
    assert not any("epoch" in message for message in seen)
    assert models.load_folder(Path(found["path"]), model, "cpu")
    assert not list((store.folder / "unfinished").iterdir())
    assert not list((store.folder / "locks").iterdir())


def test_a_layer_that_is_not_there_after_all_is_done_again(
    model: ModelRef, store: RunStore, source: str
):
    request = Request(recipe=Recipe(model=model, steps=recovered(source)[1:2]))
    seen: list[str] = []
    context = Context(
        progress=lambda _f, message: seen.append(message),
        cancelled=lambda: any(message.startswith("layer 4 of") for message in seen),
    )
    with pytest.raises(Cancelled):
        engine.run(request, store, context)
    (left,) = (store.folder / "unfinished").iterdir()
    sorted(left.glob("*.safetensors"))[1].unlink()
    report = engine.run(request, store, Context())["steps"][0]["report"]
    assert [row["layer"] for row in report["layers"]] == list(range(6))


def test_what_another_process_has_just_made_is_taken(
    model: ModelRef, store: RunStore, applied: list[str]
) -> None:
    recipe = Recipe(model=model, steps=(Drop(layers=(3,)),))
    key = engine.settle(recipe, store).key
    place = store.folder / "locks" / key
    with locks.alone(place, lambda: None):
        asked = iter(range(10**6))
        context = Context(cancelled=lambda: next(asked) >= 5)
        with pytest.raises(Cancelled):  # it waits, and hears the wish to stop meanwhile
            engine.run(Request(recipe=recipe), store, context)
    assert applied == []
    lock = threading.Thread(target=lambda: _held_while_made(place, recipe, store))
    lock.start()
    while not locks.is_taken(place):
        time.sleep(0.01)
    seen: list[str] = []
    found = engine.run(
        Request(recipe=recipe), store, Context(progress=lambda _f, m: seen.append(m))
    )
    lock.join()
    assert found["key"] == key
    assert applied == []
    assert any("another job" in message for message in seen)


def _held_while_made(place: Path, recipe: Recipe, store: RunStore) -> None:
    with locks.alone(place, lambda: None):
        time.sleep(0.3)
        key = engine.settle(recipe, store).key
        settled = engine.settle(recipe, store)
        store.save(key, settled, [], lambda folder: (folder / "x").write_text("x"))  # type: ignore


def test_what_is_unfinished_is_pruned_when_it_is_old(store: RunStore):
    fresh, old = store.unfinished("k1-fresh"), store.unfinished("k1-old")
    for folder in (fresh, old):
        folder.mkdir(parents=True)
        (folder / "layer").write_bytes(b"12345")
    for path in (old / "layer", old):
        os.utime(path, (0, 0))
    assert store.prune() >= 5
    assert fresh.exists()
    assert not old.exists()
