"""A walk over the layers, drawn: while it runs, from live.json, and afterwards, from its report.

Also the report of LoRA, which has epochs for layers. Figures are in `curves.py`, sentences in
`told.py`. Next: `../../pages/compensate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from laco.recipe import Recipe
from laco.report import describe
from laco.store import Run
from laco.ui import curves, progress, tables, told
from laco.ui.cards import amount
from laco.ui.plain import plain
from laco.ui.session import finished, last_job, pinned, runner, store

ERROR = "relative error"
HELP = {
    "error": "Mean over tokens of the squared distance from the original's hidden state, over its "
    "squared length: what has gathered up to this layer",
    "cka": "1: the same geometry, up to rotation and scale",
    "stages": "The layer's error as it was fed by the layers before it, then after each stage; the "
    "stage with the least held-out error is kept",
    "lines": "A line for each layer: the first ones dark, the last ones bright",
}


def watch() -> None:
    """Every walk and training at work; the bar of the visitor's last job; what went wrong."""

    def draw() -> None:
        mine = last_job()
        for status in runner().active():
            document = status.live
            if document is not None or (mine is not None and status.id == mine.id):
                progress.bars([status])
            if document is not None and document.get("layers"):
                st.caption(told.walk_summary(document["layers"], document["of"]))
                by_layer(document["layers"], document["of"], status.id)
            elif document is not None and document.get("curve"):
                figure = curves.training(document)
                st.plotly_chart(figure, key=f"{status.id}.loss", alt=told.training_so_far(document))

    progress.live(draw)
    progress.last_failure()


def by_layer(rows: Sequence[Mapping[str, Any]], of: int, key: str) -> None:
    """Error and CKA through the depth, before and after, and the numbers."""
    left, right = st.columns(2)
    alt = told.walk_summary(rows, of)
    with left:
        st.markdown("**Relative error through the depth**", help=HELP["error"])
        lines = curves.through_depth(rows)
        st.plotly_chart(curves.layer_lines(lines, of, ERROR), key=f"{key}.error", alt=alt)
    with right:
        st.markdown("**CKA with the original**", help=HELP["cka"])
        lines = curves.through_depth(rows, "cka")
        st.plotly_chart(curves.layer_lines(lines, of, "CKA", most=1.0), key=f"{key}.cka", alt=alt)
    progress.data_table("The numbers by layer", tables.layers_table(rows))


def results(runs: Sequence[Run], hint: str) -> None:
    """One of these finished runs, chosen by the visitor, with its report; `hint` if none is."""
    by_key = {run.key: run for run in runs}
    if not by_key:
        st.info(hint)
        return
    names = tables.heads(list(by_key.values()))
    key = st.selectbox("Result", list(by_key), format_func=names.__getitem__, key="result")
    artifact = store().artifact(key)
    if artifact is None:
        st.error("This result is no longer on disk; run its recipe again.")
        return
    step = artifact.steps[-1]
    if step["kind"] == "finetune":
        trained(step["report"], step["seconds"])
    else:
        walked(step["report"], step["seconds"])
    compensate, compare, _ = st.columns([1, 1, 2])
    compensate.page_link(
        "pages/compensate.py",
        label="Bring it back, layer by layer",
        icon=":material/healing:",
        query_params={"model": key[:11]},
    )
    compare.page_link("pages/compare.py", label="Compare", icon=":material/balance:")


