"""How wide a structurally pruned model becomes, and which parts of its weights that concerns.

A *unit* is what goes or stays as a whole: a channel of the MLP, or a group of heads, that is one
key and value with the queries that share it. `plan_widths` decides on the numbers from shapes alone
and builds, without memory, the stock class that the result has to load into. It does not know
which units matter. Next: `importance.py`, then `structured.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from laco.errors import ArchitectureError, RecipeError
from laco.layers import LayerStack, signature, weight_of
from laco.recipe import Structured

DIGITS = 9  # so that 10 x (1 - 0.3) is 7


@dataclass(frozen=True)
class Cut:
    """The units of one kind in a layer, and where their weights lie.

    inputs: modules whose rows the units are; a module's rows are parts one after another, and a
    part has so many rows of each unit. output: the linear fed with them, `size` columns a unit.
    """

    what: str  # "channels" or "groups"
    count: int
    kept: int
    inputs: Mapping[str, tuple[int, ...]]
    output: str
    size: int

    def members(self, layer: nn.Module) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """The parameters that become smaller: (name in the layer, dimension, parts)."""
        for name, parts in self.inputs.items():
            module = layer.get_submodule(name)
            for leaf, _ in module.named_parameters(recurse=False):
                turned = isinstance(module, Conv1D) and leaf == "weight"
                yield f"{name}.{leaf}", int(turned), parts
        turned = isinstance(layer.get_submodule(self.output), Conv1D)
        yield f"{self.output}.weight", int(not turned), (self.size,)


@dataclass(frozen=True)
class Widths:
    """What becomes of a model: its cuts, the config's new fields, and its new layers on meta."""

    cuts: tuple[Cut, ...]
    fields: dict[str, Any]
    layers: list[nn.Module] = field(repr=False)


def check_structured(stack: LayerStack, method: Structured) -> None:
    """Nothing when the model can be made as narrow as asked; only shapes are looked at.

    ArchitectureError when the family's class cannot be, RecipeError when another share could.
    """
    plan_widths(stack, method)


def plan_widths(stack: LayerStack, method: Structured) -> Widths:
    """The widths that a model will have, the same in every layer. Its weights may be on meta.

    Errors as of `check_structured`.
    """
    cuts: list[Cut] = []
    fields: dict[str, Any] = {}
    if method.channels:
        cut, said = _channels(stack, method)
        cuts.append(cut)
        fields |= said
    if method.groups:
        cut, said = _groups(stack, method.groups)
        _check_heads(stack, cut)
        cuts.append(cut)
        fields |= said
    return Widths(tuple(cuts), fields, _fitting(stack, cuts, fields))


def rounded(count: int, share: float, multiple: int) -> int:
    """What is left of `count` when `share` goes: the nearest multiple, which may be none or all."""
    most = count // multiple * multiple
    return min(most, math.floor(round(count * (1 - share), DIGITS) / multiple + 0.5) * multiple)


def rows_of(units: Tensor, count: int, parts: tuple[int, ...]) -> Tensor:
    """Where the rows of some units are, part by part: [sum of parts x units]."""
    found: list[Tensor] = []
    start = 0
    for size in parts:
        inside = torch.arange(size, device=units.device)
        found.append(start + (units[:, None] * size + inside).flatten())
        start += count * size
    return torch.cat(found)


def by_unit(rows: Tensor, count: int, parts: tuple[int, ...]) -> Tensor:
    """The sum of each unit's rows over all parts: [rows] -> [count]."""
    split = rows.split([count * size for size in parts])
    return torch.stack([part.view(count, -1).sum(1) for part in split]).sum(0)


def _channels(stack: LayerStack, method: Structured) -> tuple[Cut, dict[str, Any]]:
    mlp = stack.layout.mlp
    if mlp is None:
        raise _unknown(stack, "channels")
    count = weight_of(_module(stack, mlp.output, "channels")).shape[1]
    kept = _kept("channels", count, method.channels, method.multiple)
    inputs = dict.fromkeys(mlp.inputs, (1,) * mlp.blocks)
    fields = {mlp.width_key: kept} if mlp.width_key else {}
    return Cut("channels", count, kept, inputs, mlp.output, 1), fields


