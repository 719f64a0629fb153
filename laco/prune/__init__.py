"""Prune one layer: zeros in its linears, chosen by a method of the table `PRUNERS`.

A layer's linears are those of `layers.linears`, Conv1D and fused projections included, without
the routers of experts. It does not know of models, of files, or of what compensates a layer
afterwards. Next: `magnitude.py`, `wanda.py`, `sparsegpt.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from laco.errors import CalibrationError, NumericalError, RecipeError
from laco.layers import check_finite, linears, weight_of
from laco.prune.magnitude import magnitude_mask
from laco.prune.sparsegpt import gram, inverse_factor, sparsegpt
from laco.prune.wanda import square_sums, wanda_mask
from laco.recipe import Magnitude, SparseGPT, Wanda
from laco.steps.sparsity import Sparse, pattern_of

ROUTERS = ("gate", "router", "shared_expert_gate")  # small, and all experts depend on them


@dataclass(frozen=True)
class Pruner:
    """A method: what it takes from a linear's inputs, and what it makes of the weight.

    measure: inputs [tokens, in] float32 -> a tensor that adds up over micro-batches; None when the
    method looks at no text. prune: weight [out, in], that tensor, method, sparsity -> the new
    weight [out, in] float32, and notes for the report.
    """

    measure: Callable[[Tensor], Tensor] | None
    prune: Callable[[Tensor, Tensor, Any, float], tuple[Tensor, list[str]]]


def _magnitude(
    weight: Tensor, _statistic: Tensor, method: Magnitude, sparsity: float
) -> tuple[Tensor, list[str]]:
    mask = magnitude_mask(weight, sparsity, pattern_of(method.pattern))
    return weight.masked_fill(mask, 0), []


def _wanda(
    weight: Tensor, squares: Tensor, method: Wanda, sparsity: float
) -> tuple[Tensor, list[str]]:
    mask = wanda_mask(weight, squares, sparsity, pattern_of(method.pattern))
    return weight.masked_fill(mask, 0), []


def _sparsegpt(
    weight: Tensor, hessian: Tensor, method: SparseGPT, sparsity: float
) -> tuple[Tensor, list[str]]:
    factor, damping = inverse_factor(hessian, method.damping)
    ratio, dead = pattern_of(method.pattern), hessian.diagonal() == 0
    pruned = sparsegpt(weight, factor, dead, sparsity, ratio, method.block)
    if damping == method.damping:
        return pruned, []
    return pruned, [
        f"the Hessian was not positive definite with a damping of {method.damping:g}; "
        f"{damping:g} was taken"
    ]


PRUNERS: dict[type[Sparse], Pruner] = {
    Magnitude: Pruner(None, _magnitude),
    Wanda: Pruner(square_sums, _wanda),
    SparseGPT: Pruner(gram, _sparsegpt),
}


def prunable(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The linears of a layer that are pruned, with their names inside it."""
    for name, linear in linears(layer):
        if name.rpartition(".")[2] not in ROUTERS:
            yield name, linear


def check_pattern(layers: Iterable[nn.Module], pattern: str) -> None:
    """Nothing when every linear's rows divide into the groups of `pattern`; else RecipeError.

    The layers may be on the meta device, since only shapes count. Names the layer by its place.
    """
    for index, layer in enumerate(layers):
        _check_rows(layer, pattern, f"layer {index}")


def prune_layer(
    layer: nn.Module, feed: Callable[[], None], method: Sparse, sparsity: float, place: str
) -> dict[str, Any]:
    """What became of each linear, after it was pruned in place to `sparsity`.

    `{"linears": {name: {"weights": int, "zeros": int}}, "notes": [str]}`. Weights are float32.
    `feed()` runs the layer over its calibration inputs, micro-batch after micro-batch; it is
    called once, and only for a method that looks at text. All statistics are of the layer as it
    was, as in the published codes. `place` ("layer 7") is for errors: RecipeError (rows that do not
    divide by the pattern), NumericalError (weights or inputs not finite), CalibrationError (a
    linear that saw no token), all before a weight changes; NumericalError of a Hessian, after.
    """
    _check_rows(layer, method.pattern, place)
    seen = measured(layer, feed, method, place)
    return prune_measured(layer, seen, method, sparsity, place)


@torch.no_grad()
def measured(
    layer: nn.Module, feed: Callable[[], None], method: Sparse, place: str
) -> dict[str, Tensor]:
    """What the method needs to know of each linear's inputs, by name; empty if it needs nothing.

    Linears fed with one and the same tensor (query, key and value) have it measured once.
    """
    check_finite(layer, place)
    measure = PRUNERS[type(method)].measure
    if measure is None:
        return {}
    sums: dict[str, Tensor] = {}
    tokens: Counter[str] = Counter()
    latest: tuple[Tensor, Tensor, int] | None = None  # an input, its measure, its tokens

    def before(name: str, _linear: nn.Module, args: tuple[Tensor, ...]) -> None:
        nonlocal latest
        if latest is None or latest[0] is not args[0]:
            rows = args[0].reshape(-1, args[0].shape[-1]).float()  # [tokens, in]
            with torch.autocast(rows.device.type, enabled=False):  # which would round the sums
                latest = args[0], measure(rows), len(rows)
        tokens[name] += latest[2]
        sums[name] = sums[name].add_(latest[1]) if name in sums else latest[1].clone()

    found = dict(prunable(layer))
    handles = [
        linear.register_forward_pre_hook(partial(before, name)) for name, linear in found.items()
    ]
    try:
        feed()
    finally:
        for handle in handles:
            handle.remove()
    for name in found:
        if not tokens[name]:
            raise CalibrationError(
                f"No calibration token reached {name} of {place}; use more windows or other text."
            )
        if not sums[name].isfinite().all():
            raise NumericalError(
                f"The inputs of {name} of {place} are not finite; "
                "run the model in another dtype, or look for the layer that went wrong before."
            )
    return sums


@torch.no_grad()
def prune_measured(
    layer: nn.Module, seen: Mapping[str, Tensor], method: Sparse, sparsity: float, place: str
) -> dict[str, Any]:
    """As `prune_layer`, with what `measured` gave; so one measurement serves many sparsities."""
    prune = PRUNERS[type(method)].prune
    counts: dict[str, dict[str, int]] = {}
    notes: list[str] = []
    nothing = torch.empty(0)
    for name, linear in prunable(layer):
        weight = weight_of(linear)  # [out, in], the module's own memory
        try:
            pruned, said = prune(weight, seen.get(name, nothing), method, sparsity)
        except NumericalError as error:
            raise NumericalError(f"In {name} of {place}: {error}") from error
        weight.copy_(pruned)
        notes += [f"{name}: {note}" for note in said]
        counts[name] = {"weights": weight.numel(), "zeros": int((weight == 0).sum())}
    left = [
        name.removesuffix(".weight")
        for name, parameter in layer.named_parameters()
        if parameter.dim() > 1 and name.removesuffix(".weight") not in counts
    ]
    if left:
        notes.append(f"not pruned, being routers or no linears: {', '.join(left)}")
    return {"linears": counts, "notes": notes}


def _check_rows(layer: nn.Module, pattern: str, place: str) -> None:
    ratio = pattern_of(pattern)
    if ratio is None:
        return
    for name, linear in prunable(layer):
        columns = weight_of(linear).shape[1]
        if columns % ratio[1]:
            raise RecipeError(
                f"The rows of {name} of {place} have {columns} weights, which do not divide into "
                f"groups of {ratio[1]}; choose another pattern than {pattern}, or unstructured."
            )