def walked(report: Mapping[str, Any], seconds: float) -> None:
    """The report of pruning or compensation: how sparse, how far off, what each layer learned."""
    rows, about, fields = report["layers"], report["calibration"], report.get("fields")
    last = rows[-1]
    first = ("Zeros in the layers", f"{100 * report['sparsity']:.1f} %")
    if fields:
        first = (", ".join(fields), ", ".join(f"{value:,}" for value in fields.values()))
    for place, (title, value) in zip(
        st.columns(4),
        (
            first,
            ("Error after the last layer", f"{last['error']:.3g}"),
            ("CKA there", "–" if last.get("cka") is None else f"{last['cka']:.4f}"),
            ("Took", progress.duration(seconds)),
        ),
        strict=True,
    ):
        place.metric(title, value, border=True)
    st.caption(
        f"Learned from {about['tokens']:,} tokens of {about['source']}; errors are of "
        f"{report['judged_on']}. {told.walk_summary(rows, len(rows))}"
    )
    by_layer(rows, len(rows), "result")
    _learned(rows)
    if report.get("curves"):
        _sensitivity(report["curves"], report["shares"], "result")
    notes = told.notes(rows)
    if notes:
        with st.expander(f"Notes ({len(notes)})"):
            st.markdown("\n".join(f"- {note}" for note in notes))


def _learned(rows: Sequence[Mapping[str, Any]]) -> None:
    stages = curves.by_stage(rows)
    if not stages:
        return
    left, right = st.columns(2)
    with left:
        st.markdown("**Each layer's own compensation**", help=HELP["stages"])
        figure = curves.layer_lines(stages, len(rows), ERROR)
        st.plotly_chart(figure, key="result.stages", alt=told.stages_summary(rows))
    losses = [row.get("losses") or [] for row in rows]
    if any(losses):
        epochs = range(1, 1 + max(map(len, losses)))
        with right:
            st.markdown("**Training loss by layer**", help=HELP["lines"])
            figure = curves.one_line_a_layer(epochs, losses, ("epoch", "loss"))
            st.plotly_chart(figure, key="result.losses", alt=told.losses_summary(losses))
        progress.data_table("The losses by layer and epoch", tables.lines_table(epochs, losses))


def known_sensitivity(recipe: Recipe) -> None:
    """The curves that the newest allocation by sensitivity of this very model was decided by."""
    model = pinned(recipe)
    for run in finished(store().runs(metrics=False), "prune"):
        artifact = store().artifact(run.key) if run.recipe.steps[:-1] == model.steps else None
        if artifact is None or run.recipe.model != model.model:
            continue
        report = artifact.steps[-1]["report"]
        if report.get("curves"):
            st.caption(plain(f"As measured for {describe(run.recipe)}:"))
            _sensitivity(report["curves"], report["shares"], "known")
            return
    st.caption("How layers suffer is measured first; the curves are drawn here afterwards.")


def _sensitivity(found: Mapping[str, Any], shares: Sequence[float], key: str) -> None:
    levels, errors = found["levels"], found["errors"]
    left, right = st.columns(2)
    alt = told.sensitivity_summary(levels, errors, shares)
    with left:
        st.markdown("**Error of each layer by its sparsity**", help=HELP["lines"])
        percent = [100 * level for level in levels]
        figure = curves.one_line_a_layer(percent, errors, ("sparsity, %", ERROR))
        st.plotly_chart(figure, key=f"{key}.curves", alt=alt)
    with right:
        st.markdown("**Sparsity that each layer got**")
        figure = curves.layer_bars(shares, "sparsity, %")
        st.plotly_chart(figure, key=f"{key}.shares", alt=alt)
    progress.data_table("The curves as a table", tables.lines_table(percent, errors))


def trained(report: Mapping[str, Any], seconds: float) -> None:
    """The report of LoRA: loss by step and epoch, beside the original's."""
    for place, (title, value) in zip(
        st.columns(4),
        (
            ("Held-out loss before", f"{report['held_out_before']:.4f}"),
            ("and after, merged", f"{report['held_out_after']:.4f}"),
            ("Trained parameters", amount(report["trained_parameters"])),
            ("Took", progress.duration(seconds)),
        ),
        strict=True,
    ):
        place.metric(title, value, border=True)
    st.caption(told.training_summary(report))
    figure = curves.training(report)
    st.plotly_chart(figure, key="result.training", alt=told.training_summary(report))
    progress.data_table("The losses by epoch", tables.training_table(report))
    for note in report.get("notes", ()):
        st.markdown(f"- {plain(note)}")
