"""LoRA learns, merges under the mask, and leaves a model with nothing of peft in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

from laco.adapters import insert_adapters, unwrap
from laco.context import Context
from laco.errors import (
    ArchitectureError,
    CalibrationError,
    Cancelled,
    ModelError,
    NumericalError,
    RecipeError,
)
from laco.finetune import (
    finetune,
    held_out_loss,
    merge_adapters,
    merged_weight,
    step_size,
    train_adapters,
)
from laco.layers import LayerStack, linears, weight_of
from laco.models import LoadedModel, load_folder, save_folder
from laco.recipe import Finetune, ModelRef

FAMILIES = ["llama", "gpt2", "bloom", "falcon", "gemma2"]
REPEATED = tiny.tokens(1, 16).repeat(8, 1)  # [8 windows, 16 tokens], one and the same
VARIED = tiny.tokens(8, 16, seed=1)
OTHER = tiny.tokens(4, 16, seed=2)
STEP = Finetune(
    rank=4, dropout=0, learning_rate=1e-2, epochs=3, batch_tokens=32, loss="ce", keep_zeros=True
)  # two windows a step, four steps an epoch


def weights(lm: LoadedModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def shape_of(lm: LoadedModel) -> Any:
    """All that says whether something still stands around the model's own modules."""
    modules = [(name, id(m), sorted(vars(m))) for name, m in lm.model.named_modules()]
    return modules, [p.requires_grad for p in lm.model.parameters()]


def weights_of_linears(lm: LoadedModel) -> dict[str, Tensor]:
    return {
        f"{i}.{n}": weight_of(m) for i, layer in enumerate(lm.layers) for n, m in linears(layer)
    }


def prune(lm: LoadedModel) -> int:
    """How many weights were set to zero: half of each linear's, the smallest."""
    zeros = 0
    for weight in weights_of_linears(lm).values():
        mask = weight.abs() <= weight.abs().flatten().median()
        weight[mask] = 0
        zeros += int(mask.sum())
    return zeros


def damaged() -> LoadedModel:
    lm = tiny.loaded()
    prune(lm)
    return lm


def at_step(number: int, action: Any) -> Context:
    """A context that acts when progress is told for the `number`th time."""
    told: list[str] = []

    def progress(_fraction: float, message: str) -> None:
        told.append(message)
        if len(told) == number:
            action()

    return Context(progress=progress)


