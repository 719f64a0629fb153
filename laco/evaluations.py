"""What can be measured of a model, as data, and what a measurement gives.

`Evaluation`s end in numbers with a direction (`Metric`); `Analysis` ends in a document that a
page draws. A `Request` is what a job carries out: a recipe, then these. No torch here; the work
is in `evaluate/`, `similarity.py` and `collapse.py`. Next: `engine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from laco.recipe import Calibration, Recipe, Spec

HELD_OUT = "bundled:wikipedia@heldout"


class Perplexity(Spec):
    """Token perplexity over a running text, cut into windows."""

    kind: Literal["perplexity"] = "perplexity"
    source: str = Field(default=HELD_OUT, description="Where text is from")
    window: int = Field(default=512, ge=2, le=131072, description="Tokens that the model sees")
    stride: int | None = Field(
        default=None, ge=1, description="Tokens between window starts; unset: the window"
    )
    windows: int | None = Field(
        default=32, ge=1, description="Windows at most, from the start of the text; unset: all"
    )
    bos: Literal["tokenizer", "always", "never"] = Field(
        default="tokenizer",
        description="Put the BOS token before each window: as the tokenizer does by itself, or not",
    )


class Divergence(Spec):
    """Mean KL divergence per token from the original model's next-token distribution, in nats."""

    kind: Literal["divergence"] = "divergence"
    source: str = Field(default=HELD_OUT, description="Where text is from")
    window: int = Field(default=512, ge=2, le=131072, description="Tokens that the model sees")
    windows: int = Field(default=8, ge=1, description="Windows, from the start of the text")
    bos: Literal["tokenizer", "always", "never"] = Field(
        default="tokenizer", description="As in Perplexity"
    )


class Footprint(Spec):
    """Layers, parameters, zeros, and bytes on disk."""

    kind: Literal["footprint"] = "footprint"


Evaluation = Annotated[Perplexity | Divergence | Footprint, Field(discriminator="kind")]


class Similarity(Spec):
    """How alike hidden states are between depths: every measure at once, in one pass."""

    kind: Literal["similarity"] = "similarity"
    calibration: Calibration = Field(
        default=Calibration(windows=16), description="Text that the model is shown"
    )
    tokens: Literal["skip_first", "all", "last"] = Field(
        default="skip_first",
        description="Which tokens count; the first of a window often has a huge norm",
    )
    shards: int = Field(
        default=4, ge=1, le=64, description="Parts of the text that the spread is taken over"
    )


class ParameterSimilarity(Spec):
    """How alike the weights of the same linear are between layers (LaCo's motivation)."""

    kind: Literal["parameter_similarity"] = "parameter_similarity"


class WhatIf(Spec):
    """Similarity and KL of the model with one span collapsed, for every start and length."""

    kind: Literal["what_if"] = "what_if"
    longest: int = Field(default=8, ge=2, le=64, description="Longest span to try, in layers")
    merge: Literal["rdsc", "telescoped", "mean", "drop"] = Field(
        default="drop", description="Which weights the surviving layer gets"
    )
    calibration: Calibration = Field(
        default=Calibration(windows=2), description="Text that candidates are judged on"
    )


Analysis = Annotated[Similarity | ParameterSimilarity | WhatIf, Field(discriminator="kind")]


class Request(Spec):
    """What one job does: carry out a recipe, then measure and analyse what came out."""

    recipe: Recipe
    evaluations: tuple[Evaluation, ...] = ()
    analyses: tuple[Analysis, ...] = ()


@dataclass(frozen=True)
class Metric:
    """One number with its direction. `details` says how it was measured."""

    name: str
    value: float
    unit: str
    better: Literal["lower", "higher"]
    stderr: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def document(self) -> dict[str, Any]:
        """The metric as JSON data."""
        return {**asdict(self), "details": dict(self.details)}
