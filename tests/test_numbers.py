"""A number that is not finite ends the work with its place named, and is never kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from laco import engine, models, parallel
from laco.context import Context
from laco.disk import write_json
from laco.errors import LacoError, NumericalError, RecipeError, StoreError
from laco.evaluations import (
    Divergence,
    Footprint,
    Metric,
    Outcome,
    ParameterSimilarity,
    Perplexity,
    Request,
    Similarity,
    WhatIf,
)
from laco.layerfiles import write_tensors
from laco.layers import is_finite
from laco.recipe import (
    Calibration,
    Collapse,
    Compensate,
    Drop,
    Finetune,
    Magnitude,
    Merge,
    ModelRef,
    Prune,
    Recipe,
    SparseGPT,
    Wanda,
)
from laco.store import RunStore
from tests import tiny

LINES = [f"The {n} small birds sat in the {n % 7} old trees and sang. " * 3 for n in range(100)]
BROKEN = "model.layers.2.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(LINES))
    return Calibration(source=f"file:{path}", windows=4, length=16)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    """A model of which one number in a file is NaN."""
    model = tiny.redundant()
    with torch.no_grad():
        model.get_parameter(BROKEN)[3, 5] = math.nan
    return ModelRef(path=str(tiny.save(model, tmp_path_factory.mktemp("broken") / "model")))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    folder = tmp_path_factory.mktemp("sound") / "model"
    return ModelRef(path=str(tiny.save(tiny.redundant(), folder)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    store = RunStore(tmp_path / "store")
    yield store
    store.close()


def kept(store: RunStore) -> int:
    """How many numbers lie in the store, and results other than the untouched model."""
    return sum(len(run.metrics) + bool(run.recipe.steps) for run in store.runs()) + len(
        list(store.analysis_files.iterdir())
    )


WORK: dict[str, Any] = {
    "perplexity": lambda t: {"evaluations": (Perplexity(source=t.source, window=16, windows=2),)},
    "kl": lambda t: {"evaluations": (Divergence(source=t.source, window=16, windows=2),)},
    "similarity": lambda t: {"analyses": (Similarity(calibration=t, shards=2),)},
    "parameter similarity": lambda _t: {"analyses": (ParameterSimilarity(),)},
    "what-if": lambda t: {"analyses": (WhatIf(calibration=t, longest=2),)},
    "collapse": lambda t: {"steps": (Collapse(target_layers=4, calibration=t),)},
    "merge": lambda _t: {"steps": (Merge(spans=((1, 4),), merge="rdsc"),)},
    "drop": lambda _t: {"steps": (Drop(layers=(4,)),)},
    "magnitude": lambda t: {"steps": (Prune(method=Magnitude(), calibration=t),)},
    "wanda": lambda t: {"steps": (Prune(method=Wanda(), calibration=t),)},
    "compensate": lambda t: {"steps": (Compensate(epochs=1, held_out=1, calibration=t),)},
    "lora": lambda t: {"steps": (Finetune(epochs=1, held_out=1, calibration=t),)},
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_nan_in_a_weight_file_ends_any_work_and_is_named(
    work: Any, broken: ModelRef, text: Calibration, store: RunStore
):
    parts = work(text)
    recipe = Recipe(model=broken, steps=parts.pop("steps", ()))
    with pytest.raises(NumericalError, match=r"layers?[ .][12]\b") as caught:
        engine.run(Request(recipe=recipe, **parts), store, Context())
    assert "down_proj" in str(caught.value)
    assert kept(store) == 0


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Compensate, r"of layer \d .* of compensation is not finite"),
        (Finetune, r"not finite in epoch 1 of 1, step"),
    ],
)
def test_training_that_diverges_ends_with_its_place(
    kind: Any, words: str, sound: ModelRef, text: Calibration, store: RunStore
):
    far = {"learning_rate": 1e30, "batch_tokens": 16, "epochs": 1, "held_out": 1}
    steps = (Drop(layers=(3,)), kind.model_construct(**far, calibration=text))
    request = Request.model_construct(recipe=Recipe.model_construct(model=sound, steps=steps))
    with pytest.raises(NumericalError, match=words) as caught:
        engine.run(request, store, Context())
    assert f"step 1 ({steps[1].kind})" in caught.value.__notes__[0]
    assert [run.metrics for run in store.runs()] == [(), ()]
    assert {run.recipe.steps for run in store.runs()} == {(), steps[:1]}


def test_a_file_is_not_written_with_numbers_that_are_not_finite(tmp_path: Path):
    tensors = {"a": torch.zeros(2), "b": torch.tensor([1.0, -math.inf])}
    with pytest.raises(NumericalError, match="b would be written"):
        write_tensors(tmp_path / "x.safetensors", tensors)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_number_among_many_is_seen(dtype: torch.dtype, value: float):
    tensor = torch.randn(7, 333).to(dtype)
    assert is_finite(tensor)
    tensor[5, 17] = value
    assert not is_finite(tensor)
    assert is_finite(torch.empty(0))
    assert is_finite(torch.tensor([1, 2]))


def test_a_document_names_the_place_of_the_number(tmp_path: Path):
    document = {"layers": 2, "measures": {"cosine": [[1.0, 0.5], [math.nan, 1.0]]}}
    with pytest.raises(NumericalError, match=r"not finite: measures\.cosine\.1\.0, so it was not"):
        write_json(tmp_path / "map.json", document)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (Metric("p", math.nan, "", "lower"), "value of p is nan"),
        (Metric("p", 1.0, "", "lower", stderr=math.inf), "standard error of p is inf"),
        (Metric("p", 1.0, "", "lower", details={"nll": -math.inf}), r"metrics\.0\.details\.nll"),
    ],
)
def test_the_store_refuses_metrics_that_are_not_finite(
    metric: Metric, words: str, sound: ModelRef, store: RunStore
):
    recipe = Recipe(model=models.pin(sound, store.folder))
    store.add_model(recipe.key, recipe)
    with pytest.raises(NumericalError, match=words):
        store.add_metrics(recipe.key, Footprint(), [metric])
    assert kept(store) == 0
    assert list(store.metric_files.iterdir()) == []


def test_an_evaluation_that_gives_nothing_is_an_error(
    sound: ModelRef, store: RunStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(
        parallel.evaluate.__globals__["EVALUATORS"], Footprint, lambda *_: Outcome(())
    )
    with pytest.raises(RecipeError, match="footprint gave no number"):
        engine.run(
            Request(recipe=Recipe(model=sound), evaluations=(Footprint(),)), store, Context()
        )
    key = store.runs()[0].key
    with pytest.raises(StoreError, match="gave nothing to keep"):
        store.add_metrics(key, Footprint(), [])
    with pytest.raises(LacoError, match="gave nothing to keep"):
        store.add_analysis(key, ParameterSimilarity(), {})
    assert kept(store) == 0


def test_the_same_recipe_twice_gives_the_same_bits(
    sound: ModelRef, text: Calibration, tmp_path: Path
):
    """A search, a pruning, a repair and a training, and what is measured: in two stores."""
    steps = (
        Collapse(target_layers=5, calibration=text),
        Prune(method=SparseGPT(), calibration=text),
        Compensate(epochs=2, batch_tokens=16, held_out=2, calibration=text),
        Finetune(epochs=2, batch_tokens=32, held_out=2, dropout=0.1, calibration=text),
    )
    request = Request(
        recipe=Recipe(model=sound, steps=steps),
        evaluations=(
            Perplexity(source=text.source, window=16, windows=4),
            Divergence(source=text.source, window=16, windows=4),
        ),
        analyses=(Similarity(calibration=text, shards=2),),
    )
    found: list[Any] = []
    for name in ("one", "two"):
        torch.manual_seed(len(found))  # what others draw is not to matter
        store = RunStore(tmp_path / name)
        report = engine.run(request, store, Context())
        document = store.analysis(report["key"], request.analyses[0])
        assert document is not None
        files = {
            f"{folder.name}/{file.name}": file.read_bytes()
            for folder in store.artifacts.iterdir()
            for file in folder.iterdir()
            if file.name != "recipe.json"  # it tells of times
        }
        found.append((report["metrics"], {**document, "seconds": 0}, files))
        store.close()
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]
    assert found[0][2].keys() == found[1][2].keys()
    assert sum(name.endswith(".safetensors") for name in found[0][2]) >= 4
    for name, content in found[0][2].items():
        assert content == found[1][2][name], name
