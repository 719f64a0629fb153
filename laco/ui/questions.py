"""Questions that two runs answered unlike, with their text: which, how many, and one in full.

What counts as a change is in `laco/rows.py`. Next: `../../pages/compare.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from laco.errors import LacoError
from laco.evaluations import Metric
from laco.report import Flip, flipped
from laco.store import Run
from laco.ui import tables
from laco.ui.session import store

CHANGES = {
    "all": "All",
    "lost": "Right before, wrong now",
    "gained": "Wrong before, right now",
    "other": "Another answer, judged alike",
}


@st.fragment
def section(picked: Mapping[str, Run], names: Mapping[str, str], base: str) -> None:
    """Choose a run, a task and words to look for; the questions whose answer changed."""
    mine = {key: asked_of(run) for key, run in picked.items()}
    others = [key for key in picked if key != base and set(mine[key]) & set(mine[base])]
    if not others:
        st.caption(
            "Answers to the same task, of the baseline and of another run, are set side by side "
            "here; ask for them on the Evaluate page."
        )
        return
    left, middle, right = st.columns(3)
    run = left.selectbox(
        "Run", others, format_func=names.__getitem__, key="run", bind="query-params"
    )
    shared = [task for task in mine[base] if task in mine[run]]
    task = middle.selectbox("Task", shared, key="task", bind="query-params")
    words = right.text_input("Look for", key="find", bind="query-params", type="search")
    metrics = mine[base][task], mine[run][task]
    try:
        before, after = (store().answers(metric.details["answers"]) or () for metric in metrics)
        found = flipped(before, after, metrics[0].name.partition("[")[0])
    except LacoError as error:
        st.info(str(error))
        return
    change = st.segmented_control(
        "What changed",
        list(CHANGES),
        default="all",
        required=True,
        format_func=CHANGES.__getitem__,
        key="change",
        bind="query-params",
    )
    shown = matching(found, words or "", change)
    counts = {change: sum(flip.change == change for flip in found) for change in CHANGES}
    st.caption(
        f"Of {len(before)} questions {counts['lost']} were right before and are wrong now, "
        f"{counts['gained']} the other way round, {counts['other']} have another answer that "
        f"counts the same; shown: {len(shown)}. Before: {names[base]}. Now: {names[run]}.".replace(
            "[", r"\["
        )
    )
    if shown:
        _questions(shown)


def asked_of(run: Run) -> dict[str, Metric]:
    """The main metric of each task whose answers are kept, by the task's name."""
    return {
        metric.name.partition("[")[2].removesuffix("]"): metric
        for metric in run.metrics
        if metric.details.get("answers") and metric.details.get("main") is not False
    }


def matching(flips: Sequence[Flip], words: str, change: str = "all") -> list[Flip]:
    """Those of a kind in whose question or choices all the words stand, in whatever case."""
    wanted = words.casefold().split()
    return [
        flip
        for flip in flips
        if change in ("all", flip.change)
        and all(word in " ".join((flip.question, *flip.choices)).casefold() for word in wanted)
    ]


def _questions(flips: Sequence[Flip]) -> None:
    """The questions as a table, and the chosen one of them in full."""
    state = st.dataframe(
        tables.flips(flips),
        hide_index=True,
        width="stretch",
        height=min(38 + 35 * len(flips), 330),
        key="flips",
        on_select="rerun",
        selection_mode="single-row",
        column_config={"question": st.column_config.TextColumn(width="large")},
    )
    rows = state.selection.rows if hasattr(state, "selection") else []
    flip = flips[rows[0] if rows and rows[0] < len(flips) else 0]
    with st.container(border=True):
        st.caption("The first of them in full; click a row to see another." if not rows else "")
        st.text(flip.question)
        st.dataframe(tables.choices(flip), hide_index=True, width="stretch")