def _groups(stack: LayerStack, share: float) -> tuple[Cut, dict[str, Any]]:
    attention = stack.layout.attention
    if attention is None:
        raise _unknown(stack, "groups")
    heads = int(getattr(stack.config, attention.heads_key))
    count = getattr(stack.config, attention.groups_key or attention.heads_key, None) or heads
    width = weight_of(_module(stack, attention.output, "groups")).shape[1]
    size = width // heads  # of a head
    rows = {"q": heads // count * size, "k": size, "v": size}
    inputs: dict[str, tuple[int, ...]] = {}
    for name, held in attention.inputs:
        parts = tuple(rows[letter] for letter in held)
        inputs[name] = (sum(parts),) if attention.by_group else parts
    kept = _kept("groups", count, share, 1)
    cut = Cut("groups", count, kept, inputs, attention.output, rows["q"])
    return cut, _heads_fields(stack, cut, kept)


def _heads_fields(stack: LayerStack, cut: Cut, kept: int) -> dict[str, Any]:
    attention = stack.layout.attention
    assert attention is not None
    heads = int(getattr(stack.config, attention.heads_key))
    fields = {attention.heads_key: heads // cut.count * kept}
    if attention.groups_key:
        fields[attention.groups_key] = kept
    return {**fields, "head_dim": cut.size * cut.count // heads}  # else hidden / heads, too large


def _kept(what: str, count: int, share: float, multiple: int) -> int:
    """How many units stay; RecipeError when that would be none, or all."""
    kept = rounded(count, share, multiple)
    if 0 < kept < count:
        return kept
    choices = [n for n in range(multiple, count, multiple)]
    if not choices:
        raise RecipeError(
            f"A layer has {count} {what}, of which no part is a multiple of {multiple}; "
            + (f"choose a multiple below {count}." if what == "channels" else "set groups to 0.")
        )
    nearest = choices[-1] if kept else choices[0]
    found = "none of them" if not kept else "all of them"
    raise RecipeError(
        f"{what}={share:g} of {count} leaves {found}, in multiples of {multiple}; the nearest that "
        f"works is {what}={_share(nearest, count)}, which leaves {nearest}."
    )


def _share(kept: int, count: int) -> str:
    return f"{1 - kept / count:.4g}"


def _check_heads(stack: LayerStack, cut: Cut) -> None:
    """RecipeError when the class refuses this number of heads, and would take another.

    Llama's, for one, wants a hidden size that is a multiple of the number of heads.
    """
    try:
        stack.rebuilt(_heads_fields(stack, cut, cut.kept))
        return
    except ArchitectureError as error:
        reason = " ".join(str(error.__cause__).split())
    for kept in sorted(range(1, cut.count), key=lambda n: (abs(n - cut.kept), -n)):
        fields = _heads_fields(stack, cut, kept)
        try:
            twin = stack.rebuilt(fields)
        except ArchitectureError:
            continue
        if _misfit(stack, twin, replace(cut, kept=kept)) is not None:
            break  # it would take no number of heads
        raise RecipeError(
            f"Of {cut.count} groups of heads {cut.kept} would be left, and no {stack.family} model "
            f"can be built with these ({reason}); the nearest that works is "
            f"groups={_share(kept, cut.count)}, which leaves {kept}."
        )
    raise _refusal(stack, "groups", reason)


def _fitting(stack: LayerStack, cuts: list[Cut], fields: dict[str, Any]) -> list[nn.Module]:
    """The layers of the stock class with these fields; ArchitectureError when ours will differ."""
    try:
        twin = stack.rebuilt(fields).eval()
    except ArchitectureError as error:
        raise _refusal(stack, cuts[-1].what, " ".join(str(error.__cause__).split())) from error
    for cut in cuts:
        if (misfit := _misfit(stack, twin, cut)) is not None:
            raise _refusal(stack, cut.what, misfit)
    return list(LayerStack(twin))


def _misfit(stack: LayerStack, twin: PreTrainedModel, cut: Cut) -> str | None:
    """The first parameter of the units that will not be as the class has it; None if all are."""
    for index, (layer, other) in enumerate(zip(stack, LayerStack(twin), strict=True)):
        ours, theirs = signature(layer), signature(other)
        for name, dimension, parts in cut.members(layer):
            shape = list(ours[name])
            if shape[dimension] != cut.count * sum(parts):
                return f"layer {index} is built in another way than laco knows, in {name}"
            shape[dimension] = cut.kept * sum(parts)
            if torch.Size(shape) != theirs.get(name):
                return (
                    f"{name} of layer {index} would have the shape {_words(shape)}, and the class "
                    f"has {_words(theirs.get(name, []))}"
                )
    return None


def _words(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "none"


def _module(stack: LayerStack, name: str, what: str) -> nn.Module:
    try:
        return stack[0].get_submodule(name)
    except AttributeError:
        raise _refusal(stack, what, f"layer 0 has no {name}") from None


def _unknown(stack: LayerStack, what: str) -> ArchitectureError:
    return ArchitectureError(
        f"laco does not know where {stack.family} models keep their {_NOUNS[what]}, so none can "
        f"go; set {what} to 0, or choose a method that zeroes weights."
    )


def _refusal(stack: LayerStack, what: str, reason: str) -> ArchitectureError:
    return ArchitectureError(
        f"No {_NOUNS[what]} can go from this {stack.family} model, since its class in transformers "
        f"could not load what is left ({reason}); set {what} to 0."
    )


_NOUNS = {"channels": "MLP channels", "groups": "groups of attention heads"}
