"""Specs -> widgets -> specs: one widget a field, its bounds and help taken from the field itself.

A parameter that is added to a spec therefore appears on its page by itself. Knows no particular
spec and no model. Next: `session.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import streamlit as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from laco.errors import LacoError
from laco.recipe import Span, Spec, complaints
from laco.ui.spans import clamped, parse_layers, parse_spans, text_of_spans

S = TypeVar("S", bound=Spec)


def spec_form(
    cls: type[S], key: str, start: S | None = None, leave_out: Sequence[str] = (), columns: int = 3
) -> S | None:
    """Ask for every field of `cls`; the spec that was chosen, or None with the reason shown.

    `start` gives the first values instead of the defaults. Fields in `leave_out` are not asked
    for and keep their first value.
    """
    values: dict[str, Any] = {}
    names = [name for name in cls.model_fields if name != "kind"]
    asked = [name for name in names if name not in leave_out]
    flat = [name for name in asked if _nested(cls.model_fields[name]) is None]
    grid = st.columns(columns) if flat else []
    try:
        for place, name in enumerate(flat):
            with grid[place % columns]:
                values[name] = _widget(name, cls.model_fields[name], key, start)
        for name in asked:
            nested = _nested(cls.model_fields[name])
            if nested is not None:
                with st.expander(_label(name)):
                    st.caption(cls.model_fields[name].description or "")
                    values[name] = spec_form(nested, f"{key}.{name}", _first(name, cls, start))
                    if values[name] is None:
                        return None
        for name in set(names) - set(asked):
            values[name] = _first(name, cls, start)
        if any(values[name] == () for name in asked):
            st.info("Nothing is chosen yet.")
            return None
        return cls(**values)
    except ValidationError as error:
        st.error(f"{_sentence(complaints(error))}")
    except LacoError as error:
        st.error(str(error))
    return None


def _widget(name: str, field: FieldInfo, key: str, start: Spec | None) -> Any:
    kind, optional = _unwrapped(field.annotation)
    value = getattr(start, name) if start is not None else _default(field)
    common: dict[str, Any] = {
        "label": _label(name),
        "help": field.description,
        "key": f"{key}.{name}",
        "persist_state": "session",
    }
    if get_origin(kind) is Literal:
        options = get_args(kind)
        return st.selectbox(options=options, index=options.index(value), **common)
    if kind is bool:
        return st.checkbox(value=value, **common)
    if kind in (int, float):
        return _number(kind, field, value, optional, common)
    if get_origin(kind) is tuple:
        if get_args(kind)[0] is int:
            text = ", ".join(map(str, value or ()))
            return parse_layers(st.text_input(value=text, placeholder="7, 8, 12", **common))
        text = text_of_spans(value or ())
        return parse_spans(st.text_input(value=text, placeholder="6:10, 20:22", **common))
    return st.text_input(value=value or "", **common)


def _number(kind: type, field: FieldInfo, value: Any, optional: bool, common: dict) -> Any:
    low, high = (_bound(field, "ge", "gt"), _bound(field, "le", "lt"))
    return st.number_input(
        min_value=None if low is None else kind(low),
        max_value=None if high is None else kind(high),
        value=None if value is None else kind(value),
        step=1 if kind is int else 0.05,
        placeholder="unset" if optional else None,
        format=None if kind is int else "%.3f",
        **common,
    )


def _label(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _unwrapped(annotation: Any) -> tuple[Any, bool]:
    """The type without its `| None`, and whether it had one."""
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        if len(members) == 1:
            return members[0], True
    return annotation, False


def _nested(field: FieldInfo) -> type[Spec] | None:
    kind, _ = _unwrapped(field.annotation)
    return kind if isinstance(kind, type) and issubclass(kind, Spec) else None


def _default(field: FieldInfo) -> Any:
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _first(name: str, cls: type[Spec], start: Spec | None) -> Any:
    return getattr(start, name) if start is not None else _default(cls.model_fields[name])


def _bound(field: FieldInfo, *names: str) -> float | None:
    for constraint in field.metadata:
        for name in names:
            if getattr(constraint, name, None) is not None:
                return getattr(constraint, name)
    return None


def range_slider(label: str, layers: int, key: str, suggestion: Span) -> Span:
    """A slider over depths 0..`layers` that the address carries as `?KEY=start&KEY=stop`."""
    held = st.session_state.get(key)
    if held is not None:
        st.session_state[key] = clamped(held, layers)  # another model may have fewer layers
    start: dict[str, Any] = {} if held is not None else {"value": clamped(suggestion, layers)}
    return st.slider(
        label,
        0,
        layers,
        key=key,
        bind="query-params",
        persist_state="session",
        help="A pair of depths: the layers between them become one",
        **start,
    )