@contextmanager
def training_passes(lm: LoadedModel, action: Any) -> Iterator[None]:
    """Let `action(pass, windows, output)` see, and replace, what each pass with gradients gives."""
    passes = [0]

    def after(_model: nn.Module, _args: Any, kwargs: Any, output: Any) -> Any:
        if not torch.is_grad_enabled() or not kwargs["input_ids"].any():  # the head alone: zeros
            return None
        passes[0] += 1
        return action(passes[0], len(kwargs["input_ids"]), output)

    handle = lm.layers.trunk.register_forward_hook(after, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_training_lowers_the_loss_and_merging_gives_what_the_adapters_gave(family: str):
    lm = tiny.loaded(family)
    report = finetune(lm, STEP, REPEATED, REPEATED[:2], Context(), None)
    best = report["epochs"][report["best_epoch"] - 1]["held_out"]
    assert report["curve"][-1]["loss"] < report["curve"][0]["loss"] - 0.1
    assert report["held_out_after"] < report["held_out_before"] - 0.1
    assert report["held_out_after"] == pytest.approx(best, abs=1e-4)
    assert report["notes"] == []
    assert [point["step"] for point in report["curve"]] == list(range(1, 13))
    assert [epoch["epoch"] for epoch in report["epochs"]] == [1, 2, 3]
    assert report["trained_parameters"] == sum(
        STEP.rank * sum(weight.shape) for weight in weights_of_linears(lm).values()
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_of_peft_is_left_and_only_linears_have_changed(family: str):
    lm = tiny.loaded(family)
    before, shape, inside = weights(lm), shape_of(lm), set()
    for index, layer in enumerate(lm.layers):
        prefix = f"{lm.layers.layout.layers}.{index}"
        inside |= {f"{prefix}.{name}.weight" for name, _ in linears(layer)}
    finetune(lm, STEP, REPEATED, OTHER, Context(), None)
    after = weights(lm)
    assert shape_of(lm) == shape
    assert not lm.model.training
    assert not any(module.training for module in lm.model.modules())
    assert {name for name in before if not torch.equal(before[name], after[name])} == inside


@pytest.mark.parametrize("family", FAMILIES)
def test_a_merged_model_is_saved_and_reloads_with_equal_logits(family: str, tmp_path: Path):
    lm = tiny.loaded(family)
    finetune(lm, STEP, REPEATED, OTHER, Context(), None)
    save_folder(lm, tmp_path)
    again = load_folder(tmp_path, ModelRef(path=str(tmp_path), dtype="float32"), "cpu")
    assert torch.equal(lm.model(OTHER).logits, again.model(OTHER).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_zeros_stay_zero_when_the_product_is_merged_under_the_mask(family: str):
    lm = tiny.loaded(family)
    zeros = prune(lm)
    masks = {name: weight == 0 for name, weight in weights_of_linears(lm).items()}
    report = finetune(lm, STEP, REPEATED, OTHER, Context(), None)
    for name, weight in weights_of_linears(lm).items():
        assert torch.equal(weight == 0, masks[name])
    assert report["zeros_before"] == report["zeros_after"] == zeros
    assert report["zeros_filled"] == 0


def test_zeros_fill_up_without_the_mask_and_the_report_says_how_many():
    lm = tiny.loaded()
    zeros = prune(lm)
    step = STEP.model_copy(update={"keep_zeros": False})
    report = finetune(lm, step, REPEATED, OTHER, Context(), None)
    left = sum(int((weight == 0).sum()) for weight in weights_of_linears(lm).values())
    assert report["zeros_before"] == zeros
    assert report["zeros_after"] == left < zeros
    assert report["zeros_filled"] == zeros - left
    assert any(f"filled {zeros - left} of the {zeros}" in note for note in report["notes"])


@pytest.mark.parametrize("keep_zeros", [True, False])
def test_a_merged_weight_is_the_sum_entry_by_entry(keep_zeros: bool):
    weight = torch.tensor([[0.0, 1.5, -2.0], [3.0, 0.0, 0.25]], dtype=torch.bfloat16)
    product = torch.tensor([[0.5, -1.5, 0.125], [1.0, -0.75, 4.0]])
    merged = merged_weight(weight, product, keep_zeros)
    for i in range(2):
        for j in range(3):
            zero = keep_zeros and float(weight[i, j]) == 0
            assert float(merged[i, j]) == (0 if zero else float(weight[i, j] + product[i, j]))
    assert merged.dtype == torch.bfloat16


def test_adapters_can_be_measured_apart_before_they_are_merged():
    lm = damaged()
    adapters, report = train_adapters(lm, STEP, REPEATED, OTHER, Context(), None)
    apart = held_out_loss(lm.layers, OTHER, "apart")
    assert apart == pytest.approx(report["epochs"][report["best_epoch"] - 1]["held_out"], abs=1e-6)
    assert not any(parameter.requires_grad for parameter in lm.model.parameters())
    merge_adapters(lm, adapters, keep_zeros=True)
    assert held_out_loss(lm.layers, OTHER, "merged") != pytest.approx(apart, abs=1e-5)


def test_the_two_halves_in_a_row_give_what_finetune_gives():
    whole, halves = damaged(), damaged()
    finetune(whole, STEP, REPEATED, OTHER, Context(), None)
    adapters, _ = train_adapters(halves, STEP, REPEATED, OTHER, Context(), None)
    merge_adapters(halves, adapters, STEP.keep_zeros)
    assert equal(weights(whole), weights(halves))


@pytest.mark.parametrize("error", [Cancelled, KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("moment", [1, 3, 5, 12])  # the fifth is that of the held-out loss
def test_whatever_ends_the_training_leaves_the_model_bit_for_bit_as_it_was(
    error: type[BaseException], moment: int
):
    lm = damaged()
    before, shape = weights(lm), shape_of(lm)

    def act() -> None:
        raise error

    with pytest.raises(error):
        finetune(lm, STEP, REPEATED, OTHER, at_step(moment, act), None)
    assert equal(weights(lm), before)
    assert shape_of(lm) == shape


def test_progress_rises_to_one_and_says_epoch_and_loss():
    told: list[tuple[float, str]] = []
    context = Context(progress=lambda fraction, message: told.append((fraction, message)))
    finetune(tiny.loaded(), STEP, REPEATED, OTHER, context, None)
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert told[0][1].startswith("epoch 1 of 3, loss 5.")


def test_what_there_is_of_the_report_is_published_after_each_step():
    seen: list[Any] = []
    context = Context(publish=lambda d: seen.append((len(d["curve"]), len(d["epochs"]), d)))
    report = finetune(tiny.loaded(), STEP, REPEATED, OTHER, context, tiny.loaded)
    assert [count for count, _, _ in seen] == [point["step"] for point in report["curve"]]
    assert [epochs for _, epochs, _ in seen] == sorted(epochs for _, epochs, _ in seen)
    assert all(d["held_out_before"] == report["held_out_before"] for _, _, d in seen)
    assert all(d["original_held_out"] == report["original_held_out"] for _, _, d in seen)
    assert [epoch["step"] for epoch in report["epochs"]] == [4, 8, 12]


def test_ambient_randomness_is_neither_read_nor_touched():
    results = []
    for ambient in (1, 2):
        torch.manual_seed(ambient)
        state = torch.get_rng_state()
        lm = tiny.loaded()
        finetune(lm, STEP.model_copy(update={"dropout": 0.3}), VARIED, OTHER, Context(), None)
        results.append(weights(lm))
        assert torch.equal(torch.get_rng_state(), state)
    assert equal(*results)


@pytest.mark.parametrize("change", [{"seed": 1}, {"dropout": 0.3}, {"epochs": 2}, {"loss": "kl"}])
def test_each_setting_changes_the_result(change: dict[str, Any]):
    plain, changed = damaged(), damaged()
    finetune(plain, STEP, VARIED, OTHER, Context(), tiny.loaded)
    finetune(changed, STEP.model_copy(update=change), VARIED, OTHER, Context(), tiny.loaded)
    assert not equal(weights(plain), weights(changed))


def test_the_divergence_of_a_model_from_itself_is_zero():
    step = STEP.model_copy(update={"loss": "kl", "learning_rate": 1e-6})  # Adam walks on rounding
    report = finetune(tiny.loaded(), step, VARIED, OTHER, Context(), tiny.loaded)
    assert all(abs(point["loss"]) < 1e-5 for point in report["curve"])


def test_losses_equal_plain_ones_over_the_whole_batch():
    lm, original = damaged(), tiny.loaded()
    p = original.model(VARIED).logits.double().softmax(-1)
    q = lm.model(VARIED).logits.double().softmax(-1)
    plain = {
        "ce": float(lm.model(VARIED, labels=VARIED).loss),
        "kl": float((p * (p / q).log()).sum(-1).mean()),
    }
    held_out = float(lm.model(OTHER, labels=OTHER).loss)
    dense = float(original.model(OTHER, labels=OTHER).loss)
    for loss, expected in plain.items():
        step = STEP.model_copy(update={"loss": loss, "batch_tokens": 128, "epochs": 1})
        report = finetune(damaged(), step, VARIED, OTHER, Context(), tiny.loaded)
        assert report["curve"] == [{"step": 1, "loss": pytest.approx(expected, abs=1e-5)}]
        assert report["epochs"][0]["train"] == pytest.approx(expected, abs=1e-5)
        assert report["held_out_before"] == pytest.approx(held_out, abs=1e-5)
        assert report["original_held_out"] == pytest.approx(dense, abs=1e-5)


def test_divergence_from_the_original_falls():
    step = STEP.model_copy(update={"loss": "kl", "epochs": 6})
    report = finetune(damaged(), step, VARIED, OTHER, Context(), tiny.loaded)
    assert report["epochs"][-1]["train"] < report["epochs"][0]["train"]


def test_the_best_epoch_is_kept_and_a_rise_is_told():
    lm = tiny.loaded()
    finetune(lm, STEP, OTHER, OTHER, Context(), None)
    report = finetune(lm, STEP, VARIED, OTHER, Context(), None)  # it forgets what it had learnt
    losses = [epoch["held_out"] for epoch in report["epochs"]]
    assert losses[report["best_epoch"] - 1] == min(losses) < losses[-1]
    assert report["held_out_after"] == pytest.approx(min(losses), abs=1e-4)
    assert min(losses) > report["held_out_before"]
    assert any("No epoch lowered the held-out loss" in note for note in report["notes"])


def test_a_loss_that_is_not_finite_ends_the_training_at_the_best_epoch_so_far():
    lm, one = tiny.loaded(), tiny.loaded()

    def spoil(number: int, _windows: int, output: Any) -> Any:
        if number == 6:  # the second step of the second epoch
            output.last_hidden_state = output.last_hidden_state * float("nan")
        return output

    with training_passes(lm, spoil):
        report = finetune(lm, STEP, REPEATED, REPEATED[:2], Context(), None)
    assert report["best_epoch"] == len(report["epochs"]) == 1
    assert len(report["curve"]) == 5
    assert "epoch 2 of 3, step 6" in report["notes"][0]
    assert "epoch 1 are kept" in report["notes"][0]
    assert report["held_out_after"] == pytest.approx(report["epochs"][0]["held_out"], abs=1e-4)

    def stop() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):  # a run that never meets the second epoch's loss
        finetune(one, STEP, REPEATED, REPEATED[:2], at_step(6, stop), None)
    assert not equal(weights(lm), weights(one))


def test_a_loss_that_is_not_finite_in_the_first_epoch_is_an_error():
    lm = tiny.loaded()
    before, shape = weights(lm), shape_of(lm)

    def spoil(_number: int, _windows: int, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state * float("inf")
        return output

    with (
        training_passes(lm, spoil),
        pytest.raises(NumericalError, match="epoch 1 of 3, step 1; use a smaller learning rate"),
    ):
        finetune(lm, STEP, REPEATED, OTHER, Context(), None)
    assert equal(weights(lm), before)
    assert shape_of(lm)[0] == shape[0]


def test_broken_weights_are_refused_before_training():
    lm = tiny.loaded()
    next(iter(weights_of_linears(lm).values()))[0, 0] = float("nan")
    with pytest.raises(NumericalError, match="held-out loss before training is not finite"):
        finetune(lm, STEP, REPEATED, OTHER, Context(), None)


def test_a_product_that_is_not_finite_is_not_merged():
    lm = tiny.loaded()
    before, shape = weights(lm), shape_of(lm)
    adapters, _ = train_adapters(lm, STEP, REPEATED, OTHER, Context(), None)
    with torch.no_grad():
        adapters.parameters()[-1].fill_(float("inf"))
    with pytest.raises(NumericalError, match=r"layer 5, mlp\.down_proj is not finite"):
        merge_adapters(lm, adapters, keep_zeros=True)
    assert equal(weights(lm), before)
    assert shape_of(lm) == shape


@pytest.mark.parametrize("loss", ["ce", "kl"])
def test_windows_are_halved_when_memory_runs_out_and_the_step_stays_the_same(loss: str):
    step = STEP.model_copy(update={"batch_tokens": 112, "loss": loss})  # 7 windows, then 1
    roomy, tight = damaged(), damaged()
    expected = finetune(roomy, step, VARIED, OTHER, Context(), tiny.loaded)

    def full(_number: int, windows: int, _output: Any) -> None:
        if windows > 2:
            raise torch.OutOfMemoryError("no room")

    with training_passes(tight, full):
        report = finetune(tight, step, VARIED, OTHER, Context(), tiny.loaded)
    for ours, theirs in zip(report["curve"], expected["curve"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    for ours, theirs in zip(weights(tight).values(), weights(roomy).values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
    halvings = [note for note in report["notes"] if "Memory ran out" in note]
    assert ["7 windows" in halvings[0], "3 windows" in halvings[1]] == [True, True]
    assert len(halvings) == 2


def test_memory_that_runs_out_on_a_single_window_is_an_error():
    lm = tiny.loaded()
    before, shape = weights(lm), shape_of(lm)

    def full(_number: int, _windows: int, _output: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    with (
        training_passes(lm, full),
        pytest.raises(ModelError, match="on a single window of 16 tokens"),
    ):
        finetune(lm, STEP, REPEATED, OTHER, Context(), None)
    assert equal(weights(lm), before)
    assert shape_of(lm)[0] == shape[0]


def test_a_model_in_bfloat16_stays_so_and_its_adapters_train_in_float32():
    lm = tiny.loaded()
    nn.Module.to(lm.model, torch.bfloat16)
    adapters, report = train_adapters(lm, STEP, REPEATED, REPEATED[:2], Context(), None)
    assert {parameter.dtype for parameter in adapters.parameters()} == {torch.float32}
    merge_adapters(lm, adapters, keep_zeros=True)
    assert {parameter.dtype for parameter in lm.model.parameters()} == {torch.bfloat16}
    after = held_out_loss(lm.layers, REPEATED[:2], "merged")
    assert after < report["held_out_before"] - 0.1


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_the_step_size_rises_over_a_tenth_and_falls_to_nothing(steps: int):
    sizes = [step_size(step, steps) for step in range(steps)]
    top = sizes.index(max(sizes))
    assert max(sizes) == 1
    assert top == -(-steps // 10) - 1
    assert sizes[:top] == sorted(sizes[:top])
    assert sizes[top:] == sorted(sizes[top:], reverse=True)
    assert min(sizes) > 0
    assert steps < 40 or sizes[-1] < 0.01


@pytest.mark.parametrize("family", [*tiny.ARCHITECTURES, "deepseek_v3", "gemma3"])
def test_fresh_adapters_stand_at_every_linear_of_the_layers_and_change_nothing(family: str):
    model = {**tiny.ARCHITECTURES, **tiny.PROBED}[family]()
    ref = ModelRef(path="tiny", revision="content:tiny", dtype="float32")
    lm = LoadedModel(model, tiny.tokenizer(), LayerStack(model), ref)
    before, shape, logits = weights(lm), shape_of(lm), model(OTHER).logits
    inside = {id(module) for layer in lm.layers for _, module in linears(layer)}
    adapters = insert_adapters(lm, STEP)
    assert {id(module) for module in adapters.linears.values()} == inside
    torch.testing.assert_close(model(OTHER).logits, logits, rtol=0, atol=1e-5)
    unwrap(lm, adapters)
    assert equal(weights(lm), before)
    assert shape_of(lm) == shape


def test_linears_that_peft_cannot_adapt_are_refused_and_left_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("laco.layers.STEERING", ())
    model = tiny.PROBED["llama4_text"]()  # its router is a linear that returns two tensors
    ref = ModelRef(path="tiny", revision="content:tiny", dtype="float32")
    lm = LoadedModel(model, tiny.tokenizer(), LayerStack(model), ref)
    before, shape = weights(lm), shape_of(lm)
    with pytest.raises(ArchitectureError, match="peft cannot put LoRA on"):
        finetune(lm, STEP, REPEATED, OTHER, Context(), None)
    assert equal(weights(lm), before)
    assert shape_of(lm) == shape


def test_routers_are_left_alone():
    model = tiny.PROBED["llama4_text"]()
    ref = ModelRef(path="tiny", revision="content:tiny", dtype="float32")
    lm = LoadedModel(model, tiny.tokenizer(), LayerStack(model), ref)
    adapters = insert_adapters(lm, STEP)
    assert not [name for name in adapters.linears if name.endswith("router")]
    unwrap(lm, adapters)


def test_divergence_without_the_original_is_refused():
    with pytest.raises(RecipeError, match="needs the original"):
        finetune(
            tiny.loaded(), STEP.model_copy(update={"loss": "kl"}), VARIED, OTHER, Context(), None
        )


@pytest.mark.parametrize(("train", "held_out"), [(VARIED[:0], OTHER), (VARIED, OTHER[:, :1])])
def test_text_that_holds_nothing_to_predict_is_refused(train: Tensor, held_out: Tensor):
    with pytest.raises(CalibrationError, match="needs one window or more"):
        finetune(tiny.loaded(), STEP, train, held_out, Context(), None)


def test_a_cancelled_context_is_heard_at_once():
    lm = tiny.loaded()
    before = weights(lm)
    context = replace(Context(), cancelled=lambda: True)
    with pytest.raises(Cancelled):
        finetune(lm, STEP, REPEATED, OTHER, context, None)
    assert equal(weights(lm), before)
