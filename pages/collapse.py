"""Choose or search a collapse, read its plan, start it."""

import streamlit as st

from laco.errors import LacoError
from laco.evaluations import Request, WhatIf
from laco.presets import presets
from laco.recipe import Collapse, Drop, Merge
from laco.ui import maps, plans, progress, tables, words
from laco.ui.forms import range_slider, spec_form
from laco.ui.frame import begin
from laco.ui.session import card_of, find_document, finished, session, store, submit
from laco.ui.spans import span_of_candidate, spoken

chosen = session()
begin("Collapse")
st.markdown(
    "Neighbouring layers become one. The order in which layers are chosen matters far more than "
    "how their weights are merged: a search that tries every start (best-first) keeps the model "
    "much closer to the original than the paper's walk from the top."
)
try:
    card = card_of(chosen.recipe)
except LacoError as error:
    st.error(f"{error} Choose another on the Model page.")
    st.stop()
layers = card["layers"]
st.caption(f"`{chosen.address}`, {layers} layers, counted from 0.")
progress.last_sent()
by_hand, by_search, what_if, finished_plans = st.tabs(
    ["By hand", "By search", "What-if map", "Plans"], key="tab", bind="query-params"
)

with by_hand:
    plans.take_span_from_address()
    ways = ("Ranges that become one layer", "Layers that go")
    way = st.segmented_control("Choose", ways, default=ways[0], required=True, key="way")
    if way == ways[0]:
        slider, button = st.columns([3, 1], vertical_alignment="bottom")
        with slider:
            middle = (layers // 2, layers // 2 + 2)
            span = range_slider("Range, from depth to depth", layers, "pick", middle)
        button.button("Add this range", on_click=plans.add_span, args=(span,), width="stretch")
        st.caption(spoken(span))
        step = spec_form(Merge, "merge")
    else:
        step = spec_form(Drop, "drop", columns=1)
    if step is not None and plans.outcome(card, step):
        plans.launch(chosen.recipe.then(step), "hand")

with by_search:
    known = presets()
    name = st.selectbox(
        "Start from",
        ["", *known],
        format_func=lambda name: known[name].title if name else "The defaults",
        key="preset",
        bind="query-params",
    )
    start = known[name].steps[0] if name else Collapse(target_share=0.75)
    if name:
        st.info(known[name].note)
    step = spec_form(type(start), f"search.{name}", start=start, columns=4)
    if step is not None:
        rest = known[name].steps[1:] if name else ()
        plans.launch(chosen.recipe.then(step, *rest), "search")

with what_if:
    st.markdown("What one collapse costs, for every first layer and every number of layers.")
    spec = spec_form(WhatIf, "what_if")
    found = find_document(chosen.recipe, spec) if spec else None
    if spec and (found is None or found[0] != spec) and st.button("Compute the what-if map"):
        submit(Request(recipe=chosen.recipe, analyses=(spec,)), label="What-if map")
        st.rerun()
    if found is None:
        st.info(
            "No what-if map of this model yet: compute it, then click a cell to choose a range."
        )
    else:
        if found[0] != spec:
            st.warning(f"This map was made with other settings: {words.settings(found[0])}.")
        document = found[1]
        measure = st.segmented_control(
            "Measure", ("kl", "cosine"), default="kl", required=True, key="what_if.measure"
        )

        def take() -> None:
            """Add the clicked range to the list under "By hand"."""
            plans.add_span(span_of_candidate(st.session_state["what_if.map"].selection))

        st.plotly_chart(
            maps.what_if_map(document, measure, plans.written_spans()),
            key="what_if.map",
            on_select=take,
            selection_mode="points",
            config=maps.CONFIG,
            alt=words.what_if_summary(document, measure),
        )
        st.caption(f"{words.what_if_summary(document, measure)} A click adds the range by hand.")
        st.markdown(f"Chosen by hand: `{st.session_state.get(plans.SPANS) or 'nothing yet'}`")
        progress.data_table("The map as a table", tables.what_if_table(document, measure))

with finished_plans:
    runs = {run.key: run for run in finished(store().runs(), "collapse")}
    if not runs:
        st.info("No search has been run yet. Start one under By search; its plan appears here.")
    else:
        names = tables.heads(list(runs.values()))
        key = st.selectbox("Result", list(runs), format_func=names.__getitem__)
        plans.show_plan(runs[key])
