"""One layer brought back: errors fall, zeros stay, bad numbers end it, on every family."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laco import compensate as module
from laco.compensate import Task, compensate, output_linear, relative_errors
from laco.context import Context
from laco.errors import Cancelled, NumericalError
from laco.layers import LayerStack, linears
from laco.recipe import Calibration, Compensate
from laco.walk import record
from tests import tiny

PLUS = Compensate(epochs=2, learning_rate=2e-3, calibration=Calibration(windows=8))
PAPER = Compensate.model_validate(
    {"mode": "paper", "epochs": 2, "learning_rate": 1e-3, "calibration": {"windows": 8}}
)
INDEX = 1


def task_of(name: str = "llama", training: int = 8, windows: int = 12, batch: int = 4) -> Task:
    """Layer 1 of a tiny model, half of its weights zero, and what it gave before."""
    stack = LayerStack(tiny.ARCHITECTURES[name]())
    tokens = torch.randint(2, 300, (windows, 10), generator=torch.Generator().manual_seed(1))
    tapes = {size: record(stack, tokens[:size]) for size in (1, 2, 4)}
    states = record(stack, tokens).inputs
    states = torch.cat([tapes[4].run(stack[0], 0, part) for part in states.split(4)])
    layer = stack[INDEX]
    targets = torch.cat([tapes[4].run(layer, INDEX, part) for part in states.split(4)])
    for _, linear in linears(layer):
        weight = linear.get_parameter("weight").data
        weight[weight.abs() < weight.abs().median()] = 0

    def run(layer: nn.Module, hidden: Tensor) -> Tensor:
        return tapes[len(hidden)].call(layer, INDEX, hidden)

    return Task(layer, run, states, targets, training, batch)


def weights(layer: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}


def fitted(task: Task, spec: Compensate, context: Context | None = None) -> Any:
    return compensate(task, spec, 0, "layer 1", context or Context())


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_every_family_comes_nearer_and_keeps_its_zeros(name: str):
    task = task_of(name)
    before = weights(task.layer)
    fit = fitted(task, PLUS)
    assert fit.kept in ("ridge", "adam")
    assert fit.error < fit.pruned
    assert task.error() == pytest.approx(fit.error, rel=1e-4)
    for linear, _ in linears(task.layer):
        old, new = before[f"{linear}.weight"], weights(task.layer)[f"{linear}.weight"]
        assert torch.equal(old == 0, new == 0) or not (new[old == 0]).any()


def test_the_output_linear_is_the_one_whose_output_the_layer_hands_on():
    found = {name: output_linear(task_of(name)) for name in ("llama", "gpt2", "granite", "gemma2")}
    assert found["llama"] == ("mlp.down_proj", pytest.approx(1.0, abs=1e-4))
    assert found["gpt2"] == ("mlp.c_proj", pytest.approx(1.0, abs=1e-4))
    assert found["granite"] == ("mlp.down_proj", pytest.approx(0.5, abs=1e-4))
    assert found["gemma2"] is None  # a norm comes after


def test_least_squares_alone_lower_the_error():
    task = task_of()
    fit = fitted(task, PLUS.model_copy(update={"epochs": 0}))
    assert fit.kept == "ridge"
    assert fit.adam is None
    assert fit.damping in module.DAMPINGS
    assert task.error() == pytest.approx(fit.ridge, rel=1e-4)
    assert fit.ridge < fit.pruned


def test_what_does_not_help_held_out_windows_is_not_kept():
    task = task_of()
    fit = fitted(task, PLUS.model_copy(update={"learning_rate": 1.0}))
    assert fit.kept == "ridge"
    assert fit.adam > fit.ridge
    assert task.error() == pytest.approx(fit.ridge, rel=1e-4)


def test_the_paper_s_mode_descends_on_the_plain_error_and_keeps_its_end():
    task = task_of(training=12)
    fit = fitted(task, PAPER)
    assert fit.ridge is None
    assert fit.kept == "adam"
    assert fit.losses[-1] < fit.losses[0]
    assert len(fit.losses) == 2


def test_the_paper_s_first_step_is_that_of_a_plain_loop():
    task = task_of(training=4, windows=4)
    once = PAPER.model_copy(update={"epochs": 1})
    twin = task_of(training=4, windows=4)
    parameters = dict(twin.layer.named_parameters())
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    masks = {f"{name}.weight": linear.weight != 0 for name, linear in linears(twin.layer)}  # type: ignore[union-attr]
    optimiser = torch.optim.AdamW(parameters.values(), lr=1e-3, weight_decay=1e-5)
    loss = (twin.run(twin.layer, twin.inputs) - twin.targets).square().mean()
    loss.backward()
    for name, mask in masks.items():
        parameters[name].grad *= mask  # type: ignore[operator]
    torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
    optimiser.step()
    fit = fitted(task, once)
    assert fit.losses[0] == pytest.approx(loss.item(), rel=1e-5)
    for name, weight in weights(task.layer).items():
        torch.testing.assert_close(weight, parameters[name].detach())


@pytest.mark.parametrize("spec", [PLUS, PAPER])
def test_numbers_that_are_not_finite_end_the_work_and_name_the_layer(
    spec: Compensate, monkeypatch: pytest.MonkeyPatch
):
    def broken(task: Task, windows: Tensor, paper: bool) -> float:
        for parameter in task.layer.parameters():
            parameter.grad = torch.full_like(parameter, math.nan)
        return math.nan

    monkeypatch.setattr(module, "_gradients", broken)
    with pytest.raises(
        NumericalError, match=r"loss of layer \d+ in epoch 1 of compensation is not f"
    ):
        fitted(task_of(), spec)


def test_weights_that_are_not_finite_after_the_last_step_end_the_work(
    monkeypatch: pytest.MonkeyPatch,
):
    def broken(task: Task, windows: Tensor, paper: bool) -> float:
        for parameter in task.layer.parameters():
            parameter.grad = torch.full_like(parameter, math.nan)
        return 1.0

    monkeypatch.setattr(module, "_gradients", broken)
    with pytest.raises(NumericalError, match=r"error of layer \d+ after 2 epochs"):
        fitted(task_of(), PLUS)


def test_a_broken_weight_is_named_before_work():
    task = task_of()
    task.layer.get_submodule("mlp.up_proj").get_parameter("weight").data[0, 0] = math.inf
    with pytest.raises(NumericalError, match=r"mlp\.up_proj of layer 1"):
        fitted(task, PLUS)


def test_a_full_device_halves_the_micro_batch_says_so_and_changes_no_result():
    plain, crowded = task_of(), task_of()
    run = crowded.run

    def small(layer: nn.Module, hidden: Tensor) -> Tensor:
        if len(hidden) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(layer, hidden)

    crowded.run = small
    fit, other = fitted(plain, PLUS), fitted(crowded, PLUS)
    assert crowded.batch == 2
    assert any("2 windows go at a time" in note for note in other.notes)
    assert other.error == pytest.approx(fit.error, rel=1e-3)


def test_a_device_too_small_for_one_window_is_an_error():
    task = task_of(batch=1)

    def none(_layer: nn.Module, _hidden: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    task.run = none
    with pytest.raises(torch.OutOfMemoryError):
        fitted(task, PLUS)


def test_cancel_is_heard_between_steps_and_leaves_no_gradients():
    task = task_of()
    asked = iter([False, False, True])
    with pytest.raises(Cancelled):
        fitted(task, PLUS, Context(cancelled=partial(next, asked)))
    assert all(p.grad is None and not p.requires_grad for p in task.layer.parameters())


def test_relative_errors_are_those_of_a_loop():
    output, target = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    found = relative_errors(output, target)
    for row in range(2):
        for token in range(3):
            gap = sum(
                float(a - b) ** 2
                for a, b in zip(output[row, token], target[row, token], strict=True)
            )
            size = sum(float(b) ** 2 for b in target[row, token])
            assert float(found[row, token]) == pytest.approx(gap / size, rel=1e-5)


def test_step_sizes_rise_then_fall_to_a_floor():
    sizes = [module.plus_rate(done / 100, PLUS) for done in range(101)]
    top = max(range(101), key=sizes.__getitem__)
    assert 2 <= top <= 8
    assert sizes[-1] == pytest.approx(module.FLOOR * PLUS.learning_rate)
    assert sizes[top:] == sorted(sizes[top:], reverse=True)
