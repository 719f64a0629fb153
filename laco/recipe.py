"""What to do, as data.

A `Recipe` names a model and the steps that make it smaller. It is frozen, so it can be hashed,
stored, compared and sent to a worker. Nothing here imports torch. `evaluations.py` describes in
the same way what to measure; `engine.py` carries both out.

Keys form a chain: the key of a step covers its own parameters and the key of everything before
it. Two recipes that begin alike therefore share that part of the cache.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from laco.errors import RecipeError

Merging = Literal["rdsc", "telescoped", "mean", "drop"]
Parameters = Literal["projections", "all"]
Span = tuple[int, int]


class Spec(BaseModel):
    """Base of every description: frozen, strict about unknown fields, hashable.

    `version` is part of every key. Raise it when the same parameters start to mean something
    else, or when a default changes; an added optional parameter leaves all keys as they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    version: ClassVar[int] = 1


class ModelRef(Spec):
    """A causal language model, and the number format to hold it in.

    A reference is *pinned* (`models.pin`) before it gets a key: then `revision` is a commit, a
    package version or `content:HASH`, and `dtype` is no longer `auto`.
    """

    path: str = Field(
        description="`bundled:smollm2-135m`, a hub id, a folder, a .gguf file, or a result's key"
    )
    revision: str = Field(default="main", description="Branch, tag or commit on the hub")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="auto: as the checkpoint says; float16 on a CPU is refused",
    )
    trust_remote_code: bool = Field(
        default=False, description="Run Python code that comes with this model"
    )


class Calibration(Spec):
    """The tokens that a method looks at."""

    source: str = Field(default="bundled:wikipedia@calibration", description="Where text is from")
    windows: int = Field(default=8, ge=1, le=65536, description="Number of windows")
    length: int = Field(default=256, ge=2, le=131072, description="Tokens in each window")
    unit: Literal["window", "sentence"] = Field(
        default="window",
        description="window: cut from the running text; sentence: the first of a document each",
    )
    seed: int = Field(default=0, ge=0, description="Which windows are drawn")


SENTENCES = Calibration(windows=10, length=32, unit="sentence")
THRESHOLDS = {"cosine": 0.65, "kl": 0.5, "perplexity": 1.5}  # by objective, when none is given


class Collapse(Spec):
    """Search for neighbouring layers that can become one, and merge them (LaCo).

    `top_down` is the paper's Algorithm 1. `best_first` tries every start and takes the best.
    `influence` removes the layers of least influence (ShortGPT), `angular` the contiguous block
    with the least angle between its two ends (Gromov et al.); both look at the model once.
    """

    kind: Literal["collapse"] = "collapse"
    order: Literal["best_first", "top_down", "influence", "angular"] = Field(
        default="best_first",
        description="How candidates are tried; giving an `interval` chooses top_down",
    )
    objective: Literal["kl", "cosine", "perplexity"] = Field(
        default="kl",
        description="What a candidate is judged by, against the original (top_down: cosine)",
    )
    span: int = Field(default=2, ge=2, le=64, description="C: layers that become one (top_down: 4)")
    interval: int = Field(
        default=2, ge=1, le=64, description="I: layers to move down after a merge (top_down)"
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        description="T: least cosine, most KL in nats, or most perplexity over the original's",
    )
    target_layers: int | None = Field(default=None, ge=1, description="Stop at this many layers")
    target_share: float | None = Field(
        default=None, gt=0, lt=1, description="Stop at this share of the layers"
    )
    merge: Merging = Field(default="drop", description="Which weights the surviving layer gets")
    parameters: Parameters = Field(
        default="all", description="Which parameters merge (telescoped: projections)"
    )
    lowest: int = Field(default=0, ge=0, description="L: first layer that a window may start at")
    highest: int | None = Field(
        default=None,
        ge=1,
        description="H: windows stay below this layer at the start; unset: the last layer",
    )
    cosine_over: Literal["window", "token"] = Field(
        default="window",
        description="window: one cosine of the flattened states each; token: mean over tokens",
    )
    calibration: Calibration = Field(
        default=Calibration(windows=4), description="Text that candidates are judged on"
    )

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, given: Any) -> Any:
        """Fill in what depends on another field, so that the recipe says what is done."""
        if not isinstance(given, dict):
            return given
        settled = dict(cast("dict[str, Any]", given))
        if "interval" in settled and "order" not in settled:
            settled["order"] = "top_down"
        if settled.get("order") == "top_down":
            settled.setdefault("objective", "cosine")
            settled.setdefault("span", 4)
            settled.setdefault("calibration", SENTENCES)
        elif settled.get("order") in ("influence", "angular"):
            settled.setdefault("calibration", Calibration(windows=16))
        if settled.get("merge") == "telescoped":
            settled.setdefault("parameters", "projections")
        return settled

    @model_validator(mode="after")
    def _check(self) -> Collapse:
        if self.target_layers is not None and self.target_share is not None:
            raise ValueError("give target_layers or target_share, not both")
        if self.highest is not None and self.highest <= self.lowest:
            raise ValueError(f"highest ({self.highest}) must lie above lowest ({self.lowest})")
        if self.order in ("influence", "angular"):
            if self.target_layers is None and self.target_share is None:
                raise ValueError(f"order {self.order} needs target_layers or target_share")
            if self.threshold is not None:
                raise ValueError(f"order {self.order} looks once and takes no threshold")
        if self.threshold is not None and self.objective == "cosine" and self.threshold > 1:
            raise ValueError("threshold: a cosine is at most 1")
        return self


