"""Commands about results that are there: list, show, compare, tidy. Next: `../report.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laco.cli.options import CACHE, Json, Key, Store
from laco.cli.terminal import answer, columns, note, when, write_file
from laco.cli.work import opened

if TYPE_CHECKING:
    from laco.lineage import Node

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
    from laco.story import stories

    found = opened(store)
    by_key = {run.key: run for run in found.runs()}
    base = None if baseline is None else by_key[find_key(baseline, found)]
    chosen = [by_key[find_key(key, found)] for key in keys]
    if base is not None and base not in chosen:
        chosen.insert(0, base)
    rows = table(chosen, base, found.answers)
    text = render(rows, form, chosen, lambda: stories(found, chosen))
    if out is not None:
        write_file(out, text + "\n")
        note(f"Written to {out}.")
    answer([row.document() for row in rows], "" if out else text, as_json)


def runs(
    as_tree: Annotated[
        bool, typer.Option("--tree", help="Each result below the one that it was made from.")
    ] = False,
    archived: Annotated[
        bool, typer.Option("--archived", help="Those too that were put away.")
    ] = False,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """List the results, newest first."""
    from laco import annotations, lineage
    from laco.report import format_value

    opened_store = opened(store)
    said = annotations.read_all(opened_store)
    newest_first = opened_store.runs()
    nodes = lineage.tree(newest_first, said, archived)
    if not as_tree:
        places = {run.key: place for place, run in enumerate(newest_first)}
        nodes.sort(key=lambda node: places[node.run.key])
    documents = [
        {
            "key": node.run.key,
            "label": node.run.label,
            "created": node.run.created,
            "path": node.run.path and str(node.run.path),
            "metrics": [metric.document() for metric in node.run.metrics],
            "parent": node.parent,
            "depth": node.depth,
            **node.said.model_dump(mode="json"),
        }
        for node in nodes
    ]
    lines = [
        [
            node.run.key[:11],
            when(node.run.created),
            _title(node, as_tree),
            ", ".join(f"{m.name} {format_value(m.value, m.unit)}" for m in node.run.metrics[:3]),
        ]
        for node in nodes
    ]
    text = columns(lines) if lines else "There are no results yet; `laco demo` makes some."
    answer(documents, text, as_json)


def _title(node: Node, as_tree: bool) -> str:
    """What a result is called: in a tree by its last steps, shifted to the right."""
    shift = "   " * (node.depth - 1) + "└─ " if as_tree and node.depth else ""
    name = node.label if as_tree else node.said.name or node.run.label
    tags = "".join(f" #{tag}" for tag in node.said.tags)
    return f"{shift}{name}{tags}{' (archived)' if node.said.archived else ''}"


def show(key: Key, as_json: Json = False, store: Store = CACHE) -> None:
    """Show one result: its recipe, what each step did, what was measured, what people say of it."""
    from laco import annotations
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
        "owner": annotations.owner_of(found, full),
        **annotations.read(found, full).model_dump(mode="json"),
    }
    lines = [["key", full], ["what", describe(artifact.recipe)], ["made", when(artifact.created)]]
    lines += [[name, document[name]] for name in ("owner", "name") if document[name]]
    lines += [["note", " ".join(document["note"].split())]] if document["note"] else []
    lines += [["tags", ", ".join(document["tags"])]] if document["tags"] else []
    lines += [["archived", "yes"]] if document["archived"] else []
    lines += [["exported to", export["folder"]] for export in document["exports"]]
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


def annotate(
    key: Key,
    name: Annotated[str | None, typer.Option(help="What to call it; empty: by its steps.")] = None,
    note: Annotated[str | None, typer.Option(help="A note; empty: none.")] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Add a tag; repeatable.")
    ] = None,
    untag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Take a tag off; repeatable.")
    ] = None,
    archived: Annotated[
        bool | None,
        typer.Option(
            "--archive/--restore", help="Put it away, so that lists leave it out, or back."
        ),
    ] = None,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Say something of a result: a name, a note, tags; or put it away."""
    from laco import annotations
    from laco.cli.arguments import find_key

    found = opened(store)
    full = find_key(key, found)
    kept = [tag for tag in annotations.read(found, full).tags if tag not in (untag or ())]
    given = {"name": name, "note": note, "archived": archived, "tags": (*kept, *(tags or ()))}
    fields = {field: value for field, value in given.items() if value is not None}
    said = annotations.annotate(found, full, **fields)
    document = {"key": full, **said.model_dump(mode="json")}
    told = [["key", full], ["name", said.name or "–"], ["note", said.note or "–"]]
    told += [["tags", ", ".join(said.tags) or "–"], ["archived", "yes" if said.archived else "no"]]
    answer(document, columns(told), as_json)


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
    descendants: Annotated[
        bool, typer.Option("--descendants", help="With all that was made from them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --descendants.")] = False,
    as_json: Json = False,
    store: Store = CACHE,
) -> None:
    """Remove results, with their models and all that was measured of them; all or none.

    What was made from them stays, whole, unless you say --descendants: then it is named first, and
    goes once you agree.
    """
    from laco import lineage

    found = opened(store)
    full = [found.resolve(key) or key for key in keys]
    if descendants:
        runs = found.runs(metrics=False)
        names = lineage.names(runs, {})
        more = [below for key in full for below in lineage.descendants(runs, key)]
        also = [key for key in dict.fromkeys(more) if key not in full]
        for key in also:
            note(f"{key[:11]}  {names[key]}")
        if also and not yes:
            question = f"Remove these {len(also)} too, made from what you named?"
            typer.confirm(question, abort=True, err=True)
        full = [*full, *also]
    # Those that were made from others first, so that a refusal names what is in use.
    found.remove(*reversed(full))
    answer({"removed": full}, f"Removed: {', '.join(key[:11] for key in full)}.", as_json)
