"""What laco is, the demo, recent runs, what is running."""

import streamlit as st

from laco.demo import demo_requests
from laco.ui import progress, similar
from laco.ui.frame import begin
from laco.ui.person import start_button
from laco.ui.session import UNTOUCHED, runner, send, store
from laco.ui.tables import runs_table

begin("laco")
st.markdown(
    "laco makes language models smaller by their layers: it maps how alike they are, collapses "
    "those that you choose by eye or by search, prunes what stays, and brings each layer back to "
    "what the original's gave. Then it measures what that cost, beside the original."
)

runs = store().with_metrics(store().runs(metrics=False)[:10])
if not runs:
    st.header("A first look: the layers of the bundled model", anchor=False)
    similar.first_look(UNTOUCHED)

start, explore, compare = st.columns(3)
with start.container(border=True, height="stretch"):
    st.markdown("**Run the demo**")
    st.caption(
        "The bundled 135-million-parameter model: its similarity map, then 10, 20 and 30 % of its "
        "layers collapsed, with the perplexity of each. Minutes on a laptop, no network needed."
    )
    if start_button("Run the demo", type="primary", disabled=bool(runner().active())):
        send(*demo_requests())
with explore.container(border=True, height="stretch"):
    st.markdown("**Look at a model**")
    st.caption("Bundled, from the hub, a folder or a GGUF file: what is in it, and what can go.")
    st.page_link("pages/model.py", label="Choose a model", icon=":material/search:")
    st.page_link("pages/similarity.py", label="See its layers", icon=":material/grid_on:")
with compare.container(border=True, height="stretch"):
    st.markdown("**Put results side by side**")
    st.caption("Every run keeps its recipe and its numbers, with errors and settings.")
    st.page_link("pages/compare.py", label="Compare runs", icon=":material/balance:")

if runner().active():
    st.header("Running", anchor=False)
progress.running()

if runs:
    st.header("Recent runs", anchor=False)
    st.dataframe(runs_table(runs), hide_index=True, width="stretch")
else:
    st.info("No runs yet. Run the demo, or choose a model and collapse some of its layers.")
