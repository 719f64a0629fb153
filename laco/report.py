"""Runs beside each other: metrics with their deltas, what differs, who is on the Pareto front.

It turns runs (a key, a recipe, metrics) into rows, and rows into text. It does not know where
runs are kept (`store.py`), how anything was measured (`evaluate/`), or what a page looks like.
`wording.py` holds the words. Next: `store.py`.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from laco.errors import RecipeError
from laco.evaluations import Metric
from laco.recipe import Recipe
from laco.wording import Difference, describe, describe_step, diff, format_value

__all__ = [
    "FORMATS",
    "Difference",
    "Measured",
    "Row",
    "describe",
    "describe_step",
    "diff",
    "format_cell",
    "format_value",
    "pareto",
    "render",
    "table",
]

Verdict = Literal["baseline", "better", "worse", "same", ""]
SETTINGS = ("source", "digest", "window", "stride", "windows", "bos")  # how a text was measured


class Measured(Protocol):
    """What a row is made from; `store.Run` is one."""

    @property
    def key(self) -> str: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def metrics(self) -> Sequence[Metric]: ...


@dataclass(frozen=True)
class Row:
    """One metric of one run, beside the baseline's.

    `delta` is value − baseline and `ratio` is value / baseline; both are empty where the baseline
    lacks the metric. `badge` names the settings that differ from the baseline's, and is empty
    where the two numbers may be compared.
    """

    key: str
    label: str
    metric: str
    value: float
    unit: str
    better: Literal["lower", "higher"]
    stderr: float | None = None
    baseline: float | None = None
    delta: float | None = None
    ratio: float | None = None
    verdict: Verdict = ""
    badge: str = ""

    def document(self) -> dict[str, Any]:
        """The row as JSON data."""
        return asdict(self)


def table(runs: Sequence[Measured], baseline: Measured | None = None) -> list[Row]:
    """Every metric of every run, with its delta against `baseline` (unset: the first run)."""
    if not runs:
        return []
    base = baseline if baseline is not None else runs[0]
    return [_row(run, metric, base) for run in runs for metric in run.metrics]


def pareto(runs: Sequence[Measured], quality: str, cost: str) -> list[str]:
    """Keys of the runs that no other run beats in one metric without losing in the other."""
    points: dict[str, tuple[float, float]] = {}
    for run in runs:
        a, b = _find(run.metrics, quality), _find(run.metrics, cost)
        if a is not None and b is not None:
            points[run.key] = (_loss(a), _loss(b))
    return [
        key
        for key, point in points.items()
        if not any(
            other != point and other[0] <= point[0] and other[1] <= point[1]
            for other in points.values()
        )
    ]


def render(rows: Sequence[Row], form: str = "table") -> str:
    """The rows as text in one of `FORMATS`.

    `csv` and `json` have a line for each metric; the others a line for each run, deltas in
    brackets. Raises `RecipeError` for another format.
    """
    if form not in FORMATS:
        raise RecipeError(f"There is no format {form!r}; choose one of {', '.join(FORMATS)}.")
    return FORMATS[form](rows)


def format_cell(row: Row) -> str:
    """A value, its change in per cent (or the difference, from zero), and a mark for a badge."""
    text = format_value(row.value, row.unit) + ("†" if row.badge else "")
    if row.verdict == "baseline" or row.delta is None:
        return text
    if row.ratio is None:
        return f"{text} ({row.delta:+.4g})"
    return f"{text} ({100 * (row.ratio - 1):+.1f} %)"


def _row(run: Measured, metric: Metric, baseline: Measured) -> Row:
    row = Row(
        key=run.key,
        label=describe(run.recipe),
        metric=metric.name,
        value=metric.value,
        unit=metric.unit,
        better=metric.better,
        stderr=metric.stderr,
    )
    if run.key == baseline.key:
        return replace(row, verdict="baseline")
    other = _find(baseline.metrics, metric.name, metric.details)
    if other is None:
        return row
    badge = _unlike(metric.details, other.details)
    return replace(
        row,
        baseline=other.value,
        delta=metric.value - other.value,
        ratio=metric.value / other.value if other.value else None,
        verdict="" if badge else _verdict(metric, other),
        badge=badge,
    )


def _find(
    metrics: Iterable[Metric], name: str, details: Mapping[str, Any] | None = None
) -> Metric | None:
    """The metric of that name; measured with the same settings, where there are several."""
    named = [metric for metric in metrics if metric.name == name]
    if details is not None:
        named.sort(key=lambda metric: bool(_unlike(metric.details, details)))
    return named[0] if named else None


def _unlike(mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The settings that differ, in words; empty when the numbers may be compared."""
    return ", ".join(
        f"{name} {mine.get(name)}, baseline {other.get(name)}"
        for name in SETTINGS
        if mine.get(name) != other.get(name)
    )


