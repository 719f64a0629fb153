"""Which weights go: boolean masks from scores. True means that the weight becomes zero.

Weights that are zero already (a second pruning) are given as `gone`; they are part of every mask
and count among its zeros. Equal scores go in the order they stand in. It does not know where
scores come from. Next: `magnitude.py`, `wanda.py`, `sparsegpt.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

Ratio = tuple[int, int]  # (kept, of how many neighbours)


def zeros_of(weights: int, sparsity: float) -> int:
    """How many of so many weights are zero at a sparsity."""
    return round(sparsity * weights)


def spread(zeros: int, gone: Tensor, sizes: Tensor) -> Tensor:
    """How many weights of each part of a matrix are zero, int64 [parts], `zeros` in all.

    gone, sizes: [parts], the weights of a part that are zero already, and all of them. What is
    still to go is shared out in proportion to what a part has left, so that equal parts differ by
    one at most. More than `zeros` in all only when more are gone already.
    """
    left = sizes - gone
    further = max(0, zeros - int(gone.sum()))
    upto = further * left.cumsum(0) // max(1, int(left.sum()))  # integers: the last is `further`
    return gone + upto.diff(prepend=upto.new_zeros(1))


def matrix_mask(score: Tensor, gone: Tensor, zeros: int) -> Tensor:
    """The `zeros` lowest scores of a whole matrix. score, gone, result: [out, in]."""
    if zeros <= int(gone.sum()):
        return gone.clone()
    flat = score.masked_fill(gone, -torch.inf).flatten()
    threshold = flat.kthvalue(zeros).values
    mask = flat < threshold
    ties = (flat == threshold).nonzero().flatten()
    mask[ties[: zeros - int(mask.sum())]] = True
    return mask.reshape(score.shape)


def row_mask(score: Tensor, gone: Tensor, zeros: int) -> Tensor:
    """The lowest scores of every row, `zeros` in all. score, gone, result: [out, in]."""
    present = _by_rows(gone)
    quotas = spread(zeros, present, torch.full_like(present, score.shape[1]))  # [out]
    score = score.masked_fill(gone, -torch.inf)
    last = torch.full_like(score[:, :1], -torch.inf)  # [out, 1], the highest score that goes
    for quota in quotas.unique().tolist():  # two of them, unless weights were gone before
        if quota:  # selected, which is quicker than to sort
            rows = quotas == quota
            last[rows] = score[rows].kthvalue(quota, dim=1, keepdim=True).values
    mask, ties = score < last, score == last
    left = quotas - _by_rows(mask)
    crowded = _by_rows(ties) > left
    ties[crowded] &= ties[crowded].cumsum(1) <= left[crowded, None]
    return mask | ties


def _by_rows(mask: Tensor) -> Tensor:
    """How many are true in each row, [out]."""
    return mask.sum(1, dtype=torch.int32)  # in int64 it takes six times as long


def group_mask(score: Tensor, gone: Tensor, ratio: Ratio) -> Tensor:
    """The lowest scores of every so many neighbours in a row; a ratio (2, 4) keeps two of four.

    score, gone, result: [out, in]; `in` divides by the size of a group. A group that has more
    zeros already keeps them.
    """
    kept, of = ratio
    groups = score.masked_fill(gone, -torch.inf).reshape(len(score), -1, of)  # [out, in/of, of]
    losers = groups.argsort(dim=-1, stable=True)[..., : of - kept]
    mask = torch.zeros_like(groups, dtype=torch.bool).scatter_(-1, losers, True)
    return mask.reshape(score.shape) | gone
