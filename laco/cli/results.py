"""Commands about results that are there: list, show, compare, tidy. Next: `../report.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laco.cli.options import CACHE, Json, Key, Store
from laco.cli.terminal import answer, columns, note, when, write_file
from laco.cli.work import opened

upkeep = typer.Typer(
    help="Check and tidy the folder of results.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def compare(
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="Results to set side by side")
    ],
    baseline: Annotated[
        str | None, typer.Option(metavar="KEY", help="What deltas refer to; unset: the first.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="table, csv, json, markdown, latex or html.")
    ] = "table",
    out: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Set the metrics of results side by side, with their deltas."""
    from laco.cli.arguments import find_key
    from laco.report import render, table

    found = opened(store)
    by_key = {run.key: run for run in found.runs()}
    base = None if baseline is None else by_key[find_key(baseline, found)]
    chosen = [by_key[find_key(key, found)] for key in keys]
    if base is not None and base not in chosen:
        chosen.insert(0, base)
    rows = table(chosen, base, found.answers)
    text = render(rows, form, chosen)
    if out is not None:
        write_file(out, text + "\n")
        note(f"Written to {out}.")
    answer([row.document() for row in rows], "" if out else text, as_json)


def runs(as_json: Json = False, store: Store = CACHE) -> None:
    """List the results, newest first."""
    from laco.report import format_value

    found = opened(store).runs()
    documents = [
        {
            "key": run.key,
            "label": run.label,
            "created": run.created,
            "path": run.path and str(run.path),
            "metrics": [metric.document() for metric in run.metrics],
        }
        for run in found
    ]
    lines = [
        [
            run.key[:11],
            when(run.created),
            run.label,
            ", ".join(f"{m.name} {format_value(m.value, m.unit)}" for m in run.metrics[:3]),
        ]
        for run in found
    ]
    text = columns(lines) if lines else "There are no results yet; `laco demo` makes some."
    answer(documents, text, as_json)


def show(key: Key, as_json: Json = False, store: Store = CACHE) -> None:
    """Show one result: its recipe, what each step did, and what was measured."""
    from laco.cli.arguments import find_key
    from laco.errors import StoreError
    from laco.report import describe, format_value

    found = opened(store)
    full = find_key(key, found)
    artifact = found.artifact(full)
    if artifact is None:
        raise StoreError(f"The result {key} is not whole; run its recipe again.")
    metrics = found.metrics(full) or ()
    document = {
        "key": full,
        "recipe": artifact.recipe.model_dump(mode="json"),
        "path": artifact.path and str(artifact.path),
        "created": artifact.created,
        "steps": list(artifact.steps),
        "metrics": [metric.document() for metric in metrics],
        "analyses": [
            {**analysis.model_dump(mode="json"), "created": created}
            for analysis, created in found.analyses(full)
        ],
    }
    lines = [["key", full], ["what", describe(artifact.recipe)], ["made", when(artifact.created)]]
    lines.append(["folder", str(artifact.path or "–")])
    lines += [[step["kind"], f"{step['seconds']:.1f} s"] for step in artifact.steps]
    lines += [[metric.name, format_value(metric.value, metric.unit)] for metric in metrics]
    answer(document, columns(lines), as_json)


def diff(left: Key, right: Key, as_json: Json = False, store: Store = CACHE) -> None:
    """Say in which fields the recipes of two results differ."""
    from dataclasses import asdict

    from laco import report
    from laco.cli.arguments import read_model

    found = opened(store)
    differences = report.diff(read_model(left, found), read_model(right, found))
    lines = [[d.path, d.left, d.right] for d in differences]
    text = columns(lines, ("field", left, right)) if lines else "The recipes are the same."
    answer([asdict(difference) for difference in differences], text, as_json)


@upkeep.command()
def verify(as_json: Json = False, store: Store = CACHE) -> None:
    """Check every result against its key; status 1 if one is broken."""
    problems = opened(store).verify()
    answer({"problems": problems}, "\n".join(problems) or "Every result is whole.", as_json)
    if problems:
        raise typer.Exit(1)


@upkeep.command()
def rebuild(as_json: Json = False, store: Store = CACHE) -> None:
    """Make the index anew from the files, also where it cannot be read any more."""
    from laco.index import set_aside
    from laco.store import INDEX

    if (store / INDEX).is_file() and set_aside(store / INDEX):
        note(f"The old index could not be read and lies beside the new one, as {INDEX}.broken-….")
    count = opened(store).rebuild()
    answer({"runs": count}, f"Results in the index: {count}.", as_json)


@upkeep.command()
def prune(as_json: Json = False, store: Store = CACHE) -> None:
    """Remove what nothing refers to and nobody is writing."""
    from laco.report import format_value

    freed = opened(store).prune()
    answer({"freed_bytes": freed}, f"Freed {format_value(freed, 'bytes')}.", as_json)


@upkeep.command()
def remove(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Results to remove")],
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Remove results, with their models and all that was measured of them."""
    found = opened(store)
    full = [found.resolve(key) or key for key in keys]
    for key in full:
        found.remove(key)
    answer({"removed": full}, f"Removed: {', '.join(key[:11] for key in full)}.", as_json)
