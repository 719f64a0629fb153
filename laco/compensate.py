"""Bring one changed layer's output back to what it was: closed form first, then gradient.

A layer is given as it is (pruned, or fed by layers that changed) with the hidden states that it
will be fed and those that it should give; all windows lie in host memory, and a micro-batch at a
time is on the device. Weights that are zero stay zero. It does not know where the states come
from (`rework.py` walks the model) nor how a linear's least squares are solved (`ridge.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from laco.context import Context
from laco.errors import NumericalError
from laco.experts import stored_experts
from laco.layers import check_finite, linears, weight_of
from laco.ranks import ALONE, Ranks
from laco.recipe import Compensate
from laco.ridge import masked_ridge

Run = Callable[[nn.Module, Tensor], Tensor]
T = TypeVar("T")

DAMPINGS = (1.0, 0.3, 0.1)  # times the mean diagonal of the Gram matrix, until held-out error rises
RIDGE_STEPS = 15
BETAS = (0.9, 0.95)
WARM_UP = 0.05  # share of the steps
FLOOR = 0.05  # of the peak learning rate, at the end
CLIP = 1.0  # of the gradient's norm
PAPER_BETAS, PAPER_DECAY, PAPER_FLOOR = (0.9, 0.999), 1e-5, 1e-7


@dataclass
class Fit:
    """What compensation did to a layer. Errors are relative: mean over tokens of ‖e‖² / ‖target‖².

    `pruned` is the error of the layer as it was given, `kept` the stage whose weights it has now.
    """

    pruned: float
    ridge: float | None = None
    adam: float | None = None
    kept: str = "pruned"
    damping: float | None = None
    losses: list[float] = field(default_factory=list)  # training, an epoch each
    notes: list[str] = field(default_factory=list)

    @property
    def error(self) -> float:
        """The relative error of what was kept."""
        return {"pruned": self.pruned, "ridge": self.ridge, "adam": self.adam}[self.kept] or 0.0


@dataclass
class Task:
    """A layer in float32 and what it is to learn.

    `run(layer, hidden)` calls it, with gradients as ambient. `inputs` and `targets` are
    [windows, length, hidden] on the host; the first `training` windows are learned from, the
    others decide. `batch` windows are on the device at a time; it halves where memory ends. Of
    several `ranks` each has its share of either; `learned` windows are there in all.
    """

    layer: nn.Module
    run: Run
    inputs: Tensor
    targets: Tensor
    training: int
    batch: int
    device: str = "cpu"
    ranks: Ranks = ALONE
    learned: int = 0

    def __post_init__(self) -> None:
        self.learned = self.learned or self.training

    def batches(self, windows: Sequence[int] | Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs, targets) of some windows on the device in float32, a micro-batch at a time."""
        chosen = torch.as_tensor(windows)
        for part in chosen.split(self.batch) if len(chosen) else ():
            yield (
                self.inputs[part].to(self.device, non_blocking=True).float(),
                self.targets[part].to(self.device, non_blocking=True).float(),
            )

    @property
    def judged(self) -> range:
        """The windows that errors are measured on: the held-out ones, or all if there are none."""
        count = len(self.inputs)
        return range(self.training, count) if self.training < count else range(count)

    @torch.no_grad()
    def error(self) -> float:
        """The layer's relative error as it is."""
        errors = [
            relative_errors(self.run(self.layer, hidden), target).flatten()
            for hidden, target in self.batches(self.judged)
        ]
        return self.ranks.mean(torch.cat(errors))


def autocast(device: str) -> torch.autocast:
    """On a GPU, products in bfloat16 over the float32 weights; on a CPU, float32 throughout."""
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=kind != "cpu")


def relative_errors(output: Tensor, target: Tensor) -> Tensor:
    """‖output − target‖² / ‖target‖² of each token: [..., hidden] -> [...]."""
    return (output - target).square().sum(-1) / target.square().sum(-1)