def _verdict(metric: Metric, other: Metric) -> Verdict:
    """Better or worse; `same` within twice the two standard errors together.

    Both errors count as independent, though the text is the same: the judgement is careful.
    """
    delta = metric.value - other.value
    if abs(delta) <= 2 * math.hypot(metric.stderr or 0.0, other.stderr or 0.0):
        return "same"
    return "better" if (delta < 0) == (metric.better == "lower") else "worse"


def _loss(metric: Metric) -> float:
    return metric.value if metric.better == "lower" else -metric.value


def _wide(rows: Sequence[Row]) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, a line of cells for each run, and a note for each badge."""
    names = list(dict.fromkeys(row.metric for row in rows))
    cells: dict[str, dict[str, list[str]]] = {}
    labels: dict[str, str] = {}
    notes: list[str] = []
    for row in rows:
        labels[row.key] = row.label
        cells.setdefault(row.key, {}).setdefault(row.metric, []).append(format_cell(row))
        if row.badge:
            notes.append(f"† {row.label}, {row.metric}: not comparable: {row.badge}.")
    lines = [
        [labels[key], *("; ".join(found.get(name, ["–"])) for name in names)]
        for key, found in cells.items()
    ]
    return ["run", *names], lines, list(dict.fromkeys(notes))


def _as_table(rows: Sequence[Row]) -> str:
    headings, lines, notes = _wide(rows)
    widths = [max(map(len, column)) for column in zip(headings, *lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (headings, ["-" * width for width in widths], *lines)
    ]
    return "\n".join([*text, *notes])


def _as_markdown(rows: Sequence[Row]) -> str:
    headings, lines, notes = _wide(rows)
    rule = ["---", *("---:" for _ in headings[1:])]
    text = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in (headings, rule, *lines)
    ]
    return "\n".join([*text, *(["", *notes] if notes else [])])


def _as_latex(rows: Sequence[Row]) -> str:
    headings, lines, notes = _wide(rows)
    body = [" & ".join(map(_latex, line)) + r" \\" for line in lines]
    return "\n".join(
        [
            r"\begin{tabular}{l" + "r" * (len(headings) - 1) + "}",
            r"\hline",
            " & ".join(map(_latex, headings)) + r" \\",
            r"\hline",
            *body,
            r"\hline",
            r"\end{tabular}",
            *(rf"\par {_latex(note)}" for note in notes),
        ]
    )


def _latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "†": r"$\dagger$", "–": "--", "−": "$-$"}
    special.update({"<": "$<$", ">": "$>$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})
    special.update({letter: "\\" + letter for letter in "&%$#_{}"})
    return "".join(special.get(letter, letter) for letter in text)


def _as_html(rows: Sequence[Row]) -> str:
    headings, lines, notes = _wide(rows)

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    style = (
        ":root{color-scheme:light dark}body{font-family:sans-serif;margin:2rem}"
        "table{border-collapse:collapse}td,th{padding:.3rem .8rem;border-bottom:1px solid #8888;"
        "text-align:right}td:first-child,th:first-child{text-align:left}"
    )
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f"<title>laco: runs compared</title><style>{style}</style></head><body>",
            "<h1>Runs compared</h1><table>",
            line(headings, "th"),
            *(line(cells, "td") for cells in lines),
            "</table>",
            *(f"<p>{html.escape(note)}</p>" for note in notes),
            "</body></html>",
        ]
    )


def _as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(Row.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.document() for row in rows)
    return text.getvalue().rstrip("\n")


def _as_json(rows: Sequence[Row]) -> str:
    return json.dumps([row.document() for row in rows], indent=2, ensure_ascii=False)


FORMATS: dict[str, Callable[[Sequence[Row]], str]] = {
    "table": _as_table,
    "csv": _as_csv,
    "json": _as_json,
    "markdown": _as_markdown,
    "latex": _as_latex,
    "html": _as_html,
}
