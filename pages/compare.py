"""Runs beside each other: numbers with their certainty, Pareto front, tasks, flipped answers."""

import streamlit as st

from laco import annotations, lineage
from laco.ui import compared, pairs, questions
from laco.ui.frame import begin
from laco.ui.session import store

begin("Compare")
runs = {run.key: run for run in store().runs(metrics=False) if compared.is_wanted(run)}
if not runs:
    st.info("Nothing is measured yet. Run the demo on the Home page, or collapse a model.")
    st.stop()
names = lineage.names(list(runs.values()), annotations.read_all(store()))
keys = compared.choose_runs(runs, names, "compare.runs")
if not keys:
    st.info("Choose runs to put side by side.")
    st.stop()
base = compared.choose_baseline(runs, names, keys)
picked = {run.key: run for run in store().with_metrics([runs[key] for key in keys])}
rows = compared.rows_of(list(picked.values()), base, names)

compared.overview(rows, list(picked.values()))
compared.downloads(rows, list(picked.values()))
those = [base[:11], *(key[:11] for key in keys if key != base)]
with st.container(horizontal=True):
    st.page_link(
        "pages/try_it.py",
        label="Read what they write",
        icon=":material/edit_note:",
        query_params={"runs": those[:3]},
        width="content",
    )
    st.page_link(
        "pages/report.py",
        label="Show them as a report",
        icon=":material/article:",
        query_params={"runs": those, "base": those[0]},
        width="content",
    )

st.header("Quality and cost", anchor=False)
compared.charts(rows)

st.header("Zero-shot tasks", anchor=False)
compared.tasks(rows)

st.header("Questions that flipped", anchor=False)
questions.section(picked, names, base)

st.header("What differs", anchor=False)
pairs.section(picked, names, base)

st.header("Similarity maps on one scale", anchor=False)
compared.similarity_maps(list(picked.values()), names)
