"""Prune one layer: zeros in its linears, chosen by a method of the table `PRUNERS`.

A layer's matrices are those of `layers.projections`, Conv1D and fused ones included, routers not,
and those of experts that are stored as one tensor (`experts.py`). It does not know of models, of
files, or of what compensates a layer afterwards. Next: `magnitude.py`, `wanda.py`, `sparsegpt.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from laco.errors import ArchitectureError, CalibrationError, NumericalError, RecipeError
from laco.experts import stored_experts, watched
from laco.layers import check_finite, projections, weight_of
from laco.prune.magnitude import magnitude_mask
from laco.prune.sparsegpt import gram, inverse_factor, sparsegpt
from laco.prune.wanda import square_sums, wanda_mask
from laco.ranks import ALONE, Ranks
from laco.recipe import Magnitude, SparseGPT, Wanda
from laco.steps.sparsity import Sparse, pattern_of

TOLD = 6  # experts by name in a note


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


def prunable(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The matrices of a layer that are pruned, [out, in] in the layer's own memory, by name.

    Each expert has its own (`mlp.experts.down_proj.3`), whichever way experts are stored.
    """
    for name, linear in projections(layer):
        yield name, weight_of(linear)
    for experts in stored_experts(layer):
        yield from experts.matrices()


def check_pattern(layers: Iterable[nn.Module], pattern: str) -> None:
    """Nothing when every linear's rows divide into the groups of `pattern`; else RecipeError.

    The layers may be on the meta device, since only shapes count. Names the layer by its place.
    """
    for index, layer in enumerate(layers):
        _check_rows(layer, pattern, f"layer {index}")


def prune_layer(
    layer: nn.Module,
    feed: Callable[[], None],
    method: Sparse,
    sparsity: float,
    place: str,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """What became of each linear, after it was pruned in place to `sparsity`.

    `{"linears": {name: {"weights": int, "zeros": int}}, "notes": [str]}`. Weights are float32.
    `feed()` runs the layer over its calibration inputs, micro-batch after micro-batch; it is
    called once, and only for a method that looks at text. All statistics are of the layer as it
    was, as in the published codes. `place` ("layer 7") is for errors: RecipeError (rows that do not
    divide by the pattern), and those of `measured`: NumericalError (weights or inputs not finite),
    CalibrationError (a linear that saw no token), ArchitectureError; all before a weight changes;
    NumericalError of a Hessian, after.
    """
    _check_rows(layer, method.pattern, place)
    seen = measured(layer, feed, method, place, ranks)
    return prune_measured(layer, seen, method, sparsity, place)


@torch.no_grad()
def measured(
    layer: nn.Module,
    feed: Callable[[], None],
    method: Sparse,
    place: str,
    ranks: Ranks = ALONE,
) -> dict[str, Tensor]:
    """What the method needs to know of each matrix's inputs, by name; empty if it needs nothing.

    Linears fed with one and the same tensor (query, key and value) have it measured once. Experts
    are measured on the tokens that were routed to them; those that got none are left out.
    ArchitectureError when an expert's inputs cannot be seen in this class.
    """
    check_finite(layer, place)
    measure = PRUNERS[type(method)].measure
    if measure is None:
        return {}
    sums: dict[str, Tensor] = {}
    tokens: Counter[str] = Counter()
    latest: tuple[Tensor, Tensor, int] | None = None  # an input, its measure, its tokens

    def see(name: str, fed: Tensor) -> None:
        nonlocal latest
        if latest is None or latest[0] is not fed:
            rows = fed.reshape(-1, fed.shape[-1]).float()  # [tokens, in]
            with torch.autocast(rows.device.type, enabled=False):  # which would round the sums
                latest = fed, measure(rows), len(rows)
        if latest[2]:
            tokens[name] += latest[2]
            sums[name] = sums[name].add_(latest[1]) if name in sums else latest[1].clone()

    def before(name: str, _linear: nn.Module, args: tuple[Tensor, ...]) -> None:
        see(name, args[0])

    handles = [
        linear.register_forward_pre_hook(partial(before, name))
        for name, linear in projections(layer)
    ]
    try:
        with watched(layer, see):
            feed()
    finally:
        for handle in handles:
            handle.remove()
    if ranks.count > 1:
        _add_up(ranks, layer, measure, sums, tokens)
    for name, _ in projections(layer):
        if not tokens[name] and "experts" not in name.split("."):
            raise CalibrationError(
                f"No calibration token reached {name} of {place}; use more windows or other text."
            )
    for name, found in sums.items():
        if not found.isfinite().all():
            raise NumericalError(
                f"The inputs of {name} of {place} are not finite; "
                "run the model in another dtype, or look for the layer that went wrong before."
            )
    for experts in stored_experts(layer):
        if not any(tokens[name] for name, _ in experts.matrices()):
            raise ArchitectureError(
                f"laco cannot see what the experts in {experts.name} of {place} are fed, since "
                "their class multiplies them in a way it does not know; choose magnitude."
            )
    return sums


def _add_up(
    ranks: Ranks,
    layer: nn.Module,
    measure: Callable[[Tensor], Tensor],
    sums: dict[str, Tensor],
    tokens: Counter[str],
) -> None:
    """Put the sums and counts of all processes into this one's."""
    for name, weight in prunable(layer):
        found = sums.get(name, measure(weight[:0]))
        count = torch.tensor(tokens[name], device=weight.device)
        ranks.add(found, count)
        if count:
            sums[name], tokens[name] = found, int(count)


@torch.no_grad()
def prune_measured(
    layer: nn.Module, seen: Mapping[str, Tensor], method: Sparse, sparsity: float, place: str
) -> dict[str, Any]:
    """As `prune_layer`, with what `measured` gave; so one measurement serves many sparsities.

    An expert that no token reached is pruned as if all its inputs were alike, which is by the size
    of its weights; a note says which.
    """
    pruner = PRUNERS[type(method)]
    counts: dict[str, dict[str, int]] = {}
    notes: list[str] = []
    unseen: list[str] = []
    for name, weight in prunable(layer):  # [out, in], the layer's own memory
        statistic = seen.get(name)
        if statistic is None:
            statistic = torch.empty(0)
            if pruner.measure is not None:
                statistic = pruner.measure(torch.eye(weight.shape[1], device=weight.device))
                unseen.append(name)
        try:
            pruned, said = pruner.prune(weight, statistic, method, sparsity)
        except NumericalError as error:
            raise NumericalError(f"In {name} of {place}: {error}") from error
        weight.copy_(pruned)
        notes += [f"{name}: {note}" for note in said]
        counts[name] = {
            "weights": weight.numel(),
            "zeros": weight.numel() - int(weight.count_nonzero()),
        }
    if unseen:
        more = f" and {len(unseen) - TOLD} more" if len(unseen) > TOLD else ""
        notes.append(
            f"no calibration token reached {', '.join(unseen[:TOLD])}{more}, so weights went by "
            "their size there"
        )
    for experts in stored_experts(layer):  # told together, as they are stored
        parts = [counts.pop(name) for name, _ in experts.matrices()]
        counts[experts.name] = {key: sum(part[key] for part in parts) for key in parts[0]}
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
    for name, weight in prunable(layer):
        columns = weight.shape[1]
        if columns % ratio[1]:
            raise RecipeError(
                f"The rows of {name} of {place} have {columns} weights, which do not divide into "
                f"groups of {ratio[1]}; choose another pattern than {pattern}, or unstructured."
            )
