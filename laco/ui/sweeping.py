"""The parts of the Sweeps page: which sweep, how it stands and what it shows, building another.

Figures are in `swept.py`, what a sweep is in `../sweep.py`. Next: `../../pages/sweeps.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

import streamlit as st

from laco import access, sweeps
from laco.errors import LacoError
from laco.evaluations import Evaluation, Footprint, Perplexity, ZeroShot
from laco.presets import presets
from laco.recipe import Recipe, Spec
from laco.report import describe, heads
from laco.spec import shortest
from laco.sweep import Sweep, members, parse_sweep, read_values, told
from laco.sweeps import Standing, Started
from laco.tasks import BUNDLED, SETS, expand
from laco.ui import compared, grid, progress, swept, tables
from laco.ui.fields import unwrapped
from laco.ui.forms import spec_form
from laco.ui.person import person, settings, start_button
from laco.ui.plain import code, plain
from laco.ui.session import runner, session, store

CHOSEN = "sweep"  # in the address: which sweep is shown
JUST_STARTED = "sweep.started"
SEEN, NEW = "Sweeps", "New sweep"  # tabs
FIRST = "laco-default"  # the preset that the form opens with


def choose() -> Started | None:
    """The sweep to show, the newest unasked; None where there is none."""
    found = {one.id: one for one in sweeps.started(store())}
    if not found:
        return None
    asked = st.query_params.get(CHOSEN, "")
    if new := st.session_state.pop(JUST_STARTED, None):
        asked, st.session_state["tab"] = new, SEEN
    ids = list(found)
    title = {one.id: f"{one.sweep.title} · {tables.when(one.created)}" for one in found.values()}
    chosen = st.selectbox(
        "Sweep",
        ids,
        index=ids.index(asked) if asked in ids else 0,
        format_func=title.__getitem__,
    )
    st.query_params[CHOSEN] = chosen
    return found[chosen]


def show(started: Started) -> None:
    """Everything about one sweep, redrawn while its jobs run."""
    progress.live(lambda: _draw(started.id))


def _draw(sweep_id: str) -> None:
    started = sweeps.read(store(), sweep_id)
    found = sweeps.standing(started, runner())
    ended = sum(not one.active for one in found)
    st.progress(ended / len(found), text=f"{len(found)} members: {sweeps.summary(found)}")
    _buttons(started, found)
    figures(found, started.sweep.how)
    table(found, started.sweep.title)
    with st.expander("The sweep as JSON, and the same from a terminal"):
        st.code(sweep_text(started.sweep), language="json")
        st.code(f"laco sweep sweep.json\nlaco sweep {sweep_id}", language="bash")


def _buttons(started: Started, found: list[Standing]) -> None:
    again = [one for one in found if one.state in sweeps.AGAIN]
    left, right, _ = st.columns([1, 1, 3])
    try:
        if start_button("Run the failed again", left, not again, sends=False, width="stretch"):
            sweeps.retry(started.id, runner())
            st.rerun()
        active = any(one.active for one in found)
        if start_button("Cancel the rest", right, not active, sends=False, width="stretch"):
            sweeps.cancel(started, runner())
            st.rerun()
    except LacoError as error:
        st.error(plain(str(error)))
    for one in again[:3]:
        st.error(plain(f"{told(one.values)} {one.state}: {one.error or 'someone asked for it.'}"))


def figures(found: list[Standing], how: str) -> None:
    """Curves of a chosen metric over a chosen axis, and parallel coordinates."""
    qualities = swept.qualities(found)
    if not qualities:
        st.info("Curves appear here as soon as the first member is measured.")
        return
    axes, names = swept.axes(found), swept.fields(found)
    one, other = st.columns(2)
    metric = one.selectbox("Quality", qualities, key="quality", bind="query-params")
    axis = other.selectbox(
        "over",
        axes,
        format_func=lambda path: str(names.get(path, path)),
        key="over",
        bind="query-params",
    )
    curves, lines = st.tabs(["Curves", "Parallel coordinates"])
    with curves:
        compared.show(swept.curves(found, metric, axis, how), "sweep.curves")
    with lines:
        st.caption("A line is a member. Drag along an axis to pick some; drag an axis to move it.")
        compared.show(swept.parallel(found, metric), "sweep.parallel")


def table(found: list[Standing], title: str) -> None:
    """Every member with its state and numbers, to look at and to take away."""
    frame = swept.frame(found)
    st.dataframe(frame, hide_index=True, width="stretch")
    left, right, _ = st.columns([1, 1, 3], vertical_alignment="center")
    left.download_button(
        "CSV",
        lambda: frame.to_csv(index=False),
        file_name=f"laco-sweep-{''.join(c if c.isalnum() else '-' for c in title)}.csv",
        on_click="ignore",
        width="stretch",
    )
    right.page_link(
        "pages/compare.py",
        label="Set side by side",
        icon=":material/balance:",
        query_params={"runs": [one.key[:11] for one in found if one.metrics][:8]},
    )


def build() -> None:
    """The form of another sweep: a recipe, one or two fields with their values, what to measure."""
    recipe = _base()
    if recipe is None:
        return
    known = dict(fields_of(recipe))
    vary: dict[str, Any] = {}
    how = "grid"
    for number, label in enumerate(("Field", "Second field, a line for each of its values")):
        left, right = st.columns(2)
        path = left.selectbox(
            label,
            list(known) if not number else ["", *(path for path in known if path not in vary)],
            index=0 if number else _first_written(recipe, list(known)),
            format_func=lambda path: f"{path} (now {known[path][0]})" if path else "None",
            key=f"sweep.field.{number}",
        )
        if not path:
            continue
        typed = right.text_input(
            "Values",
            key=f"sweep.values.{number}.{path}",
            placeholder="10, 20, 30 or 0.1:0.5:0.1",
            help="Values with commas between them, or start:stop:step with both ends included",
        )
        left.caption(plain(known[path][1]))
        try:
            vary[path] = read_values(typed)
        except LacoError as error:
            right.error(plain(str(error)))
            return
    if len(vary) > 1:
        ways = {"grid": "Every value with every other", "list": "First with first, and so on"}
        how = st.segmented_control(
            "Combine", list(ways), default="grid", format_func=ways.__getitem__, required=True
        )
    evaluations = _measured()
    name = st.text_input("Name", key="sweep.name", placeholder="A few words to know it by")
    if not all(vary.values()):
        st.info("Write the values of each field.")
    elif evaluations is not None:
        _launch(recipe, vary, how, evaluations, name)


def _first_written(recipe: Recipe, paths: Sequence[str]) -> int:
    """Which field is the first number that the recipe gives another value than its default."""
    written = shortest(recipe)
    for place, path in enumerate(paths):
        found: Any = written
        for part in path.split("."):
            found = found[int(part)] if isinstance(found, list) else found.get(part, {})
        if isinstance(found, int | float):
            return place
    return 0


def _base() -> Recipe | None:
    """A preset on the chosen model, or the recipe of a run."""
    chosen = session()
    runs = {run.key: run for run in store().runs(metrics=False) if run.recipe.steps}
    known, names = presets(), heads(list(runs.values()))
    titles = {name: f"Preset: {preset.title}" for name, preset in known.items()}
    titles |= {key: f"Result: {names[key]}" for key in runs}
    pick = st.selectbox(
        "Start from",
        list(titles),
        index=list(titles).index(FIRST) if FIRST in titles else 0,
        format_func=titles.__getitem__,
        key="sweep.base",
    )
    if pick in runs:
        return runs[pick].recipe
    st.info(f"{known[pick].note} It will work on {code(chosen.address)}.")
    return chosen.recipe.then(*known[pick].steps)


def _measured() -> tuple[Evaluation, ...] | None:
    with st.expander("What to measure of each member, and of the original"):
        st.markdown("**Perplexity**, and the footprint")
        perplexity = spec_form(Perplexity, "sweep.perplexity", columns=4)
        tasks = st.multiselect(
            "Zero-shot tasks", [*SETS, *BUNDLED], key="sweep.tasks", accept_new_options=True
        )
        asked = spec_form(ZeroShot, "sweep.zero", leave_out=("task", "pinned"), columns=4)
    if perplexity is None or asked is None:
        return None
    return (perplexity, Footprint(), *grid.tasks(expand(",".join(tasks)), asked))


def _launch(
    recipe: Recipe, vary: dict[str, Any], how: str, evaluations: tuple[Evaluation, ...], name: str
) -> None:
    """What would be started, as a table, as JSON and as a command, and the button."""
    document = {"recipe": recipe, "vary": vary, "how": how, "evaluations": evaluations}
    try:
        sweep = parse_sweep({**document, "name": name})
        found = members(sweep)
    except LacoError as error:
        st.error(plain(str(error)))
        return
    st.markdown(f"**{len(found)} jobs: {plain(describe(recipe))}, varied**")
    with st.expander("The members, and the same from a terminal"):
        st.dataframe(swept.choices_table([one.values for one in found]), hide_index=True)
        st.code(sweep_text(sweep), language="json")
        st.code("laco sweep sweep.json", language="bash")
    if start_button("Start", type="primary", key="sweep.start"):
        try:
            who = person()
            access.require_runner(who)
            for one in found:
                request = one.request.model_dump(mode="json")
                access.check_request(request, settings(), store().folder, who)
            st.session_state[JUST_STARTED] = sweeps.start(sweep, runner())
        except LacoError as error:
            st.error(plain(str(error)))
        else:
            st.rerun()


def sweep_text(sweep: Sweep) -> str:
    """The sweep as JSON that reads back as the same; what goes without saying is left out."""
    return json.dumps(shortest(sweep), indent=2)


def fields_of(recipe: Recipe) -> Iterator[tuple[str, tuple[str, str]]]:
    """The place of each field of the steps, with its value and what it says."""
    for number, step in enumerate(recipe.steps):
        yield from _fields(step, f"steps.{number}")


def _fields(spec: Spec, place: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for name, field in type(spec).model_fields.items():
        value, path = getattr(spec, name), f"{place}.{name}"
        if name == "kind":
            continue
        if isinstance(value, Spec):
            yield from _fields(value, path)
            continue
        kind, _ = unwrapped(field.annotation)
        options = f": {', '.join(map(str, get_args(kind)))}" if get_origin(kind) is Literal else ""
        yield (
            path,
            ("unset" if value is None else str(value), f"{field.description or ''}{options}"),
        )
