"""Measures of similarity, as pure functions on tensors: of hidden states and of weights.

Nothing here knows a model, text or a spec; `similarity.py` feeds it, a chunk of tokens at a time.
Each function is tested against a plain loop in `tests/test_similarity.py`. Next: `similarity.py`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

PAIRWISE = ("cosine", "angular", "relative_l2")  # averaged over tokens
CHUNK_BYTES = {"cpu": 8 << 20}  # float64 states at a time: what a cache holds
CHUNK_BYTES_ELSEWHERE = 64 << 20


class Sums:
    """Sums over tokens, per shard: all that is kept of the hidden states."""

    def __init__(self, shards: int, depths: int):
        self.totals = torch.zeros(shards, len(PAIRWISE), depths, depths, dtype=torch.float64)
        self.counts = torch.zeros(shards, dtype=torch.float64)

    def add(self, shard: int, states: Tensor) -> tuple[Tensor, int]:
        """Add the tokens of `states` [tokens, depths, hidden].

        Returns their mean square norm by depth, [depths], which tells states that cannot be right,
        and how many tokens had to stay out, because a state of theirs has norm zero.
        """
        exact = exact_dtype(states.device)
        size = CHUNK_BYTES.get(states.device.type, CHUNK_BYTES_ELSEWHERE)
        step = max(1, size // (8 * states[0].numel())) if len(states) else 1
        total = torch.zeros(self.totals.shape[1:], dtype=exact, device=states.device)
        usable = torch.zeros((), dtype=exact, device=states.device)
        squares = torch.zeros(states.shape[1], dtype=exact, device=states.device)
        for chunk in states.split(step):
            chunk = chunk.to(exact)
            gram = torch.bmm(chunk, chunk.mT)  # [tokens, depths, depths]
            square = gram.diagonal(dim1=1, dim2=2)  # [tokens, depths]
            nonzero = (square > 0).all(1).to(exact)  # [tokens]
            squares += square.sum(0)
            for index, values in enumerate(between(gram).values()):
                total[index] += torch.tensordot(nonzero, values, dims=1)
            usable += nonzero.sum()
        self.totals[shard] += total.cpu().double()
        self.counts[shard] += float(usable)
        return squares.cpu() / max(len(states), 1), len(states) - int(usable)

    def mean(self, shard: int | None = None) -> Tensor:
        """Means over tokens, [measures, depths, depths], of one shard or of all."""
        if shard is None:
            return self.totals.sum(0) / self.counts.sum()
        return self.totals[shard] / self.counts[shard]


def between(gram: Tensor) -> dict[str, Tensor]:
    """`PAIRWISE` measures out of Gram matrices [..., d, d] of states or weights."""
    square = gram.diagonal(dim1=-2, dim2=-1)  # [..., d]
    norm = square.sqrt().clamp_min(torch.finfo(gram.dtype).tiny ** 0.5)
    cosine = (gram / (norm.unsqueeze(-1) * norm.unsqueeze(-2))).clamp(-1, 1)
    cosine.diagonal(dim1=-2, dim2=-1).copy_(square > 0)  # exactly 1
    distance = (square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * gram).clamp_min(0).sqrt()
    distance.diagonal(dim1=-2, dim2=-1).zero_()
    return {
        "cosine": cosine,
        "angular": cosine.arccos() / torch.pi,
        "relative_l2": distance / norm.unsqueeze(-1),
    }


def linear_cka(states: list[Tensor]) -> Tensor | None:
    """Linear CKA [depths, depths] of states, with the unbiased estimate of HSIC.

    The tokens come in parts of [tokens, depths, hidden] each. None for fewer than four tokens,
    or when all are alike at some depth.
    """
    count = sum(map(len, states))
    if count < 4:
        return None
    gram = torch.empty(states[0].shape[1], count, count, dtype=torch.float64)
    for depth in range(len(gram)):
        here = torch.cat([part[:, depth] for part in states]).to(torch.float64)  # [tokens, hidden]
        here -= here.mean(0)
        torch.mm(here, here.T, out=gram[depth])
    gram.diagonal(dim1=1, dim2=2).zero_()
    rows = gram.sum(2) / (count - 2)
    gram -= rows.unsqueeze(1)
    gram -= rows.unsqueeze(2)
    gram += (rows.sum(1) / (count - 1)).view(-1, 1, 1)
    gram.diagonal(dim1=1, dim2=2).zero_()  # now rows and columns sum to 0: "U-centred"
    flat = gram.flatten(1)
    hsic = flat @ flat.T
    scale = hsic.diagonal().sqrt()
    return hsic / torch.outer(scale, scale) if bool((scale > 0).all()) else None


def rank_uncertain(influence: Tensor, shards: Tensor) -> list[bool]:
    """For each layer, whether its rank by influence may be another on other text.

    `influence` [layers], `shards` [shards, layers]. One shard says nothing: all are uncertain.
    """
    if len(shards) < 2:
        return [True] * len(influence)
    variance = shards.var(0) / len(shards)  # of the mean: standard error squared
    order = influence.argsort().tolist()
    doubtful = [False] * len(influence)
    for one, other in pairwise(order):
        if abs(influence[one] - influence[other]) <= (variance[one] + variance[other]).sqrt():
            doubtful[one] = doubtful[other] = True
    return doubtful


def weight_gram(weights: list[Tensor]) -> Tensor:
    """The Gram matrix [layers, layers] of flattened weights [out, in], in float64 on the CPU."""
    device = weights[0].device
    step = max(1, (16 << 20) // (8 * len(weights) * weights[0].shape[1]))  # rows at a time
    total = torch.zeros(len(weights), len(weights), dtype=torch.float64)
    for start in range(0, len(weights[0]), step):
        rows = torch.stack(
            [
                weight[start : start + step].to(device, exact_dtype(device)).flatten()
                for weight in weights
            ]
        )
        total += (rows @ rows.T).cpu().double()
    return total


def rounded(values: Tensor, digits: int = 6) -> Any:
    """Nested lists with so many significant digits."""

    def shorten(item: Any) -> Any:
        return (
            [shorten(one) for one in item]
            if isinstance(item, list)
            else float(f"{item:.{digits}g}")
        )

    return shorten(values.tolist())


def exact_dtype(device: torch.device) -> torch.dtype:
    """The widest number format of a device."""
    return torch.float32 if device.type == "mps" else torch.float64
