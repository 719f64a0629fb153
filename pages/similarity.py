"""How alike are the layers? Heat map, influence, a range chosen by eye."""

import streamlit as st

from laco.evaluations import Request, Similarity
from laco.ui import progress, similar, words
from laco.ui.forms import spec_form
from laco.ui.frame import begin
from laco.ui.person import start_button
from laco.ui.plain import plain
from laco.ui.session import card_or_stop, find_document, send, session

chosen = session()
begin("Similarity")
st.markdown(
    "How alike the hidden states are between any two depths. Where they are alike, the layers "
    "between them change little, and may be collapsed into one."
)
card = card_or_stop()
states, beside, parameters = st.tabs(["Hidden states", "Side by side", "Parameters"])

with states:
    with st.expander("How the map is made", icon=":material/tune:"):
        spec = spec_form(Similarity, key="similarity", columns=2)
        button = st.container()
    found = find_document(chosen.recipe, spec) if spec else None
    missing = spec is not None and (found is None or found[0] != spec)
    if found is not None and missing:
        st.warning(plain(f"This map was made with other settings: {words.settings(found[0])}."))
    if spec and missing and start_button("Compute the map", type="primary"):
        send(Request(recipe=chosen.recipe, analyses=(spec,)), label="Similarity map")
    came = found is not None and "came_with_laco" in found[1]
    if spec and came and not missing and start_button("Recompute the map here", button):
        send(Request(recipe=chosen.recipe, analyses=(spec,)), label="Similarity map")
    progress.last_sent()
    if found is None:
        st.info("There is no map of this model yet. Compute it: one pass through the layers.")
    else:
        similar.of_states(found[1], card, chosen.recipe, chosen.address)

with beside:
    if found is not None:
        similar.side_by_side(chosen.recipe, found[1])
    else:
        st.info("There is no map of this model yet; compute it under Hidden states.")

with parameters:
    similar.of_weights(chosen.recipe)
