"""Commands that have the engine work in this process. Next: `engine.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laco.cli.options import AS_IT_IS, CACHE, Device, Held, Json, Store, Wanted, grouped
from laco.cli.terminal import answer, columns, note, working

if TYPE_CHECKING:
    from laco.evaluations import Request
    from laco.store import RunStore


@grouped
def run(wanted: Wanted, device: Device = None, as_json: Json = False, store: Store = CACHE) -> None:
    """Carry out a recipe here and now; steps that are on disk already are not done again."""
    from laco.report import describe

    runs = opened(store)
    request = read_request(wanted, runs)
    note(describe(request.recipe))
    found = carry_out(request, runs, device)
    if problem := found.get("share", {}).get("problem"):
        note(problem)
    steps = [
        [step["kind"], "from the store" if step["cached"] else f"{step['seconds']:.1f} s"]
        for step in found["steps"]
    ]
    lines = [*steps, *_metric_lines(found["metrics"]), ["key", found["key"]]]
    answer(found, columns([*lines, ["folder", found["path"] or "–"]]), as_json)


@grouped
def evaluate(
    model: Annotated[str, typer.Argument(metavar="KEY|MODEL", help="A result, or a model.")],
    specs: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC...",
            help="perplexity:CORPUS, kl:CORPUS, zero-shot:TASK,TASK, footprint, latency or "
            "degeneration; settings follow with commas: perplexity:c4,window=1024,windows=all",
        ),
    ],
    limit: Annotated[int | None, typer.Option(help="Windows, or questions, at most.")] = None,
    held: Held = AS_IT_IS,
    device: Device = None,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Measure a model or a result."""
    from laco.cli.arguments import read_evaluations, read_model
    from laco.evaluations import Request

    runs = opened(store)
    evaluations = tuple(spec for text in specs for spec in read_evaluations(text, limit))
    request = Request(
        recipe=read_model(model, runs, held.dtype, held.trust), evaluations=evaluations
    )
    found = carry_out(request, runs, device)
    text = columns([*_metric_lines(found["metrics"]), ["key", found["key"]]])
    answer({"key": found["key"], "metrics": found["metrics"]}, text, as_json)


@grouped
def export(
    model: Annotated[str, typer.Argument(metavar="KEY", help="A result, or a model.")],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to; not there yet, or empty.")
    ],
    held: Held = AS_IT_IS,
    device: Device = None,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Export a result as a folder that stock transformers loads, checked without laco.

    With a check that fails, nothing is exported and the status is 1.
    """
    from laco.cli.arguments import read_export, read_model
    from laco.errors import ExportError
    from laco.evaluations import Request

    runs = opened(store)
    is_result = model.startswith("k1-")
    recipe = read_model(model, runs, None if is_result else held.dtype, held.trust)
    request = Request(recipe=recipe, export=read_export(folder, held.dtype))
    try:
        found = carry_out(request, runs, device)["export"]
    except ExportError as error:
        if as_json and error.checks:
            answer({"path": None, "verified": False, "checks": error.checks}, "", as_json)
        raise
    lines = [[c["name"], "passed" if c["ok"] else "failed", c["detail"]] for c in found["checks"]]
    lines += [
        [n["name"], "ready" if n["ready"] else "not ready", n["detail"]] for n in found["notes"]
    ]
    answer(found, columns([*lines, ["folder", "", found["path"]]]), as_json)


def demo(device: Device = None, as_json: Json = False, store: Store = CACHE) -> None:
    """Do the main job on the bundled model: map, collapse, measure, compare."""
    from laco.demo import compared, demo_requests
    from laco.report import describe, render

    runs = opened(store)
    reports: list[dict[str, Any]] = []
    for request in demo_requests():
        note(describe(request.recipe))
        reports.append(carry_out(request, runs, device))
    rows = compared(reports, runs.runs())
    keys = [report["key"] for report in reports]
    answer({"keys": keys, "rows": [row.document() for row in rows]}, render(rows), as_json)


def opened(store: Path) -> RunStore:
    """The store in that folder."""
    from laco.store import RunStore

    return RunStore(store)


def read_request(wanted: Wanted, runs: RunStore) -> Request:
    """What `laco run` and `laco submit` are told, as one request."""
    from laco.cli.arguments import read_evaluations, read_model, read_recipe
    from laco.evaluations import Request

    start, changes = None, [*(wanted.changes or [])]
    if wanted.model is not None:
        start = read_model(wanted.model, runs, wanted.dtype, wanted.trust)
    else:
        if wanted.dtype is not None:
            changes.append(f"model.dtype={wanted.dtype}")
        if wanted.trust:
            changes.append("model.trust_remote_code=true")
    recipe = read_recipe(wanted.recipe, runs, start, changes)
    specs = tuple(spec for text in wanted.evaluations or () for spec in read_evaluations(text))
    return Request(recipe=recipe, evaluations=specs)


def carry_out(request: Request, runs: RunStore, device: str | None) -> dict[str, Any]:
    """Have the engine do it in this process; Ctrl-C stops it and loses nothing finished."""
    with working() as (progress, cancelled):
        from laco.context import Context
        from laco.imports import imported

        (engine,) = imported("laco.engine")
        first, *more = map(device_here, device.split(",") if device else [None])
        context = Context(first, progress, cancelled, devices=(first, *more) if more else ())
        return engine.run(request, runs, context)


def device_here(device: str | None) -> str:
    """The device to work on: the one named, without a number the first of its kind, or the best.

    Raises `RecipeError` for one that this machine lacks.
    """
    from laco import models
    from laco.errors import RecipeError

    if device is None:
        return models.best_device()
    there = [found["name"] for found in models.list_devices()]
    if device not in there and f"{device}:0" not in there:
        raise RecipeError(f"--device {device}: there is none here; choose {', '.join(there)}.")
    return device


def _metric_lines(metrics: list[dict[str, Any]]) -> list[list[str]]:
    from laco.report import format_value

    lines: list[list[str]] = []
    for metric in metrics:
        error = f" ± {metric['stderr']:.3g}" if metric["stderr"] else ""
        lines.append([metric["name"], format_value(metric["value"], metric["unit"]) + error])
    return lines
