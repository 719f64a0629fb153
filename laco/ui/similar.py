"""The two maps of the Similarity page: of hidden states, with a range chosen by eye; of weights.

The pictures are in `maps.py`. Next: `../../pages/similarity.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from laco.evaluations import ParameterSimilarity, Request, Similarity, WhatIf
from laco.recipe import Merge, Recipe
from laco.ui import maps, plans, progress, tables, words
from laco.ui.forms import range_slider
from laco.ui.maps import MEASURES
from laco.ui.person import start_button
from laco.ui.session import find_document, send
from laco.ui.spans import span_of_selection, spoken, text_of_spans


def of_states(
    document: Mapping[str, Any], card: Mapping[str, Any], recipe: Recipe, address: str
) -> None:
    """The map, the ways to choose a range on it, and what collapsing that range would do."""
    picture, choice = st.columns([5, 3], gap="medium")
    layers = document["layers"]

    def take() -> None:
        """Make the box or the cell the chosen range."""
        span = span_of_selection(st.session_state["map"].selection, layers)
        if span is not None:
            st.session_state["range"] = span

    with choice:
        measure = st.segmented_control(
            "Measure",
            list(document["measures"]),
            default=next(iter(document["measures"])),
            required=True,
            format_func=lambda name: MEASURES[name].title,
            key="measure",
            bind="query-params",
        )
        mode = st.segmented_control(
            "Choose a range by",
            ("Drag a box", "Click a cell"),
            default="Drag a box",
            required=True,
            key="mode",
            help="Or by the slider below: Tab leads to it, and the arrow keys move its ends",
        )
        span = range_slider(
            "Range, from depth to depth", layers, "range", words.most_alike(document, "cosine")
        )
        if span[1] - span[0] < 2:
            st.info(spoken(span))
        else:
            step = Merge(spans=(span,))
            if plans.outcome(card, step):
                what_if = find_document(recipe, WhatIf())
                known = None if what_if is None else what_if[1]
                st.markdown(
                    f"{words.apart(document, measure, span)} {words.what_if_of(known, span)}"
                )
                if st.button("Collapse this range", type="primary"):
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
        st.caption(f"{MEASURES[measure].note}. {words.tokens(document)}")
    st.markdown(words.map_summary(document, measure))
    progress.data_table("Influence of each layer", tables.influence_table(document))
    progress.data_table("The map as a table", tables.frame(document["measures"][measure]))


def first_look(recipe: Recipe) -> None:
    """The map of a model and its most alike layers outlined, to be looked at; none if unknown."""
    found = find_document(recipe, Similarity())
    if found is None:
        return
    document = found[1]
    span = words.most_alike(document, "cosine")
    picture, text = st.columns([5, 3], gap="medium")
    picture.plotly_chart(
        maps.depth_map(document, "cosine", span),
        key="first_look",
        width="content",
        config=maps.CONFIG,
        alt=words.map_summary(document, "cosine"),
    )
    with text:
        st.markdown(
            "Each cell compares what the model holds at two depths. Bright means alike: the layers "
            "between those two depths change little, so they are the first to try without. The "
            "outline is drawn around the four layers that change the least."
        )
        st.markdown(words.map_summary(document, "cosine"))
        if "came_with_laco" in document:
            st.caption(words.came_with_laco(document))
        st.page_link(
            "pages/similarity.py",
            label="Choose a range on it",
            icon=":material/grid_on:",
            query_params={"range": [str(end) for end in span]},
        )


def side_by_side(recipe: Recipe, document: Mapping[str, Any]) -> None:
    """Several maps at once: all measures, mean and spread over shards, before and after."""
    ways = ("Measures", "Shards", "Before and after")
    way = st.segmented_control(
        "Side by side", ways, default=ways[0], required=True, key="beside", bind="query-params"
    )
    measures = document["measures"]
    if way == ways[0]:
        st.markdown("The same states by every measure; bright is always similar.")
        _row([(name, matrix, MEASURES[name].title, None) for name, matrix in measures.items()])
    elif way == ways[1]:
        st.markdown(
            f"The text in {document['shards']} parts (shards), each mapped by itself: their mean, "
            "and how far they lie apart. Where that is far, more text may change the map."
        )
        name = next(iter(measures))
        shards = [(name, measures[name], f"{MEASURES[name].title}, mean over shards", None)]
        if document["spread"].get(name):
            shards.append(
                ("spread", document["spread"][name], "Standard deviation of shards", None)
            )
        _row(shards)
    else:
        _before_and_after(recipe, document)


def _before_and_after(recipe: Recipe, document: Mapping[str, Any]) -> None:
    if not recipe.steps:
        st.info(
            "This model is an original. Choose a result of it on the Model page, and its map is "
            "shown here beside the original's, on one scale."
        )
        return
    original = find_document(Recipe(model=recipe.model), Similarity())
    if original is None:
        st.info("The original has no map yet; choose it on the Model page and compute one.")
        return
    name = next(iter(document["measures"]))
    before, after = original[1]["measures"][name], document["measures"][name]
    limits = maps.limits_of([before, after])
    st.markdown("The original and the chosen result on one scale of colours.")
    title = MEASURES[name].title
    _row([(name, before, f"{title} before", limits), (name, after, f"{title} after", limits)])


def _row(found: Sequence[tuple[str, Any, str, tuple[float, float] | None]]) -> None:
    """Maps two a row, each with its numbers."""
    places = [place for _ in range(0, len(found), 2) for place in st.columns(2)]
    for place, (measure, matrix, title, limits) in zip(places, found, strict=False):
        with place:
            st.plotly_chart(
                maps.square_map(matrix, measure, "depth", limits, title),
                key=f"beside.{title}",
                config=maps.CONFIG,
                alt=f"{title}, between all depths",
            )
            progress.data_table(f"{title}, as a table", tables.frame(matrix))


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
            maps.square_map(matrix, name, title=MEASURES[name].title),
            alt=f"{MEASURES[name].title} of {linear} between layers",
        )
        with place:
            progress.data_table(f"{linear}: {name}", tables.frame(matrix))
