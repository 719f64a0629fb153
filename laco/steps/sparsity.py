"""Steps that set weights to zero, or take channels and heads away.

What they do is in `prune/`. Next: `recovery.py`, which brings the model back afterwards.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from laco.spec import Calibration, Spec
from laco.steps.recovery import Compensate

UNSTRUCTURED = "unstructured"
DIGITS = 9  # so that 10 x (1 - 0.3) is 7
_PATTERN = re.compile(r"(\d+):(\d+)")


def pattern_of(pattern: str) -> tuple[int, int] | None:
    """(kept, of how many) of a pattern `n:m`, or None for `unstructured`. ValueError for neither.

    2:4 keeps two of every four neighbours in a row of weights, as NVIDIA's sparse cores want them.
    """
    if pattern == UNSTRUCTURED:
        return None
    found = _PATTERN.fullmatch(pattern)
    if found is None or not 0 < int(found[1]) < int(found[2]):
        raise ValueError(
            f"pattern {pattern!r} is neither {UNSTRUCTURED!r} nor n:m with 0 < n < m, such as 2:4"
        )
    return int(found[1]), int(found[2])


class Sparse(Spec):
    """What the methods that zero single weights share."""

    sparsity: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="Share of the weights in the layers' linears that become zero",
    )
    pattern: str = Field(
        default=UNSTRUCTURED,
        description="unstructured, or n:m: n weights stay of every m neighbours (2:4, 4:8)",
    )

    @classmethod
    def settle(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """A pattern n:m says the sparsity by itself."""
        pattern = fields.get("pattern", UNSTRUCTURED)
        if isinstance(pattern, str) and (ratio := pattern_of(pattern)) is not None:
            fields.setdefault("sparsity", 1 - ratio[0] / ratio[1])
        return fields

    @model_validator(mode="after")
    def _check(self) -> Sparse:
        ratio = pattern_of(self.pattern)
        if ratio is not None and abs(self.sparsity - (1 - ratio[0] / ratio[1])) > 1e-9:
            raise ValueError(
                f"pattern {self.pattern} zeroes {1 - ratio[0] / ratio[1]:g} of the weights, and "
                f"sparsity says {self.sparsity:g}; give one of them"
            )
        return self


class Magnitude(Sparse):
    """The smallest weights of each matrix go. Looks at no text."""

    kind: Literal["magnitude"] = "magnitude"


class Wanda(Sparse):
    """In each row, the weights with the least |weight| x norm of their input go."""

    kind: Literal["wanda"] = "wanda"


class SparseGPT(Sparse):
    """Weights go column by column, and those that stay make up for them (optimal brain surgeon)."""

    kind: Literal["sparsegpt"] = "sparsegpt"
    damping: float = Field(
        default=0.01, gt=0, description="Added to the Hessian, times its mean diagonal"
    )
    block: int = Field(default=128, ge=1, description="Columns handled at a time")


class Structured(Spec):
    """Narrower layers: MLP channels and groups of attention heads go, as many in every layer."""

    kind: Literal["structured"] = "structured"
    importance: Literal["flap", "taylor", "magnitude"] = Field(
        default="flap",
        description="flap: how much a channel's output varies; taylor: weight x gradient; "
        "magnitude: norm of the weights",
    )
    channels: float = Field(default=0.2, ge=0, lt=1, description="Share of MLP channels that go")
    groups: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the groups of attention heads with one key and value that go",
    )
    multiple: int = Field(
        default=32, ge=1, description="The MLP width left is rounded to a multiple of this"
    )

    @model_validator(mode="after")
    def _check(self) -> Structured:
        if not self.channels and not self.groups:
            raise ValueError("channels and groups are both 0, so nothing would go; raise one")
        return self


def units_left(count: int, share: float, multiple: int) -> int:
    """What is left of `count` when `share` goes: the nearest multiple, which may be none or all."""
    most = count // multiple * multiple
    return min(most, math.floor(round(count * (1 - share), DIGITS) / multiple + 0.5) * multiple)


Method = Annotated[Magnitude | Wanda | SparseGPT | Structured, Field(discriminator="kind")]


STATISTICS = Calibration(windows=32)


class Prune(Spec):
    """Set weights of every layer's linears to zero, or make the layers narrower."""

    kind: Literal["prune"] = "prune"
    method: Method = Field(default=Wanda(), description="What decides which weights go")
    allocation: Literal["uniform", "sensitivity"] = Field(
        default="uniform",
        description="uniform: the same sparsity in every layer; sensitivity: less where the "
        "layer's error grows faster",
    )
    calibration: Calibration = Field(
        default=STATISTICS,
        description="Text that the method's statistics are from (with a compensation: its text)",
    )
    compensation: Compensate | None = Field(
        default=None,
        description="Compensate each layer as soon as it is pruned, in the same walk",
    )

    @classmethod
    def settle(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """With a compensation, statistics are from its text, on the stream that it mends."""
        repair = fields.get("compensation")
        if repair is not None and fields.get("calibration") in (None, STATISTICS):
            fields["calibration"] = Compensate.model_validate(repair).calibration
        return fields

    @model_validator(mode="after")
    def _check(self) -> Prune:
        if self.compensation is not None and self.calibration != self.compensation.calibration:
            raise ValueError(
                "calibration: a prune that compensates looks at the compensation's text; leave "
                "it, or give the same"
            )
        sparse = isinstance(self.method, Sparse)
        if self.allocation == "sensitivity" and not sparse:
            raise ValueError("structured widths are the same in every layer; leave allocation")
        if self.allocation == "sensitivity" and getattr(self.method, "pattern", "") != UNSTRUCTURED:
            raise ValueError("a pattern n:m fixes the sparsity of every layer; leave allocation")
        return self
