"""How far weights moved, by layer: against a plain loop, over layers that went, and as a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from laco import engine, models
from laco.changes import weight_change
from laco.context import Context
from laco.errors import RecipeError
from laco.evaluations import Request, WeightChange
from laco.lazy import LazyModel
from laco.recipe import Calibration, Drop, Magnitude, Merge, ModelRef, Prune, Recipe, Structured
from laco.store import RunStore
from tests import tiny

DEPTH = tiny.DEPTH
ALL = list(range(DEPTH))
FEW = Calibration(windows=2, length=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    return tiny.save(tiny.ARCHITECTURES["llama"](), place / "model")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    return RunStore(tmp_path_factory.mktemp("store"))


def lazy(folder: Path) -> LazyModel:
    return LazyModel(folder, ModelRef(path=str(folder), dtype="auto"), "cpu")


def changed(recipe: Recipe, store: RunStore, against: str | None = None) -> dict[str, Any]:
    spec = WeightChange(against=against)
    key = engine.run(Request(recipe=recipe, analyses=(spec,)), store, Context())["key"]
    found = store.analysis(key, spec)
    assert found is not None
    return found


def test_it_is_the_norm_of_the_difference_over_the_others(folder: Path, tmp_path: Path):
    model = tiny.ARCHITECTURES["llama"]()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.add_(0.1 * torch.ones_like(tensor) if "layers.2." in name else 0)
    other = tiny.save(model, tmp_path / "other")
    found = weight_change(lazy(other), lazy(folder), (ALL, ALL), Context())
    ours, theirs = (models.load_folder(f, ModelRef(path=str(f)), "cpu") for f in (other, folder))
    for row, mine, base in zip(found["layers"], ours.layers, theirs.layers, strict=True):
        square = norm = 0.0
        for (name, one), (_, two) in zip(
            mine.named_parameters(), base.named_parameters(), strict=True
        ):
            apart, size = float((one - two).norm()), float(two.norm())
            assert row["tensors"][name] == pytest.approx(apart / size, rel=1e-5)
            square, norm = square + apart**2, norm + size**2
        assert row["change"] == pytest.approx((square / norm) ** 0.5, rel=1e-5)
        assert (row["change"] > 0) == (row["layer"] == 2)
    assert found["rest"]["change"] == 0
    assert "model.embed_tokens.weight" in found["rest"]["tensors"]
    assert found["only"] == found["missing"] == []


def test_layers_are_matched_by_those_of_the_original(folder: Path, store: RunStore):
    recipe = Recipe(model=ModelRef(path=str(folder)), steps=(Drop(layers=(1,)), Drop(layers=(2,))))
    found = changed(recipe, store)
    assert [row["layer"] for row in found["layers"]] == [0, 2, 4, 5]
    assert [row["place"] for row in found["layers"]] == [0, 1, 2, 3]
    assert found["missing"] == [1, 3]
    assert all(row["change"] == 0 for row in found["layers"])


def test_merged_and_pruned_layers_have_moved(folder: Path, store: RunStore):
    original = Recipe(model=ModelRef(path=str(folder)))
    merged = original.then(Merge(spans=((2, 4),), merge="mean"))
    found = {row["layer"]: row["change"] for row in changed(merged, store)["layers"]}
    assert found.pop(2) > 0.1
    assert set(found.values()) == {0}
    pruned = original.then(Prune(method=Magnitude(sparsity=0.5), calibration=FEW))
    assert all(row["change"] > 0.05 for row in changed(pruned, store)["layers"])


def test_narrower_tensors_are_named_and_left_out(folder: Path, store: RunStore):
    method = Structured(importance="magnitude", channels=0.5, multiple=8)
    narrow = Prune(method=method, calibration=FEW)
    found = changed(Recipe(model=ModelRef(path=str(folder)), steps=(narrow,)), store)
    assert all("mlp.down_proj.weight" in row["unlike"] for row in found["layers"])
    assert all(row["tensors"]["self_attn.q_proj.weight"] == 0 for row in found["layers"])


def test_two_results_are_compared_and_one_that_is_not_there_is_named(folder: Path, store: RunStore):
    original = Recipe(model=ModelRef(path=str(folder)))
    one, two = original.then(Drop(layers=(1,))), original.then(Drop(layers=(4,)))
    other = engine.run(Request(recipe=two), store, Context())["key"]
    found = changed(one, store, other)
    assert found["against"] == other
    assert [row["layer"] for row in found["layers"]] == [0, 2, 3, 5]
    assert (found["only"], found["missing"]) == ([4], [1])
    with pytest.raises(RecipeError, match="is not in the store"):
        changed(one, store, "k1-" + "0" * 32)