def compensate(task: Task, spec: Compensate, seed: int, place: str, context: Context) -> Fit:
    """Change the layer's weights in place, by `spec.mode`; what was found on the way.

    laco+: least squares on the output linear, then Adam on everything, each kept only if the
    held-out error falls. paper: AdamW on the plain squared error (`steps/recovery.py`, `PAPER`),
    whose end is kept as released. NumericalError, naming `place` ("layer 7"), when a number is not
    finite, to begin with or on the way.
    """
    check_finite(task.layer, place)
    fit, batch = Fit(pruned=0.0), task.batch  # a step of Adam has so many windows, room or not
    fit.pruned = _with_room(task, fit, task.error)
    if not math.isfinite(fit.pruned):
        raise NumericalError(
            f"The output of {place} is not finite before compensation; run the model in another "
            "dtype, or look for the layer that went wrong before."
        )
    if spec.mode == "laco+":
        _with_room(task, fit, lambda: _ridge(task, fit, place))
    if spec.epochs:
        _descend(task, spec, batch, seed, place, fit, context)
    return fit


@torch.no_grad()
def output_linear(task: Task) -> tuple[str, float] | None:
    """The linear whose output is added to the layer's own, and the factor; None if none is.

    Found by running: the last linear to be called gets a small noise on its output, and the
    layer's output has to move by that noise times one factor (which some families scale by). So
    it holds for every architecture, and is None where a norm or a router comes after.
    """
    hidden, _target = next(task.batches(range(1)))
    called: list[str] = []
    noise: Tensor | None = None

    def after(name: str) -> Callable[..., Tensor | None]:
        def hook(_linear: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
            called.append(name)
            return output + noise if noise is not None and name == last else None

        return hook

    last = ""
    handles = [linear.register_forward_hook(after(name)) for name, linear in linears(task.layer)]
    try:
        before = task.run(task.layer, hidden)
        if not called or called.count(called[-1]) != 1:
            return None
        last = called[-1]
        noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(0))
        noise = noise.to(before.device) * before.square().mean().sqrt()
        if weight_of(task.layer.get_submodule(last)).shape[0] != before.shape[-1]:
            return None
        moved = task.run(task.layer, hidden) - before
    finally:
        for handle in handles:
            handle.remove()
    factor = float((moved * noise).sum() / noise.square().sum())
    straight = float((moved - factor * noise).norm()) <= 1e-3 * float(moved.norm())
    return (last, factor) if straight and factor else None


