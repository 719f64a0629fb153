"""Runs beside each other: numbers with their certainty, Pareto front, tasks, flipped answers."""

import streamlit as st

from laco.report import heads
from laco.ui import compared, questions
from laco.ui.frame import begin
from laco.ui.session import store

begin("Compare")
runs = {run.key: run for run in store().runs(metrics=False) if run.measured}
if not runs:
    st.info("Nothing is measured yet. Run the demo on the Home page, or collapse a model.")
    st.stop()
names = heads(list(runs.values()))
keys = compared.choose_runs(runs, names, "compare.runs")
if not keys:
    st.info("Choose runs to put side by side.")
    st.stop()
base = compared.choose_baseline(runs, names, keys)
picked = {run.key: run for run in store().with_metrics([runs[key] for key in keys])}
rows = compared.rows_of(list(picked.values()), base)

compared.overview(rows, list(picked.values()))
compared.downloads(rows, list(picked.values()))
st.page_link(
    "pages/try_it.py",
    label="Read what they write",
    icon=":material/edit_note:",
    query_params={"runs": [base[:11], *(key[:11] for key in keys if key != base)][:3]},
)

st.subheader("Quality and cost", anchor=False)
compared.charts(rows)

st.subheader("Zero-shot tasks", anchor=False)
compared.tasks(rows)

st.subheader("Questions that flipped", anchor=False)
questions.section(picked, names, base)

st.subheader("What differs", anchor=False)
compared.differences(picked, names, base)

st.subheader("Similarity maps on one scale", anchor=False)
compared.similarity_maps(list(picked.values()), names)
