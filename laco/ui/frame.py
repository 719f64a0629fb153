"""The frame that every page stands in: the list of pages, and the way back into it.

Streamlit runs a file of `pages/` by itself, without `app.py`, when a fresh server's first visitor
comes by a page's own address. `begin` notices and starts over inside the frame. Next: `session.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from laco.ui.session import held


def navigation() -> StreamlitPage:
    """The page that the address names, with the others beside it.

    The tab's icon is set before the pages' own icons could be: those would be fetched from outside.
    """
    st.set_page_config(page_title="laco", page_icon="🥞", layout="wide")
    return st.navigation(
        [
            st.Page("pages/home.py", title="Home", icon=":material/home:", default=True),
            st.Page("pages/model.py", title="Model", icon=":material/search:"),
            st.Page("pages/similarity.py", title="Similarity", icon=":material/grid_on:"),
            st.Page("pages/collapse.py", title="Collapse", icon=":material/compress:"),
            st.Page("pages/sparsify.py", title="Sparsify", icon=":material/blur_on:"),
            st.Page("pages/compensate.py", title="Compensate", icon=":material/healing:"),
            st.Page("pages/evaluate.py", title="Evaluate", icon=":material/speed:"),
            st.Page("pages/compare.py", title="Compare", icon=":material/balance:"),
            st.Page("pages/try_it.py", title="Try it", icon=":material/edit_note:"),
            st.Page("pages/jobs.py", title="Jobs", icon=":material/list_alt:"),
        ]
    )


@contextmanager
def framed(page: str) -> Iterator[None]:
    """While this lasts, pages stand in the frame; `page` is the one that will run."""
    held().framed = True
    try:
        yield
    finally:
        held().framed = False
        _set_apart(page)


@st.cache_resource(show_spinner=False)
def _set_apart(page: str) -> None:
    """Once for each page: what was loaded for it is never garbage, so spare it the search.

    Streamlit has Python look for garbage after every run, also of a fragment. Among all that the
    libraries hold that took longer than the run itself.
    """
    gc.collect()
    gc.freeze()


def begin(title: str) -> None:
    """The page's title; starts over in the frame if the page was run without it."""
    if not held().framed:
        navigation()  # from now on, addresses lead to app.py
        st.rerun()
    st.title(title)
