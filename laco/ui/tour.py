"""A short tour of the pages for who comes for the first time; whoever ends it is not asked again.

Who has ended it stands in the store's `tour.json`; for viewers, who write nothing, only the session
knows. The stops are the pages of the story in `frame.py`, which calls `show`.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from laco.disk import read_json, write_json
from laco.ui.person import person
from laco.ui.session import held
from laco.ui.stored import store

FILE = "tour.json"
STOPS = {  # by page, in the order in which they come
    "home": "laco finds layers that a language model can do without, and shows what leaving them "
    "out costs. The list at the left has all pages; **Next**, beside the line under each title, "
    "leads through the five that matter first.",
    "model": "Any causal language model can be chosen. A small real one is there already, so just "
    "look: how many layers it has, how large each part is, and what laco can do with it.",
    "similarity": "The heat map compares what the model holds at any two depths. Drag a box around "
    "a bright block, and the layers in it are the ones to collapse; beside the map stands what "
    "goes, what stays and what that saves. **Collapse this range** carries your choice on.",
    "collapse": "Your range stands here, and others can be added. **Start** sends a job, which "
    "goes on even when you close the page. By search finds good layers by itself.",
    "compensate": "A model that lost layers is worse. Here each layer learns to give what the "
    "original's gave, from a little plain text. **Start**, and watch the error of each layer.",
    "compare": "All that you made stands beside the original: sizes, speed and quality, with marks "
    "for better, worse and within noise. Take the table with you in five formats. That is all: the "
    "other pages do the same for pruning, more measurements, and reading what models write.",
}


def show(page: str) -> None:
    """What there is to see on this page, while the tour is on; on Home, the offer to take it."""
    mine = held()
    if mine.tour is None and page == "home" and _has_ended(store().folder):
        mine.tour = False
    if mine.tour is None and page == "home":
        _offer()
    elif page == "home" and not mine.tour:
        st.button("Take the tour", type="tertiary", icon=":material/tour:", on_click=_begin)
    elif mine.tour and page in STOPS:
        stop = list(STOPS).index(page) + 1
        with st.container(border=True, key="tour"):
            st.markdown(f"**Tour, stop {stop} of {len(STOPS)}.** {STOPS[page]}")
            st.button("End the tour", on_click=_end)


def _offer() -> None:
    with st.container(border=True, key="tour"):
        st.markdown(
            f"**New here?** A tour of {len(STOPS)} stops, a few lines each, shows how laco is used."
        )
        with st.container(horizontal=True):
            st.button("Take the tour", type="secondary", on_click=_begin)
            st.button("No, thanks", on_click=_end)


def _begin() -> None:
    held().tour = True


def _end() -> None:
    """End it, for good where that can be written down."""
    held().tour = False
    who = person()
    if who.may_run:
        folder = store().folder
        write_json(folder / FILE, {"ended": sorted({*_ended(folder), who.name})})


def _has_ended(folder: Path) -> bool:
    return person().name in _ended(folder)


def _ended(folder: Path) -> list[str]:
    document = read_json(folder / FILE)
    names = document.get("ended", ()) if isinstance(document, dict) else ()
    return [name for name in names if isinstance(name, str)]
