"""What a spec's fields say to a form: which hold specs, which other defaults follow from, bounds.

Knows no particular spec and no Streamlit. Next: `forms.py`, which draws the widgets.
"""

from __future__ import annotations

from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from laco.recipe import Spec

S = TypeVar("S", bound=Spec)


@lru_cache
def leading(cls: type[Spec]) -> tuple[str, ...]:
    """Fields of a few options of which one changes the defaults of other fields."""
    found = []
    for name, field in cls.model_fields.items():
        if name == "kind" or get_origin(field.annotation) is not Literal:
            continue
        for option in get_args(field.annotation):
            try:
                spec = cls.model_validate({name: option})
            except ValidationError:
                continue
            if any(
                getattr(spec, other) != default(cls.model_fields[other])
                for other in cls.model_fields
                if other != name
            ):
                found.append(name)
                break
    return tuple(found)


def settled(cls: type[S], start: S | None, chosen: dict[str, Any]) -> S | None:
    """First values that go with these choices: what `start` changed stays, defaults follow."""
    before = {name: first(name, cls, start) for name in chosen}
    if chosen == before:
        return start
    try:
        base, changed = cls.model_validate(before), {}
        if start is not None:
            changed = {
                name: getattr(start, name)
                for name in cls.model_fields
                if getattr(start, name) != getattr(base, name)
            }
        settled = cls.model_validate({**changed, **chosen})
    except ValidationError:  # the choice asks for more than has been given yet
        return start
    same = {name: getattr(settled, name) for name in before} | before
    return start if settled.model_copy(update=same) == (start or base) else settled


def unwrapped(annotation: Any) -> tuple[Any, bool]:
    """The type without its `| None`, and whether it had one."""
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        if len(members) == 1:
            return members[0], True
    return annotation, False


def specs_in(field: FieldInfo) -> tuple[type[Spec], ...]:
    """The specs that a field may hold; none if it holds plain values."""
    members = get_args(field.annotation) or (field.annotation,)
    return tuple(
        member for member in members if isinstance(member, type) and issubclass(member, Spec)
    )


def optional(cls: type[Spec], name: str) -> bool:
    return unwrapped(cls.model_fields[name].annotation)[1]


def is_nothing(field: FieldInfo, value: Any) -> bool:
    """An empty list, or no share of something of which a share has to go."""
    return value == () or (is_share(field) and value == 0 and bound(field, "gt") == 0)


def is_share(field: FieldInfo) -> bool:
    """Whether a number is asked for in per cent."""
    return field.annotation is float and (field.description or "").startswith("Share of")


def default(field: FieldInfo) -> Any:
    return None if field.is_required() else field.get_default(call_default_factory=True)


def first(name: str, cls: type[Spec], start: Spec | None) -> Any:
    return getattr(start, name) if start is not None else default(cls.model_fields[name])


def bound(field: FieldInfo, *names: str) -> float | None:
    for constraint in field.metadata:
        for name in names:
            if getattr(constraint, name, None) is not None:
                return getattr(constraint, name)
    return None
