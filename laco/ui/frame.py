"""The frame that every page stands in: the list of pages, where one is, and the way back into it.

Streamlit runs a file of `pages/` by itself, without `app.py`, when a fresh server's first visitor
comes by a page's own address. `begin` notices and starts over inside the frame. Next: `session.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from laco.ui import tour
from laco.ui.session import held


@dataclass(frozen=True)
class Page:
    """A file of `pages/` (its name without `.py`), how the sidebar shows it, where it leads."""

    name: str
    title: str
    icon: str
    here: str = ""  # where one is, in a line
    then: str = ""  # the name of the page that comes next


PAGES = (  # in the sidebar's order; the first is what the bare address opens
    Page(
        *("home", "Home", ":material/home:"),
        "Five steps lead from a model to a smaller one beside it.",
        "model",
    ),
    Page(
        *("model", "Model", ":material/search:"),
        "Step 1 of 5: choose a model, and see what it is made of.",
        "similarity",
    ),
    Page(
        *("similarity", "Similarity", ":material/grid_on:"),
        "Step 2 of 5: see which layers are alike, and choose a range of them.",
        "collapse",
    ),
    Page(
        *("collapse", "Collapse", ":material/compress:"),
        "Step 3 of 5: make one layer of several.",
        "compensate",
    ),
    Page(
        *("sparsify", "Sparsify", ":material/blur_on:"),
        "Beside step 3: make every layer thinner instead of leaving some out.",
        "compensate",
    ),
    Page(
        *("compensate", "Compensate", ":material/healing:"),
        "Step 4 of 5: bring the smaller model closer to the original again.",
        "compare",
    ),
    Page(
        *("evaluate", "Evaluate", ":material/speed:"),
        "Before step 5: measure what is not measured yet.",
        "compare",
    ),
    Page(
        *("sweeps", "Sweeps", ":material/tune:"),
        "One recipe with many settings, as curves.",
        "compare",
    ),
    Page(
        *("results", "Results", ":material/account_tree:"),
        "All that was made, each result below the one that it was made from.",
        "compare",
    ),
    Page(
        *("compare", "Compare", ":material/balance:"),
        "Step 5 of 5: see what it saved, and what it cost.",
        "try_it",
    ),
    Page(
        *("try_it", "Try it", ":material/edit_note:"),
        "After step 5: read what the models write.",
        "compare",
    ),
    Page(
        *("report", "Report", ":material/article:"),
        "Chosen runs as a story to show and to send; nothing here starts any work.",
        "compare",
    ),
    Page(
        *("jobs", "Jobs", ":material/list_alt:"),
        "Where all work stands, whoever started it.",
        "compare",
    ),
    Page(
        *("settings", "Settings", ":material/dns:"),
        "Where jobs can run besides this machine.",
        "jobs",
    ),
)


def navigation() -> StreamlitPage:
    """The page that the address names, with the others beside it.

    The tab's icon is set before the pages' own icons could be: those would be fetched from outside.
    """
    st.set_page_config(page_title="laco", page_icon="🥞", layout="wide")
    return st.navigation(
        [
            st.Page(f"pages/{page.name}.py", title=page.title, icon=page.icon, default=not place)
            for place, page in enumerate(PAGES)
        ],
        expanded=True,
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
    """The page's title, where one is and what comes next; starts over if run without the frame."""
    if not held().framed:
        navigation()  # from now on, addresses lead to app.py
        st.rerun()
    st.title(title, anchor=False)
    page = next((page for page in PAGES if page.title == title), PAGES[0])
    after = next((other for other in PAGES if other.name == page.then), None)
    with st.container(horizontal=True, vertical_alignment="center", key="here"):
        st.markdown(page.here, width="content")
        if after is not None:
            st.page_link(
                f"pages/{after.name}.py", label=f"Next: {after.title}", icon=":material/east:"
            )
    tour.show(page.name)
