"""Write what the docs take from the code: `cli.md`, and the tables of fields in `recipe.md`.

`make docs` runs it; `tests/test_docs.py` fails when a page is out of date. Prose in `recipe.md` is
written by hand, around the marked tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic_core import PydanticUndefined

import laco
from laco.cli import app
from laco.recipe import Spec

FOLDER = Path(__file__).parent
WIDTH = 96
TABLE = re.compile(r"(<!-- fields of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def cli_page() -> str:
    """`docs/cli.md`: what `--help` says, of every command."""
    head = (
        "# The command line\n\n"
        "This page is what `--help` says; `make docs` writes it. Every command that answers takes\n"
        "`--json` (one document on standard output, nothing else there) and `--store`. Status: 0\n"
        "done, 1 an error (one sentence on standard error), 2 wrong usage, 130 stopped by Ctrl-C.\n"
    )
    parts = [f"## {name}\n\n```\n{text}\n```\n" for name, text in helps()]
    return "\n".join([head, *parts])


def helps() -> Iterator[tuple[str, str]]:
    """Every command with its help, the program first."""
    yield from _helps(typer.main.get_command(app), "laco", None)


def _helps(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    context = command.context_class(
        command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH
    )
    title = context.command_path
    yield title, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    for child, inner in getattr(command, "commands", {}).items():
        yield from _helps(inner, child, context)


def filled(page: str) -> str:
    """A page with its marked tables made anew from the specs."""
    return TABLE.sub(lambda match: match[1] + fields(getattr(laco, match[2])) + match[3], page)


def fields(spec: type[Spec]) -> str:
    """A spec's fields as a table."""
    lines = ["| field | default | what it says |", "|---|---|---|"]
    for name, field in spec.model_fields.items():
        if name != "kind":
            description = (field.description or "").replace("|", "\\|")
            lines.append(f"| `{name}` | {_default(field.default)} | {description} |")
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "must be given"
    if value is None:
        return "unset"
    if isinstance(value, Spec):
        changed = {
            name: getattr(value, name)
            for name, field in type(value).model_fields.items()
            if getattr(value, name) != field.default
        }
        words = ", ".join(f"{name} {item}" for name, item in changed.items())
        return f"its defaults, {words}" if words else "its defaults"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    (FOLDER / "cli.md").write_text(cli_page(), encoding="utf-8")
    recipe = FOLDER / "recipe.md"
    recipe.write_text(filled(recipe.read_text(encoding="utf-8")), encoding="utf-8")
