"""Rank layers, and blocks of layers, by one look at the model's hidden states.

These are the criteria of ShortGPT and of Gromov et al., for collapses that do not search. It
does not decide what goes; `collapse.py` does. The full map of all depths is `similarity.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor

from laco.candidates import BATCH, counted_tokens
from laco.context import Context
from laco.corpora import Windows
from laco.models import LoadedModel
from laco.walk import record


def layer_influence(lm: LoadedModel, windows: Windows, context: Context) -> list[float]:
    """ShortGPT's block influence of each layer k: 1 − E cos(h_k, h_k+1) (arXiv:2403.03853)."""
    sums = torch.zeros(len(lm.layers), dtype=torch.float64)
    total = 0
    for states, counted in _states(lm, windows, context):
        for k in range(len(lm.layers)):
            cosine = F.cosine_similarity(states[k].float(), states[k + 1].float(), dim=-1)
            sums[k] += cosine[counted].double().sum().cpu()
        total += int(counted.sum())
    return (1 - sums / total).tolist()


def block_angles(lm: LoadedModel, windows: Windows, length: int, context: Context) -> list[float]:
    """The angle between the two ends of every block of `length` layers, by its first layer.

    arccos(cos(h_l, h_l+n)) / π at each window's last token, averaged over windows, as Gromov et
    al. do (arXiv:2403.17887). 0: the block changes no direction; 1: it turns them round.
    """
    sums = torch.zeros(len(lm.layers) - length + 1, dtype=torch.float64)
    for states, counted in _states(lm, windows, context):
        rows = torch.arange(len(counted), device=counted.device)
        last = counted.sum(1) - 1  # [batch]
        for start in range(len(sums)):
            enters, leaves = states[start][rows, last], states[start + length][rows, last]
            cosine = F.cosine_similarity(enters.float(), leaves.float(), dim=-1).clamp(-1, 1)
            sums[start] += (cosine.arccos() / torch.pi).double().sum().cpu()
    return (sums / len(windows.tokens)).tolist()


def _states(
    lm: LoadedModel, windows: Windows, context: Context
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Per batch: the hidden state at each depth [batch, seq, hidden], and which tokens count."""
    rows = lm.rows(BATCH, windows.tokens.shape[1])
    for start in range(0, len(windows.tokens), rows):
        context.step(start / len(windows.tokens), f"window {start} of {len(windows.tokens)}")
        tape = record(lm.layers, windows.tokens[start : start + rows])
        states = [tape.inputs]
        for index, layer in enumerate(lm.layers):
            states.append(tape.run(layer, index, states[-1]))
        yield states, counted_tokens(windows, start, rows).to(tape.inputs.device)
