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
from laco.spec import MOST_SEED, Name

HELD_OUT = "bundled:wikipedia@heldout"


class Perplexity(Spec):
    """Token perplexity over a running text, cut into windows."""

    kind: Literal["perplexity"] = "perplexity"
    source: Name = Field(default=HELD_OUT, description="Where text is from")
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
    source: Name = Field(default=HELD_OUT, description="Where text is from")
    window: int = Field(default=512, ge=2, le=131072, description="Tokens that the model sees")
    windows: int = Field(default=8, ge=1, description="Windows, from the start of the text")
    bos: Literal["tokenizer", "always", "never"] = Field(
        default="tokenizer", description="As in Perplexity"
    )


class Footprint(Spec):
    """Layers, parameters, zeros, bytes on disk, and the memory that reading 512 tokens takes."""

    kind: Literal["footprint"] = "footprint"


class ZeroShot(Spec):
    """Accuracy on a task of lm-evaluation-harness, with its stock prompt and metrics."""

    kind: Literal["zero_shot"] = "zero_shot"
    task: Name = Field(
        default="hellaswag",
        min_length=1,
        description="A task or a group of tasks by the harness's name, or a task's own YAML file",
    )
    data: Name = Field(
        default="bundled",
        pattern=r"^(bundled|hub|file:.+)$",
        description="Where questions are from: bundled, hub, or file: and a folder",
    )
    shots: int = Field(default=0, ge=0, le=64, description="Solved examples before each question")
    limit: int | None = Field(
        default=200, ge=1, description="Questions at most, from the first on; unset: all"
    )
    seed: int = Field(
        default=0, ge=0, le=MOST_SEED, description="Which examples are shown before a question"
    )
    pinned: str | None = Field(
        default=None,
        description="Digest of questions, prompt and harness; filled in before the work",
    )


class Latency(Spec):
    """How fast a model reads a prompt and writes after it, one text at a time and several."""

    kind: Literal["latency"] = "latency"
    prompt: int = Field(default=128, ge=1, le=131072, description="Tokens that are read at once")
    generate: int = Field(
        default=32, ge=1, le=8192, description="Tokens that are written after it, one by one"
    )
    batch: int = Field(
        default=4, ge=1, le=1024, description="Texts at once, in the second pair of numbers"
    )
    repeats: int = Field(
        default=5, ge=1, le=1000, description="Timed runs of each, after one that is not timed"
    )


class Degeneration(Spec):
    """Share of eight prompts that the model cannot go on from: empty, in a loop, not finite."""

    kind: Literal["degeneration"] = "degeneration"
    tokens: int = Field(
        default=48, ge=4, le=4096, description="Tokens written after each prompt, at most"
    )


Evaluation = Annotated[
    Perplexity | Divergence | Footprint | ZeroShot | Latency | Degeneration,
    Field(discriminator="kind"),
]


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


class WeightChange(Spec):
    """How far the weights of each layer are from another run's: ‖a − b‖ / ‖b‖, from the files."""

    kind: Literal["weight_change"] = "weight_change"
    against: Name | None = Field(
        default=None,
        pattern=r"^k1-[0-9a-f]{32}$",
        description="The key of the other run, of the same original; unset: the original itself",
    )


Analysis = Annotated[
    Similarity | ParameterSimilarity | WhatIf | WeightChange, Field(discriminator="kind")
]


class Export(Spec):
    """The result as a folder that stock transformers loads, checked before it is put in place."""

    folder: Name = Field(
        min_length=1,
        max_length=4096,
        description="Where to: a folder that is not there yet, or is empty",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Number format of the weights; auto: as the result has them"
    )


class Request(Spec):
    """What one job does: carry out a recipe, then measure, analyse and export what came out."""

    recipe: Recipe
    evaluations: tuple[Evaluation, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    export: Export | None = None


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


@dataclass(frozen=True)
class Outcome:
    """What an evaluation gives: its metrics, and what was answered to each question, if any were.

    An answer is JSON data: `id`, `question`, `choices`, `target` and `picked` (places among the
    choices, or texts where there are none), `log_likelihoods`, and each metric of the question.
    """

    metrics: tuple[Metric, ...]
    answers: tuple[dict[str, Any], ...] = ()
