"""Several layers into one: the four merges, and the steps that name their spans.

Works on any modules of equal shape and on `LayerStack`; it does not search (`collapse.py` does),
does not know architectures (`layers.py` does) nor files (`restack.py` does). A stack that is being
merged is seen as `Group`s: each a layer with the range of original layers that it stands for.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from laco.errors import RecipeError
from laco.experts import stored_experts
from laco.layers import LayerStack, linears
from laco.recipe import Drop, Merge, Merging, Parameters, Span

EXACT = torch.float64  # sums of float32 weights stay exact, so merging equal layers changes nothing
CHUNK = 1 << 18  # elements that are summed at a time, so that float64 copies take little memory

Source = int | tuple["Source", ...]  # of a new layer: an old one's index, or those to merge into it


@dataclass(frozen=True)
class Group:
    """One layer and the original layers `[start, stop)` that it stands for."""

    layer: nn.Module
    start: int
    stop: int


def groups_of(stack: LayerStack) -> tuple[Group, ...]:
    """The stack as it is: every layer stands for itself."""
    return tuple(Group(layer, index, index + 1) for index, layer in enumerate(stack))


def merge_groups(groups: Sequence[Group], merge: Merging, parameters: Parameters) -> Group:
    """Neighbouring groups as one, in the place of the first."""
    layer = merge_layers([group.layer for group in groups], merge, parameters)
    return Group(layer, groups[0].start, groups[-1].stop)


def merge_layers(layers: Sequence[nn.Module], merge: Merging, parameters: Parameters) -> nn.Module:
    """The layer that takes the place of `layers`, by one of four merges (θ_0 is the first layer's).

    - `rdsc`: θ_0 + Σ_k (θ_k − θ_0), LaCo's equation (1) (arXiv:2402.11187)
    - `telescoped`: θ_m, the last layer's; with `parameters="projections"` this is what LaCo's
      published code computes, since its loop subtracts from a base that it has changed already
    - `mean`: the mean of θ_0 … θ_m
    - `drop`: θ_0; the others go (ShortGPT, SLEB)

    `parameters="projections"` merges the weight matrices alone; norms and biases stay θ_0's. The
    given layers are left as they are. Unmerged tensors are shared with them, not copied.
    """
    first = layers[0]
    if merge == "drop" or len(layers) == 1:
        return first
    merged = _twin(first)
    for name in merging_names(first, parameters):
        tensors = [layer.get_parameter(name) for layer in layers]
        _set_parameter(merged, name, merge_tensors(tensors, merge))
    return merged


def merge_tensors(tensors: Sequence[Tensor], merge: Merging) -> Tensor:
    """One tensor out of several of the same shape, summed in float64, in the first one's dtype."""
    first, *others = tensors
    if merge == "drop":
        return first
    if merge == "telescoped":
        return others[-1]
    merged = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    parts = zip(*(tensor.reshape(-1).split(CHUNK) for tensor in tensors), strict=True)
    for target, pieces in zip(merged.view(-1).split(CHUNK), parts, strict=True):
        target.copy_(_merge_exactly(pieces, merge))
    return merged


def _merge_exactly(tensors: Sequence[Tensor], merge: Merging) -> Tensor:
    # Apple's GPUs have no float64.
    exact = [t.to("cpu" if t.device.type == "mps" else t.device, EXACT) for t in tensors]
    if merge == "mean":
        return sum(exact[1:], start=exact[0]) / len(exact)
    # Σ_k θ_k − (m − 1) θ_0 equals equation (1), and for m = 1 it is θ_1 to the last bit
    return sum(exact[1:], start=torch.zeros_like(exact[0])) - (len(exact) - 2) * exact[0]


def sources_of(stack: LayerStack, step: Drop | Merge) -> list[Source]:
    """What each layer of the stack after `step` is made of; `RecipeError` if it cannot be done.

    Weights are not looked at, so they may be on meta.
    """
    depth = len(stack)
    if isinstance(step, Drop):
        beyond = [index for index in step.layers if index >= depth]
        if beyond:
            raise RecipeError(
                f"drop: layer {beyond[0]} lies past the end; the model has layers 0 to {depth - 1}."
            )
        if len(step.layers) == depth:
            raise RecipeError(f"drop: all {depth} layers would go; at least one must stay.")
        return [index for index in range(depth) if index not in step.layers]
    sources: list[Source] = list(range(depth))
    starts = list(range(depth))
    for span in step.spans:
        check_span(stack, span, step.merge)
        inside = [place for place, start in enumerate(starts) if span[0] <= start < span[1]]
        first, stop = inside[0], inside[-1] + 1
        if stop - first > 1:
            sources[first:stop] = [tuple(sources[first:stop])]
            starts[first:stop] = [starts[first]]
    return sources


def origin(source: Source) -> int:
    """The old layer in whose place a new one stands."""
    return source if isinstance(source, int) else origin(source[0])


def apply_edit(stack: LayerStack, step: Drop | Merge) -> dict[str, Any]:
    """Merge the spans of `step` in order, or drop its layers; returns what went and what stays."""

    def layer(source: Source) -> nn.Module:
        if isinstance(source, int):
            return stack[source]
        assert isinstance(step, Merge)
        return merge_layers([layer(part) for part in source], step.merge, step.parameters)

    before = len(stack)
    sources = sources_of(stack, step)
    kept = [origin(source) for source in sources]
    stack.keep([layer(source) for source in sources], kept)
    return edit_report(before, kept)


def check_span(stack: LayerStack, span: Span, merge: Merging) -> None:
    """Refuse a span past the end, or one whose layers cannot merge (`RecipeError`)."""
    start, stop = span
    if stop > len(stack):
        raise RecipeError(
            f"Span [{start}, {stop}) reaches past the end; the model has layers 0 to "
            f"{len(stack) - 1}, so stop is at most {len(stack)}."
        )
    if not can_merge(stack, span, merge):
        raise RecipeError(
            f"Layers {start} to {stop - 1} cannot merge by {merge}: {stack.mergeable(span)}; "
            "use merge=drop."
        )


def can_merge(stack: LayerStack, span: Span, merge: Merging) -> bool:
    """Whether these layers of the stack may become one; `drop` mixes no weights and always may."""
    return merge == "drop" or stack.mergeable(span) is None


def default_parameters(merge: Merging) -> Parameters:
    """What merges when a recipe does not say: `telescoped` is defined on projections alone."""
    return Merge.model_validate({"spans": [(0, 2)], "merge": merge}).parameters


def edit_report(before: int, kept: Sequence[int]) -> dict[str, Any]:
    """What an edit did, in the indices of the layers before it."""
    removed = [index for index in range(before) if index not in set(kept)]
    return {
        "layers_before": before,
        "layers_after": len(kept),
        "kept": list(kept),
        "removed": removed,
    }


def group_ends(layers: int, kept: Sequence[Sequence[int]]) -> list[int]:
    """For each layer of an edited stack, the last original layer that it stands for.

    `kept` lists, edit after edit, the layers that stayed, in the indices before that edit; there
    were `layers` to begin with. Removed layers belong to the one kept before them, those before
    the first to the first.
    """
    left = list(range(layers))
    for stayed in kept:
        left = [left[index] for index in stayed]
    return [*(start - 1 for start in left[1:]), layers - 1]


def merging_names(layer: nn.Module, parameters: Parameters) -> list[str]:
    """The parameters of a layer that merge, by their names inside it."""
    if parameters == "all":
        return [name for name, _ in layer.named_parameters()]
    experts = [stored.name for stored in stored_experts(layer)]
    return [*(f"{name}.weight" for name, _ in linears(layer)), *experts]


def _twin(layer: nn.Module) -> nn.Module:
    """The same module structure on the same tensors and config, so that it costs no memory."""
    shared: dict[int, Any] = {}
    for tensor in (*layer.parameters(), *layer.buffers()):
        shared[id(tensor)] = tensor
    for module in layer.modules():
        for value in vars(module).values():
            if isinstance(value, PreTrainedConfig):
                shared[id(value)] = value
    return copy.deepcopy(layer, shared)


def _set_parameter(module: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    setattr(owner, leaf, nn.Parameter(value.detach(), requires_grad=False))
