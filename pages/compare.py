"""Runs beside each other: table, Pareto front, what differs."""

import streamlit as st

from laco import report
from laco.ui import charts, compared, maps, progress, tables
from laco.ui.frame import begin
from laco.ui.session import store

begin("Compare")
runs = {run.key: run for run in store().runs() if run.metrics}
if not runs:
    st.info("Nothing is measured yet. Run the demo on the Home page, or collapse a model.")
    st.stop()
names = tables.heads(list(runs.values()))
keys, base = compared.choice(runs, names)
if not keys:
    st.info("Choose runs to put side by side.")
    st.stop()
picked = [runs[key] for key in keys]
rows = report.table(picked, runs[base])

st.dataframe(tables.comparison(rows, picked), width="stretch")
st.caption(
    "▲ better, ▼ worse than the baseline; ≈ and grey: within twice the standard error. "
    "†: measured with other settings, so not compared."
)
for badge in tables.badges(rows):
    st.badge(f"† not comparable: {badge}", color="orange")
compared.downloads(rows)

quality, trade = st.columns(2)
metric = compared.quality_metric(picked)
if metric is None:
    st.info("None of these runs has a perplexity yet.")
else:
    shown = compared.measured(picked, names, metric, base)
    with quality:
        st.subheader("Perplexity", anchor=False)
        st.caption(f"{metric}, lower is better")
        st.plotly_chart(
            charts.value_bars(
                shown.labels, shown.values, shown.errors, "perplexity", shown.baseline
            ),
            alt=f"{metric} of each run",
        )
    with trade:
        st.subheader("Quality against size", anchor=False)
        st.caption("Joined: no other run is both smaller and better")
        st.plotly_chart(
            charts.trade_off(
                shown.labels,
                shown.costs,
                shown.values,
                shown.errors,
                shown.front,
                ("parameters", "perplexity"),
            ),
            alt=f"{metric} against parameters, Pareto front joined",
        )
    progress.data_table("The numbers behind the charts", shown.frame())

st.subheader("What differs", anchor=False)
left, right = st.columns(2)
others = [key for key in keys if key != base] or keys
one = left.selectbox("This run", others, format_func=names.__getitem__)
other = right.selectbox(
    "against", [base, *(key for key in keys if key != base)], format_func=names.__getitem__
)
if st.toggle("Differences only", value=True, key="diff", bind="query-params"):
    found = report.diff(runs[other].recipe, runs[one].recipe)
    if found:
        st.dataframe(tables.differences(found, names[other], f"{names[one]} "), hide_index=True)
    else:
        st.caption("The two recipes are the same.")
else:
    left.json(runs[one].recipe.model_dump(mode="json"))
    right.json(runs[other].recipe.model_dump(mode="json"))

documents = compared.similarity_documents(picked)
if documents:
    st.subheader("Similarity maps on one scale", anchor=False)
    measure = st.segmented_control(
        "Measure",
        list(maps.MEASURES),
        default="cosine",
        required=True,
        format_func=lambda name: maps.MEASURES[name].title,
    )
    matrices = [document["measures"][measure] for _, document in documents]
    for place, (run, matrix) in zip(
        st.columns(len(documents)), zip(documents, matrices, strict=True), strict=True
    ):
        place.plotly_chart(
            maps.square_map(
                matrix, measure, "depth", maps.limits_of(matrices), title=names[run[0].key]
            ),
            alt=f"Similarity map of {names[run[0].key]}",
        )
else:
    st.caption("None of these runs has a similarity map; compute one on the Similarity page.")
