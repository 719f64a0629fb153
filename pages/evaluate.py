"""Runs × evaluations as a grid: what is measured, what is on its way, and the start of the rest."""

import streamlit as st

from laco.report import heads
from laco.ui import compared, evaluating
from laco.ui.frame import begin

begin("Evaluate")
st.markdown(
    "What is known of each run, measured in the same way for all. Zero-shot tasks have the prompts "
    "and metrics of lm-evaluation-harness; every question's answer is kept, so that two runs can "
    "be compared question by question. Nothing is computed twice."
)
runs = evaluating.runs_and_chosen()
if not any(run.created for run in runs.values()):
    st.info(
        "No runs yet. Run the demo on the Home page, or collapse a model; its results stand here "
        "beside the original. The chosen model can be measured right away."
    )
if not runs:
    st.stop()
names = heads(list(runs.values()))
keys = compared.choose_runs(runs, names, "evaluate.runs")
specs = evaluating.choose()
if not keys or not specs:
    st.info("Choose runs, and what to measure of them.")
    st.stop()
chosen = {key: runs[key] for key in keys}
evaluating.show(chosen, names, specs)
evaluating.launch(chosen, names, specs)
st.page_link(
    "pages/compare.py",
    label="Set these runs side by side",
    icon=":material/balance:",
    query_params={"runs": [key[:11] for key in keys]},
)
