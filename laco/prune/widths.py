"""How wide a structurally pruned model becomes, and which parts of its weights that concerns.

A *unit* is what goes or stays as a whole: a channel of the MLP, or a group of heads, that is one
key and value with the queries that share it. `plan_widths` decides on the numbers from shapes alone
and builds, without memory, the stock class that the result has to load into. It does not know
which units matter. Next: `importance.py`, then `structured.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from laco.capabilities import NO_GROUPS, NO_WIDTH
from laco.errors import ArchitectureError, RecipeError
from laco.layers import LayerStack, signature, weight_of
from laco.layouts import Attention, Mlp
from laco.recipe import Structured
from laco.steps.sparsity import units_left


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
    plans: list[_Plan] = []
    if method.channels:
        plans.append(_settled(stack, _channels(stack), method.channels, method.multiple))
    if method.groups:
        plans.append(_settled(stack, _groups(stack), method.groups, 1))
    cuts = tuple(plan.cut for plan in plans)
    fields = {name: value for plan in plans for name, value in plan.fields().items()}
    return Widths(cuts, fields, list(LayerStack(stack.rebuilt(fields).eval())))


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


@dataclass(frozen=True)
class _Plan:
    """A cut, and the config's fields that go with it: to how many units, times what is in one."""

    cut: Cut
    per_unit: Mapping[str, int]
    fixed: Mapping[str, int]

    def fields(self) -> dict[str, int]:
        return {name: n * self.cut.kept for name, n in self.per_unit.items()} | dict(self.fixed)

    def to(self, kept: int) -> _Plan:
        return replace(self, cut=replace(self.cut, kept=kept))


def _channels(stack: LayerStack) -> _Plan:
    """The channels of the MLP, all of them kept."""
    mlp = stack.layout.mlp
    if mlp is None:
        raise _unknown(stack, "channels")
    count = _width(stack, mlp, "channels")
    inputs = dict.fromkeys(mlp.inputs, (1,) * mlp.blocks)
    cut = Cut("channels", count, count, inputs, mlp.output, 1)
    return _Plan(cut, {mlp.width_key: 1} if mlp.width_key else {}, {})


def _groups(stack: LayerStack) -> _Plan:
    """The groups of heads, all of them kept."""
    attention, config = stack.layout.attention, stack.config
    if attention is None:
        raise _unknown(stack, "groups")
    heads = int(getattr(config, attention.heads_key))
    count = getattr(config, attention.groups_key or attention.heads_key, None) or heads
    shared, size = heads // count, _width(stack, attention, "groups") // heads  # of a head
    rows = {"q": shared * size, "k": size, "v": size}
    inputs: dict[str, tuple[int, ...]] = {}
    for name, held in attention.inputs:
        parts = tuple(rows[letter] for letter in held)
        inputs[name] = (sum(parts),) if attention.by_group else parts
    per_unit = {attention.heads_key: shared}
    if attention.groups_key:
        per_unit[attention.groups_key] = 1
    computed = isinstance(getattr(type(config), "head_dim", None), property)
    fixed = {} if computed else {"head_dim": size}  # else it would be hidden / heads, too large
    return _Plan(Cut("groups", count, count, inputs, attention.output, rows["q"]), per_unit, fixed)


def _settled(stack: LayerStack, plan: _Plan, share: float, multiple: int) -> _Plan:
    """The plan with `share` of its units gone, which the family's class is known to load.

    RecipeError when the class would load another number of units, ArchitectureError when none.
    """
    what, count = plan.cut.what, plan.cut.count
    asked = units_left(count, share, multiple)
    choices = sorted(range(multiple, count, multiple), key=lambda n: (abs(n - asked), -n))
    if not choices:
        advice = f"choose a multiple below {count}" if multiple > 1 else f"set {what} to 0"
        raise RecipeError(f"{count} {what} leave no smaller multiple of {multiple}; {advice}.")
    reason = f"none in multiples of {multiple}" if not asked else "all of them"
    for kept in choices:
        tried = plan.to(kept)
        try:
            twin = stack.rebuilt(tried.fields())
        except ArchitectureError as error:  # llama wants a number of heads that divides hidden_size
            if kept == asked:
                why = " ".join(str(error.__cause__).split()).rstrip(".")
                reason = f"{kept}, and no {stack.family} model can be built with these ({why})"
            continue
        if misfit := _misfit(stack, twin, tried.cut):
            raise _refusal(stack, what, misfit)
        if kept == asked:
            return tried
        raise RecipeError(
            f"{what}={share:g} of {count} leaves {reason}; the nearest that works is "
            f"{what}={1 - kept / count:.4g}, which leaves {kept}."
        )
    raise _refusal(stack, what, f"it leaves {reason}")


def _misfit(stack: LayerStack, twin: PreTrainedModel, cut: Cut) -> str | None:
    """The first parameter of a layer that will not be as the class has it; None if all are."""
    for index, (layer, other) in enumerate(zip(stack, LayerStack(twin), strict=True)):
        ours, theirs = signature(layer), signature(other)
        for name, dimension, parts in cut.members(layer):
            shape = list(ours[name])
            if shape[dimension] != cut.count * sum(parts):
                return f"layer {index} is built in another way than laco knows, in {name}"
            shape[dimension] = cut.kept * sum(parts)
            ours[name] = torch.Size(shape)
        for name, shape in ours.items():
            if shape != theirs.get(name):
                return (
                    f"{name} of layer {index} would have the shape {_words(shape)}, and the class "
                    f"has {_words(theirs.get(name, []))}"
                )
    return None


def _words(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "none"


def _width(stack: LayerStack, part: Mlp | Attention, what: str) -> int:
    """How many columns the part's output linear has; ArchitectureError when a module lacks."""
    names = [name if isinstance(name, str) else name[0] for name in part.inputs]
    for index, layer in enumerate(stack):
        there = {name for name, _ in layer.named_modules()}
        if lacking := {part.output, *names} - there:
            raise _refusal(stack, what, f"layer {index} has no {min(lacking)}")
    return weight_of(stack[0].get_submodule(part.output)).shape[1]


def _unknown(stack: LayerStack, what: str) -> ArchitectureError:
    if what == "channels" and (reason := NO_WIDTH.get(stack.family)):
        return ArchitectureError(
            f"No MLP channels can go from a {stack.family} model: {reason}; set channels to 0, or "
            "choose a method that zeroes weights."
        )
    if what == "groups" and (reason := NO_GROUPS.get(stack.family)):
        return ArchitectureError(
            f"No groups of attention heads can go from a {stack.family} model: {reason}; set "
            "groups to 0, or choose a method that zeroes weights."
        )
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