class Merge(Spec):
    """Merge given spans of layers, each into its first layer.

    A span is `[start, stop)` in the indices of the model as this step finds it. Spans are taken
    in order; a later one either contains an earlier one whole (it merges what that one made) or
    lies beside it. A collapse's plan, written down, is such a step.
    """

    kind: Literal["merge"] = "merge"
    spans: tuple[Span, ...] = Field(min_length=1, description="[start, stop) pairs, 0-based")
    merge: Merging = Field(default="drop", description="Which weights the surviving layer gets")
    parameters: Parameters = Field(
        default="all", description="Which parameters merge (telescoped: projections)"
    )

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        settled = dict(cast("dict[str, Any]", given))
        if settled.get("merge") == "telescoped":
            settled.setdefault("parameters", "projections")
        return settled

    @model_validator(mode="after")
    def _check(self) -> Merge:
        for index, (start, stop) in enumerate(self.spans):
            if start < 0 or stop - start < 2:
                raise ValueError(
                    f"span [{start}, {stop}) is empty, inverted or a single layer; "
                    "a span needs 0 <= start and stop >= start + 2"
                )
            for a, b in self.spans[:index]:
                if not (stop <= a or b <= start or (start <= a and b <= stop)):
                    raise ValueError(
                        f"span [{start}, {stop}) cuts through [{a}, {b}) before it; "
                        "a later span contains an earlier one or lies beside it"
                    )
        return self


class Drop(Spec):
    """Remove given layers; the others stay as they are."""

    kind: Literal["drop"] = "drop"
    layers: tuple[int, ...] = Field(min_length=1, description="Layers that go, 0-based")

    @model_validator(mode="after")
    def _check(self) -> Drop:
        if min(self.layers) < 0 or len(set(self.layers)) != len(self.layers):
            raise ValueError("layers: each must be 0 or more, and stand there once")
        return self


Step = Annotated[Collapse | Merge | Drop, Field(discriminator="kind")]


class Recipe(Spec):
    """A model and the steps to take, in order."""

    model: ModelRef
    steps: tuple[Step, ...] = ()

    def keys(self) -> list[str]:
        """Cache keys: of the untouched model first, then after each step."""
        keys = [_digest({"model": _model_identity(self.model)})]
        for step in self.steps:
            keys.append(_digest({"parent": keys[-1], "step": identity(step)}))
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
    return _digest({"parent": parent, "of": type(spec).__name__, "spec": identity(spec)})


def identity(spec: Spec) -> dict[str, Any]:
    """What makes two specs the same: every field that differs from its default, and the version."""
    fields = type(spec).model_fields
    changed = {
        name: _plain(getattr(spec, name))
        for name in fields
        if name == "kind" or getattr(spec, name) != fields[name].default
    }
    return {**changed, "version": spec.version}


def parse_recipe(document: Any) -> Recipe:
    """A recipe from a JSON document (text or data). Raises `RecipeError` naming each bad field."""
    try:
        if isinstance(document, str | bytes):
            return Recipe.model_validate_json(document)
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"The recipe cannot be read: {complaints(error)}.") from None


def complaints(error: ValidationError) -> str:
    """What pydantic found, in one line: where and why, for each field."""
    found: list[str] = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(str(part) for part in item["loc"])
        reason = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            reason = "there is no such field"
        found.append(f"{place}: {reason}" if place else reason)
    return "; ".join(found)


def _plain(value: Any) -> Any:
    if isinstance(value, Spec):
        return identity(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return value


def _model_identity(model: ModelRef) -> dict[str, Any]:
    """A model pinned by its content is the same wherever its folder lies."""
    same = identity(model)
    if model.revision.startswith("content:"):
        del same["path"]
    return same


def _digest(document: dict[str, Any]) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "k1-" + hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()
