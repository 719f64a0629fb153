"""The two maps of the Similarity page: of hidden states, with a range chosen by eye; of weights.

The pictures are in `maps.py`. Next: `../../pages/similarity.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from laco.evaluations import ParameterSimilarity, Request
from laco.recipe import Merge, Recipe
from laco.ui import maps, plans, progress, tables, words
from laco.ui.forms import range_slider
from laco.ui.person import start_button
from laco.ui.session import find_document, send
from laco.ui.spans import span_of_selection, spoken, text_of_spans


def of_states(document: Mapping[str, Any], card: Mapping[str, Any], address: str) -> None:
    """The map, the ways to choose a range on it, and what collapsing that range would do."""
    measure = st.segmented_control(
        "Measure",
        list(document["measures"]),
        default=next(iter(document["measures"])),
        required=True,
        format_func=lambda name: maps.MEASURES[name].title,
        key="measure",
        bind="query-params",
    )
    st.caption(maps.MEASURES[measure].note + ". " + words.tokens(document))
    picture, choice = st.columns([5, 3], gap="medium")
    layers = document["layers"]

    def take() -> None:
        """Make the box or the cell the chosen range."""
        span = span_of_selection(st.session_state["map"].selection, layers)
        if span is not None:
            st.session_state["range"] = span

    with choice:
        mode = st.segmented_control(
            "Choose a range by",
            ("Drag a box", "Click a cell"),
            default="Drag a box",
            required=True,
            key="mode",
        )
        span = range_slider(
            "Range, from depth to depth", layers, "range", words.most_alike(document, "cosine")
        )
        if span[1] - span[0] < 2:
            st.info(spoken(span))
        else:
            step = Merge(spans=(span,))
            if plans.outcome(card, step) and st.button("Collapse this range", type="primary"):
                query = {"model": address, "span": text_of_spans(step.spans)}
                st.switch_page("pages/collapse.py", query_params=query)
    with picture:
        st.plotly_chart(
            maps.depth_map(document, measure, span, cells=mode == "Click a cell"),
            key="map",
            on_select=take,
            selection_mode=("points", "box"),
            width="content",
            config=maps.CONFIG,
            alt=words.map_summary(document, measure),
        )
    st.markdown(words.map_summary(document, measure))
    progress.data_table("Influence of each layer", tables.influence_table(document))
    progress.data_table("The map as a table", tables.frame(document["measures"][measure]))


def of_weights(recipe: Recipe) -> None:
    """How alike the weights are, linear by linear; computed when asked for."""
    found = find_document(recipe, ParameterSimilarity())
    if found is None:
        st.info("How alike are the weights themselves? This looks at every linear of every layer.")
        if start_button("Compare the parameters"):
            request = Request(recipe=recipe, analyses=(ParameterSimilarity(),))
            send(request, label="Parameter similarity")
        return
    linear = st.selectbox("Linear", found[1]["linears"])
    for place, name in zip(st.columns(2), ("cosine", "relative_l2"), strict=True):
        matrix = found[1][name][linear]
        place.plotly_chart(
            maps.square_map(matrix, name, title=maps.MEASURES[name].title),
            alt=f"{maps.MEASURES[name].title} of {linear} between layers",
        )
        with place:
            progress.data_table(f"{linear}: {name}", tables.frame(matrix))
