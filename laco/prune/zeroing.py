"""Zeros in the linears of every layer, by a method and a share for each layer.

The counterpart of `structured.Narrowing`: the walk uses one or the other. Next: `rework.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from laco.context import Context
from laco.layers import LayerStack
from laco.prune import check_pattern, prunable, prune_layer
from laco.prune.sensitivity import allocate, error_curve
from laco.ranks import ALONE, Ranks
from laco.steps.sparsity import Prune, Sparse

SPREAD = (-0.2, -0.1, 0.0, 0.1, 0.2)  # around the asked sparsity, where sensitivity is measured
LEAST, MOST = 0.02, 0.98

Outputs = Callable[[int, nn.Module], Iterator[Tensor]]


class Zeroing:
    """What a method that zeroes single weights makes of a model's layers.

    `shares` has the sparsity of each layer, `curves` the errors that these were decided by, if any.
    RecipeError when the pattern does not divide the rows of some linear.
    """

    fields: Mapping[str, Any] = {}  # the config stays as it is

    def __init__(self, stack: LayerStack, prune: Prune, ranks: Ranks = ALONE):
        assert isinstance(prune.method, Sparse)
        check_pattern(stack, prune.method.pattern)
        self.stack, self.method, self.ranks = stack, prune.method, ranks
        self.studies = prune.allocation == "sensitivity"  # whether it has to see the whole model
        self.shares = [prune.method.sparsity] * len(stack)
        self.curves: dict[str, Any] | None = None

    def study(
        self, layers: Iterator[tuple[int, nn.Module]], outputs: Outputs, context: Context
    ) -> None:
        """Decide the shares by sensitivity, from one walk over the layers as they came.

        `outputs(index, layer)` yields what the layer makes of its inputs, again at each call.
        """
        asked = self.method.sparsity
        levels = [level for s in SPREAD if LEAST <= (level := round(asked + s, 4)) <= MOST]
        errors: list[list[float]] = []
        sizes: list[int] = []
        for index, layer in layers:
            context.step(index / len(self.stack), f"sensitivity of layer {index}")
            run = partial(outputs, index, layer)

            def feed(run: Callable[[], Iterator[Tensor]] = run) -> None:
                for _ in run():
                    pass

            errors.append(error_curve(layer, run, self.method, feed, levels, f"layer {index}"))
            sizes.append(sum(weight.numel() for _, weight in prunable(layer)))
        self.curves = {"levels": levels, "errors": errors}
        self.shares = allocate(errors, levels, sizes, asked)

    def prune(
        self, index: int, layer: nn.Module, feed: Callable[[], None], place: str
    ) -> tuple[nn.Module, dict[str, Any]]:
        """The layer, pruned in place, and what became of it (`prune_layer`)."""
        share = self.shares[index]
        return layer, prune_layer(layer, feed, self.method, share, place, self.ranks)
