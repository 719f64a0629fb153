"""How much each unit of a layer matters: three measures, as published, on plain tensors.

`fluctuation` is FLAP's (An et al. 2024, arXiv:2312.11983), `coupled` sums what LLM-Pruner's first
order Taylor term (Ma et al. 2023, arXiv:2305.11627) or a norm says of single weights over all the
weights that go with a unit. FLAP standardises its scores in each layer in order to compare layers;
where every layer keeps the same width only the order within a layer counts, so that is left out.
It does not know where inputs and gradients come from. Next: `structured.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from laco.layers import linears, weight_of
from laco.prune.widths import Cut, by_unit


class Moments(NamedTuple):
    """Of each input channel over tokens: their count, the mean, and the sum of (x - mean)²."""

    tokens: int
    mean: Tensor  # [in]
    squares: Tensor  # [in]


def moments(inputs: Tensor) -> Moments:
    """The moments of one micro-batch, inputs: [tokens, in] float32."""
    variance, mean = torch.var_mean(inputs, 0, correction=0)
    return Moments(len(inputs), mean, variance * len(inputs))


def joined(one: Moments, other: Moments) -> Moments:
    """The moments of both micro-batches together (Chan et al. 1979).

    Sums of x and of x² would lose the variance of a channel whose mean is large.
    """
    tokens = one.tokens + other.tokens
    apart = other.mean - one.mean
    mean = one.mean + apart * (other.tokens / tokens)
    between = apart.square() * (one.tokens * other.tokens / tokens)
    return Moments(tokens, mean, one.squares + other.squares + between)


def fluctuation(seen: Moments, weight: Tensor, cut: Cut) -> Tensor:
    """FLAP's WIFV of each unit, [count]: variance of its inputs x squared norm of their columns.

    weight: [out, in] of the linear that is fed with the units. A unit of several inputs has their
    sum.
    """
    scores = seen.squares / seen.tokens * weight.square().sum(0)  # [in]
    return by_unit(scores, cut.count, (cut.size,))


def coupled(layer: nn.Module, cut: Cut, measure: Callable[[nn.Module], Tensor]) -> Tensor:
    """The sum over all weights that go with a unit, [count]; `measure(linear)` is [out, in].

    Weights of linears only; biases and norms are left out.
    """
    found = dict(linears(layer))
    total = by_unit(measure(found[cut.output]).sum(0), cut.count, (cut.size,))
    for name, parts in cut.inputs.items():
        if name in found:
            total += by_unit(measure(found[name]).sum(1), cut.count, parts)
    return total


def magnitude(layer: nn.Module, cut: Cut) -> Tensor:
    """The Euclidean norm of all weights that go with a unit, [count]."""
    return coupled(layer, cut, lambda linear: weight_of(linear).square()).sqrt()


def taylor(layer: nn.Module, cut: Cut) -> Tensor:
    """LLM-Pruner's first order term, [count]: the sum of |weight x gradient| of a unit's weights.

    The layer's linears have `.grad`.
    """
    return coupled(layer, cut, lambda linear: (weight_of(linear) * _gradient_of(linear)).abs())


def _gradient_of(linear: nn.Module) -> Tensor:
    """The weight's gradient as [out, in], as `weight_of` gives the weight."""
    gradient = linear.get_parameter("weight").grad
    assert gradient is not None
    return gradient.T if isinstance(linear, Conv1D) else gradient
