"""A model's predictions from what its head is fed, some of the vocabulary at a time.

A tile of logits stays in the cache and is gone before the next one, so memory does not grow with
the vocabulary, and each row of the head is read once for many tokens, which a CPU does faster than
all rows for few tokens. It does not know where the states come from. Next: `candidates.py` and
`evaluate/perplexity.py`, which use it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from laco.layers import LayerStack
from laco.walk import logits

TOKENS = 1024  # through the head at a time
TILE_BYTES = {"cpu": 8 << 20}  # of logits for some tokens and some of the vocabulary
TILE_BYTES_ELSEWHERE = 512 << 20


def vocabulary_tiles(stack: LayerStack, final: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The logits of `final` [tokens, hidden], some of the vocabulary at a time, in float32.

    Yields the first token id of a tile and the tile, [tokens, ids]. The model's own head code runs
    on a part of the head's rows, so caps and scales are its own. A head that is not one matrix
    gives a single tile.
    """
    head = stack.model.get_output_embeddings()
    if type(head) is not nn.Linear or head.weight.is_meta:
        yield 0, logits(stack, final.unsqueeze(0))[0].float()
        return
    final = final.to(head.weight.device)
    size = TILE_BYTES.get(final.device.type, TILE_BYTES_ELSEWHERE) // (4 * len(final))
    for first in range(0, head.out_features, max(size, 256)):
        last = min(first + max(size, 256), head.out_features)
        tile = nn.Linear(head.in_features, last - first, head.bias is not None, device="meta")
        tile.weight = nn.Parameter(head.weight[first:last], requires_grad=False)
        if head.bias is not None:
            tile.bias = nn.Parameter(head.bias[first:last], requires_grad=False)
        stack.model.set_output_embeddings(tile)
        try:
            scores = logits(stack, final.unsqueeze(0))[0]
        finally:
            stack.model.set_output_embeddings(head)
        yield first, scores.float()


def token_losses(stack: LayerStack, states: Tensor, labels: Tensor) -> Tensor:
    """−log p of `labels` [tokens], given what the head is fed, `states` [tokens, hidden]: [tokens].

    In float32; the log-sum-exp is carried along from tile to tile.
    """
    return label_scores(stack, states, labels)[0]


def label_scores(stack: LayerStack, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """As `token_losses`, and for each label whether no other token is likelier: [tokens] twice."""
    parts: list[Tensor] = []
    likeliest: list[Tensor] = []
    for few, wanted in zip(states.split(TOKENS), labels.split(TOKENS), strict=True):
        sums = torch.full(wanted.shape, -torch.inf, device=few.device)  # log Σ exp, so far
        chosen = torch.zeros(wanted.shape, device=few.device)  # the logit of each label
        highest = sums.clone()
        for first, scores in vocabulary_tiles(stack, few):
            sums = torch.logaddexp(sums, scores.logsumexp(-1))
            highest = torch.maximum(highest, scores.amax(-1))
            inside = (wanted >= first) & (wanted < first + scores.shape[1])
            index = (wanted - first).clamp(0, scores.shape[1] - 1).unsqueeze(1)
            chosen = torch.where(inside, scores.gather(1, index).squeeze(1), chosen)
        parts.append(sums - chosen)
        likeliest.append(chosen >= highest)
    return torch.cat(parts), torch.cat(likeliest)


def cross_entropies(stack: LayerStack, states: Tensor, probabilities: Tensor) -> Tensor:
    """−Σ_v p_v log q_v for each of `states` [tokens, hidden], q being the head's softmax: [tokens].

    `probabilities` p is [tokens, vocabulary]. log q = z − logsumexp z, so with p summing to 1 this
    is logsumexp z − Σ p z, and log q is never written out.
    """
    parts: list[Tensor] = []
    for few, p in zip(states.split(TOKENS), probabilities.split(TOKENS), strict=True):
        sums = torch.full(few.shape[:1], -torch.inf, device=few.device)  # log Σ exp, so far
        expected = torch.zeros(few.shape[:1], device=few.device)  # Σ p z, so far
        for first, scores in vocabulary_tiles(stack, few):
            sums = torch.logaddexp(sums, scores.logsumexp(-1))
            expected += torch.linalg.vecdot(p[:, first : first + scores.shape[1]], scores)
        parts.append(sums - expected)
    return torch.cat(parts)
