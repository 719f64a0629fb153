"""How far a model's predictions are from the original's, token by token.

Knows neither which steps lie between the two nor how the original is loaded. Next:
`perplexity.py`, whose windows and details these are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from laco.errors import ModelError
from laco.evaluate.text import cut, final_states, not_finite, predictions, ratio
from laco.evaluations import Metric

if TYPE_CHECKING:
    from laco.context import Context
    from laco.evaluations import Divergence
    from laco.models import LoadedModel


@torch.no_grad()
def divergence(
    lm: LoadedModel, spec: Divergence, context: Context, original: Callable[[], LoadedModel]
) -> Metric:
    """Mean KL(original ‖ model) per token that counts, in nats, over the next-token distributions.

    `original` loads the other model and is called once, after the text is found to be long
    enough; both are held at the same time, and both read the same tokens. In float32, summed in
    float64; `stderr` is over windows. Raises `NumericalError` naming the window, `ModelError` when
    the vocabularies differ, and what `text.cut` raises.
    """
    text = cut(lm, spec.source, spec.window, spec.windows, None, spec.bos)
    context.step(0.0, "Loading the original")
    before = original()
    vocabulary = lm.layers.config.vocab_size
    if before.layers.config.vocab_size != vocabulary:
        raise ModelError(
            f"The original predicts {before.layers.config.vocab_size} tokens and this model "
            f"{vocabulary}; compare models of one vocabulary."
        )
    total = torch.zeros(len(text.tokens), dtype=torch.float64)
    together = max(one.rows(1, spec.window) for one in (lm, before))  # one, where nothing is read
    ends: list[Tensor] = []  # [windows, seq, hidden] of either model
    for window, start in enumerate(text.scored_from):
        tokens = text.tokens[window : window + 1]  # [1, seq]
        place, batch_number = window % together, window // together
        if batch_number % context.ranks.count != context.ranks.rank:
            continue
        if place == 0:
            batch = text.tokens[window : window + together]
            ends = [final_states(one.layers, batch) for one in (lm, before)]
        ours, theirs = (
            predictions(one.layers, end[place, start - 1 : -1], vocabulary)
            for one, end in zip((lm, before), ends, strict=True)
        )
        parts = [
            kl(reference.to(scores.device), scores).sum()
            for (_, reference), (_, scores) in zip(theirs, ours, strict=True)
        ]
        total[window] = torch.stack(parts).cpu().double().sum()
        if not bool(total[window].isfinite()):
            raise not_finite(lm.layers, tokens, f"window {window}")
        context.step((window + 1) / len(total), f"Window {window + 1} of {len(total)}")
    context.ranks.add(total)
    mean, error = ratio(total, text.scored)
    return Metric(
        name=f"kl[{spec.source}]",
        value=mean,
        unit="nats/token",
        better="lower",
        stderr=error,
        details={
            "source": spec.source,
            "digest": text.digest,
            "window": spec.window,
            "windows": len(text.tokens),
            "bos": text.bos,
            "tokens_scored": sum(text.scored),
        },
    )


def kl(reference: Tensor, scores: Tensor) -> Tensor:
    """KL(softmax(reference) ‖ softmax(scores)) of logits [tokens, vocabulary]: [tokens], nats."""
    p = reference.log_softmax(-1)
    q = scores.log_softmax(-1)
    return torch.where(p == -torch.inf, 0.0, p.exp() * (p - q)).sum(-1)
