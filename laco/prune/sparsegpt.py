"""SparseGPT: weights go column by column, and those after them make up for it (arXiv:2301.00774).

With H = X Xᵀ of a linear's inputs, removing weight w_j costs w_j² / [H⁻¹]_jj, and the change of
the later weights that costs least is −w_j · [H⁻¹]_j,: / [H⁻¹]_jj, where H is over the columns not
yet passed (optimal brain surgeon). The rows of one triangular factor hold all these inverses.
It does not know which layer a matrix is from. Next: `__init__.py`, which prunes a layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laco.errors import NumericalError
from laco.measures import exact_dtype
from laco.prune.masks import Ratio, group_mask, matrix_mask, spread, zeros_of

RAISES = 5  # times that the damping may grow tenfold


def gram(inputs: Tensor) -> Tensor:
    """X Xᵀ, [in, in]: the Hessian but for a factor. inputs: [tokens, in] float32. Adds up."""
    return inputs.T @ inputs


def inverse_factor(hessian: Tensor, damping: float) -> tuple[Tensor, float]:
    """The upper U with (H + λI)⁻¹ = UᵀU, [in, in] float32, and the damping that it took.

    λ = damping · mean diag H. Where that is not positive definite, the damping grows tenfold, up
    to five times; then NumericalError. Solved in float64 where the device has it.
    """
    hessian = hessian.to(exact_dtype(hessian.device))
    scale = hessian.diagonal().mean()
    if scale == 0:  # no input is ever other than zero: any weight may go
        scale = scale + 1
    for _ in range(RAISES + 1):
        damped = hessian.clone()
        damped.diagonal().add_(damping * scale)
        # H = R Rᵀ with R upper, from the Cholesky factor of H turned about; then U = R⁻¹
        lower, info = torch.linalg.cholesky_ex(damped.flip(0, 1))
        if not info:
            identity = torch.eye(len(hessian), dtype=lower.dtype, device=lower.device)
            upper = torch.linalg.solve_triangular(lower, identity, upper=False).flip(0, 1).float()
            if upper.isfinite().all() and (upper.diagonal() > 0).all():
                return upper, damping
        damping *= 10
    raise NumericalError(
        f"The Hessian is not positive definite, even with a damping of {damping / 10:g}; use more "
        "calibration windows or a greater damping."
    )


def sparsegpt(
    weight: Tensor,
    factor: Tensor,
    dead: Tensor,
    sparsity: float,
    ratio: Ratio | None,
    block: int,
) -> Tensor:
    """The pruned weight [out, in] float32: zeros, and the other weights changed to make up.

    weight: [out, in]; factor: [in, in] of `inverse_factor`; dead: [in] bool, channels whose input
    is always zero, so that their weights go first. Weights are chosen when their block of columns
    is reached (unstructured: as many of each block; n:m: of each group when it is reached), with
    the changes made so far. A block holds whole groups.
    """
    columns = weight.shape[1]
    worth = factor.diagonal().pow(-2).masked_fill(dead, 0)[:, None]  # [in, 1]: 1 / [H⁻¹]_jj
    if ratio is not None:
        block = max(ratio[1], block - block % ratio[1])
    # turned about, a column of the weight lies together in memory: many times as fast
    work = weight.T.to(torch.float32).clone(memory_format=torch.contiguous_format)  # [in, out]
    mask = work == 0  # they stay zero
    parts = mask.split(block)
    quotas = spread(
        zeros_of(weight.numel(), sparsity),
        torch.stack([part.sum() for part in parts]),
        torch.tensor([part.numel() for part in parts], device=weight.device),
    ).tolist()
    for start, zeros in zip(range(0, columns, block), quotas, strict=True):
        stop = min(start + block, columns)
        if ratio is None:
            score = work[start:stop].pow(2) * worth[start:stop]
            mask[start:stop] = matrix_mask(score.T, mask[start:stop].T, zeros).T
        errors = torch.zeros_like(work[start:stop])
        for j in range(start, stop):
            if ratio is not None and j % ratio[1] == 0:
                group = slice(j, j + ratio[1])
                score = work[group].pow(2) * worth[group]
                mask[group] = group_mask(score.T, mask[group].T, ratio).T
            errors[j - start] = work[j] * mask[j] / factor[j, j]  # [out]
            work[j + 1 : stop].addr_(factor[j, j + 1 : stop], errors[j - start], alpha=-1)
        work[start:stop].masked_fill_(mask[start:stop], 0)
        work[stop:].addmm_(factor[start:stop, stop:].T, errors, alpha=-1)
    return work.T