@torch.no_grad()
def _ridge(task: Task, fit: Fit, place: str) -> None:
    """Least squares on the output linear, with the damping that held-out windows like best."""
    found = task.ranks.led(output_linear(task))
    if found is None:
        fit.notes.append("no linear adds straight to the layer's output, so no least squares")
        return
    linear = task.layer.get_submodule(found[0])
    weight = weight_of(linear)  # [out, in], shared
    gram = torch.zeros(weight.shape[1], weight.shape[1], device=task.device)
    cross = torch.zeros(weight.shape, device=task.device)
    held: list[tuple[Tensor, Tensor, Tensor]] = []
    seen: list[Tensor] = []
    handle = linear.register_forward_pre_hook(lambda _linear, args: seen.append(args[0]))

    def rows(windows: range) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each token what the linear is fed, what its output lacks, and ‖target‖²."""
        for hidden, target in task.batches(windows):
            gap = (target - task.run(task.layer, hidden)).flatten(0, -2) / found[1]  # [tokens, out]
            norms = target.flatten(0, -2).square().sum(-1, keepdim=True)  # [tokens, 1]
            yield seen.pop().flatten(0, -2), gap, norms

    try:
        for fed, gap, norms in rows(range(task.training)):
            weighed = fed / norms
            gram += weighed.T @ fed
            cross += gap.T @ weighed
        task.ranks.add(gram, cross)
        held = list(rows(task.judged))
    finally:
        handle.remove()
    change: Tensor | None = None
    best: tuple[float, Tensor | None] = (fit.pruned, None)
    for factor in DAMPINGS:
        damping = factor * float(gram.diagonal().mean())
        change = masked_ridge(gram, cross, weight != 0, damping, RIDGE_STEPS, change)
        errors = [
            (found[1] * (gap - fed @ change.T)).square().sum(-1, keepdim=True) / norms
            for fed, gap, norms in held
        ]
        error = task.ranks.mean(torch.cat(errors))
        if not math.isfinite(error):
            raise NumericalError(
                f"Least squares on {found[0]} of {place} gave numbers that are not finite; use "
                "more calibration windows, or run the model in another dtype."
            )
        if not error < best[0]:
            break
        best, fit.damping = (error, change), factor
    if best[1] is not None:
        weight += best[1]
        fit.ridge, fit.kept = best[0], "ridge"


def _descend(
    task: Task, spec: Compensate, batch: int, seed: int, place: str, fit: Fit, context: Context
) -> None:
    """Adam on every parameter under the mask; its end is kept, in laco+ only if it is better."""
    paper = spec.mode == "paper"
    parameters = dict(task.layer.named_parameters())
    held = [f"{name}.weight" for name, _ in linears(task.layer)]
    held += [experts.name for experts in stored_experts(task.layer)]
    support = {name: parameters[name] != 0 for name in held}
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    optimiser = torch.optim.AdamW(
        parameters.values(),
        lr=spec.learning_rate,
        betas=PAPER_BETAS if paper else BETAS,
        weight_decay=PAPER_DECAY if paper else 0.0,
        fused=True,  # makes no copies of the weights
    )
    order = torch.Generator().manual_seed(seed)
    steps = math.ceil(task.learned / batch)  # an epoch
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    try:
        for epoch in range(spec.epochs):
            total = 0.0
            for step, windows in enumerate(
                torch.randperm(task.learned, generator=order).split(batch)
            ):
                done = epoch + step / steps
                context.step(done / spec.epochs, f"{place}: epoch {epoch + 1} of {spec.epochs}")
                rate = paper_rate(epoch, spec) if paper else plus_rate(done / spec.epochs, spec)
                optimiser.param_groups[0]["lr"] = rate
                total += _with_room(task, fit, partial(_gradients, task, windows, paper))
                for name, mask in support.items():
                    parameters[name].grad.mul_(mask)  # type: ignore[union-attr]
                nn.utils.clip_grad_norm_(parameters.values(), CLIP)
                optimiser.step()
            if not math.isfinite(total):
                raise _diverged(f"The loss of {place} in epoch {epoch + 1}", spec)
            fit.losses.append(total / steps)
    finally:
        for parameter in parameters.values():
            parameter.requires_grad_(False)
            parameter.grad = None
    error = _with_room(task, fit, task.error)
    if not math.isfinite(error):
        raise _diverged(f"The error of {place} after {spec.epochs} epochs", spec)
    fit.adam = error
    if paper or error < fit.error:
        fit.kept = "adam"
        return
    for name, parameter in parameters.items():
        parameter.copy_(before[name])


def _diverged(what: str, spec: Compensate) -> NumericalError:
    return NumericalError(
        f"{what} of compensation is not finite; use a smaller learning rate than "
        f"{spec.learning_rate:g}, or run the model in another dtype."
    )


def _gradients(task: Task, windows: Tensor, paper: bool) -> float:
    """Set the gradients of the mean loss over some windows, by their numbers; the loss."""
    task.layer.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for hidden, target in task.batches(task.ranks.own(windows)):
        with autocast(task.device):
            output = task.run(task.layer, hidden).float()
        each = (output - target).square() if paper else relative_errors(output, target)
        loss = each.mean() * (len(hidden) / len(windows))
        loss.backward()
        total += float(loss.detach())
    if task.ranks.count > 1:
        for parameter in task.layer.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            task.ranks.add(parameter.grad)
        total = total.to(task.device)
        task.ranks.add(total)
    return float(total)


def _with_room(task: Task, fit: Fit, work: Callable[[], T]) -> T:
    """The work done, with micro-batches halved as often as the device's memory asks for."""
    while True:
        try:
            return work()
        except torch.OutOfMemoryError:
            if task.batch == 1:
                raise
            task.batch //= 2
            fit.notes.append(f"the device's memory was full; {task.batch} windows go at a time")


def plus_rate(done: float, spec: Compensate) -> float:
    """laco+'s step size after a share `done` of all steps: warm-up, then a cosine to `FLOOR`."""
    cosine = 0.5 * (1 + math.cos(math.pi * done))
    return spec.learning_rate * min(1.0, (done + 1e-3) / WARM_UP) * (FLOOR + (1 - FLOOR) * cosine)


def paper_rate(epoch: int, spec: Compensate) -> float:
    """The released step size in an epoch: a cosine over epochs down to 1e-7."""
    share = 0.5 * (1 + math.cos(math.pi * epoch / spec.epochs))
    return PAPER_FLOOR + (spec.learning_rate - PAPER_FLOOR) * share
