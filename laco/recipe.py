"""What to do, as data.

A `Recipe` names a model and the steps that make it smaller. It is frozen, so it can be hashed,
stored, compared and sent to a worker. Nothing here imports torch. `evaluations.py` describes in
the same way what to measure; `engine.py` carries both out.

Keys form a chain: the key of a step covers its own parameters and the key of everything before
it. Two recipes that begin alike therefore share that part of the cache.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from laco.errors import RecipeError
from laco.spec import Calibration, ModelRef, Spec, complaints, digest, identity
from laco.steps.depth import (
    SENTENCES,
    THRESHOLDS,
    Collapse,
    Drop,
    Merge,
    Merging,
    Parameters,
    Span,
)
from laco.steps.recovery import Compensate, Finetune
from laco.steps.sparsity import Magnitude, Prune, SparseGPT, Structured, Wanda

__all__ = [
    "SENTENCES",
    "THRESHOLDS",
    "Calibration",
    "Collapse",
    "Compensate",
    "Drop",
    "Finetune",
    "Magnitude",
    "Merge",
    "Merging",
    "ModelRef",
    "Parameters",
    "Prune",
    "Recipe",
    "Span",
    "SparseGPT",
    "Spec",
    "Step",
    "Structured",
    "Wanda",
    "chained_key",
    "complaints",
    "identity",
    "parse_recipe",
]

Step = Annotated[
    Collapse | Merge | Drop | Prune | Compensate | Finetune, Field(discriminator="kind")
]


class Recipe(Spec):
    """A model and the steps to take, in order."""

    model: ModelRef
    steps: tuple[Step, ...] = ()

    def keys(self) -> list[str]:
        """Cache keys: of the untouched model first, then after each step."""
        keys = [digest({"model": _model_identity(self.model)})]
        for step in self.steps:
            keys.append(digest({"parent": keys[-1], "step": identity(step)}))
        return keys

    @property
    def key(self) -> str:
        """The key of what comes out."""
        return self.keys()[-1]

    def then(self, *steps: Step) -> Recipe:
        """The same recipe with more steps at its end."""
        return Recipe(model=self.model, steps=(*self.steps, *steps))


def chained_key(parent: str, spec: Spec) -> str:
    """The key of something that `spec` makes out of what `parent` names (an evaluation, say)."""
    return digest({"parent": parent, "of": type(spec).__name__, "spec": identity(spec)})


def parse_recipe(document: Any) -> Recipe:
    """A recipe from a JSON document (text or data). Raises `RecipeError` naming each bad field."""
    try:
        if isinstance(document, str | bytes):
            return Recipe.model_validate_json(document)
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"The recipe cannot be read: {complaints(error)}.") from None


def _model_identity(model: ModelRef) -> dict[str, Any]:
    """A model pinned by its content is the same wherever its folder lies."""
    same = identity(model)
    if model.revision.startswith("content:"):
        del same["path"]
    return same
