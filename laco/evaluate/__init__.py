"""Measure a model: one function for each kind of evaluation, and the table that names them.

What can be asked is described in `evaluations.py`; results are stored by `store.py`, of which
nothing here knows. Next: `perplexity.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laco.evaluate.divergence import divergence
from laco.evaluate.footprint import footprint
from laco.evaluate.perplexity import perplexity
from laco.evaluations import Divergence, Evaluation, Footprint, Metric, Perplexity
from laco.recipe import Spec

if TYPE_CHECKING:
    from laco.context import Context
    from laco.models import LoadedModel

Original = Callable[[], "LoadedModel"]
Evaluator = Callable[["LoadedModel", Any, "Context", Original, Path | None], tuple[Metric, ...]]

EVALUATORS: dict[type[Spec], Evaluator] = {
    Perplexity: lambda lm, spec, context, _original, _folder: (perplexity(lm, spec, context),),
    Divergence: lambda lm, spec, context, original, _folder: (
        divergence(lm, spec, context, original),
    ),
    Footprint: lambda lm, _spec, context, _original, folder: footprint(lm, context, folder),
}


def evaluate(
    lm: LoadedModel,
    spec: Evaluation,
    context: Context,
    original: Original | None = None,
    folder: Path | None = None,
) -> tuple[Metric, ...]:
    """The metrics of one evaluation of `lm` as it stands, each with how it was measured.

    `original` loads the model that `lm` was made from (unset: `lm` is untouched, its own
    original); `folder` is where `lm` is saved, if it is. Raises `LacoError`.
    """
    return EVALUATORS[type(spec)](lm, spec, context, original or (lambda: lm), folder)
