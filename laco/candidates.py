"""Score a stack with one span merged against the original model, running only what changed.

`Trials` keeps the hidden state at every depth of the stack as it stands. A candidate that merges
layers from `index` on starts at that depth, so everything below is never run again, and the
original's answers are computed once. It does not choose candidates; `collapse.py` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor

from laco.corpora import Windows
from laco.errors import NumericalError
from laco.head import cross_entropies, token_losses, vocabulary_tiles
from laco.layers import LayerStack
from laco.merging import Group, groups_of
from laco.models import LoadedModel
from laco.walk import Tape, final_hidden, record

BATCH = 256  # tokens run at once: they fill a few cores, and a poor candidate ends after the first
HIGHER_IS_BETTER = {"cosine": True, "kl": False, "perplexity": False}
MOST_NATS = 700.0  # exp overflows beyond


@dataclass(frozen=True)
class _Reference:
    """What the original model says of one batch of windows."""

    tape: Tape
    counted: Tensor  # [batch, seq] bool: False where a sentence is padded
    final: Tensor  # [batch, seq, hidden], after the final norm
    probabilities: Tensor | None  # [tokens, vocab] float32, for kl alone
    negentropy: float  # Σ_tokens Σ_v p log p, for kl alone
    nll: float  # summed over predicted tokens, for perplexity alone
    best: dict[str, float]  # the most (cosine) or least that a candidate's contribution can be


class Scores(NamedTuple):
    """Each objective's value; not `exact` when the candidate was given up, and may be worse yet."""

    values: dict[str, float]
    exact: bool


def counted_tokens(windows: Windows, start: int, rows: int) -> Tensor:
    """Which tokens of windows `[start, start + rows)` are not padding: [rows, length] bool."""
    positions = torch.arange(windows.tokens.shape[1])
    return positions[None] < windows.lengths[start : start + rows, None]


