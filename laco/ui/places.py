"""Where the next job of this visitor runs: chosen beside any start button, and named on Settings.

Nothing is offered where the store knows no other place than this machine. Next: `../places/`.
"""

from __future__ import annotations

import os
from typing import Any, Literal, TypeVar, get_args, get_origin

import streamlit as st
from annotated_types import Ge, Le
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from laco import places
from laco.errors import JobError, LacoError
from laco.places import kept
from laco.recipe import complaints
from laco.ui.plain import plain
from laco.ui.stored import store

CHOSEN = "laco.place"
_LABELS = {
    "gpus": "GPUs for a job",
    "cpus": "Cores for a job",
    "memory_gb": "Memory in GB",
    "minutes": "Time limit, minutes",
}
O = TypeVar("O", bound=BaseModel)  # noqa: E741


def chosen() -> str:
    """The place that this visitor chose for what they start."""
    return st.session_state.get(CHOSEN, places.LOCAL)


def offer(where: Any, key: str) -> None:
    """The choice of a place, in front of a button of this key; the same on every page."""
    try:
        names = places.configured(store().folder)
    except JobError as error:
        where.caption(plain(str(error)))
        return
    if chosen() not in names:
        st.session_state[CHOSEN] = places.LOCAL
    if len(names) > 1:
        own = f"place.{key}"
        st.session_state[own] = chosen()  # several on a page show the same
        where.selectbox("Runs on", names, key=own, on_change=_take, args=(own,), width=360)


def _take(own: str) -> None:
    st.session_state[CHOSEN] = st.session_state[own]


def form(kind: str, cls: type[O], title: str, about: str) -> None:
    """What a kind of place needs to be told: asked, checked, kept, tried, removed."""
    folder = store().folder
    known = kept.read(folder)
    start: O | None = getattr(known, kind)
    st.header(title, anchor=False)
    st.markdown(about)
    with st.form(kind):
        grid = st.columns(3)
        values: dict[str, Any] = {}
        for place, (name, field) in enumerate(cls.model_fields.items()):
            first = getattr(start, name) if start is not None else field.get_default()
            with grid[place % 3]:
                values[name] = _field(name, field, first, f"{kind}.{name}")
        if st.form_submit_button("Keep"):
            try:
                _keep(known, kind, cls(**values))
            except ValidationError as error:
                st.error(plain(f"This cannot be used: {complaints(error)}."))
            except LacoError as error:
                st.error(plain(str(error)))
    if start is None:
        return
    name = next(name for name in places.configured(folder) if name.partition(":")[0] == kind)
    with st.container(horizontal=True):
        tested = st.button("Test the connection", key=f"{kind}.test")
        if st.button("Remove", key=f"{kind}.remove"):
            _keep(known, kind, None)
    if tested:
        with st.spinner("Asking…"):
            fine, says = places.tried(folder, name)
        (st.success if fine else st.error)(plain(f"It takes jobs: {says}." if fine else says))


def _keep(known: kept.Places, kind: str, options: BaseModel | None) -> None:
    kept.keep(store().folder, known.model_copy(update={kind: options}))
    st.rerun()


def token_said() -> str:
    """Where the token for Ray comes from, in a sentence without the token."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        if os.environ.get(name):
            return f"The token for it comes from `{name}`, as these pages were started with it."
    return (
        "These pages were started without `RAY_AUTH_TOKEN` and `RAY_AUTH_TOKEN_PATH`, so no token "
        "is sent; docs/scale.md says why a cluster should ask for one."
    )


def _field(name: str, field: FieldInfo, first: Any, key: str) -> Any:
    label, help_ = _LABELS.get(name, name.capitalize()), field.description
    if get_origin(field.annotation) is Literal:
        choices = list(get_args(field.annotation))
        return st.selectbox(label, choices, choices.index(first), key=key, help=help_)
    if field.annotation is int:
        least = next(int(str(bound.ge)) for bound in field.metadata if isinstance(bound, Ge))
        most = next(int(str(bound.le)) for bound in field.metadata if isinstance(bound, Le))
        return st.number_input(label, least, most, first, key=key, help=help_)
    text = first if isinstance(first, str) else ""
    return st.text_input(label, text, key=key, help=help_, max_chars=500)
