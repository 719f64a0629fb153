"""How much each layer suffers from sparsity, and which sparsity each gets for the least error.

`error_curve` measures one layer; `allocate` is arithmetic on the curves of all. It does not know
how layers are read and fed. Next: `__init__.py`, which prunes a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from laco.errors import NumericalError, RecipeError
from laco.prune import measured, prunable, prune_measured
from laco.steps.sparsity import Sparse

TINY = 1e-12  # a squared norm below which a token's state counts as zero
DIGITS = 9  # slopes that agree so far are equal


@torch.no_grad()
def error_curve(
    layer: nn.Module,
    run_all: Callable[[], Iterable[Tensor]],
    method: Sparse,
    feed: Callable[[], None],
    levels: Sequence[float],
    place: str,
) -> list[float]:
    """The layer's relative error when it is pruned to each of `levels`; it is left as it was.

    The error is E ‖f_s(h) − f(h)‖² / ‖f(h)‖² over tokens, with f(h) the hidden state that the layer
    hands on, residual stream included. All layers add to that one stream, and what comes after
    divides by its norm, so equal errors of two layers change what reaches the head alike; against
    what the layer adds, ‖f(h) − h‖², a layer that adds little would seem more sensitive than it is.
    `run_all()` gives the layer's outputs [batch, seq, hidden] one micro-batch after another; those
    of the whole layer are kept in host memory. Statistics are taken once, by `feed`, as in
    `prune_layer`, whose errors may come; NumericalError, too, when an output is not finite.
    """
    seen = measured(layer, feed, method, place)
    whole = [output.to("cpu") for output in run_all()]
    before = {name: weight.clone() for name, weight in prunable(layer)}
    errors: list[float] = []
    try:
        for level in levels:
            prune_measured(layer, seen, method, level, place)
            errors.append(_relative_error(run_all(), whole, f"{place} at sparsity {level:g}"))
            _restore(layer, before)
    finally:
        _restore(layer, before)
    return errors


def allocate(
    curves: Sequence[Sequence[float]],
    levels: Sequence[float],
    sizes: Sequence[int],
    sparsity: float,
) -> list[float]:
    """The sparsity of each layer, whose mean by size is `sparsity`, for the least sum of errors.

    curves: [layers][levels], a layer's error at each level; levels: ascending; sizes: a layer's
    weights. Errors between levels are interpolated on the curve's lower convex hull, for which
    giving sparsity where the next weight costs least is optimal. Layers whose next stretch costs
    the same share what is left. RecipeError when `sparsity` lies outside the levels.
    """
    lowest, highest = levels[0], levels[-1]
    if not lowest <= sparsity <= highest:
        raise RecipeError(
            f"A sparsity of {sparsity:g} cannot be shared out between {lowest:g} and {highest:g}, "
            "the levels that were measured; choose one between them, or the uniform allocation."
        )
    stretches: list[tuple[float, int, float]] = []  # (error per weight, layer, width)
    for layer, curve in enumerate(curves):
        hull = _hull(list(zip(levels, curve, strict=True)))
        for (left, below), (right, above) in itertools.pairwise(hull):
            slope = (above - below) / ((right - left) * sizes[layer])
            stretches.append((float(f"{slope:.{DIGITS}g}"), layer, right - left))
    chosen = [lowest] * len(curves)
    left_over = (sparsity - lowest) * sum(sizes)  # weights that are still to go
    stretches.sort()
    for _, group in itertools.groupby(stretches, key=lambda stretch: stretch[0]):
        equal = list(group)
        weights = sum(width * sizes[layer] for _, layer, width in equal)
        share = min(1.0, left_over / weights)
        for _, layer, width in equal:
            chosen[layer] = min(highest, chosen[layer] + share * width)
        left_over -= share * weights
        if share < 1:
            break
    return chosen


def _relative_error(outputs: Iterable[Tensor], whole: Sequence[Tensor], where: str) -> float:
    total, tokens = 0.0, 0
    for output, kept in zip(outputs, whole, strict=True):
        target = kept.to(output.device).float()  # [batch, seq, hidden]
        squares = target.pow(2).sum(-1).clamp(min=TINY)
        errors = (output.float() - target).pow(2).sum(-1) / squares  # [batch, seq]
        total += float(errors.sum())
        tokens += errors.numel()
    if not tokens or not torch.tensor(total).isfinite():
        raise NumericalError(
            f"The error of {where} is not finite; use other text, or run in another dtype."
        )
    return total / tokens


def _restore(layer: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, weight in prunable(layer):
        weight.copy_(weights[name])


def _hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lower convex hull of points that ascend in their first number."""
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()  # on or above the line past it
        hull.append((x, y))
    return hull
