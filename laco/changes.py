"""How much the weights of two models differ, layer by layer, read from their files.

Layers are matched by the layer of the original that each began as, tensors by their names. In
memory is one layer of each model at a time. It does not know what was done to them. Next:
`analyses.py`, which finds the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from laco.context import Context
from laco.lazy import LazyModel

REST = "rest"  # what is no layer: embedding, final norm, head


def weight_change(
    one: LazyModel,
    other: LazyModel,
    origins: tuple[Sequence[int], Sequence[int]],
    context: Context,
) -> dict[str, Any]:
    """The change of each layer of `one` that `other` has too: ‖one − other‖ / ‖other‖.

    `origins` tells of each layer of either which layer of the original it began as. The document
    has a row for each layer that both have, with the change of all its weights and of each tensor
    by name; tensors of unlike shapes are named and left out, which narrower layers have. Norms are
    Frobenius norms, summed in float64. `only` and `missing` are the layers that one alone has.
    """
    places = [{origin: place for place, origin in enumerate(side)} for side in origins]
    both = sorted(places[0].keys() & places[1].keys())
    rows: list[dict[str, Any]] = []
    for done, origin in enumerate(both):
        context.step(done / (len(both) + 1), f"comparing layer {origin}")
        mine, theirs = places[0][origin], places[1][origin]
        found = _compared(one.read(mine).state_dict(), other.read(theirs).state_dict())
        one.release(mine)
        other.release(theirs)
        rows.append({"layer": origin, "place": mine, "other_place": theirs, **found})
    context.step(len(both) / (len(both) + 1), "comparing embedding and head")
    with one.outside(), other.outside():
        rest = _compared(_outside(one), _outside(other))
    return {
        "layers": rows,
        REST: rest,
        "only": sorted(places[0].keys() - places[1].keys()),
        "missing": sorted(places[1].keys() - places[0].keys()),
    }


def _outside(model: LazyModel) -> dict[str, Tensor]:
    """The tensors that belong to no layer."""
    prefix = f"{model.stack.layout.layers}."
    held = model.model.state_dict()
    return {n: t for n, t in held.items() if not n.startswith(prefix) and not t.is_meta}


def _compared(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, Any]:
    """The change of all tensors together and of each, and the names of those of unlike shapes."""
    tensors: dict[str, float | None] = {}
    unlike: list[str] = []
    apart, size = 0.0, 0.0
    for name in sorted(mine.keys() & theirs.keys()):
        if mine[name].shape != theirs[name].shape:
            unlike.append(name)
            continue
        base = theirs[name].to(torch.float64)
        square = float((mine[name].to(torch.float64) - base).square().sum())
        norm = float(base.square().sum())
        tensors[name] = _ratio(square, norm)
        apart, size = apart + square, size + norm
    unlike += sorted(mine.keys() ^ theirs.keys())
    return {"change": _ratio(apart, size), "tensors": tensors, "unlike": unlike}


def _ratio(square: float, norm: float) -> float | None:
    """‖a − b‖ / ‖b‖ from the squares; None where b is nothing and a is not."""
    if norm == 0:
        return 0.0 if square == 0 else None
    return math.sqrt(square / norm)
