"""Bring a changed model back, layer by layer or by LoRA; watch the error."""

import streamlit as st

from laco.recipe import Compensate, Finetune
from laco.ui import methods, plans, savings, walks
from laco.ui.forms import spec_form
from laco.ui.frame import begin
from laco.ui.session import card_or_stop, finished, session, speed, store

chosen = session()
begin("Compensate")
st.markdown(
    "Each layer of a smaller model learns to give the original's hidden states again, one layer "
    "in memory at a time; weights that are zero stay zero. No labels, and little text. LoRA trains "
    "the whole model instead, and is the baseline to compare with."
)
walks.watch()
set_up, results = st.tabs(["Set up", "Results"], key="tab", bind="query-params")

with results:
    runs = finished(store().runs(metrics=False), "compensate", "finetune", "prune")
    walks.results(
        [run for run in runs if getattr(run.recipe.steps[-1], "compensation", True) is not None],
        "Nothing has been compensated yet. Start under Set up; each layer's error appears here.",
    )

with set_up:
    if not plans.choose_result("The smaller model to bring back"):
        st.info("Choose the smaller model to bring back; prune or collapse a model to make one.")
        st.page_link("pages/sparsify.py", label="Sparsify a model", icon=":material/blur_on:")
        st.stop()
    card = card_or_stop()
    ways = ("Layer by layer", "LoRA on the whole model")
    way = st.segmented_control(
        "How", ways, default=ways[0], required=True, key="how", bind="query-params"
    )
    if way == ways[0]:
        step = spec_form(Compensate, "compensate", columns=4)
    else:
        known = plans.chosen_preset("finetune")
        start = known.steps[0] if known else Finetune()
        step = spec_form(type(start), plans.key_of("finetune", known), start=start, columns=4)
    if isinstance(step, Compensate | Finetune):
        text = step.calibration
        st.caption(
            f"{text.windows * text.length:,} tokens of {text.source}. "
            + savings.takes(card, step, speed()),
            help=savings.COSTS[step.kind],
        )
        methods.explain(step)
        plans.launch(chosen.recipe.then(step), step.kind)
