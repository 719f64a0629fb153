"""Steps that change how many layers there are: collapse by search, merge given spans, drop.

What they do is in `collapse.py` and `merging.py`. Next: `sparsity.py`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from laco.spec import Calibration, Spec

Merging = Literal["rdsc", "telescoped", "mean", "drop"]
Parameters = Literal["projections", "all"]
Span = tuple[int, int]

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

    @classmethod
    def settle(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Fill in what depends on another field, so that the recipe says what is done."""
        if "interval" in fields and "order" not in fields:
            fields["order"] = "top_down"
        if fields.get("order") == "top_down":
            fields.setdefault("objective", "cosine")
            fields.setdefault("span", 4)
            fields.setdefault("calibration", SENTENCES)
        elif fields.get("order") in ("influence", "angular"):
            fields.setdefault("calibration", Calibration(windows=16))
        if fields.get("merge") == "telescoped":
            fields.setdefault("parameters", "projections")
        return fields

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

    @classmethod
    def settle(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if fields.get("merge") == "telescoped":
            fields.setdefault("parameters", "projections")
        return fields

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