class Trials:
    """A stack being collapsed, and the score that any candidate would have.

    Scores are against the model as it was when `Trials` was made:
    - `cosine`: mean over windows of the cosine of the flattened final hidden states, or over
      tokens with `cosine_over="token"`
    - `kl`: mean over tokens of KL(original || candidate), in nats
    - `perplexity`: the candidate's perplexity over the original's

    Memory: hidden states of the calibration tokens at every depth, and for `kl` the original's
    next-token probabilities, tokens × vocabulary × 4 bytes.
    """

    def __init__(
        self,
        lm: LoadedModel,
        windows: Windows,
        objectives: Sequence[str],
        cosine_over: str = "window",
    ) -> None:
        self.stack: LayerStack = lm.layers
        self.objectives = tuple(objectives)
        self.cosine_over = cosine_over
        self._original = groups_of(lm.layers)
        self.groups: tuple[Group, ...] = self._original
        self._counts = dict.fromkeys(HIGHER_IS_BETTER, 0.0)  # what each total is divided by
        self._references: list[_Reference] = []
        self._states: list[list[Tensor]] = []  # per batch, per depth known: [batch, seq, hidden]
        rows = lm.rows(BATCH, windows.tokens.shape[1])
        for start in range(0, len(windows.tokens), rows):
            self._add(windows.tokens[start : start + rows], counted_tokens(windows, start, rows))

    def score(self, index: int, length: int, merged: Group, rival: float | None = None) -> Scores:
        """Each objective with the groups `[index, index + length)` replaced by `merged`.

        Given the score of a `rival`, a candidate is left as soon as it cannot beat it any more,
        whatever the text still to come: no KL and no token's surprise is below 0, no cosine
        above 1. Its values are then what it could have reached at best.
        """
        totals = {
            name: sum(reference.best[name] for reference in self._references)
            for name in self.objectives
        }
        values: dict[str, float] = {}
        batches = list(zip(self._references, self._states, strict=True))
        for number, (reference, states) in enumerate(batches, start=1):
            tape = reference.tape
            hidden = tape.run(merged.layer, merged.start, self._state(tape, states, index))
            for group in self.groups[index + length :]:
                hidden = tape.run(group.layer, group.start, hidden)
            final = final_hidden(self.stack, tape, hidden)
            for name in self.objectives:
                totals[name] += self._compare(name, reference, final) - reference.best[name]
            values = {name: self._mean(name, total) for name, total in totals.items()}
            for name, value in values.items():
                if not math.isfinite(value):
                    raise NumericalError(
                        f"The {name} of layers [{merged.start}, {merged.stop}) merged is not "
                        "finite; hold the model in float32 or bfloat16, or leave them out."
                    )
            if rival is not None and number < len(batches):
                value = values[self.objectives[0]]
                higher = HIGHER_IS_BETTER[self.objectives[0]]
                if value < rival if higher else value > rival:
                    return Scores(values, exact=False)
        return Scores(values, exact=True)

    def accept(self, index: int, length: int, merged: Group) -> None:
        """Make a candidate the stack that later ones start from."""
        self.groups = (*self.groups[:index], merged, *self.groups[index + length :])
        for states in self._states:
            del states[index + 1 :]

    def restart(self) -> None:
        """Take all merges back."""
        same = [ours is theirs for ours, theirs in zip(self.groups, self._original, strict=False)]
        unchanged = same.index(False) if False in same else len(self.groups)
        for states in self._states:
            del states[unchanged + 1 :]
        self.groups = self._original

    def _add(self, tokens: Tensor, counted: Tensor) -> None:
        tape = record(self.stack, tokens)
        counted = counted.to(tape.inputs.device)
        states = [tape.inputs]
        final = final_hidden(self.stack, tape, self._state(tape, states, len(self.groups)))
        probabilities, negentropy, nll = None, 0.0, 0.0
        if "kl" in self.objectives:
            tiles = [scores for _, scores in vocabulary_tiles(self.stack, final[counted])]
            log_p = torch.cat(tiles, dim=1).log_softmax(-1)  # [tokens, vocab]
            probabilities = log_p.exp()
            negentropy = _total(probabilities * log_p)
        if "perplexity" in self.objectives:
            nll = self._nll(tape.tokens, counted, final)
        per_window = self.cosine_over == "window"
        most = float(len(tokens) if per_window else counted.sum())
        best = {"cosine": most, "kl": 0.0, "perplexity": -nll}
        self._references.append(
            _Reference(tape, counted, final, probabilities, negentropy, nll, best)
        )
        self._states.append(states)
        self._counts["cosine"] += most
        self._counts["kl"] += float(counted.sum())
        self._counts["perplexity"] += float(counted[:, 1:].sum())

    def _state(self, tape: Tape, states: list[Tensor], depth: int) -> Tensor:
        """The hidden state that the group at `depth` is fed; computed when first asked for."""
        while len(states) <= depth:
            group = self.groups[len(states) - 1]
            states.append(tape.run(group.layer, group.start, states[-1]))
        return states[depth]

    def _mean(self, objective: str, total: float) -> float:
        mean = total / self._counts[objective]
        if objective != "perplexity":
            return mean
        return math.exp(mean) if mean < MOST_NATS else math.inf

    def _compare(self, objective: str, reference: _Reference, final: Tensor) -> float:
        """One batch's contribution to an objective, summed over windows or tokens."""
        if objective == "cosine":
            return self._cosine(reference, final)
        if objective == "perplexity":
            return self._nll(reference.tape.tokens, reference.counted, final) - reference.nll
        assert reference.probabilities is not None
        states = final[reference.counted]  # [tokens, hidden]
        crossed = cross_entropies(self.stack, states, reference.probabilities)
        return reference.negentropy + _total(crossed)

    def _cosine(self, reference: _Reference, final: Tensor) -> float:
        mask = reference.counted[..., None]
        ours, theirs = final.float() * mask, reference.final.float() * mask
        if self.cosine_over == "window":
            return float(F.cosine_similarity(ours.flatten(1), theirs.flatten(1), dim=1).sum())
        return float((F.cosine_similarity(ours, theirs, dim=2) * reference.counted).sum())

    def _nll(self, tokens: Tensor, counted: Tensor, final: Tensor) -> float:
        """Negative log-likelihood of every token but the first of its window, summed."""
        follows = counted[:, 1:]
        targets = tokens.to(final.device)[:, 1:][follows]
        return _total(token_losses(self.stack, final[:, :-1][follows], targets))


def _total(values: Tensor) -> float:
    """The sum in double precision; row by row first, since Apple's GPUs have no float64."""
    rows = values.sum(-1) if values.dim() > 1 else values
    return float(rows.cpu().double().sum())
