"""The parts of the Evaluate page: which runs, which evaluations, what is missing and its start.

What a cell of the grid holds is in `grid.py`. Next: `../../pages/evaluate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import streamlit as st

from laco import commands
from laco.errors import LacoError
from laco.evaluations import Evaluation, Request, ZeroShot
from laco.recipe import Recipe
from laco.store import Run
from laco.tasks import BUNDLED, SETS, expand
from laco.ui import grid, progress
from laco.ui.forms import spec_form
from laco.ui.person import start_button
from laco.ui.session import pinned, runner, send, session, store
from laco.ui.words import requests_text
from laco.wording import describe

FIRST = "slicegpt"  # the set of tasks that the page opens with


def runs_and_chosen() -> dict[str, Run]:
    """Every run by its key, and the chosen model where it is none yet."""
    runs = {run.key: run for run in store().runs(metrics=False)}
    with suppress(LacoError):  # then there is nothing to measure, and the Model page says why
        recipe = pinned(session().recipe)
        if not recipe.steps and recipe.key not in runs:
            runs[recipe.key] = Run(recipe.key, recipe, None, 0.0, (), describe(recipe))
    return runs


def choose() -> list[Evaluation]:
    """The evaluations that are the grid's columns, and how they are measured."""
    kinds = {str(kind.model_fields["kind"].default): kind for kind in grid.kinds()}
    left, right = st.columns(2)
    what = left.multiselect(
        "Numbers",
        list(kinds),
        default=list(kinds),
        format_func=_kind_title,
        key="what",
        bind="query-params",
        wrap=True,
    )
    names = right.multiselect(
        "Zero-shot tasks",
        [*SETS, *BUNDLED],
        default=[FIRST],
        format_func=_task_title,
        key="tasks",
        bind="query-params",
        accept_new_options=True,
        wrap=True,
        help="Sets that papers report, tasks of the bundle, or any other name that "
        "lm-evaluation-harness has: its questions come from the hub",
    )
    asked = spec_form(ZeroShot, "evaluate.tasks", leave_out=("task", "pinned"), columns=4)
    found: list[Evaluation] = []
    with st.expander("How the other numbers are measured"):
        for name in what:
            if len(kinds[name].model_fields) > 1:
                st.markdown(f"**{_kind_title(name).capitalize()}**")
                spec = spec_form(kinds[name], f"evaluate.{name}", columns=4)
            else:
                spec = kinds[name]()
            if spec is not None:
                found.append(spec)
    if asked is not None:
        found += grid.tasks(expand(",".join(names)), asked)
    return found


def _kind_title(name: str) -> str:
    return grid.TITLES.get(name, name)


def _task_title(name: str) -> str:
    if name in SETS:
        return f"{name}: a set of {len(SETS[name])}"
    return BUNDLED[name].title if name in BUNDLED else name


def show(runs: Mapping[str, Run], names: Mapping[str, str], specs: Sequence[Evaluation]) -> None:
    """The grid, redrawn while something runs."""

    def draw() -> None:
        st.dataframe(
            grid.table(as_it_stands(runs, specs), names),
            width="stretch",
            column_config={"_index": st.column_config.Column(width=300)},
        )

    progress.live(draw)
    st.caption(
        f"{grid.MARKS['missing']} missing with these settings; other settings are other numbers. "
        "± is one standard error; ‡: shares text with the calibration. A task shows the metric "
        "that papers report; all of them are on the Compare page."
    )


def as_it_stands(runs: Mapping[str, Run], specs: Sequence[Evaluation]) -> grid.Grid:
    """What the store has and what the jobs are at, read now."""
    keys = list(runs)
    return grid.grid(keys, specs, store().measurements(keys), _active(runs))


def _active(runs: Mapping[str, Run]) -> list[tuple[str, Request, bool]]:
    """The jobs that wait or run, each with the key of the run that it is about."""
    found = []
    for status in runner().active():
        key = status.request.recipe.key
        if key not in runs:
            with suppress(LacoError):
                key = pinned(status.request.recipe).key
        found.append((key, status.request, status.state == "running"))
    return found


def launch(runs: Mapping[str, Run], names: Mapping[str, str], specs: Sequence[Evaluation]) -> None:
    """What is missing, as requests and as commands, and the button that starts it."""
    found = as_it_stands(runs, specs)
    recipes: dict[str, Recipe] = {key: run.recipe for key, run in runs.items()}
    wanted = grid.requests(found, recipes)
    by_recipe = {recipe: key for key, recipe in recipes.items()}
    cells = sum(len(request.evaluations) for request in wanted)
    st.markdown(
        f"**{cells} cells in {len(wanted)} runs are missing.**" if cells else "Nothing is missing."
    )
    if wanted:
        with st.expander("The requests, and the same from a terminal"):
            st.code(requests_text(wanted), language="json", height=300)
            lines = [
                commands.command(_typed(runs[by_recipe[request.recipe]]), request.evaluations)
                for request in wanted
            ]
            st.code("\n".join(lines), language="bash")
    if start_button("Start what is missing", type="primary", disabled=not wanted):
        send(*wanted, label=lambda request: f"Measure {names[by_recipe[request.recipe]]}")
    progress.last_failure()


def _typed(run: Run) -> str:
    """A run by the beginning of its key; a model that is none yet by its path."""
    return run.key[:11] if run.created else run.recipe.model.path
