"""Measure a model: one function for each kind of evaluation, and the table that names them.

What can be asked is described in `evaluations.py`; results are stored by `store.py`, of which
nothing here knows. Next: `perplexity.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laco.errors import RecipeError
from laco.evaluate.degeneration import degeneration
from laco.evaluate.divergence import divergence
from laco.evaluate.footprint import footprint
from laco.evaluate.latency import latency
from laco.evaluate.perplexity import perplexity
from laco.evaluate.zero_shot import zero_shot
from laco.evaluations import (
    Degeneration,
    Divergence,
    Evaluation,
    Footprint,
    Latency,
    Outcome,
    Perplexity,
    ZeroShot,
)
from laco.recipe import Spec

if TYPE_CHECKING:
    from laco.context import Context
    from laco.models import LoadedModel

Original = Callable[[], "LoadedModel"]
Evaluator = Callable[["LoadedModel", Any, "Context", Original, Path | None], Outcome]

EVALUATORS: dict[type[Spec], Evaluator] = {
    Perplexity: lambda lm, spec, context, *_: Outcome((perplexity(lm, spec, context),)),
    Divergence: lambda lm, spec, context, original, _folder: Outcome(
        (divergence(lm, spec, context, original),)
    ),
    Footprint: lambda lm, _spec, context, _original, folder: Outcome(
        footprint(lm, context, folder)
    ),
    ZeroShot: lambda lm, spec, context, *_: zero_shot(lm, spec, context),
    Latency: lambda lm, spec, context, *_: Outcome(latency(lm, spec, context)),
    Degeneration: lambda lm, spec, context, *_: Outcome(degeneration(lm, spec, context)),
}


def evaluate(
    lm: LoadedModel,
    spec: Evaluation,
    context: Context,
    original: Original | None = None,
    folder: Path | None = None,
) -> Outcome:
    """The metrics of one evaluation of `lm` as it stands, each with how it was measured.

    With them what was answered to each question, where questions were asked.

    `original` loads the model that `lm` was made from (unset: `lm` is untouched, its own
    original); `folder` is where `lm` is saved, if it is. Raises `LacoError`,
    also when there is no metric.
    """
    outcome = EVALUATORS[type(spec)](lm, spec, context, original or (lambda: lm), folder)
    if not outcome.metrics:
        raise RecipeError(
            f"The evaluation {spec.kind} gave no number; ask for more of it, or for another."
        )
    return outcome


def pinned(spec: Evaluation) -> Evaluation:
    """The spec with a digest of what it asks, where files or the harness may change that."""
    if not isinstance(spec, ZeroShot):
        return spec
    from laco.evaluate import questions  # brings the harness, which takes seconds

    return questions.pinned(spec)
