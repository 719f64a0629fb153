"""A recipe about to be started, and a plan that a search left: shown, edited, run again.

What a page starts is always a recipe: its JSON and the command that does the same are shown.
Next: `../../pages/collapse.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st
from pydantic import ValidationError

from laco.errors import LacoError, RecipeError
from laco.presets import Preset, presets
from laco.recipe import Drop, Merge, Recipe, Span, complaints
from laco.report import describe
from laco.store import Run
from laco.ui import cards, charts, progress, tables
from laco.ui.person import start_button
from laco.ui.plain import plain
from laco.ui.session import choose, find_run, measuring, send, session, store
from laco.ui.spans import counted, in_ranges, kept, parse_spans, removed_by, spoken, text_of_spans
from laco.ui.words import recipe_text

SPANS = "merge.spans"  # the widget in which ranges are written


def add_span(span: Span | None) -> None:
    """Write one more range into the list of ranges (a callback; None does nothing)."""
    if span is None:
        return
    written = st.session_state.get(SPANS, "")
    try:
        already = parse_spans(written)
    except LacoError:
        already = ()
    if span not in already:
        st.session_state[SPANS] = text_of_spans((*already, span))


def take_span_from_address() -> None:
    """Move `?span=6:12` into the list of ranges, once."""
    asked = st.query_params.pop("span", None)
    if asked:
        try:
            for span in parse_spans(asked):
                add_span(span)
        except LacoError as error:
            st.warning(plain(f"The address names no range: {error}"))


def outcome(card: Mapping[str, Any], step: Merge | Drop) -> bool:
    """Show which layers go and stay and what that saves; False, with the reason, if it cannot."""
    layers = card["layers"]
    try:
        gone = removed_by(step, layers)
        if isinstance(step, Merge):
            st.markdown("  \n".join(f"**{spoken(span)}**" for span in step.spans))
        st.caption(f"Goes: {counted(gone)}. Stays: {in_ranges(kept(gone, layers))}.")
        cards.show_consequences(card, gone)
    except LacoError as error:
        st.error(plain(str(error)))
        return False
    return True


def choose_result(label: str) -> bool:
    """Whether an earlier result is the chosen model; the visitor may choose one here."""
    mine = session()
    runs = [run for run in store().runs(metrics=False) if run.recipe.steps and run.path]
    names = tables.heads(runs)
    keys = list(names)
    chosen = next((run.key for run in runs if run.recipe == mine.recipe), None)
    picked = st.selectbox(
        label,
        keys,
        index=None if chosen is None else keys.index(chosen),
        format_func=names.__getitem__,
        placeholder="An earlier result",
    )
    if picked is not None and picked != chosen:
        choose(picked)
        st.rerun()
    return chosen is not None


def chosen_preset(*kinds: str) -> Preset | None:
    """The preset that the visitor starts from, of those whose first step is of these kinds.

    None stands for the defaults. Its note is shown, and the address carries it (`?preset=`).
    """
    known = {name: p for name, p in presets().items() if p.steps[0].kind in kinds}
    name = st.selectbox(
        "Start from",
        ["", *known],
        format_func=lambda name: known[name].title if name else "The defaults",
        key="preset",
        bind="query-params",
    )
    if not name:
        return None
    st.info(known[name].note)
    return known[name]


def key_of(form: str, preset: Preset | None) -> str:
    """The key of a form that starts from a preset: its own for each, so that first values hold."""
    return f"{form}.{preset.name if preset else ''}"


def launch(recipe: Recipe, key: str) -> None:
    """The recipe, the command that does the same, and the button that starts it."""
    st.markdown(f"**{plain(describe(recipe))}**")
    with st.expander("The recipe, and the same from a terminal"):
        st.code(recipe_text(recipe), language="json")
        st.code("laco run recipe.json --evaluate perplexity --evaluate footprint", language="bash")
    done = find_run(recipe)
    if done is not None and done.path is not None:
        finished(done)
    weight = "primary" if done is None else "secondary"
    if start_button("Start", type=weight, key=f"{key}.start"):
        send(*measuring(recipe))


def finished(run: Run) -> None:
    """That this result is there, and where one goes with it."""
    keys = run.recipe.keys()
    family = dict.fromkeys(key[:11] for key in (keys[0], keys[-2], run.key))
    st.success("Done: this recipe has been run, and its result is kept.")
    with st.container(horizontal=True):
        if run.recipe.steps[-1].kind not in ("compensate", "finetune"):
            st.page_link(
                "pages/compensate.py",
                label="Compensate this result",
                icon=":material/healing:",
                query_params={"model": run.key[:11]},
            )
        st.page_link(
            "pages/compare.py",
            label="Compare it with the original",
            icon=":material/balance:",
            query_params={"runs": list(family)},
        )


def show_plan(run: Run) -> None:
    """The plan of a finished search: spans to edit, layers that go and stay, every candidate."""
    artifact = store().artifact(run.key)
    if artifact is None:
        st.error("This result is no longer on disk; run its recipe again.")
        return
    plan = artifact.steps[-1]["report"]
    st.markdown(
        f"{plan['layers_before']} layers became {plan['layers_after']} "
        f"({plan['merge']}), searched in {progress.duration(plan['seconds_search'])}."
    )
    st.caption(f"Went: {counted(plan['removed'])}. Stayed: {in_ranges(plan['kept'])}.")
    left, right = st.columns([2, 3], gap="large")
    with left:
        st.markdown("**Ranges** (edit them, add or delete rows)")
        edited = st.data_editor(
            pd.DataFrame(plan["spans"], columns=["start", "stop"]),
            num_rows="dynamic",
            width="stretch",
            key=f"plan.{run.key}",
        )
        try:
            step = merge_of(plan, edited)
            removed_by(step, plan["layers_before"])
        except LacoError as error:
            st.error(plain(str(error)))
        else:
            parent = Recipe(model=run.recipe.model, steps=run.recipe.steps[:-1])
            if start_button("Run this edited plan", key=f"plan.{run.key}.start"):
                send(*measuring(parent.then(step)))
    with right:
        st.plotly_chart(charts.candidate_scores(plan), alt="Score of every candidate, in order")
    progress.data_table("Every candidate tried", tables.candidates_table(plan))


def merge_of(plan: Mapping[str, Any], edited: pd.DataFrame) -> Merge:
    """The step that the edited table stands for. Raises `RecipeError` naming a bad row."""
    rows = edited.dropna(how="all")
    if rows.isna().any(axis=None):
        raise RecipeError("A range lacks its start or its stop; fill in both or delete the row.")
    try:
        return Merge(
            spans=tuple((int(start), int(stop)) for start, stop in rows.to_numpy()),
            merge=plan["merge"],
            parameters=plan["parameters"],
        )
    except ValidationError as error:
        raise RecipeError(f"The plan cannot be run: {complaints(error)}.") from None


def written_spans() -> tuple[Span, ...]:
    """The ranges written so far; none while the text cannot be read."""
    try:
        return parse_spans(st.session_state.get(SPANS, ""))
    except LacoError:
        return ()
