"""Wanda: in each row, the weights go that matter least to their output (arXiv:2306.11695).

A weight's score is |W_ij| · ‖x_j‖₂, with ‖x_j‖₂ the norm of its input channel over the
calibration tokens. Weights that stay are not changed. It does not know which layer a matrix is
from. Next: `sparsegpt.py`, which changes those that stay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laco.prune.masks import Ratio, group_mask, row_mask, zeros_of


def square_sums(inputs: Tensor) -> Tensor:
    """Σ x² of each input channel, [in]. inputs: [tokens, in] float32. Adds up over batches."""
    return inputs.pow(2).sum(0)


def wanda_mask(weight: Tensor, squares: Tensor, sparsity: float, ratio: Ratio | None) -> Tensor:
    """Which weights go: those with the least |W| · ‖x‖₂ of each row, or of each n:m group.

    weight, result: [out, in]; squares: [in], of `square_sums`. Rows differ by one zero at most,
    so that the matrix as a whole has the sparsity that is asked for.
    """
    score = weight.abs().to(torch.float32) * squares.sqrt()
    gone = weight == 0
    if ratio is not None:
        return group_mask(score, gone, ratio)
    return row_mask(score, gone, zeros_of(weight.numel(), sparsity))
