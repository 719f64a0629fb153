"""Look at a model before loading it: layers, memory, what can be done with it."""

import streamlit as st

from laco.errors import LacoError
from laco.ui import cards, exporting, tables
from laco.ui.frame import begin
from laco.ui.plain import plain
from laco.ui.session import BUNDLED, card_of, choose, session, store

SOURCES = ("Bundled", "Hub", "Folder or GGUF file", "Earlier result")

begin("Model")
st.markdown("Choose the model to work on. Only its config and headers are read here, no weights.")

source = st.segmented_control(
    "Where from", SOURCES, default=SOURCES[0], required=True, key="source", persist_state="session"
)
runs = [run for run in store().runs(metrics=False) if run.recipe.steps and run.path]
with st.form("model"):
    trust = False
    if source == "Bundled":
        st.markdown(
            "SmolLM2, 135 million parameters, 30 layers: comes with laco, needs no network."
        )
        address = BUNDLED
    elif source == "Hub":
        address = st.text_input("Hub id", placeholder="org/name or org/name@revision")
        trust = st.checkbox(
            "Run Python code that comes with this model",
            help="Off unless you trust its author: the code can do anything on this machine",
        )
    elif source == "Folder or GGUF file":
        address = st.text_input("Path on this machine", placeholder="/models/my-model")
    else:
        labels = tables.heads(runs)
        address = st.selectbox("Result", list(labels), format_func=lambda key: labels[key]) or ""
        if not runs:
            st.info("No results yet: collapse a model first, then take it further from here.")
    dtype = st.selectbox(
        "Number format",
        ("auto", "float32", "bfloat16", "float16"),
        help="auto: as the checkpoint says; float16 on a CPU is refused",
        disabled=source == "Earlier result",
    )
    if st.form_submit_button("Use this model", type="primary"):
        try:
            choose(address, dtype, trust)
        except LacoError as error:
            st.error(plain(str(error)))
        else:
            st.rerun()  # what stands beside the page names the model, too

chosen = session()
st.header(plain(chosen.address), anchor=False)
try:
    cards.show(card_of(chosen.recipe))
    if chosen.recipe.steps:
        exporting.section(chosen.recipe)
    left, middle, right, _ = st.columns([1, 1, 1, 1])
    left.page_link(
        "pages/similarity.py", label="See how alike its layers are", icon=":material/grid_on:"
    )
    middle.page_link("pages/collapse.py", label="Collapse some", icon=":material/compress:")
    right.page_link("pages/sparsify.py", label="Sparsify them", icon=":material/blur_on:")
except LacoError as error:
    st.error(plain(str(error)))
