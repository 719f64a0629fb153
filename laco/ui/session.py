"""What a visitor has chosen, and the doors to the store and the jobs.

The chosen model lives in the session and in the address (`?model=`), so that a colleague opens
the same view. What was computed lives on disk alone. Loads no model. Next: `progress.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from laco import access, card, reference, shipped
from laco.errors import LacoError, ModelError
from laco.evaluations import Analysis, Evaluation, Footprint, Perplexity, Request
from laco.jobs import JobStatus, LocalRunner
from laco.machine import Speed, speed_here
from laco.reading import is_there
from laco.recipe import ModelRef, Recipe, parse_recipe
from laco.reference import BUNDLED
from laco.report import describe
from laco.store import Run
from laco.ui.person import person, settings
from laco.ui.places import chosen
from laco.ui.plain import plain
from laco.ui.stored import store

MEASURED: tuple[Evaluation, ...] = (Perplexity(), Footprint())  # of every run that a page starts
KEY = "laco"
UNTOUCHED = Recipe(model=ModelRef(path=BUNDLED))


@dataclass
class Session:
    """The chosen recipe (a model, with the steps of an earlier result), and the last job sent."""

    recipe: Recipe = UNTOUCHED
    address: str = BUNDLED  # what `?model=` says: a path, a path@revision, or a result's key
    job: str | None = None
    text: str | None = None  # the id of what was asked last on Try it; see laco/warm.py
    tour: bool | None = None  # whether the tour is on; None until it was offered, see tour.py
    framed: bool = False  # whether app.py is running the page; see frame.py


def held() -> Session:
    """What this visitor has chosen so far."""
    return st.session_state.setdefault(KEY, Session())


def session() -> Session:
    """The choices of the visitor, brought in line with the address."""
    mine = held()
    asked = st.query_params.get("model")
    if asked and asked != mine.address:
        try:
            choose(asked)
        except LacoError as error:
            st.warning(plain(f"The address names a model that cannot be taken: {error}"))
            st.query_params["model"] = mine.address
    elif not asked and mine.address != BUNDLED:
        st.query_params["model"] = mine.address
    return mine


def choose(address: str, dtype: str = "auto", trust_remote_code: bool = False) -> Session:
    """Take a model by its address. Raises `ModelError` for an empty one."""
    mine = held()
    mine.recipe = recipe_at(address.strip(), dtype, trust_remote_code)
    mine.address = address.strip()
    st.query_params["model"] = mine.address
    return mine


def recipe_at(address: str, dtype: str = "auto", trust_remote_code: bool = False) -> Recipe:
    """The recipe that an address stands for: a result's own, or a model without steps."""
    if not address:
        raise ModelError("No model is named; write a hub id, a folder or a .gguf file.")
    key = store().resolve(address) if address.startswith("k1-") else None
    if key is not None:
        run = store().run(key)
        if run is None:
            raise ModelError(f"The recipe of {key[:11]} was made by another laco; take another.")
        return run.recipe
    path, _, revision = address.partition("@")
    if not revision or is_there(address):
        path, revision = address, "main"
    who, known = person(), settings()
    access.check_model(path, known, store().folder, who)
    if trust_remote_code:
        access.check_trust(known, who)
    ref = {"path": path, "revision": revision, "dtype": dtype}
    return parse_recipe({"model": {**ref, "trust_remote_code": trust_remote_code}})


def runner() -> LocalRunner:
    """The jobs of that store, as whoever looks may deal with them."""
    return LocalRunner(store(), who=person(), on=chosen())


def submit(*requests: Request, label: str | Callable[[Request], str] = "") -> None:
    """Send requests that are not already waiting or running, under a label or each its own.

    Raises `AccessError` for who may not run jobs, or names what a browser may not name.
    """
    jobs, who = runner(), person()
    access.require_runner(who)
    for request in requests:
        access.check_request(request.model_dump(mode="json"), settings(), store().folder, who)
    pending = [status.request for status in jobs.active()]
    for request in requests:
        if request not in pending:
            said = label if isinstance(label, str) else label(request)
            held().job = jobs.submit(request, said or describe(request.recipe))


def send(*requests: Request, label: str | Callable[[Request], str] = "") -> None:
    """Send requests and draw the page anew; where they cannot be sent, say why."""
    try:
        submit(*requests, label=label)
    except LacoError as error:
        st.error(plain(str(error)))
    else:
        st.rerun()


def pinned(recipe: Recipe) -> Recipe:
    """The recipe as the engine would name it, so that its key is that of its run."""
    ref = recipe.model.model_dump_json()
    return recipe.model_copy(update={"model": _pin(ref, str(store().folder))})


@st.cache_data(ttl=30, max_entries=64, show_spinner=False)
def _pin(ref: str, folder: str) -> ModelRef:
    return reference.pin(ModelRef.model_validate_json(ref), Path(folder))


def find_run(recipe: Recipe) -> Run | None:
    """The run of this recipe, if it has been carried out. Raises `LacoError`."""
    return store().run(pinned(recipe).key)


def find_document(recipe: Recipe, analysis: Analysis) -> tuple[Analysis, dict] | None:
    """The document of this analysis, else one of its kind, with the spec it was made by.

    What was computed here goes before what came with laco, and the newest before others.
    """
    key = pinned(recipe).key
    here = store().analysis(key, analysis)
    if here is not None:
        return analysis, here
    came = shipped.find(key, analysis.kind)
    if came is not None and came[0] == analysis:
        return came
    for spec, _ in store().analyses(key):
        document = store().analysis(key, spec) if spec.kind == analysis.kind else None
        if document is not None:
            return spec, document
    return came


def measuring(recipe: Recipe) -> tuple[Request, ...]:
    """Requests for a recipe and, unless it is measured already, for the untouched original."""
    original = Recipe(model=recipe.model)
    wanted = Request(recipe=recipe, evaluations=MEASURED)
    run = find_run(original)
    known = run is not None and all(store().metrics(run.key, spec) for spec in MEASURED)
    if known or not recipe.steps:
        return (wanted,)
    return (Request(recipe=original, evaluations=MEASURED), wanted)


def card_of(recipe: Recipe) -> dict:
    """The card of what the recipe gives, from config and headers alone. Raises `LacoError`."""
    ref = recipe.model
    if recipe.steps:
        run = find_run(recipe)
        if run is None or run.path is None:
            raise ModelError("This result is no longer on disk; run its recipe again.")
        ref = ModelRef(path=str(run.path))
    return _card(ref.model_dump_json(), str(store().folder))


def card_or_stop() -> dict:
    """The card of the chosen model; where it cannot be read, says why and ends the page."""
    try:
        return card_of(session().recipe)
    except LacoError as error:
        st.error(plain(f"{error} Choose another on the Model page."))
        st.stop()


def speed() -> Speed:
    """How fast this machine is: as measured, or as assumed until then."""
    return speed_here(store().folder)


@st.cache_data(ttl=30, max_entries=64, show_spinner="Reading the config and the headers…")
def _card(ref: str, folder: str) -> dict:
    return card.inspect(ModelRef.model_validate_json(ref), Path(folder))


def finished(runs: Sequence[Run], *kinds: str) -> list[Run]:
    """Runs whose recipe ends in a step of these kinds."""
    return [run for run in runs if run.recipe.steps and run.recipe.steps[-1].kind in kinds]


def last_job() -> JobStatus | None:
    """The job that this visitor sent last, if it is still known."""
    job = held().job
    return next((status for status in runner().jobs() if status.id == job), None) if job else None
