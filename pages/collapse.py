"""Choose or search a collapse, read its plan, start it."""

import streamlit as st

from laco.recipe import Collapse, Drop, Merge
from laco.ui import plans, progress, tables, whatif
from laco.ui.forms import range_slider, spec_form
from laco.ui.frame import begin
from laco.ui.plain import code
from laco.ui.session import card_or_stop, finished, session, store
from laco.ui.spans import spoken

chosen = session()
begin("Collapse")
st.markdown(
    "Neighbouring layers become one. The order in which layers are chosen matters far more than "
    "how their weights are merged: a search that tries every start (best-first) keeps the model "
    "much closer to the original than the paper's walk from the top."
)
card = card_or_stop()
layers = card["layers"]
st.markdown(f"{code(chosen.address)}, {layers} layers, counted from 0.")
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
            first = [*plans.written_spans(), (layers // 2, layers // 2 + 2)][0]
            span = range_slider("Range, from depth to depth", layers, "pick", first)
        button.button("Add this range", on_click=plans.add_span, args=(span,), width="stretch")
        st.caption(spoken(span))
        step = spec_form(Merge, "merge")
    else:
        step = spec_form(Drop, "drop", columns=1)
    if step is not None and plans.outcome(card, step):
        plans.launch(chosen.recipe.then(step), "hand")

with by_search:
    known = plans.chosen_preset("collapse")
    start = known.steps[0] if known else Collapse(target_share=0.75)
    step = spec_form(type(start), plans.key_of("search", known), start=start, columns=4)
    if step is not None:
        rest = known.steps[1:] if known else ()
        plans.launch(chosen.recipe.then(step, *rest), "search")

with what_if:
    whatif.tab(chosen.recipe)

with finished_plans:
    runs = {run.key: run for run in finished(store().runs(metrics=False), "collapse")}
    if not runs:
        st.info("No search has been run yet. Start one under By search; its plan appears here.")
    else:
        names = tables.heads(list(runs.values()))
        key = st.selectbox("Result", list(runs), format_func=names.__getitem__)
        plans.show_plan(runs[key])
