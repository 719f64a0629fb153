"""The parts of a comparison: which runs, which numbers, which files. Next: `questions.py`.

The choice lives in the address (`?runs=…&runs=…&base=…`), so a comparison can be sent to someone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from laco import columns, report
from laco.store import Run
from laco.story import stories
from laco.ui import maps, pictures, progress, tables
from laco.ui.plain import on_badge
from laco.ui.session import store

FILES = {  # by format: its name on the button, and what the file's name ends in
    "csv": ("CSV", "csv"),
    "json": ("JSON", "json"),
    "markdown": ("Markdown", "md"),
    "latex": ("LaTeX", "tex"),
    "html": ("HTML report", "html"),
}
MOST_MAPS = 4
MOST_NOTES = 6
MOST_ROWS = 24  # before the table scrolls
MOST_RUNS = 8  # that are shown unasked


def choose_runs(
    runs: Mapping[str, Run],
    names: Mapping[str, str],
    key: str,
    unasked: int = MOST_RUNS,
    most: int | None = None,
) -> list[str]:
    """The keys to show, from the address or from the widget, at most `most`.

    Where nobody says, the newest run's family, `unasked` of it.

    An address that was not written here is followed, whatever the widget held before.
    """
    address = st.query_params.get_all("runs")
    asked = list(dict.fromkeys(found for text in address if (found := _known(text, runs))))
    held = st.session_state.get(key)
    if asked and address != st.session_state.get(f"{key}.written"):
        held = asked
    if held is not None:
        st.session_state[key] = [one for one in held if one in runs][:most]  # some may be gone
    start: dict[str, Any] = {}
    if held is None:
        start["default"] = default_runs(list(runs.values()))[:unasked]
    keys = st.multiselect(
        "Runs",
        list(runs),
        format_func=lambda key: names[key],
        max_selections=most,
        key=key,
        persist_state="session",
        **start,
    )
    written = [key[:11] for key in keys]
    st.session_state[f"{key}.written"] = st.query_params["runs"] = written
    return keys


def is_wanted(run: Run) -> bool:
    """Whether a run can be chosen: it is measured, or the address names it."""
    asked = st.query_params.get_all("runs")
    return run.measured or any(text and run.key.startswith(text) for text in asked)


def choose_baseline(runs: Mapping[str, Run], names: Mapping[str, str], keys: Sequence[str]) -> str:
    """The key of the baseline, from the address or from the widget; an untouched model unasked."""
    base = _known(st.query_params.get("base", ""), runs)
    if base is None or base not in keys:
        base = next((key for key in keys if not runs[key].recipe.steps), keys[0])
    base = st.selectbox(
        "Baseline", keys, index=keys.index(base), format_func=lambda key: names[key]
    )
    st.query_params["base"] = base[:11]
    return base


def default_runs(runs: Sequence[Run]) -> list[str]:
    """The newest run's family: every run of the same model, the original first, eight at most."""
    family = [run for run in runs if run.recipe.model == runs[0].recipe.model]
    family.sort(key=lambda run: (bool(run.recipe.steps), -run.created))
    return [run.key for run in family[:MOST_RUNS]]


def _known(text: str, runs: Mapping[str, Run]) -> str | None:
    found = [key for key in runs if text and key.startswith(text)]
    return found[0] if len(found) == 1 else None


def rows_of(picked: Sequence[Run], base: str, names: Mapping[str, str]) -> list[report.Row]:
    """Every number beside the baseline's; answers to the same questions are judged together.

    Runs are called by `names`.
    """
    measured = [(run.key, run.metrics) for run in picked]
    stamp = hashlib.sha256(repr((str(store().folder), base, measured)).encode()).hexdigest()
    return [replace(row, label=names[row.key]) for row in _rows(stamp, picked, base)]


@st.cache_data(max_entries=32, show_spinner="Comparing answers…")
def _rows(stamp: str, _picked: Sequence[Run], base: str) -> list[report.Row]:
    baseline = next(run for run in _picked if run.key == base)
    return report.table(_picked, baseline, store().answers)


