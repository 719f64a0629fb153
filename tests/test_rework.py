"""A model on disk walked and changed: shares of zeros, errors that fall, walks that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from laco import models
from laco.context import Context
from laco.disk import read_json
from laco.errors import Cancelled, NumericalError, RecipeError
from laco.layers import LayerStack, linears
from laco.lazy import LayerWriter, LazyModel
from laco.merging import apply_edit, group_ends
from laco.recipe import Compensate, Drop, Magnitude, ModelRef, Prune, SparseGPT, Structured, Wanda
from laco.rework import STATE, Texts, rework
from tests import tiny

HALF = Prune(method=Wanda(sparsity=0.5))
REPAIR = Compensate(epochs=1, learning_rate=2e-3, batch_tokens=40)


def texts(windows: int = 12, training: int = 8) -> Texts:
    tokens = torch.randint(2, 300, (windows, 10), generator=torch.Generator().manual_seed(1))
    return Texts(tokens, training)


def lazy(folder: Path) -> LazyModel:
    return LazyModel(folder, ModelRef(path=str(folder), dtype="auto"), "cpu")


def walked(
    source: Path,
    original: Path,
    target: Path,
    step: Any,
    ends: list[int] | None = None,
    context: Context | None = None,
    text: Texts | None = None,
) -> dict[str, Any]:
    student, teacher = lazy(source), lazy(original)
    writer = LayerWriter(student, target)
    ends = ends or list(range(len(student.stack)))
    report = rework(student, teacher, ends, step, text or texts(), writer, context or Context())
    writer.finish(report["fields"])
    return report


def loaded(folder: Path) -> Any:
    return models.load_folder(folder, ModelRef(path=str(folder)), "cpu")


def weights(layer: Any) -> list[Tensor]:
    return [linear.get_parameter("weight") for _, linear in linears(layer)]


def zeros(folder: Path) -> float:
    found = [weight for layer in loaded(folder).layers for weight in weights(layer)]
    return sum(int((w == 0).sum()) for w in found) / sum(w.numel() for w in found)


def predictions(folder: Path) -> Tensor:
    return loaded(folder).model(texts().tokens).logits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.save(tiny.ARCHITECTURES["llama"](), tmp_path / "llama")


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_every_family_is_pruned_and_compensated_and_loads(name: str, tmp_path: Path):
    source = tiny.save(tiny.ARCHITECTURES[name](), tmp_path / "model")
    text = texts(72, 64)
    pruned = walked(source, source, tmp_path / "pruned", HALF, text=text)
    repaired = walked(tmp_path / "pruned", source, tmp_path / "repaired", REPAIR, text=text)
    for report, place in ((pruned, "pruned"), (repaired, "repaired")):
        assert report["sparsity"] == pytest.approx(0.5, abs=1e-3)
        assert zeros(tmp_path / place) == pytest.approx(0.5, abs=1e-3)
    last = repaired["layers"][-1]
    assert last["error"] < last["alone"]
    assert len(read_json(tmp_path / "repaired" / STATE)["layers"]) == len(report["layers"])


def test_errors_are_those_of_the_models_as_they_are_loaded(folder: Path, tmp_path: Path):
    walked(folder, folder, tmp_path / "pruned", HALF)
    report = walked(tmp_path / "pruned", folder, tmp_path / "repaired", REPAIR)
    states = {
        place: loaded(where).model(texts().tokens[8:], output_hidden_states=True).hidden_states
        for place, where in (
            ("original", folder),
            ("alone", tmp_path / "pruned"),
            ("error", tmp_path / "repaired"),
        )
    }
    for index in (0, 3):  # the last of the hidden states is after the norm
        target = states["original"][index + 1]
        for name in ("alone", "error"):
            gap = (states[name][index + 1] - target).square().sum(-1) / target.square().sum(-1)
            assert report["layers"][index][name] == pytest.approx(float(gap.mean()), rel=1e-4)


def test_pruning_and_compensating_in_one_walk_looks_at_the_compensated_stream(
    folder: Path, tmp_path: Path
):
    both = Prune(method=Wanda(), calibration=REPAIR.calibration, compensation=REPAIR)
    report = walked(folder, folder, tmp_path / "both", both)
    apart = walked(folder, folder, tmp_path / "apart", HALF)
    assert report["sparsity"] == pytest.approx(0.5, abs=1e-3)
    assert report["layers"][-1]["error"] < apart["layers"][-1]["error"]
    first, second = (loaded(tmp_path / name).layers for name in ("both", "apart"))
    masks = [
        [weight == 0 for weight in weights(stack[index])]
        for stack in (first, second)
        for index in (0, 5)
    ]
    assert all(map(torch.equal, masks[0], masks[2]))  # nothing had changed before layer 0
    assert not all(map(torch.equal, masks[1], masks[3]))


@pytest.mark.parametrize("method", [Magnitude(), Wanda(pattern="2:4"), SparseGPT(sparsity=0.7)])
def test_every_method_reaches_its_share(method: Any, folder: Path, tmp_path: Path):
    report = walked(folder, folder, tmp_path / "out", Prune(method=method))
    assert report["sparsity"] == pytest.approx(method.sparsity, abs=1e-3)
    assert zeros(tmp_path / "out") == pytest.approx(method.sparsity, abs=1e-3)


def test_sensitivity_gives_layers_different_shares_with_the_mean_asked(
    folder: Path, tmp_path: Path
):
    step = Prune(method=Wanda(sparsity=0.5), allocation="sensitivity")
    report = walked(folder, folder, tmp_path / "out", step)
    assert report["sparsity"] == pytest.approx(0.5, abs=1e-3)
    assert len(set(report["shares"])) > 1
    assert report["curves"]["levels"] == [0.3, 0.4, 0.5, 0.6, 0.7]
    assert all(curve == sorted(curve) for curve in report["curves"]["errors"])
    for share, row in zip(report["shares"], report["layers"], strict=True):
        assert row["zeros"] / row["weights"] == pytest.approx(share, abs=2e-3)


def test_a_collapsed_model_is_led_to_the_last_layer_of_each_group(folder: Path, tmp_path: Path):
    lm = loaded(folder)
    kept = apply_edit(lm.layers, Drop(layers=(2, 3)))["kept"]
    models.save_folder(lm, tmp_path / "short")
    ends = group_ends(6, [kept])
    assert ends == [0, 3, 4, 5]
    report = walked(tmp_path / "short", folder, tmp_path / "out", REPAIR, ends, text=texts(72, 64))
    assert [row["original"] for row in report["layers"]] == ends
    assert report["layers"][-1]["error"] < report["layers"][-1]["alone"]
    assert len(loaded(tmp_path / "out").layers) == 4


def test_groups_follow_several_edits():
    assert group_ends(8, []) == list(range(8))
    assert group_ends(8, [[0, 1, 4, 7]]) == [0, 3, 6, 7]
    assert group_ends(8, [[0, 1, 4, 7], [0, 2, 3]]) == [3, 6, 7]
    assert group_ends(8, [[2, 3]]) == [2, 7]


def test_alpha_zero_asks_for_what_the_original_makes_of_the_same_input(
    folder: Path, tmp_path: Path
):
    """With the input compensated perfectly both targets agree: at layer 0 they are one."""
    walked(folder, folder, tmp_path / "pruned", HALF)
    rows = {}
    for alpha in (0.0, 0.5, 1.0):
        step = REPAIR.model_copy(update={"alpha": alpha})
        report = walked(tmp_path / "pruned", folder, tmp_path / f"out{alpha}", step)
        rows[alpha] = report["layers"]
    assert rows[0.0][0]["pruned"] == pytest.approx(rows[1.0][0]["pruned"], rel=1e-5)
    assert rows[0.0][3]["pruned"] < rows[0.5][3]["pruned"] < rows[1.0][3]["pruned"]


def test_a_walk_that_was_stopped_goes_on_and_ends_in_the_same_bits(folder: Path, tmp_path: Path):
    walked(folder, folder, tmp_path / "pruned", HALF)
    whole = walked(tmp_path / "pruned", folder, tmp_path / "whole", REPAIR)
    seen: list[str] = []

    def stop_in_layer_three() -> bool:
        return any(message.startswith("layer 3") for message in seen)

    context = Context(progress=lambda _f, m: seen.append(m), cancelled=stop_in_layer_three)
    with pytest.raises(Cancelled):
        walked(tmp_path / "pruned", folder, tmp_path / "parts", REPAIR, context=context)
    again: list[str] = []
    context = Context(progress=lambda _f, m: again.append(m))
    report = walked(tmp_path / "pruned", folder, tmp_path / "parts", REPAIR, context=context)
    assert not any(m.startswith(("layer 0: epoch", "layer 2: epoch")) for m in again)
    assert any(m.startswith("layer 3: epoch") for m in again)
    assert torch.equal(predictions(tmp_path / "whole"), predictions(tmp_path / "parts"))
    assert [row["error"] for row in report["layers"]] == [r["error"] for r in whole["layers"]]


@pytest.mark.parametrize("importance", ["flap", "taylor", "magnitude"])
def test_narrower_layers_are_compensated_in_one_walk_and_load(
    importance: Any, folder: Path, tmp_path: Path
):
    method = Structured(importance=importance, channels=0.33, multiple=16)
    alone = walked(folder, folder, tmp_path / "narrow", Prune(method=method), text=texts(72, 64))
    step = Prune(method=method, calibration=REPAIR.calibration, compensation=REPAIR)
    both = walked(folder, folder, tmp_path / "both", step, text=texts(72, 64))
    for place in ("narrow", "both"):
        assert loaded(tmp_path / place).model.config.intermediate_size == 32
    assert alone["sparsity"] == both["sparsity"] == 0
    assert both["layers"][-1]["error"] < alone["layers"][-1]["error"]


def test_a_stopped_walk_of_narrower_layers_goes_on_too(folder: Path, tmp_path: Path):
    method = Structured(importance="taylor", channels=0.33, multiple=16)
    step = Prune(method=method, calibration=REPAIR.calibration, compensation=REPAIR)
    walked(folder, folder, tmp_path / "whole", step)
    seen: list[str] = []
    context = Context(
        progress=lambda _f, m: seen.append(m),
        cancelled=lambda: any(m.startswith("layer 2: epoch") for m in seen),
    )
    with pytest.raises(Cancelled):
        walked(folder, folder, tmp_path / "parts", step, context=context)
    walked(folder, folder, tmp_path / "parts", step)
    assert torch.equal(predictions(tmp_path / "whole"), predictions(tmp_path / "parts"))


def test_rows_are_published_layer_by_layer(folder: Path, tmp_path: Path):
    counts: list[int] = []
    context = Context(publish=lambda document: counts.append(len(document["layers"])))
    walked(folder, folder, tmp_path / "out", HALF, context=context)
    assert counts == [1, 2, 3, 4, 5, 6]


def test_at_most_one_layer_of_each_model_has_weights(folder: Path, tmp_path: Path):
    student, teacher = lazy(folder), lazy(folder)
    most = 0

    def count(_fraction: float, _message: str) -> None:
        nonlocal most
        held = [
            sum(not p.is_meta for p in layer.parameters()) > 0
            for side in (student, teacher)
            for layer in side.stack
        ]
        most = max(most, sum(held))

    writer = LayerWriter(student, tmp_path / "out")
    rework(student, teacher, range(6), REPAIR, texts(), writer, Context(progress=count))
    assert most == 1  # the original's is let go before the student's is changed


def test_a_bfloat16_model_stays_one_and_is_judged_as_stored(tmp_path: Path):
    model: Any = tiny.ARCHITECTURES["llama"]()
    source = tiny.save(model.to(torch.bfloat16), tmp_path / "model")
    report = walked(source, source, tmp_path / "pruned", HALF)
    assert loaded(tmp_path / "pruned").model.dtype == torch.bfloat16
    again = walked(tmp_path / "pruned", source, tmp_path / "out", REPAIR)
    assert report["sparsity"] == again["sparsity"]
    assert again["layers"][-1]["error"] < again["layers"][-1]["alone"]


def test_a_pattern_that_does_not_divide_is_refused_before_anything_is_written(
    folder: Path, tmp_path: Path
):
    with pytest.raises(RecipeError, match=r"rows of .* layer 0"):
        walked(folder, folder, tmp_path / "out", Prune(method=Wanda(pattern="3:7")))
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_a_broken_weight_names_layer_and_linear(tmp_path: Path):
    model = tiny.ARCHITECTURES["llama"]()
    weights(LayerStack(model)[2])[5].data[0, 0] = torch.inf  # q, k, v, o, gate, up, down
    source = tiny.save(model, tmp_path / "model")
    with pytest.raises(NumericalError, match=r"up_proj of layer 2"):
        walked(source, source, tmp_path / "out", HALF)
