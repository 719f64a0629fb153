"""What each analysis does: of a model in memory, or of files. Next: `engine.py`, which asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from laco import corpora
from laco.changes import weight_change
from laco.context import Context
from laco.errors import RecipeError
from laco.evaluations import ParameterSimilarity, Similarity, WeightChange, WhatIf
from laco.lazy import LazyModel
from laco.lineage import origins
from laco.models import LoadedModel
from laco.recipe import Recipe
from laco.similarity import layer_similarity, parameter_similarity
from laco.store import RunStore
from laco.whatif import what_if

Report = dict[str, Any]


def _similarity(lm: LoadedModel, spec: Similarity, context: Context) -> Report:
    return layer_similarity(lm, corpora.windows(spec.calibration, lm.tokenizer), spec, context)


def _parameter_similarity(lm: LoadedModel, _spec: ParameterSimilarity, context: Context) -> Report:
    return parameter_similarity(lm, context)


def _what_if(lm: LoadedModel, spec: WhatIf, context: Context) -> Report:
    return what_if(lm, spec, corpora.windows(spec.calibration, lm.tokenizer), context)


IN_MEMORY: dict[type, Callable[..., Report]] = {
    Similarity: _similarity,
    ParameterSimilarity: _parameter_similarity,
    WhatIf: _what_if,
}


def changed_weights(
    recipe: Recipe,
    spec: WeightChange,
    store: RunStore,
    folder_of: Callable[[Recipe], Path],
    context: Context,
) -> Report:
    """How far the weights of a run are from another's, or from the original's, from the files."""
    other = Recipe(model=recipe.model)
    if spec.against is not None:
        artifact = store.artifact(spec.against)
        if artifact is None:
            raise RecipeError(f"The run {spec.against} is not in the store; compare with another.")
        other = artifact.recipe
    mine, theirs = (LazyModel(folder_of(one), one.model, context.device) for one in (recipe, other))
    origins_of = (
        _origins(recipe, len(mine.stack), store),
        _origins(other, len(theirs.stack), store),
    )
    return {"against": other.key, **weight_change(mine, theirs, origins_of, context)}


def _origins(recipe: Recipe, layers: int, store: RunStore) -> list[int]:
    """Which layer of the original each layer of a run began as."""
    artifact = store.artifact(recipe.key)
    reports = [step["report"] for step in artifact.steps] if artifact is not None else []
    return origins([report["kept"] for report in reports if "kept" in report], layers)
