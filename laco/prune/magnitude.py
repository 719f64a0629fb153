"""Magnitude: the smallest weights of a matrix go.

The oldest criterion, and the one that looks at no text. It does not know which layer a matrix is
from. Next: `wanda.py`.
"""

from __future__ import annotations

from torch import Tensor

from laco.prune.masks import Ratio, group_mask, matrix_mask, zeros_of


def magnitude_mask(weight: Tensor, sparsity: float, ratio: Ratio | None) -> Tensor:
    """Which weights go: those with the least |W|, of the whole matrix or of each n:m group.

    weight, result: [out, in].
    """
    score, gone = weight.abs(), weight == 0
    if ratio is not None:
        return group_mask(score, gone, ratio)
    return matrix_mask(score, gone, zeros_of(weight.numel(), sparsity))
