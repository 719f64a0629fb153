"""Token perplexity over a running text.

Knows neither where the text comes from (`corpora.py`) nor how windows are cut (`text.py`).
Next: `divergence.py`, which reads the same windows through two models.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from laco.errors import NumericalError
from laco.evaluate.text import Text, batches, cut, final_states, not_finite, ratio
from laco.evaluations import Metric
from laco.head import token_losses

if TYPE_CHECKING:
    from laco.context import Context
    from laco.evaluations import Perplexity
    from laco.models import LoadedModel

MOST = 700.0  # nats; the exponential of 710 overflows


def perplexity(lm: LoadedModel, spec: Perplexity, context: Context) -> Metric:
    """The perplexity: exp of the mean negative log likelihood (nats) of the tokens that count.

    Equal to `exp(model(ids, labels=ids).loss)` of a window. Logits exist for a tile of tokens and
    vocabulary at a time, however large these are. On a CPU about 1024 tokens go through the layers
    together: more is no faster there, and takes more memory. Log likelihoods are in float32 and
    summed in float64. `stderr` is over windows: the ratio estimate's, carried from the mean to its
    exponential by the delta method; None for a single window.

    Raises `NumericalError` naming the window and the layer when a number is not finite, and what
    `text.cut` raises.
    """
    text = cut(lm, spec.source, spec.window, spec.windows, spec.stride, spec.bos)
    losses = window_losses(lm, text, context)  # [windows]
    mean, error = ratio(losses, text.scored)
    if mean > MOST:
        raise NumericalError(
            f"The mean negative log likelihood over {spec.source} is {mean:.0f} nats, whose "
            "exponential no number holds; the model is broken."
        )
    value = math.exp(mean)
    return Metric(
        name=f"perplexity[{spec.source}]",
        value=value,
        unit="",
        better="lower",
        stderr=None if error is None else value * error,
        details={
            "source": spec.source,
            "digest": text.digest,
            "window": spec.window,
            "stride": text.stride,
            "windows": len(text.tokens),
            "bos": text.bos,
            "tokens_scored": sum(text.scored),
            "nll": mean,
            "per": "token",
        },
    )


@torch.no_grad()
def window_losses(lm: LoadedModel, text: Text, context: Context) -> Tensor:
    """Summed negative log likelihood of each window's tokens that count: [windows] float64."""
    total = torch.zeros(len(text.tokens), dtype=torch.float64)
    for number, batch in enumerate(batches(lm, text)):
        if number % context.ranks.count != context.ranks.rank:
            continue
        final = final_states(lm.layers, text.tokens[batch.start : batch.stop])
        starts = [text.scored_from[window] for window in batch]
        states = [final[row, start - 1 : -1] for row, start in enumerate(starts)]  # one earlier
        labels = [text.tokens[window, start:] for window, start in zip(batch, starts, strict=True)]
        losses = token_losses(lm.layers, torch.cat(states), torch.cat(labels).to(final.device))
        by_window = losses.cpu().double().split([len(row) for row in labels])
        for window, few in zip(batch, by_window, strict=True):
            total[window] = few.sum()
            if not bool(total[window].isfinite()):
                raise not_finite(lm.layers, text.tokens[window : window + 1], f"window {window}")
        context.step(batch.stop / len(text.tokens), f"Window {batch.stop} of {len(text.tokens)}")
    context.ranks.add(total)
    return total
