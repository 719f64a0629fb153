"""Least squares on a fixed support: the best change of a matrix whose zeros must stay zero.

Pure functions on tensors; which matrix and which target is not known here. Next: `compensate.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_ridge(
    gram: Tensor, cross: Tensor, support: Tensor, damping: float, steps: int, start: Tensor | None
) -> Tensor:
    """The change D [out, in] of a linear, zero outside of `support`, that fits a residual best.

    Minimises Σ_t ‖x_t Dᵀ − r_t‖² + damping · ‖D‖² over D on the support, by conjugate gradients
    with a diagonal preconditioner; every row is a problem of its own and all are solved at once.
    `gram` = Σ x xᵀ [in, in], `cross` = Σ r xᵀ [out, in], `support` [out, in] bool. `start` is a
    first guess on the support (the answer for another damping, say); None: zero. Rows that are
    solved already stay as they are.
    """
    change = torch.zeros_like(cross) if start is None else start.clone()
    scale = 1 / (gram.diagonal() + damping)  # [in]
    residual = (cross - change @ gram - damping * change) * support
    search = residual * scale
    progress = (residual * search).sum(1, keepdim=True)  # [out, 1]
    tiny = torch.finfo(cross.dtype).tiny
    for _ in range(steps):
        image = (search @ gram + damping * search) * support
        length = progress / (search * image).sum(1, keepdim=True).clamp_min(tiny)
        change += length * search
        residual -= length * image
        scaled = residual * scale
        further = (residual * scaled).sum(1, keepdim=True)
        search = scaled + further / progress.clamp_min(tiny) * search
        progress = further
    return change
