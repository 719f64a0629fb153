"""Runs beside each other, from here: rows, the Pareto front, flipped answers, files of any form.

`rows.py` says what a row is and judges it, `formats.py` and `onefile.py` write rows down, and
`wording.py` has the words. It does not know where runs are kept. Next: `rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from laco.errors import RecipeError
from laco.formats import TEXTS, format_cell, notes
from laco.rows import Answers, Flip, Measured, Row, flipped, heads, pareto, table
from laco.wording import Difference, describe, describe_step, diff, format_value

if TYPE_CHECKING:
    from laco.story import Story

__all__ = [
    "FORMATS",
    "Answers",
    "Difference",
    "Flip",
    "Measured",
    "Row",
    "describe",
    "describe_step",
    "diff",
    "flipped",
    "format_cell",
    "format_value",
    "heads",
    "notes",
    "pareto",
    "render",
    "table",
]

FORMATS = (*TEXTS, "html")


def render(
    rows: Sequence[Row],
    form: str = "table",
    runs: Sequence[Measured] = (),
    stories: Callable[[], Mapping[str, Story]] | None = None,
) -> str:
    """The rows as text in one of `FORMATS`; `html` also tells of `runs` how they came about.

    `stories` is asked for what else there is to tell of them; see `story.py`.

    `csv` and `json` have a line for each metric; the others a line for each run, deltas in
    brackets. Raises `RecipeError` for another format.
    """
    if form == "html":
        from laco.onefile import page  # brings more than a table takes

        return page(rows, runs, stories() if stories is not None else None)
    if form not in TEXTS:
        raise RecipeError(f"There is no format {form!r}; choose one of {', '.join(FORMATS)}.")
    return TEXTS[form](rows)
