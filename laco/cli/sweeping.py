"""Commands about sweeps: a recipe with some of its fields varied. Next: `../sweep.py`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laco.cli.options import CACHE, Evaluations, Json, On, Start, Store
from laco.cli.terminal import answer, columns, note, when
from laco.cli.work import opened

if TYPE_CHECKING:
    from laco.jobs import LocalRunner
    from laco.sweeps import Standing

LOOK_SECONDS = 1.0


def sweep(
    what: Annotated[
        str, typer.Argument(metavar="SWEEP", help="A sweep's JSON file, or the id of one started.")
    ],
    model: Start = None,
    evaluations: Evaluations = None,
    on: On = "local",
    again: Annotated[
        bool, typer.Option("--retry", help="Of a started sweep, run what failed once more.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Follow the members until all have ended.")
    ] = True,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Run a recipe with some of its fields varied, one job each; a table at the end.

    Ctrl-C stops following; the jobs go on. With a member that failed, the status is 1.
    """
    from laco import sweeps
    from laco.cli.arguments import read_sweep
    from laco.errors import RecipeError
    from laco.jobs import LocalRunner

    runs = opened(store)
    runner = LocalRunner(runs, on=on)
    if is_id(what):
        sweep_id = sweeps.read(runs, what).id
        if again:
            note(f"Members that run again: {sweeps.retry(sweep_id, runner)}.")
    elif again:
        raise RecipeError("--retry goes with the id of a sweep; `laco sweeps` lists them.")
    else:
        wanted = read_sweep(what, runs, model, evaluations or ())
        sweep_id = sweeps.start(wanted, runner)
        note(f"Sweep {sweep_id}: `laco sweep {sweep_id}` shows it, also when this ends.")
    started = sweeps.read(runs, sweep_id)
    found = _followed(sweep_id, runner) if wait else sweeps.standing(started, runner)
    headings, lines = sweeps.lines(found)
    members = [one.document() for one in found]
    document = {"id": sweep_id, "title": started.sweep.title, "members": members}
    answer(document, columns(lines, headings), as_json)
    if any(one.state in sweeps.AGAIN for one in found):
        raise typer.Exit(1)


def sweeps(as_json: Json = False, store: Store = CACHE) -> None:
    """List the sweeps, newest first."""
    from laco import sweeps
    from laco.jobs import LocalRunner

    runs = opened(store)
    runner = LocalRunner(runs)
    found = sweeps.started(runs)
    documents: list[dict[str, Any]] = []
    lines: list[list[str]] = []
    for one in found:
        states = sweeps.summary(sweeps.standing(one, runner))
        documents.append(
            {"id": one.id, "title": one.sweep.title, "created": one.created, "states": states}
        )
        lines.append([one.id, when(one.created), one.sweep.title, states])
    text = columns(lines) if lines else "There are no sweeps; `laco sweep SWEEP.json` starts one."
    answer(documents, text, as_json)


def is_id(text: str) -> bool:
    """Whether the id of a sweep is meant, and no file."""
    return not Path(text).suffix and not Path(text).exists()


def _followed(sweep_id: str, runner: LocalRunner) -> list[Standing]:
    """The members at their end; how many are in which state is told whenever that changes."""
    from laco import sweeps

    said = ""
    while True:
        found = sweeps.standing(sweeps.read(runner.store, sweep_id), runner)
        if (words := sweeps.summary(found)) != said:
            note(said := words)
        if not any(one.active for one in found):
            return found
        time.sleep(LOOK_SECONDS)
