"""Small matrices beside every linear of a model's layers (LoRA): put in, merged, taken out.

Alone knows peft. It does not know how the matrices are trained. Next: `finetune.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from laco.capabilities import SHARED
from laco.errors import ArchitectureError, NumericalError
from laco.layers import is_finite, projections, weight_of

if TYPE_CHECKING:
    from laco.models import LoadedModel
    from laco.recipe import Finetune

NAME = "default"  # what peft calls an adapter that nobody named


@dataclass(frozen=True)
class Adapters:
    """The matrices beside a model's linears, while they stand there, by layer and linear (`0.fc`).

    `linears` holds the model's own modules, `wrapped` peft's, which stand in their place.
    """

    linears: dict[str, nn.Module]
    wrapped: dict[str, Any]

    def parameters(self) -> list[nn.Parameter]:
        """Every matrix: of each linear A [r, in], then B [out, r]; always in float32."""
        sides = ("lora_A", "lora_B")
        return [getattr(w, side)[NAME].weight for w in self.wrapped.values() for side in sides]

    @torch.no_grad()
    def products(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """For each linear its name, its weight (shared) and (alpha / r) B A, both [out, in]."""
        for name, wrapped in self.wrapped.items():
            down, up = wrapped.lora_A[NAME].weight, wrapped.lora_B[NAME].weight
            product = wrapped.scaling[NAME] * (up.float() @ down.float())
            yield name, weight_of(self.linears[name]), product

    def set_dropout(self, active: bool) -> None:
        """Let the adapters' dropout act or not; the model itself stays in evaluation mode."""
        for wrapped in self.wrapped.values():
            wrapped.lora_dropout.train(active)


def insert_adapters(lm: LoadedModel, step: Finetune) -> Adapters:
    """Adapters at every linear of the layers but routers: A random, B zero; so nothing changes yet.

    Experts that are stored as one tensor are no linears, and get none.

    `ArchitectureError`, the model being as it was, when peft cannot adapt one of these linears,
    or when layers share one.
    """
    from peft import LoraConfig, inject_adapter_in_model  # most of a second, for this step alone
    from peft.tuners.lora import LoraLayer

    own = {
        f"{index}.{name}": linear
        for index, layer in enumerate(lm.layers)
        for name, linear in projections(layer)
    }
    if len({id(linear.get_parameter("weight")) for linear in own.values()}) != len(own):
        raise ArchitectureError(
            f"LoRA cannot go beside the linears of a {lm.layers.family} model: {SHARED}; choose "
            "another model."
        )
    layers = lm.layers.module_list  # given the model, peft would go for fused experts in some
    config = LoraConfig(
        r=step.rank,
        lora_alpha=step.scale,  # type: ignore[arg-type]  # a divisor's numerator, any float will do
        lora_dropout=step.dropout,
        target_modules=list(own),
        fan_in_fan_out=any(isinstance(linear, Conv1D) for linear in own.values()),
    )
    try:
        inject_adapter_in_model(config, layers, NAME)
        wrapped = {n: m for n, m in layers.named_modules() if isinstance(m, LoraLayer)}
        if wrapped.keys() != own.keys():
            raise ValueError(f"it adapted {len(wrapped)} modules instead of {len(own)}")
        with torch.no_grad():  # a router that is a linear answers with more than a tensor
            probe = torch.zeros(1, 2, dtype=torch.long, device=lm.model.device)
            lm.model(input_ids=probe, use_cache=False)
        for adapter in wrapped.values():  # Adam's small steps would be lost in a half's rounding
            adapter.lora_A.float()
            adapter.lora_B.float()
    except BaseException as error:
        _restore(lm, own)
        if not isinstance(error, ValueError | TypeError | AttributeError):
            raise
        raise ArchitectureError(
            f"peft cannot put LoRA on the linears of a {lm.layers.family} model ({error}); "
            "compensate the model instead."
        ) from error
    return Adapters(own, wrapped)


def merge_adapters(lm: LoadedModel, adapters: Adapters, keep_zeros: bool) -> dict[str, Any]:
    """Counts of zeros in the layers' linears; the products are in the weights, the adapters gone.

    `zeros_before`, `zeros_after`, and `zeros_filled`: weights that were zero and no longer are.
    Raises `NumericalError` naming the linear whose merged weight is not finite: nothing is merged
    then, and the model is as it was before `train_adapters`.
    """
    try:
        for name, weight, product in adapters.products():  # all of them, before any is written
            if not is_finite(merged_weight(weight, product, keep_zeros)):
                index, _, linear = name.partition(".")
                raise NumericalError(
                    f"The merged weight of layer {index}, {linear} is not finite; use a smaller "
                    "learning rate, or bfloat16 or float32 for the model."
                )
        before = after = filled = 0
        for _, weight, product in adapters.products():
            zero = weight == 0
            weight.copy_(merged_weight(weight, product, keep_zeros))
            before += int(zero.count_nonzero())
            after += weight.numel() - int(weight.count_nonzero())
            filled += int((zero & (weight != 0)).count_nonzero())
    finally:
        unwrap(lm, adapters)
    return {"zeros_before": before, "zeros_after": after, "zeros_filled": filled}


def merged_weight(weight: Tensor, product: Tensor, keep_zeros: bool) -> Tensor:
    """`weight` + `product`, both [out, in], added in float32 and given in the weight's format.

    With `keep_zeros`, entries that are exactly zero stay so: the product is masked.
    """
    merged = weight.float() + product
    if keep_zeros:
        merged = merged.masked_fill(weight == 0, 0)
    return merged.to(weight.dtype)


def unwrap(lm: LoadedModel, adapters: Adapters) -> None:
    """Put the model's own linears back where they were; adapters that are not merged are lost."""
    _restore(lm, adapters.linears)


def _restore(lm: LoadedModel, own: dict[str, nn.Module]) -> None:
    layers = lm.layers.module_list
    for path, linear in own.items():
        parent, _, name = path.rpartition(".")
        setattr(layers.get_submodule(parent), name, linear)
    vars(layers).pop("peft_config", None)
    lm.model.requires_grad_(False)
    lm.model.eval()
