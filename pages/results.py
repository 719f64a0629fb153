"""Every result in the tree of what it was made from: choose one, go on from it, keep order."""

import streamlit as st

from laco import annotations
from laco.lineage import names
from laco.ui import lineage
from laco.ui.frame import begin
from laco.ui.session import store

begin("Results")
runs = store().runs(metrics=False)
if not runs:
    st.info("There are no results yet. Run the demo on the Home page, or collapse a model.")
    st.stop()
said = annotations.read_all(store())
nodes = lineage.shown_nodes(runs, said)
if not nodes:
    st.info("No result holds these words, or all that do are archived.")
    st.stop()
node = lineage.draw(nodes)
lineage.about(node, nodes)

words, removal = st.tabs(["Name, note and tags", "Delete"])
with words:
    lineage.edit(node, sorted({tag for one in said.values() for tag in one.tags}))
with removal:
    lineage.delete(node, runs, names(runs, said))
