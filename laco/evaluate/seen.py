"""Whether what a model is measured on was in the text that its recipe's steps saw.

It puts both into words; what counts as the same is in `leaks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from laco import corpora
from laco.evaluate.text import cut
from laco.evaluations import Divergence, Metric, Perplexity
from laco.leaks import leaked
from laco.recipe import Calibration

if TYPE_CHECKING:
    from laco.evaluations import Evaluation, Outcome
    from laco.models import LoadedModel
    from laco.recipe import Recipe


class Shown:
    """The text that a recipe's steps saw, by its source; read when it is first asked for."""

    def __init__(self, recipe: Recipe, tokenizer: Any) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer

    @cached_property
    def texts(self) -> dict[str, list[str]]:
        """A window each, of every step."""
        found: dict[str, list[str]] = {}
        for step in self.recipe.steps:
            for part in (step, getattr(step, "compensation", None)):
                spec = getattr(part, "calibration", None)
                if isinstance(spec, Calibration):
                    held_out = getattr(part, "held_out", 0)
                    found.setdefault(spec.source, []).extend(
                        _windows(spec, held_out, self.tokenizer)
                    )
        return found


def guarded(
    lm: LoadedModel, shown: Shown, spec: Evaluation, outcome: Outcome
) -> tuple[Metric, ...]:
    """The outcome's metrics; their details say under `leak` how many items were seen before.

    `{"items", "of", "sources"}`, and nothing where no item was. An item is a question with its
    right answer, or a window of text.
    """
    asked = _items(lm, spec, outcome) if shown.recipe.steps else []
    if not asked:
        return outcome.metrics
    hits = {source: leaked(texts, asked) for source, texts in shown.texts.items()}
    count = sum(map(any, zip(*hits.values(), strict=True)))
    if not count:
        return outcome.metrics
    sources = [source for source, found in hits.items() if any(found)]
    leak = {"items": count, "of": len(asked), "sources": sources}
    return tuple(
        replace(metric, details={**metric.details, "leak": leak}) for metric in outcome.metrics
    )


def _windows(spec: Calibration, held_out: int, tokenizer: Any) -> list[str]:
    windows, _, _ = corpora.learning(spec, held_out, tokenizer)
    return [
        tokenizer.decode(row[:length])
        for row, length in zip(windows.tokens, windows.lengths.tolist(), strict=True)
    ]


def _items(lm: LoadedModel, spec: Evaluation, outcome: Outcome) -> list[str]:
    if outcome.answers:
        return [_question(answer) for answer in outcome.answers]
    if isinstance(spec, Perplexity):
        text = cut(lm, spec.source, spec.window, spec.windows, spec.stride, spec.bos)
    elif isinstance(spec, Divergence):
        text = cut(lm, spec.source, spec.window, spec.windows, None, spec.bos)
    else:
        return []
    return [lm.tokenizer.decode(row) for row in text.tokens]


def _question(answer: Mapping[str, Any]) -> str:
    choices, target = answer["choices"], answer["target"]
    known = isinstance(target, int) and 0 <= target < len(choices)
    return f"{answer['question']} {choices[target] if known else target}"
