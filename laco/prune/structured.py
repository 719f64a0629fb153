"""Narrower layers: MLP channels and groups of attention heads go, as many in every layer.

`Narrowing` is made once for a model, before the walk, and then makes one narrow layer after another
out of the wide ones. Which weights belong to a unit, and whether stock classes can load the result,
is in `widths.py`; what units matter, in `importance.py`. It does not know how layers are read and
written. Next: `rework.py`, the walk.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from laco.context import Context
from laco.errors import CalibrationError, NumericalError
from laco.layerfiles import place as set_tensor
from laco.layers import LayerStack, weight_of
from laco.lazy import LazyModel
from laco.prune.gradients import layer_gradients
from laco.prune.importance import Moments, fluctuation, joined, magnitude, moments, taylor
from laco.prune.widths import Cut, plan_widths, rows_of
from laco.recipe import Structured


class Narrowing:
    """What structured pruning makes of a model's layers.

    `fields` are what the config has to say of the result. The stack's weights may be on meta;
    nothing of it is changed. ArchitectureError, RecipeError as of `widths.check_structured`.
    """

    fields: dict[str, Any]

    def __init__(self, stack: LayerStack, method: Structured):
        widths = plan_widths(stack, method)
        self.method, self.fields = method, widths.fields
        self.studies = method.importance == "taylor"  # whether it has to see the whole model
        self._cuts, self._empty = widths.cuts, widths.layers
        self._taylor: dict[int, dict[str, Tensor]] = {}  # by layer: scores [count] of each cut

    def study(self, model: LazyModel, tokens: Tensor, batch: int, context: Context) -> None:
        """Take what the method needs of the whole model as it came; for `taylor` alone.

        tokens: [windows, length]; `batch` of them on the device at a time. Call it before `prune`.
        """

        def visit(index: int, layer: nn.Module) -> None:
            scores = {cut.what: taylor(layer, cut).cpu() for cut in self._cuts}
            self._taylor[index] = _checked(scores, f"layer {index}")

        if self.studies:
            layer_gradients(model, tokens, batch, visit, context)

    @torch.no_grad()
    def prune(
        self, index: int, layer: nn.Module, feed: Callable[[], None], place: str
    ) -> tuple[nn.Module, dict[str, Any]]:
        """The narrow layer in place of `layer`, which is left as it is, and what became of it.

        `{"channels": {"of", "kept", "lost"}, "groups": …, "parameters": {"before", "after"},
        "notes"}`; `lost` is the share of importance that went. Weights are float32. `feed()` runs
        `layer` over its calibration inputs; it is called once, and only for `flap`. Errors name
        `place`: CalibrationError (no tokens), NumericalError (not finite).
        """
        seen: dict[str, Moments] = {}
        if self.method.importance == "flap":
            seen = _watched(layer, [cut.output for cut in self._cuts], feed, place)
        scores = self._scores(index, layer, seen, place)
        tensors = {name: tensor.data for name, tensor in layer.named_parameters()}
        row: dict[str, Any] = {}
        notes: list[str] = []
        for cut in self._cuts:
            found = scores[cut.what]
            order = found.argsort(descending=True, stable=True)
            stay, go = (units.sort().values for units in (order[: cut.kept], order[cut.kept :]))
            total = float(found.sum())
            lost = float(found[go].sum()) / total if total else 0.0
            row[cut.what] = {"of": cut.count, "kept": cut.kept, "lost": lost}
            if seen:
                notes += _add_means(layer, cut, go, seen[cut.output].mean, tensors)
            for name, dimension, parts in cut.members(layer):
                rows = rows_of(stay, cut.count, parts)
                tensors[name] = tensors[name].index_select(dimension, rows)
        tensors |= dict(layer.named_buffers())
        narrow = self.layer(index, tensors)
        row["parameters"] = {"before": _size(layer), "after": _size(narrow)}
        return narrow, {**row, "notes": notes}

    def layer(self, index: int, tensors: Mapping[str, Tensor]) -> nn.Module:
        """Layer `index` in its new widths, holding `tensors` (its parameters, by name)."""
        layer = copy.deepcopy(self._empty[index])  # of the stock class, so its numbers are right
        for name, tensor in tensors.items():
            set_tensor(layer, name, tensor)
        return layer

    def _scores(
        self, index: int, layer: nn.Module, seen: Mapping[str, Moments], place: str
    ) -> dict[str, Tensor]:
        """The importance of the units of each cut, [count]."""
        if self.method.importance == "taylor":
            assert self._taylor, "study the model first"
            device = next(layer.parameters()).device
            return {what: scores.to(device) for what, scores in self._taylor[index].items()}
        scores: dict[str, Tensor] = {}
        for cut in self._cuts:
            if seen:
                weight = weight_of(layer.get_submodule(cut.output))
                scores[cut.what] = fluctuation(seen[cut.output], weight, cut)
            else:
                scores[cut.what] = magnitude(layer, cut)
        return _checked(scores, place)


def _watched(
    layer: nn.Module, names: list[str], feed: Callable[[], None], place: str
) -> dict[str, Moments]:
    """The moments of what the named linears are fed while `feed()` runs."""
    seen: dict[str, Moments] = {}

    def before(name: str, _linear: nn.Module, args: tuple[Tensor, ...]) -> None:
        found = moments(args[0].reshape(-1, args[0].shape[-1]).float())  # of [tokens, in]
        seen[name] = joined(seen[name], found) if name in seen else found

    handles = [
        layer.get_submodule(name).register_forward_pre_hook(partial(before, name)) for name in names
    ]
    try:
        feed()
    finally:
        for handle in handles:
            handle.remove()
    for name in names:
        if name not in seen or not seen[name].tokens:
            raise CalibrationError(
                f"No calibration token reached {name} of {place}; use more windows or other text."
            )
    return seen


def _add_means(
    layer: nn.Module, cut: Cut, go: Tensor, mean: Tensor, tensors: dict[str, Tensor]
) -> list[str]:
    """FLAP's compensation: what the units that go gave on average is added to the output's bias."""
    name = f"{cut.output}.bias"
    if name not in tensors:
        return [f"{cut.output} has no bias in this family, so FLAP's compensation is left out"]
    columns = rows_of(go, cut.count, (cut.size,))
    weight = weight_of(layer.get_submodule(cut.output))  # [out, in]
    tensors[name] = tensors[name] + weight[:, columns] @ mean[columns]
    return []


def _checked(scores: dict[str, Tensor], place: str) -> dict[str, Tensor]:
    for what, found in scores.items():
        if not bool(found.isfinite().all()):
            raise NumericalError(
                f"The importance of {what} of {place} is not finite; look for weights or hidden "
                "states that are not, or run the model in another dtype."
            )
    return scores


def _size(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())
