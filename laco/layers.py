"""A causal LM seen as a stack of layers.

This is the only module that knows where an architecture keeps its layers. Methods read and
rebuild a model through `LayerStack` and stay free of model names; what an edit does to the
config's fields stands in `depth.py`. Next: `walk.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from laco.depth import Fields, edited_fields
from laco.errors import ArchitectureError


@dataclass(frozen=True)
class Layout:
    """Where one architecture family keeps things."""

    layers: str  # dotted path of the ModuleList
    depth_key: str = "num_hidden_layers"


LAYOUTS = {
    "llama": Layout("model.layers"),
    "mistral": Layout("model.layers"),
    "qwen2": Layout("model.layers"),
    "qwen3": Layout("model.layers"),
    "gemma2": Layout("model.layers"),
    "gemma3_text": Layout("model.layers"),
    "phi3": Layout("model.layers"),
    "gpt2": Layout("transformer.h", depth_key="n_layer"),
    "opt": Layout("model.decoder.layers"),
    "gpt_neox": Layout("gpt_neox.layers"),
    "olmo2": Layout("model.layers"),
    "smollm3": Layout("model.layers"),
    "granite": Layout("model.layers"),
    "stablelm": Layout("model.layers"),
    "falcon": Layout("transformer.h"),
    "bloom": Layout("transformer.h", depth_key="n_layer"),
}

INDEX_NAMES = ("layer_idx", "layer_id", "layer_index", "block_idx")


class LayerStack(Sequence[nn.Module]):
    """The layers of a model, in order, with the one edit that keeps the model consistent.

    `recognised` is False when the family is not in LAYOUTS and its layers were found by probing.
    """

    model: PreTrainedModel
    family: str
    recognised: bool

    def __init__(self, model: PreTrainedModel):
        if getattr(model.config, "is_encoder_decoder", False):
            raise ArchitectureError(
                f"This {model.config.model_type} model is an encoder-decoder, which has two stacks "
                "of layers; choose a causal (decoder-only) language model."
            )
        self.model = model
        self.config: Any = model.config.get_text_config(decoder=True)
        self.family = str(model.config.model_type)
        self.recognised = self.family in LAYOUTS
        self.layout = LAYOUTS[self.family] if self.recognised else _probe(model, self.config)

    @property
    def _modules(self) -> nn.ModuleList:
        return self.trunk.get_submodule(self.layout.layers.rpartition(".")[2])  # type: ignore[return-value]

    @property
    def trunk(self) -> nn.Module:
        """The module that loops over the layers, from token ids to the final hidden states."""
        return self.model.get_submodule(self.layout.layers.rpartition(".")[0])

    def __len__(self) -> int:
        return len(self._modules)

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...

    @overload
    def __getitem__(self, index: slice) -> list[nn.Module]: ...

    def __getitem__(self, index: int | slice) -> nn.Module | list[nn.Module]:
        layers = self._modules
        return list(layers)[index] if isinstance(index, slice) else layers[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._modules)

    def keep(self, layers: Sequence[nn.Module], origins: Sequence[int]) -> None:
        """Make `layers` the whole stack. `origins[i]` is the old index that layer i came from.

        Layers get their new index, and the config says what it would have said of such a model
        from the start. ArchitectureError, before anything changes, when it cannot say so.
        """
        fields = self._checked_fields(layers, origins)
        self._replace(layers)
        for name, value in fields.items():
            setattr(self.config, name, value)

    @contextmanager
    def trial(self, layers: Sequence[nn.Module], origins: Sequence[int]) -> Iterator[None]:
        """Run with other layers, then put the present ones back, bit for bit. Copies no weights."""
        before, config = list(self._modules), dict(vars(self.config))
        indices = [(m, name, getattr(m, name)) for m, name in _indexed(before)]
        self.keep(layers, origins)
        try:
            yield
        finally:
            self._replace(before)
            for module, name, index in indices:
                setattr(module, name, index)
            vars(self.config).clear()
            vars(self.config).update(config)

    def mergeable(self, span: tuple[int, int]) -> str | None:
        """Why the layers [start, stop) cannot become one by arithmetic, or None when they can."""
        start, stop = span
        if not 0 <= start < stop <= len(self):
            return f"span [{start}, {stop}) does not lie within the {len(self)} layers"
        types = getattr(self.config, "layer_types", None)
        for index in range(start + 1, stop):
            if types and types[index] != types[start]:
                return f"layer {start} is {types[start]} and layer {index} is {types[index]}"
            if signature(self[index]) != signature(self[start]):
                return f"layers {start} and {index} have parameters of different names or shapes"
        return None

    def _checked_fields(self, layers: Sequence[nn.Module], origins: Sequence[int]) -> Fields:
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
        return edited_fields(self.config, origins, depth, self.layout.depth_key)

    def _replace(self, layers: Sequence[nn.Module]) -> None:
        setattr(self.trunk, self.layout.layers.rpartition(".")[2], nn.ModuleList(layers))
        for index, layer in enumerate(layers):
            for module, name in _indexed([layer]):
                setattr(module, name, index)  # the KV cache files this layer under it


def _probe(model: PreTrainedModel, config: Any) -> Layout:
    raise ArchitectureError(
        f"laco has no layout for {model.config.model_type!r}; choose a model of one of these "
        f"families: {', '.join(sorted(LAYOUTS))}."
    )


def _indexed(layers: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, str]]:
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


def weight_of(linear: nn.Module) -> Tensor:
    """The weight as [out, in], whichever way the module stores it. Shares memory."""
    weight = linear.get_parameter("weight").data
    return weight.T if isinstance(linear, Conv1D) else weight


def signature(layer: nn.Module) -> dict[str, torch.Size]:
    """The names and shapes of a layer's parameters."""
    return {name: parameter.shape for name, parameter in layer.named_parameters()}
