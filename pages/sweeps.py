"""A recipe with some of its fields varied: build one, watch it, read its curves."""

import streamlit as st

from laco.ui import sweeping
from laco.ui.frame import begin

begin("Sweeps")
st.markdown(
    "One recipe, many settings: each combination is a job of its own, what members have in common "
    "is computed once, and all are measured in the same way, the original too."
)
started = sweeping.choose()
seen, new = st.tabs([sweeping.SEEN, sweeping.NEW], key="tab", bind="query-params")

with seen:
    if started is None:
        st.info(
            "No sweeps yet. Under New sweep choose a recipe, a field such as "
            "`steps.0.target_layers`, and values such as `27, 24, 21`; or write them into a file "
            "for `laco sweep`."
        )
    else:
        sweeping.show(started)

with new:
    sweeping.build()
