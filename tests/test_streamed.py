"""A model whose layers are read when they run answers as it does whole, with one in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from laco import corpora, engine, layerfiles, models, streamed
from laco.collapse import plan_collapse
from laco.context import Context
from laco.errors import ModelError, NumericalError
from laco.evaluate import evaluate
from laco.evaluations import Divergence, Footprint, Perplexity, Request, Similarity
from laco.models import LoadedModel, load_folder
from laco.recipe import Calibration, Collapse, Drop, ModelRef, Recipe
from laco.similarity import layer_similarity, parameter_similarity
from laco.store import RunStore
from laco.streamed import load_fitting, load_streamed
from tests import tiny

FAMILIES = {**tiny.ARCHITECTURES, **tiny.PROBED}
TEXT = Calibration(windows=4, length=16)
TOKENS = tiny.tokens(batch=3)


def ref_of(folder: Path) -> ModelRef:
    return ModelRef(path=str(folder))


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer takes one window of those above at a time."""
    monkeypatch.setattr(streamed, "BATCH_TOKENS", {"cpu": 16})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(FAMILIES["llama"](), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def whole(folder: Path) -> LoadedModel:
    return load_folder(folder, ref_of(folder), "cpu")


@pytest.fixture
def apart(folder: Path, in_parts: None) -> LoadedModel:
    return load_streamed(folder, ref_of(folder), "cpu")


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_family_answers_as_it_does_whole(family: str, tmp_path: Path):
    folder = tiny.save(FAMILIES[family](), tmp_path)
    answers = [
        load(folder, ref_of(folder), "cpu").model(input_ids=TOKENS, use_cache=False).logits
        for load in (load_folder, load_streamed)
    ]
    torch.testing.assert_close(answers[1], answers[0], atol=1e-5, rtol=1e-5)


def test_measures_are_the_same(whole: LoadedModel, apart: LoadedModel):
    spec = Similarity(calibration=TEXT, shards=2)
    windows = corpora.windows(TEXT, whole.tokenizer)
    maps = [layer_similarity(lm, windows, spec, Context()) for lm in (whole, apart)]
    for name, values in maps[0]["measures"].items():
        torch.testing.assert_close(torch.tensor(maps[1]["measures"][name]), torch.tensor(values))
    assert maps[1]["rank_uncertain"] == maps[0]["rank_uncertain"]
    values = [
        evaluate(lm, Perplexity(window=16, windows=5), Context()).metrics[0]
        for lm in (whole, apart)
    ]
    assert values[1].value == pytest.approx(values[0].value, rel=1e-6)
    assert values[1].stderr == pytest.approx(values[0].stderr, rel=1e-4)
    same = evaluate(apart, Divergence(window=16, windows=3), Context(), lambda: whole).metrics[0]
    assert same.value == pytest.approx(0.0, abs=1e-9)


def test_what_a_model_takes_is_counted_in_its_files(
    whole: LoadedModel, apart: LoadedModel, folder: Path
):
    usual, small = (
        {
            metric.name: metric.value
            for metric in evaluate(lm, Footprint(), Context(), None, folder).metrics
        }
        for lm in (whole, apart)
    )
    assert small == {name: value for name, value in usual.items() if name != "peak_memory"}


@pytest.mark.parametrize("order", ["best_first", "top_down", "influence", "angular"])
def test_a_search_decides_the_same(order: Any, whole: LoadedModel, apart: LoadedModel):
    step = Collapse(order=order, target_layers=4, span=2, merge="drop", calibration=TEXT)
    windows = corpora.windows(TEXT, whole.tokenizer)
    plans = [plan_collapse(lm, step, windows, Context()) for lm in (whole, apart)]
    assert plans[1].spans == plans[0].spans
    for ours, theirs in zip(plans[1].candidates, plans[0].candidates, strict=True):
        assert ours.score == pytest.approx(theirs.score, rel=1e-3, abs=1e-6) or not theirs.exact


@torch.no_grad()
def test_one_layer_has_weights_at_a_time(apart: LoadedModel):
    held: list[int] = []

    def count(*_: Any) -> None:
        held.append(sum(not next(layer.parameters()).is_meta for layer in apart.layers))

    for layer in apart.layers:
        inside = next(module for module in layer.modules() if not list(module.children()))
        inside.register_forward_hook(count)
    apart.model(input_ids=TOKENS, use_cache=False)
    assert held == [1] * 3 * len(apart.layers)  # each layer takes its three windows in turn
    assert all(p.is_meta for layer in apart.layers for p in layer.parameters())


@torch.no_grad()
def test_the_next_layer_is_wished_for_while_one_runs(
    apart: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    wishes: list[tuple[int, int]] = []

    def wish(_file: int, start: int, size: int, _advice: int) -> None:
        wishes.append((start, size))

    monkeypatch.setattr(os, "posix_fadvise", wish)
    apart.model(input_ids=TOKENS, use_cache=False)
    stack = apart.layers
    names = [f"model.layers.{index}.{n}" for index in range(len(stack)) for n in _names(stack[0])]
    headers = layerfiles.checkpoint.read_headers(folder)
    assert set(wishes) == {(headers[n].start, headers[n].bytes) for n in names}
    assert len(wishes) == len(names)  # of the last one, for the first: more text may come
    file = folder / "model.safetensors"
    name = "model.layers.1.mlp.up_proj.weight"
    start, size = headers[name].start, headers[name].bytes
    found = file.read_bytes()[start : start + size]
    with layerfiles.safe_open(file, framework="pt") as opened:
        assert found == opened.get_tensor(name).numpy().tobytes()


def _names(layer: Any) -> list[str]:
    return [name for name, _ in layer.named_parameters()]


def test_a_layer_that_is_not_finite_is_named(tmp_path: Path):
    model = FAMILIES["llama"]()
    model.get_parameter("model.layers.2.mlp.up_proj.weight").data[0, 0] = torch.nan
    folder = tiny.save(model, tmp_path)
    lm = load_streamed(folder, ref_of(folder), "cpu")
    with pytest.raises(NumericalError, match=r"mlp\.up_proj of layer 2"):
        lm.model(input_ids=TOKENS)


def test_what_needs_all_weights_says_so(apart: LoadedModel):
    windows = corpora.windows(TEXT, apart.tokenizer)
    step = Collapse(order="best_first", target_layers=4, merge="mean", calibration=TEXT)
    with pytest.raises(ModelError, match="the whole model in memory"):
        plan_collapse(apart, step, windows, Context())
    with pytest.raises(ModelError, match="the whole model in memory"):
        parameter_similarity(apart, Context())


def test_a_model_is_streamed_when_it_has_no_room(folder: Path, monkeypatch: pytest.MonkeyPatch):
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    monkeypatch.setattr(streamed, "free_memory", lambda _device: 2 * size)
    assert load_fitting(folder, ref_of(folder), "cpu").pass_tokens is None
    monkeypatch.setattr(streamed, "free_memory", lambda _device: size)
    assert load_fitting(folder, ref_of(folder), "cpu").pass_tokens == streamed.PASS_TOKENS


def test_a_model_is_spread_when_it_has_room_on_all_devices_together(
    folder: Path, whole: LoadedModel, monkeypatch: pytest.MonkeyPatch
):
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    monkeypatch.setattr(streamed, "free_memory", lambda _device: size)
    monkeypatch.setattr(streamed, "devices_like", lambda _device: ["cpu", "cpu"])
    real, asked = models.AutoModelForCausalLM.from_pretrained, []

    def from_pretrained(*args: Any, **options: Any) -> Any:
        asked.append(options["device_map"])
        return real(*args, **options)

    monkeypatch.setattr(models.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    spread = load_fitting(folder, ref_of(folder), "cpu")
    assert asked == ["auto"]
    assert spread.pass_tokens is None
    surprise = Perplexity(window=16, windows=5)
    values = [evaluate(lm, surprise, Context()).metrics[0].value for lm in (whole, spread)]
    assert values[1] == pytest.approx(values[0], rel=1e-6)


def test_the_engine_goes_through_with_a_model_without_room(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def report(store: str) -> dict[str, Any]:
        request = Request(
            recipe=Recipe(model=ref_of(folder), steps=(Drop(layers=(1,)),)),
            evaluations=(Perplexity(window=16, windows=2),),
            analyses=(Similarity(calibration=TEXT),),
        )
        return engine.run(request, RunStore(tmp_path / store), Context())

    usual = report("usual")
    monkeypatch.setattr(streamed, "free_memory", lambda _device: 0)
    monkeypatch.setattr(models, "load_folder", None)  # nobody loads it whole
    small = report("small")
    assert small["key"] == usual["key"]
    value = usual["metrics"][0]["value"]
    assert small["metrics"][0]["value"] == pytest.approx(value, rel=1e-6)
