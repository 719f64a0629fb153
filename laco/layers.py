"""A causal LM seen as a stack of layers.

Methods read and rebuild a model through `LayerStack` and stay free of model names: where a family
keeps its layers stands in `layouts.py`, what an edit does to the config's fields in `depth.py`.
It does not know which layers should go. Next: `walk.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast, overload

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from laco.capabilities import NO_STACK, SHARED
from laco.depth import edited_fields, per_layer
from laco.depth_rules import Fields
from laco.errors import ArchitectureError, NumericalError
from laco.layouts import LAYOUTS, Layout, probe

INDEX_NAMES = ("layer_idx", "layer_id", "layer_index", "block_id", "block_index", "block_idx")

STEERING = ("gate", "router", "shared_expert_gate", "dt_proj")  # routers, Mamba's step sizes


class LayerStack(Sequence[nn.Module]):
    """The layers of a model, in order, with the one edit that keeps the model consistent.

    `recognised` is False when the family is not in LAYOUTS and its layers were found by probing.
    ArchitectureError, with the reason, when a model has no single stack of layers.
    """

    model: PreTrainedModel
    family: str
    recognised: bool

    def __init__(self, model: PreTrainedModel, layout: Layout | None = None):
        """`layout` spares an unknown family the probe, where it was found before."""
        self.family = str(model.config.model_type)
        if getattr(model.config, "is_encoder_decoder", False):
            raise ArchitectureError(
                f"This {self.family} model is an encoder-decoder, which has two stacks of layers; "
                "choose a causal (decoder-only) language model."
            )
        if reason := NO_STACK.get(self.family):
            raise ArchitectureError(
                f"laco cannot edit {self.family} models: {reason}; choose another model."
            )
        if model.get_output_embeddings() is None:
            raise ArchitectureError(
                f"This {self.family} model has no language-model head; load it as a causal "
                "language model."
            )
        self.model = model
        self.recognised = self.family in LAYOUTS
        self.config: Any = model.config.get_text_config(decoder=True)
        self.layout = layout or LAYOUTS.get(self.family) or probe(model, self.config)
        self._trunk_name, _, self._list_name = self.layout.layers.rpartition(".")

    @property
    def trunk(self) -> nn.Module:
        """The module that loops over the layers: token ids in, final hidden states out."""
        return self.model.get_submodule(self._trunk_name)

    @property
    def module_list(self) -> nn.ModuleList:
        """The layers as the trunk holds them; assign to let it loop over others, unrenumbered."""
        return cast(nn.ModuleList, self.trunk.get_submodule(self._list_name))

    @module_list.setter
    def module_list(self, layers: nn.ModuleList) -> None:
        setattr(self.trunk, self._list_name, layers)

    def __len__(self) -> int:
        return len(self.module_list)

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...

    @overload
    def __getitem__(self, index: slice) -> list[nn.Module]: ...

    def __getitem__(self, index: int | slice) -> nn.Module | list[nn.Module]:
        return list(self.module_list)[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.module_list)

    def keep(self, layers: Sequence[nn.Module], origins: Sequence[int]) -> None:
        """Make `layers` the whole stack. `origins[i]` is the old index that layer i came from.

        Layers get their new index, and the config says what it would have said of such a model
        from the start; that a model built from it has these very layers is checked first.
        ArchitectureError, before anything changes, when the config cannot say so.
        """
        fields = self._fields(layers, origins)
        self._check_rebuilt(layers, fields)
        self._change(nn.ModuleList(layers), fields)

    @contextmanager
    def trial(self, layers: Sequence[nn.Module], origins: Sequence[int]) -> Iterator[None]:
        """Run with other layers, then put the present ones back, bit for bit. Copies no weights."""
        fields = self._fields(layers, origins)
        if not self.recognised:  # the table in depth.py may not know all of its config
            self._check_rebuilt(layers, fields)
        before, config = self.module_list, dict(vars(self.config))
        indices = [(m, name, getattr(m, name)) for m, name in _indexed(before)]
        try:
            self._change(nn.ModuleList(layers), fields)
            yield
        finally:
            self.module_list = before
            for module, name, index in indices:
                setattr(module, name, index)
            vars(self.config).clear()
            vars(self.config).update(config)

    def mergeable(self, span: tuple[int, int]) -> str | None:
        """Why the layers [start, stop) cannot become one by arithmetic, or None when they can.

        They can when the config says the same of each of them (attention type, rotary positions,
        dense or experts), and their parameters agree in names and shapes.
        """
        start, stop = span
        if not 0 <= start < stop <= len(self):
            return f"span [{start}, {stop}) does not lie within the {len(self)} layers"
        lists = per_layer(self.config, len(self))
        for index in range(start + 1, stop):
            for name, values in lists.items():
                if values[index] != values[start]:
                    return (
                        f"layers {start} and {index} differ in {name}: "
                        f"{values[start]!r} and {values[index]!r}"
                    )
            if signature(self[index]) != signature(self[start]):
                return f"layers {start} and {index} have parameters of different names or shapes"
        return None

    def rebuilt(self, fields: Fields) -> PreTrainedModel:
        """The model that a config with changed `fields` describes, without memory (on meta).

        ArchitectureError when none can be built.
        """
        config = copy.deepcopy(self.model.config)
        try:
            for name, value in fields.items():
                setattr(config.get_text_config(decoder=True), name, value)
            config = type(config).from_dict(  # as a saved config comes back, derived fields anew
                config.to_dict(), attn_implementation=config._attn_implementation
            )
            with torch.device("meta"):
                rebuilt = type(self.model)(config).requires_grad_(False)
        except Exception as error:
            raise ArchitectureError(
                f"After this edit, no {self.family} model can be built from the config ({error}); "
                "choose other layers."
            ) from error
        return rebuilt

    def _fields(self, layers: Sequence[nn.Module], origins: Sequence[int]) -> Fields:
        """The config fields that the edit writes; ArchitectureError when it cannot be made."""
        depth = len(self)
        if not layers:
            raise ArchitectureError("A model needs at least one layer; keep one or more.")
        if len(layers) != len(origins):
            raise ArchitectureError(
                f"There are {len(layers)} layers but {len(origins)} origins; give one for each."
            )
        if outside := [i for i in origins if not 0 <= i < depth]:
            raise ArchitectureError(
                f"Origin {outside[0]} lies outside the stack; use 0 to {depth - 1}."
            )
        if len({id(layer) for layer in layers}) != len(layers):
            raise ArchitectureError(
                "The same layer stands in the stack twice, and tensors that are shared cannot be "
                "saved; deep-copy the layer."
            )
        held = [id(parameter) for layer in self for parameter in layer.parameters()]
        if len(set(held)) != len(held):
            raise ArchitectureError(
                f"The layers of this {self.family} model cannot be changed in number: {SHARED}; "
                "choose another model."
            )
        return edited_fields(self.config, origins, depth, self.layout.depth_key)

    def _change(self, layers: nn.ModuleList, fields: Fields) -> None:
        self.module_list = layers
        for index, layer in enumerate(layers):
            for module, name in _indexed([layer]):
                setattr(module, name, index)  # the KV cache files this layer under it
            for module in layer.modules():
                if type(vars(module).get("config")) is type(self.config):
                    module.config = self.config  # a deep-copied layer brought its own
        for name, value in fields.items():
            setattr(self.config, name, value)

    def _check_rebuilt(self, layers: Sequence[nn.Module], fields: Fields) -> None:
        """Refuse an edit after which a model built from the config would not be this one.

        Builds that model without memory, and compares every parameter's name and shape, and in
        each layer the plain values that its modules hold (a scale made from an index, say).
        """
        rebuilt = self.rebuilt(fields)
        inside = f"{self.layout.layers}."
        ours = {n: s for n, s in signature(self.model).items() if not n.startswith(inside)}
        theirs = {n: s for n, s in signature(rebuilt).items() if not n.startswith(inside)}
        if ours != theirs:
            name = min(n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n))
            raise ArchitectureError(
                f"After this edit, a {self.family} model built from the config has another {name}, "
                "which depends on the number of layers; choose another model."
            )
        fresh = cast(nn.ModuleList, rebuilt.get_submodule(self.layout.layers))
        for index, (layer, twin) in enumerate(zip(layers, fresh, strict=True)):
            if difference := _difference(layer, twin):
                raise ArchitectureError(
                    f"After this edit, layer {index} of a {self.family} model built from the "
                    f"config differs from the one kept, in {difference}; choose other layers."
                )


def _difference(layer: nn.Module, twin: nn.Module) -> str | None:
    """The first thing in which two layers differ that is no weight's value, or None."""
    if signature(layer) != signature(twin):
        return "its parameters' names or shapes"
    twins = dict(twin.named_modules())
    for path, module in layer.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_") or name in (*INDEX_NAMES, "training"):
                continue
            other = vars(twins[path]).get(name)
            same = value == other
            if isinstance(value, float) and isinstance(other, float):
                same = math.isclose(value, other, rel_tol=1e-6)
            if isinstance(value, bool | int | float | str) and not same:
                return f"{path}.{name} ({value!r}, not {other!r})".lstrip(".")
    return None


