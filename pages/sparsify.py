"""Choose a method and a sparsity level, start it; see how far each layer is off."""

import streamlit as st

from laco.recipe import Prune
from laco.ui import methods, plans, savings, walks
from laco.ui.forms import spec_form
from laco.ui.frame import begin
from laco.ui.plain import code
from laco.ui.session import card_or_stop, finished, session, speed, store

chosen = session()
begin("Sparsify")
st.markdown(
    "Weights inside every layer become zero, or whole channels and heads go. Zeros alone save "
    "neither bytes nor time: they take the same bytes as other numbers, and the same time unless a "
    "runtime has sparse kernels, of which NVIDIA's want the pattern 2:4. Narrower layers "
    "(structured) save bytes and time everywhere. Compensation brings quality back in both cases."
)
card = card_or_stop()
st.markdown(f"{code(chosen.address)}, {card['layers']} layers, counted from 0.")
walks.watch()
set_up, results = st.tabs(["Set up", "Results"], key="tab", bind="query-params")

with set_up:
    known = plans.chosen_preset("prune")
    start = known.steps[0] if known else Prune()
    step = spec_form(type(start), plans.key_of("prune", known), start=start, columns=2)
    if isinstance(step, Prune):
        rest = known.steps[1:] if known else ()
        st.markdown("**What it will save, and what not**")
        st.markdown("\n".join(f"- {sentence}" for sentence in savings.promised(card, step)))
        if step.allocation == "sensitivity":
            walks.known_sensitivity(chosen.recipe)
        if step.compensation is not None:
            st.caption(
                f"{savings.takes(card, step, speed())} Pruning looks at the compensation's text.",
                help=savings.COSTS["compensate"],
            )
        methods.explain(step)
        plans.launch(chosen.recipe.then(step, *rest), "prune")

with results:
    walks.results(
        finished(store().runs(metrics=False), "prune"),
        "Nothing has been pruned yet. Start under Set up; each layer's error appears here.",
    )
