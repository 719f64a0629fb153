"""How alike are the layers? Heat map, influence, a range chosen by eye."""

import streamlit as st

from laco.errors import LacoError
from laco.evaluations import ParameterSimilarity, Request, Similarity
from laco.recipe import Merge
from laco.ui import maps, plans, progress, tables, words
from laco.ui.forms import range_slider, spec_form
from laco.ui.frame import begin
from laco.ui.session import card_of, find_document, session, submit
from laco.ui.spans import span_of_selection, spoken, text_of_spans

chosen = session()
begin("Similarity")
st.markdown(
    "How alike the hidden states are between any two depths. Where they are alike, the layers "
    "between them change little, and may be collapsed into one."
)
try:
    card = card_of(chosen.recipe)
except LacoError as error:
    st.error(f"{error} Choose another on the Model page.")
    st.stop()
states, parameters = st.tabs(["Hidden states", "Parameters"])

with states:
    spec = spec_form(Similarity, key="similarity", columns=2)
    found = find_document(chosen.recipe, spec) if spec else None
    missing = spec is not None and (found is None or found[0] != spec)
    if spec and missing and st.button("Compute the map", type="primary"):
        submit(Request(recipe=chosen.recipe, analyses=(spec,)), label="Similarity map")
        st.rerun()
    progress.last_sent()
    if found is None:
        st.info("There is no map of this model yet. Compute it: one pass through the layers.")
    else:
        made_by, document = found
        if made_by != spec:
            st.warning(f"This map was made with other settings: {words.settings(made_by)}.")
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
                    query = {"model": chosen.address, "span": text_of_spans(step.spans)}
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

with parameters:
    found = find_document(chosen.recipe, ParameterSimilarity())
    if found is None:
        st.info("How alike are the weights themselves? This looks at every linear of every layer.")
        if st.button("Compare the parameters"):
            request = Request(recipe=chosen.recipe, analyses=(ParameterSimilarity(),))
            submit(request, label="Parameter similarity")
            st.rerun()
    else:
        linear = st.selectbox("Linear", found[1]["linears"])
        left, right = st.columns(2)
        for place, name in ((left, "cosine"), (right, "relative_l2")):
            matrix = found[1][name][linear]
            place.plotly_chart(
                maps.square_map(matrix, name, title=maps.MEASURES[name].title),
                alt=f"{maps.MEASURES[name].title} of {linear} between layers",
            )
            with place:
                progress.data_table(f"{linear}: {name}", tables.frame(matrix))
