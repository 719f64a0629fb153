"""The what-if map on its page: computed when asked for, its cells clicked to choose ranges.

The picture is in `maps.py`. Next: `../../pages/collapse.py`.
"""

from __future__ import annotations

import streamlit as st

from laco.evaluations import Request, WhatIf
from laco.recipe import Recipe
from laco.ui import maps, plans, progress, tables, words
from laco.ui.forms import spec_form
from laco.ui.person import start_button
from laco.ui.plain import code, plain
from laco.ui.session import find_document, send
from laco.ui.spans import span_of_candidate


def tab(recipe: Recipe) -> None:
    """The settings, the map of this model if there is one, and what was chosen on it."""
    st.markdown("What one collapse costs, for every first layer and every number of layers.")
    spec = spec_form(WhatIf, "what_if")
    found = find_document(recipe, spec) if spec else None
    if spec and (found is None or found[0] != spec) and start_button("Compute the what-if map"):
        send(Request(recipe=recipe, analyses=(spec,)), label="What-if map")
    if found is None:
        st.info(
            "No what-if map of this model yet: compute it, then click a cell to choose a range."
        )
        return
    if found[0] != spec:
        st.warning(plain(f"This map was made with other settings: {words.settings(found[0])}."))
    document = found[1]
    measure = st.segmented_control(
        "Measure", ("kl", "cosine"), default="kl", required=True, key="what_if.measure"
    )
    st.plotly_chart(
        maps.what_if_map(document, measure, plans.written_spans()),
        key="what_if.map",
        on_select=_take,
        selection_mode="points",
        config=maps.CONFIG,
        alt=words.what_if_summary(document, measure),
    )
    st.caption(f"{words.what_if_summary(document, measure)} A click adds the range by hand.")
    st.markdown(f"Chosen by hand: {code(st.session_state.get(plans.SPANS) or 'nothing yet')}")
    progress.data_table("The map as a table", tables.what_if_table(document, measure))


def _take() -> None:
    """Add the clicked range to the list under "By hand"."""
    plans.add_span(span_of_candidate(st.session_state["what_if.map"].selection))
