"""Sweeps that were started: their members' jobs, how they stand, and what failed once more.

A sweep is a file of the store that is replaced whole. Its members are jobs as any others; what they
share is computed once, since the engine lets one job at a time make a result. Next: `jobs.py`.

    sweeps/<id>.json    the sweep, who started it, each member's values, recipe and newest job
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from laco import access, locks, reference
from laco.disk import read_json, write_json
from laco.errors import LacoError, RecipeError, StoreError
from laco.evaluations import Metric, Request
from laco.jobs import JobStatus, LocalRunner
from laco.places import LOCAL
from laco.recipe import ModelRef, Recipe, parse_recipe
from laco.report import format_value
from laco.store import RunStore
from laco.sweep import Sweep, Values, field_names, in_order, members, parse_sweep, text_of, told

AGAIN = ("failed", "cancelled", "lost")  # states of members that can be run again
_ID = re.compile(r"[0-9a-f]{1,12}")


@dataclass(frozen=True)
class Kept:
    """One member as it is kept. Its recipe is pinned, so it is the same when it runs again."""

    values: Values
    recipe: Recipe
    job: str


@dataclass(frozen=True)
class Started:
    """A sweep that was started, its original first."""

    id: str
    sweep: Sweep
    created: float
    owner: str
    members: tuple[Kept, ...]
    place: str = LOCAL  # where its jobs run


@dataclass(frozen=True)
class Standing:
    """How one member stands. `metrics` are those that the sweep asked for; none before its end.

    `lost` is a member whose job is not in the queue any more.
    """

    values: Values
    key: str
    recipe: Recipe
    job: str
    state: str
    fraction: float = 0.0
    message: str = ""
    error: str = ""
    metrics: tuple[Metric, ...] = ()

    @property
    def active(self) -> bool:
        """Whether it waits or runs."""
        return self.state in ("queued", "starting", "running")

    def document(self) -> dict[str, Any]:
        """The member as JSON data."""
        return {
            "values": dict(self.values),
            "key": self.key,
            "job": self.job,
            "state": self.state,
            "fraction": self.fraction,
            "error": self.error or None,
            "metrics": [metric.document() for metric in self.metrics],
        }


def start(sweep: Sweep, runner: LocalRunner) -> str:
    """Queue a job for each member at the runner's place, and keep which; the sweep's id, at once.

    If one cannot be queued, none is: those before it are taken back, and the reason is raised.
    """
    access.require_runner(runner.who)
    wanted = members(sweep)
    recipes = _settled([one.request.recipe for one in wanted], runner.store)
    found = [(one.values, recipe) for one, recipe in zip(wanted, recipes, strict=True)]
    sweep_id = uuid.uuid4().hex[:12]
    jobs = _submitted(sweep, found, runner, runner.on)
    kept = [Kept(values, recipe, jobs[place]) for place, (values, recipe) in enumerate(found)]
    now, who = time.time(), runner.who.name
    _write(runner.store, Started(sweep_id, sweep, now, who, tuple(kept), runner.on))
    return sweep_id


def retry(sweep_id: str, runner: LocalRunner) -> int:
    """Queue those members again that failed, were cancelled or are lost; how many."""
    store = runner.store
    with locks.alone(store.folder / "locks" / f"sweep-{sweep_id}", lambda: None):
        started = read(store, sweep_id)
        access.require_owner(runner.who, started.owner)
        again = [place for place, one in enumerate(standing(started, runner)) if one.state in AGAIN]
        kept = list(started.members)
        wanted = [(kept[place].values, kept[place].recipe) for place in again]
        jobs = _submitted(started.sweep, wanted, runner, started.place)
        for number, place in enumerate(again):
            kept[place] = replace(kept[place], job=jobs[number])
        _write(store, replace(started, members=tuple(kept)))
    return len(again)


def cancel(started: Started, runner: LocalRunner) -> None:
    """Ask every member that waits or runs to stop."""
    for one in standing(started, runner):
        if one.active:
            runner.cancel(one.job)


def read(store: RunStore, sweep_id: str) -> Started:
    """A sweep by its id, or the beginning of one. Raises `StoreError`."""
    found = [
        path for path in _files(store) if _ID.fullmatch(sweep_id) and path.stem.startswith(sweep_id)
    ]
    if len(found) != 1:
        what = "are several sweeps" if found else "is no sweep"
        raise StoreError(f"There {what} {sweep_id} in {store.folder}; `laco sweeps` lists them.")
    started = _read(found[0])
    if started is None:
        raise StoreError(f"The sweep {found[0]} cannot be read by this version of laco.")
    return started


def started(store: RunStore) -> list[Started]:
    """Every sweep that this version can read, newest first."""
    found = [one for path in _files(store) if (one := _read(path)) is not None]
    return sorted(found, key=lambda one: -one.created)


def standing(started: Started, runner: LocalRunner) -> list[Standing]:
    """How each member stands now, the original first."""
    jobs = {status.id: status for status in runner.jobs()}
    return [_standing(one, jobs.get(one.job)) for one in started.members]


def summary(found: Sequence[Standing]) -> str:
    """How many members are in which state: `5 done, 1 failed`."""
    states = [one.state for one in found]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def headings(found: Sequence[Standing]) -> tuple[dict[str, str], list[str]]:
    """A heading by the place of each field that varies, and the metrics; no two are the same."""
    metrics = list(dict.fromkeys(metric.name for one in found for metric in one.metrics))
    names = field_names(list(dict.fromkeys(path for one in found for path in one.values)))
    return {path: path if name in metrics else name for path, name in names.items()}, metrics


def table(found: Sequence[Standing]) -> tuple[list[str], list[list[Any]]]:
    """Headings and a line for each member: its values, state, numbers and key; None where none."""
    names, metrics = headings(found)
    lines: list[list[Any]] = []
    for one in found:
        numbers = {metric.name: metric.value for metric in one.metrics}
        lines.append(
            [
                *(one.values.get(path) for path in names),
                one.state,
                *(numbers.get(name) for name in metrics),
                one.key[:11],
            ]
        )
    return [*names.values(), "state", *metrics, "key"], lines


def lines(found: Sequence[Standing]) -> tuple[list[str], list[list[str]]]:
    """The same table in words, as a person reads it; what failed says why."""
    titles, rows = table(found)
    units = {metric.name: metric.unit for one in found for metric in one.metrics}

    def said(heading: str, cell: Any) -> str:
        if cell is None:
            return "–"
        return format_value(cell, units[heading]) if heading in units else text_of(cell)

    words = [
        [said(heading, cell) for heading, cell in zip(titles, row, strict=True)] for row in rows
    ]
    for one, row in zip(found, words, strict=True):
        if not one.values:
            row[0] = "original"
        row.append(one.error)
    return [*titles, ""], words


def _submitted(
    sweep: Sweep, found: Sequence[tuple[Values, Recipe]], runner: LocalRunner, on: str
) -> dict[int, str]:
    """A job for each, in the order in which little waits for another."""
    jobs: dict[int, str] = {}
    try:
        for place in in_order([recipe.keys() for _, recipe in found]):
            values, recipe = found[place]
            request = Request(recipe=recipe, evaluations=sweep.evaluations)
            jobs[place] = runner.submit(request, f"{sweep.title}: {told(values)}", on=on)
    except LacoError as error:
        for job in jobs.values():
            runner.cancel(job)
        error.add_note("none of the sweep's members was started")
        raise
    return jobs


def _standing(one: Kept, status: JobStatus | None) -> Standing:
    common = {"values": one.values, "key": one.recipe.key, "recipe": one.recipe, "job": one.job}
    if status is None:
        return Standing(**common, state="lost", error="Its job is not in the queue any more.")
    result = status.result or {}
    return Standing(
        **common,
        state=status.state,
        fraction=status.fraction,
        message=status.message,
        error=(status.error or "").partition("\n")[0],
        metrics=tuple(Metric(**metric) for metric in result.get("metrics", ())),
    )


def _settled(recipes: Sequence[Recipe], store: RunStore) -> list[Recipe]:
    """The recipes as the engine would name them: from their first model on, and that pinned."""
    whole = [store.whole(recipe) for recipe in recipes]
    pinned: dict[str, ModelRef] = {}
    for one in whole:
        if str(one.model) not in pinned:
            pinned[str(one.model)] = reference.pin(one.model, store.folder)
    return [recipe.model_copy(update={"model": pinned[str(recipe.model)]}) for recipe in whole]


def _files(store: RunStore) -> list[Path]:
    return sorted((store.folder / "sweeps").glob("*.json"))


def _write(store: RunStore, started: Started) -> None:
    (store.folder / "sweeps").mkdir(exist_ok=True)
    document = {
        "sweep": started.sweep.model_dump(mode="json"),
        "created": started.created,
        "owner": started.owner,
        "place": started.place,
        "members": [
            {
                "values": dict(one.values),
                "recipe": one.recipe.model_dump(mode="json"),
                "job": one.job,
            }
            for one in started.members
        ],
    }
    write_json(store.folder / "sweeps" / f"{started.id}.json", document)


def _read(path: Path) -> Started | None:
    found = path.stat()
    return _parsed(path, found.st_mtime_ns, found.st_ino)


@lru_cache(maxsize=256)
def _parsed(path: Path, _changed: int, _number: int) -> Started | None:
    """What a file holds; a page asks again while members run, and the file is replaced whole."""
    document: Mapping[str, Any] | None = read_json(path)
    if document is None:
        return None
    try:
        return Started(
            id=path.stem,
            sweep=parse_sweep(document["sweep"]),
            created=float(document["created"]),
            owner=str(document["owner"]),
            place=str(document.get("place", LOCAL)),
            members=tuple(
                Kept(one["values"], parse_recipe(one["recipe"]), str(one["job"]))
                for one in document["members"]
            ),
        )
    except (RecipeError, KeyError, TypeError):
        return None
