"""Chosen runs as a story to show and to send; nothing on it starts any work."""

import streamlit as st

from laco import annotations, lineage
from laco.story import stories
from laco.ui import compared, reports
from laco.ui.frame import begin
from laco.ui.session import store

begin("Report")
picked, base = reports.choose()
names = lineage.names(picked, annotations.read_all(store()))
rows = compared.rows_of(picked, base, names)
known = stories(store(), picked)
reports.take_away(picked, base, rows)

st.header("Numbers", anchor=False)
if rows:
    reports.numbers(rows, picked)
else:
    st.info("None of these runs is measured yet; that is started on the Evaluate page.")
reports.texts(names, known)
for run in picked[: reports.MOST_CHAPTERS]:
    reports.chapter(run, names[run.key], known[run.key])
