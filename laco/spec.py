"""The base of every description, and the two that all others use: a model, and text for it.

A description is frozen data with bounds and help, which forms and the command line are drawn from.
It does not know what is done with it. Next: `steps/`, what can be done to a model.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

MOST_SEED = 2**63 - 1  # what a generator takes
_MOST_PLACE = 80  # characters of a field's place in a sentence
_MOST_COMPLAINTS = 6


def _sayable(text: str) -> str:
    """The text, if it can be written down and be a name: no halves of characters, no zeros."""
    if "\0" in text or any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        raise ValueError("it holds a character that no name can have")
    return text


Name = Annotated[str, AfterValidator(_sayable)]  # of a model, a text, a task, a folder


class Spec(BaseModel):
    """Base of every description: frozen, strict about unknown fields, hashable.

    `version` is part of every key. Raise it when the same parameters start to mean something
    else, or when a default changes; an added optional parameter leaves all keys as they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    version: ClassVar[int] = 1

    @classmethod
    def settle(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The given fields, with those filled in that depend on others; they are not checked yet.

        So a recipe says what is done, and nothing decides it later.
        """
        return fields

    @model_validator(mode="before")
    @classmethod
    def _settled(cls, given: Any) -> Any:
        return cls.settle(dict(cast("dict[str, Any]", given))) if isinstance(given, dict) else given


class ModelRef(Spec):
    """A causal language model, and the number format to hold it in.

    A reference is *pinned* (`models.pin`) before it gets a key: then `revision` is a commit, a
    package version or `content:HASH`, and `dtype` is no longer `auto`.
    """

    path: Name = Field(
        min_length=1,
        max_length=4096,
        description="`bundled:smollm2-135m`, a hub id, a folder, a .gguf file, or a result's key",
    )
    revision: Name = Field(
        default="main", max_length=256, description="Branch, tag or commit on the hub"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="auto: as the checkpoint says; float16 on a CPU is refused",
    )
    trust_remote_code: bool = Field(
        default=False, description="Run Python code that comes with this model"
    )


class Calibration(Spec):
    """The tokens that a method looks at."""

    source: Name = Field(default="bundled:wikipedia@calibration", description="Where text is from")
    windows: int = Field(default=8, ge=1, le=65536, description="Number of windows")
    length: int = Field(default=256, ge=2, le=131072, description="Tokens in each window")
    unit: Literal["window", "sentence"] = Field(
        default="window",
        description="window: cut from the running text; sentence: the first of a document each",
    )
    seed: int = Field(default=0, ge=0, le=MOST_SEED, description="Which windows are drawn")


def identity(spec: Spec) -> dict[str, Any]:
    """What makes two specs the same: every field that differs from its default, and the version."""
    fields = type(spec).model_fields
    changed = {
        name: _plain(getattr(spec, name))
        for name in fields
        if name == "kind" or getattr(spec, name) != fields[name].default
    }
    return {**changed, "version": spec.version}


def shortest(spec: Spec) -> dict[str, Any]:
    """The fewest fields that still read back as the same spec, as JSON data."""
    found = spec.model_dump(mode="json")
    for name in reversed(found):  # what others follow from stands first, and stays
        fewer = {other: value for other, value in found.items() if other != name}
        if name != "kind" and _reads_as(type(spec), fewer, spec):
            found = fewer
    return {name: _short(getattr(spec, name), value) for name, value in found.items()}


def complaints(error: ValidationError) -> str:
    """What pydantic found, in one line: where and why, for each of the first fields."""
    found: list[str] = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(str(part) for part in item["loc"])
        reason = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            reason = "there is no such field"
        place = place if len(place) <= _MOST_PLACE else f"{place[:_MOST_PLACE]}…"
        found.append(f"{place}: {reason}" if place else reason)
    more = f"; and {len(found) - _MOST_COMPLAINTS} more" if len(found) > _MOST_COMPLAINTS else ""
    return "; ".join(found[:_MOST_COMPLAINTS]) + more


def digest(document: dict[str, Any]) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "k1-" + hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Spec):
        return identity(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return value


def _short(value: Any, written: Any) -> Any:
    """A field's value as it is written, specs in it shortened."""
    if isinstance(value, Spec):
        return shortest(value)
    if isinstance(value, tuple):
        pairs = zip(cast("tuple[Any, ...]", value), written, strict=True)
        return [_short(item, as_json) for item, as_json in pairs]
    return written


def _reads_as(cls: type[Spec], fields: dict[str, Any], spec: Spec) -> bool:
    try:
        return cls.model_validate(fields) == spec
    except ValidationError:  # they ask for more
        return False
