"""Commands about jobs: work that goes on by itself. `app` starts the pages. Next: `../jobs.py`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laco.cli.options import CACHE, Job, Json, On, Store, Wanted, grouped
from laco.cli.terminal import answer, columns, note, when
from laco.cli.work import opened, read_request

if TYPE_CHECKING:
    from laco.jobs import JobStatus, LocalRunner

PAGES = Path(__file__).parent.parent.parent / "app.py"


@grouped
def submit(
    wanted: Wanted,
    on: On = "local",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Start it without asking whether memory is free.")
    ] = False,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Put a recipe into the queue; it goes on when this terminal closes."""
    from laco.report import describe

    runs = opened(store)
    request = read_request(wanted, runs)
    runner = _runner(store)
    job = runner.submit(request, label=describe(request.recipe), anyway=anyway, on=on)
    answer(_document(runner.status(job)), job, as_json)


def jobs(as_json: Json = False, store: Store = CACHE) -> None:
    """List the jobs, newest first."""
    found = _runner(store).jobs()
    lines = [
        [
            status.id,
            status.state,
            f"{100 * status.fraction:.0f} %",
            f"attempt {status.attempt} of {status.attempts}" if status.attempt else "–",
            status.place,
            status.device or "–",
            when(status.created),
            status.label,
            (status.error or status.message).partition("\n")[0],
        ]
        for status in found
    ]
    text = columns(lines) if lines else "There are no jobs; `laco submit` starts one."
    answer([_document(status) for status in found], text, as_json)


def logs(
    job: Job,
    tail: Annotated[int, typer.Option(help="Lines from the end.")] = 100,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Print what a job wrote."""
    text = _runner(store).log(job, tail=tail)
    answer({"id": job, "log": text}, text.rstrip("\n"), as_json)


def cancel(job: Job, as_json: Json = False, store: Store = CACHE) -> None:
    """Stop a job; what it finished before stays."""
    runner = _runner(store)
    runner.cancel(job)
    answer(_document(runner.status(job)), f"{job} is asked to stop.", as_json)


def retry(job: Job, as_json: Json = False, store: Store = CACHE) -> None:
    """Put a job that failed or was cancelled into the queue again."""
    runner = _runner(store)
    again = runner.retry(job)
    answer(_document(runner.status(again)), again, as_json)


def devices(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="The devices that take jobs from now on, or all."),
    ] = None,
    at_once: Annotated[int, typer.Option("--jobs", min=1, help="Jobs at once on each.")] = 1,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """List the devices and other places for jobs, or choose the devices that take jobs."""
    from laco import devices, places

    runner = _runner(store)
    if names:
        devices.choose(runner.store.folder, [] if names == ["all"] else names, at_once)
    slots = devices.slots(runner.store.folder)
    found = [
        {
            **asdict(devices.about(name)),
            "jobs": slots.count(name),
            "at_work": [
                s.id for s in runner.active() if (s.place, s.device) == (places.LOCAL, name)
            ],
        }
        for name in dict.fromkeys([*devices.devices_here(), *slots])
    ]
    lines = [
        [
            place["name"],
            place["label"],
            f"{_amount(place['memory_free'])} of {_amount(place['memory_total'])} free",
            f"takes {place['jobs']} at once" if place["jobs"] else "takes no jobs",
            " ".join(place["at_work"]) or "–",
        ]
        for place in found
    ]
    for name in places.configured(runner.store.folder)[1:]:
        says = places.tried(runner.store.folder, name)[1]
        at_work = [s.id for s in runner.active() if s.place == name]
        nothing = dict.fromkeys(("memory_total", "memory_free", "jobs"))
        found.append({"name": name, "label": says, **nothing, "at_work": at_work})
        lines.append([name, says, "–", "takes jobs by --on", " ".join(at_work) or "–"])
    answer(found, columns(lines), as_json)


def _amount(count: int | None) -> str:
    from laco.wording import format_value

    return "?" if count is None else format_value(count, "bytes")


def schedule(store: Store = CACHE) -> None:
    """Run the scheduler of this store's jobs; it starts by itself when needed."""
    _become(["-m", "laco.schedule", str(store.resolve())])


def app(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 8501,
    address: Annotated[
        str, typer.Option(help="Address to listen to; others than this machine's need sign-in.")
    ] = "127.0.0.1",
    host: Annotated[
        list[str] | None, typer.Option(help="A name by which browsers reach it; repeatable.")
    ] = None,
    open_to_network: Annotated[
        str,
        typer.Option(metavar="WORDS", help="Do without sign-in; docs/security.md has the words."),
    ] = "",
    store: Store = CACHE,
) -> None:
    """Start the pages on http://localhost:8501, for this machine alone unless told otherwise."""
    from laco import access

    folder = store.resolve()
    known = access.settings(folder)
    provider = access.has_provider(
        [place / ".streamlit" / "secrets.toml" for place in (Path.home(), PAGES.parent)]
    )
    access.check_address(address, known, provider, open_to_network)
    options = access.options(address, port, host or (), known)
    note(f"http://{host[0] if host else 'localhost'}:{port}")
    os.environ["LACO_STORE"] = str(folder)
    os.environ[access.OPENED] = open_to_network
    os.chdir(PAGES.parent)  # Streamlit looks for its settings there
    _become(["-m", "streamlit", "run", str(PAGES), *options])


def _become(arguments: list[str]) -> None:
    """Go on as another Python program, so that signals and the exit status are its own."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *arguments])


def _runner(store: Path) -> LocalRunner:
    from laco.jobs import LocalRunner

    return LocalRunner(opened(store))


def _document(status: JobStatus) -> dict[str, Any]:
    """A job as JSON data."""
    names = (
        "id",
        "label",
        "state",
        "fraction",
        "message",
        "seconds_left",
        "created",
        "started",
        "ended",
        "error",
        "attempt",
        "attempts",
        "place",
        "device",
        "memory",
        "result",
    )
    document: dict[str, Any] = {name: getattr(status, name) for name in names}
    request = status.request.model_dump(mode="json")
    return {**document, "request": request, "folder": str(status.folder)}