def _indexed(layers: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, str]]:
    """Every module in the layers that knows its layer's index, with the attribute's name."""
    for layer in layers:
        for module in layer.modules():
            for name in INDEX_NAMES:
                if isinstance(vars(module).get(name), int):
                    yield module, name


def linears(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The weight matrices of a layer (nn.Linear and Conv1D), with their names inside it."""
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            yield name, module


def projections(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The linears of a layer without the few small ones that all else depends on (`STEERING`)."""
    for name, linear in linears(layer):
        if name.rpartition(".")[2] not in STEERING:
            yield name, linear


def weight_of(linear: nn.Module) -> Tensor:
    """The weight as [out, in], whichever way the module stores it. Shares memory."""
    weight = linear.get_parameter("weight").data
    return weight.T if isinstance(linear, Conv1D) else weight


def check_finite(layer: nn.Module, place: str) -> None:
    """`NumericalError`, naming the weight and `place` ("layer 7"), if one is not finite."""
    for name, parameter in layer.named_parameters():
        if not is_finite(parameter):
            raise NumericalError(
                f"The weight {name.removesuffix('.weight')} of {place} is not finite; "
                "load the checkpoint again or in another dtype."
            )


def is_finite(tensor: Tensor) -> bool:
    """Whether every number of a tensor is one. Makes no copy, and takes one pass over it."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(bool(end.isfinite()) for end in tensor.detach().aminmax())  # which hand NaN on


def signature(module: nn.Module) -> dict[str, torch.Size]:
    """The names and shapes of the parameters of a layer, or of any module."""
    return {name: parameter.shape for name, parameter in module.named_parameters()}
