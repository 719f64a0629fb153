"""Specs -> widgets -> specs: one widget a field, its bounds and help taken from the field itself.

A parameter that is added to a spec therefore appears on its page by itself. Knows no particular
spec and no model. Next: `session.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Any, Literal, TypeVar, get_args, get_origin

import streamlit as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from laco.errors import LacoError
from laco.recipe import Span, Spec, complaints
from laco.ui.fields import (
    bound,
    default,
    first,
    is_nothing,
    is_share,
    leading,
    optional,
    settled,
    specs_in,
    unwrapped,
)
from laco.ui.plain import plain
from laco.ui.spans import clamped, parse_layers, parse_spans, text_of_spans

S = TypeVar("S", bound=Spec)
MOST_PERCENT = 90  # where sliders of shares end: what is left beyond is seldom a model
LABELS = {"spans": "Ranges"}  # fields that pages call by another word
_MOST = 2**53 - 1  # whole numbers that a browser tells apart


def spec_form(
    cls: type[S], key: str, start: S | None = None, leave_out: Sequence[str] = (), columns: int = 3
) -> S | None:
    """Ask for every field of `cls`; the spec that was chosen, or None with the reason shown.

    `start` gives the first values instead of the defaults. Fields in `leave_out` are not asked
    for and keep their first value. A choice that other defaults follow from is asked first.
    """
    names = [name for name in cls.model_fields if name != "kind"]
    asked = [name for name in names if name not in leave_out]
    inner = {name: kinds for name in asked if (kinds := specs_in(cls.model_fields[name]))}
    flat = [name for name in asked if name not in inner]
    values: dict[str, Any] = {}
    try:
        for name in (name for name in inner if len(inner[name]) > 1):
            values[name] = _one_of(inner[name], name, cls, f"{key}.{name}", start)
            if values[name] is None:
                return None
        grid = st.columns(columns) if flat else []
        cells = {name: grid[place % columns].container() for place, name in enumerate(flat)}
        decisive = [name for name in leading(cls) if name in flat]
        for name in decisive:
            with cells[name]:
                values[name] = _widget(name, cls.model_fields[name], key, start)
        follows = settled(cls, start, {name: values[name] for name in decisive})
        if follows is not start:  # other first values are other widgets
            start = follows
            key = ".".join([key, *(str(values[name]) for name in decisive)])
        for name in flat:
            if name not in decisive:
                with cells[name]:
                    values[name] = _widget(name, cls.model_fields[name], key, start)
        for name in (name for name in inner if len(inner[name]) == 1):
            values[name], whole = _nested(inner[name][0], name, cls, f"{key}.{name}", start)
            if not whole:
                return None
        for name in set(names) - set(asked):
            values[name] = first(name, cls, start)
        if any(is_nothing(cls.model_fields[name], values[name]) for name in asked):
            st.info("Nothing is chosen yet.")
            return None
        return cls(**values)
    except ValidationError as error:
        st.error(plain(_sentence(complaints(error))))
    except LacoError as error:
        st.error(plain(str(error)))
    return None


def _one_of(
    kinds: Sequence[type[Spec]], name: str, cls: type[Spec], key: str, start: Spec | None
) -> Spec | None:
    """A choice between specs, then the form of the chosen one."""
    given = first(name, cls, start)
    by_name = {kind.__name__: kind for kind in kinds}
    chosen = st.segmented_control(
        _label(name),
        list(by_name),
        default=type(given).__name__ if given is not None else kinds[0].__name__,
        required=True,
        help=cls.model_fields[name].description,
        key=key,
        persist_state="session",
    )
    kind = by_name[chosen]
    st.caption((kind.__doc__ or "").partition("\n\n")[0])
    return spec_form(kind, f"{key}.{chosen}", given if isinstance(given, kind) else None)


def _nested(
    kind: type[Spec], name: str, cls: type[Spec], key: str, start: Spec | None
) -> tuple[Spec | None, bool]:
    """A spec inside the spec, behind a switch where it may be left out; and whether it is whole."""
    about = cls.model_fields[name].description or ""
    given = first(name, cls, start)
    if not optional(cls, name):
        with st.expander(_label(name)):
            st.caption(about)
            chosen = spec_form(kind, key, given)
            return chosen, chosen is not None
    common: dict[str, Any] = {"help": about, "key": key, "persist_state": "session"}
    if not st.toggle(_label(name), value=given is not None, **common):
        return None, True
    with st.container(border=True):
        chosen = spec_form(kind, f"{key}.on", given)
    return chosen, chosen is not None


def _widget(name: str, field: FieldInfo, key: str, start: Spec | None) -> Any:
    kind, may_be_unset = unwrapped(field.annotation)
    value = getattr(start, name) if start is not None else default(field)
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
        return _number(kind, field, value, may_be_unset, common)
    if get_origin(kind) is tuple:
        if get_args(kind)[0] is int:
            text = ", ".join(map(str, value or ()))
            return parse_layers(st.text_input(value=text, placeholder="7, 8, 12", **common))
        text = text_of_spans(value or ())
        return parse_spans(st.text_input(value=text, placeholder="6:10, 20:22", **common))
    return st.text_input(value=value or "", **common)


def _number(kind: type, field: FieldInfo, value: Any, may_be_unset: bool, common: dict) -> Any:
    low, high = (bound(field, "ge", "gt"), bound(field, "le", "lt"))
    if is_share(field):
        most = MOST_PERCENT if value <= MOST_PERCENT / 100 else 99
        return (
            st.slider(
                min_value=0, max_value=most, value=round(100 * value), format="%d %%", **common
            )
            / 100
        )
    return st.number_input(
        min_value=None if low is None else kind(low),
        max_value=None if high is None else min(kind(high), _MOST),
        value=None if value is None else kind(value),
        step=1 if kind is int else _stride(value),
        placeholder="unset" if may_be_unset else None,
        format=None if kind is int else "%.4g",
        **common,
    )


def _stride(value: float | None) -> float:
    """How far a press on + or − goes: a step size of 5e-4 is not raised by 0.05."""
    return 0.05 if not value or value >= 0.05 else 10.0 ** floor(log10(value))


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " ").capitalize())


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


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