def overview(rows: Sequence[report.Row], picked: Sequence[Run]) -> None:
    """The table with its marks, what they mean, and what answers to the same questions showed."""
    metrics = len({row.metric for row in rows})
    st.dataframe(
        tables.comparison(rows, picked),
        width="stretch",
        height=38 + 35 * min(metrics, MOST_ROWS),
        column_config={"_index": st.column_config.Column(width=270)},
    )
    st.caption(
        "▲ better, ▼ worse than the baseline; ≈ and grey: within noise (of the same questions: "
        "McNemar's p and a bootstrap interval; else twice the standard error). †: measured with "
        "other settings, so not compared. ‡: shares text with the calibration."
    )
    _notes(report.notes(rows))
    judged = tables.paired(rows)
    if len(judged):
        with st.expander("Question by question: gained, lost, and how certain a difference is"):
            st.dataframe(judged, hide_index=True, width="stretch")


def _notes(notes: Sequence[str]) -> None:
    """What may not be compared or trusted: in sight, or counted where it would fill the page."""
    place = st.container()
    if len(notes) > MOST_NOTES:
        place = st.expander(f"{len(notes)} numbers may not be compared, or not be trusted")
    for note in notes:
        colour = "orange" if note.startswith("†") else "violet"
        place.badge(on_badge(note), color=colour)


def downloads(rows: Sequence[report.Row], picked: Sequence[Run]) -> None:
    """A button for each format; a file is written when it is asked for."""
    for place, (form, (title, suffix)) in zip(st.columns(len(FILES)), FILES.items(), strict=True):
        place.download_button(
            title,
            partial(report.render, rows, form, picked, partial(stories, store(), picked)),
            file_name=f"laco-comparison.{suffix}",
            on_click="ignore",
            width="stretch",
            key=f"download.{form}",
        )


@st.fragment
def charts(rows: Sequence[report.Row]) -> None:
    """A chosen metric of each run, and the same against a chosen cost."""
    qualities, costs = columns.qualities(rows), columns.costs(rows)
    if not qualities:
        st.info("These runs have sizes only; measure their quality on the Evaluate page.")
        return
    bars, trade = st.columns(2, gap="large")
    with bars:
        quality = st.selectbox("Quality", qualities, key="quality", bind="query-params")
        st.caption("With one standard error. Hatched or hollow: measured with other settings.")
        show(pictures.run_bars(rows, quality), "quality.bars")
    with trade:
        if not costs:
            st.info("None of these runs has a size yet; measure the footprint on Evaluate.")
            return
        cost = st.selectbox("Against", costs, key="cost", bind="query-params")
        st.caption("Joined: no other run is better in both.")
        show(pictures.trade_off(rows, quality, cost), "trade")


def tasks(rows: Sequence[report.Row]) -> None:
    """Bars by zero-shot task, where there are any."""
    if not columns.by_task(rows):
        st.caption("None of these runs has answered a zero-shot task; ask some on Evaluate.")
        return
    st.caption("The metric that papers report, with one standard error.")
    show(pictures.task_bars(rows), "tasks")


def show(picture: pictures.Picture, key: str) -> None:
    """A figure, its words for who does not see it, and its numbers."""
    st.plotly_chart(picture.figure, alt=picture.words, key=f"{key}.chart", config=maps.CONFIG)
    progress.data_table("The numbers behind the chart", picture.numbers)


@st.fragment
def similarity_maps(picked: Sequence[Run], names: Mapping[str, str]) -> None:
    """The newest similarity map of each run that has one, on one scale; four at most."""
    documents = similarity_documents(picked)
    if not documents:
        st.caption("None of these runs has a similarity map; compute one on the Similarity page.")
        return
    measure = st.segmented_control(
        "Measure",
        list(maps.MEASURES),
        default="cosine",
        required=True,
        format_func=lambda name: maps.MEASURES[name].title,
    )
    matrices = [document["measures"][measure] for _, document in documents]
    limits = maps.limits_of(matrices)
    for place, (run, _), matrix in zip(
        st.columns(len(documents)), documents, matrices, strict=True
    ):
        title = names[run.key]
        with place:
            st.plotly_chart(
                maps.square_map(matrix, measure, "depth", limits, title=title),
                key=f"map.{run.key}",
                config=maps.CONFIG,
                alt=f"Similarity map of {title}",
            )
            progress.data_table("The map as a table", tables.frame(matrix))


def similarity_documents(runs: Sequence[Run]) -> list[tuple[Run, dict]]:
    """The newest similarity map of each run that has one, four at most."""
    found = []
    for run in runs:
        for spec, _ in store().analyses(run.key):
            if spec.kind == "similarity":
                document = store().analysis(run.key, spec)
                if document is not None:
                    found.append((run, document))
                break
    return found[:MOST_MAPS]
