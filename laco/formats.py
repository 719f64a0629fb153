"""Rows as text: a table, Markdown, LaTeX, CSV, JSON. Marks and notes are the same in all of them.

CSV and JSON have a line for each metric of each run; the others a line for each run, with the
metrics that tables of papers have, then notes and what answers to the same questions showed. What
a row is, is in `rows.py`; the HTML file is in `onefile.py`. Next: `onefile.py`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence

from laco.rows import Row
from laco.wording import format_value

MARKS = {"better": " ▲", "worse": " ▼", "same": " ≈"}
LEGEND = "▲ better, ▼ worse than the baseline, ≈ within noise."
PAIRED = "On the same questions, with 95 % intervals of the difference:"
MANY = 10  # times the baseline's, from where per cent say little
Lines = tuple[list[str], list[list[str]]]  # headings, and cells of each line


def format_cell(row: Row) -> str:
    """A value with its change and marks: `27.5 (+41.0 %) ▼`, `0.45† (-0.02)`, `45.0 % (-1.5 pt)`.

    † stands for settings other than the baseline's, ‡ for text that the calibration had too.
    """
    text = format_value(row.value, row.unit)
    text += ("†" if row.badge else "") + ("‡" if row.leak else "")
    if row.verdict == "baseline" or not row.delta:
        return text
    return f"{text} ({_change(row)}){MARKS.get(row.verdict, '')}"


def notes(rows: Sequence[Row]) -> list[str]:
    """A sentence for each number that may not be compared, or not be trusted."""
    found: list[str] = []
    for row in rows:
        if row.badge:
            found.append(f"† {row.label}, {row.metric}: not comparable: {row.badge}.")
        if row.leak:
            found.append(f"‡ {row.label}, {row.metric}: {row.leak}.")
    return list(dict.fromkeys(found))


def wide(rows: Sequence[Row]) -> Lines:
    """A line of cells for each run; of a task's metrics, the main one."""
    shown = [row for row in rows if row.main]
    names = list(dict.fromkeys(row.metric for row in shown))
    labels = {row.key: row.label for row in rows}
    cells: dict[str, dict[str, list[str]]] = {key: {} for key in labels}
    for row in shown:
        cells[row.key].setdefault(row.metric, []).append(format_cell(row))
    lines = [
        [labels[key], *("; ".join(found.get(name, ["–"])) for name in names)]
        for key, found in cells.items()
    ]
    return ["run", *names], lines


def pairs(rows: Sequence[Row]) -> Lines:
    """A line for each difference that was judged question by question."""
    lines = [
        [row.label, row.metric, _change(row), _interval(row), row.words]
        for row in rows
        if row.main and row.words
    ]
    return ["run", "metric", "difference", "95 % interval", "verdict"], lines


def _change(row: Row) -> str:
    """The change in per cent, or in points of a share; times it where it is huge."""
    if row.unit == "share":
        return f"{100 * (row.delta or 0):+.1f} pt"
    if row.ratio is None:
        return f"{row.delta:+.4g}"
    return f"×{row.ratio:,.0f}" if row.ratio >= MANY else f"{100 * (row.ratio - 1):+.1f} %"


def _interval(row: Row) -> str:
    if row.low is None or row.high is None:
        return "–"
    if row.unit == "share":
        return f"{100 * row.low:+.1f} to {100 * row.high:+.1f} pt"
    return f"{row.low:+.4g} to {row.high:+.4g}"


def _remarks(rows: Sequence[Row]) -> list[str]:
    """The notes, and what the marks mean where there are any."""
    marked = any(row.verdict in MARKS for row in rows)
    return [*([LEGEND] if marked else []), *notes([row for row in rows if row.main])]


def as_table(rows: Sequence[Row]) -> str:
    """Aligned columns for a terminal."""
    parts = [_aligned(*wide(rows)), *_remarks(rows)]
    if pairs(rows)[1]:
        parts += [PAIRED, _aligned(*pairs(rows))]
    return "\n".join(parts)


def _aligned(headings: list[str], lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(headings, *lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (headings, ["-" * width for width in widths], *lines)
    )


def as_markdown(rows: Sequence[Row]) -> str:
    """A table of GitHub's Markdown, then the notes as a list."""
    parts = [_pipes(*wide(rows))]
    if remarks := _remarks(rows):
        parts.append("\n".join(f"- {_markdown(remark)}" for remark in remarks))
    if pairs(rows)[1]:
        parts += [PAIRED, _pipes(*pairs(rows))]
    return "\n\n".join(parts)


def _pipes(headings: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *("---:" for _ in headings[1:])]
    return "\n".join(
        "| " + " | ".join(map(_markdown, line)) + " |" for line in (headings, rule, *lines)
    )


def _markdown(text: str) -> str:
    for sign in "\\|<`*":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.replace("](", "]\\(").split())


def as_latex(rows: Sequence[Row]) -> str:
    """Tables in the style of booktabs."""
    parts = [r"% in the preamble: \usepackage{booktabs}", _tabular(*wide(rows))]
    parts += [rf"\par {_latex(remark)}" for remark in _remarks(rows)]
    if pairs(rows)[1]:
        parts += [rf"\par {_latex(PAIRED)}", r"\par", _tabular(*pairs(rows))]
    return "\n".join(parts)


def _tabular(headings: list[str], lines: list[list[str]]) -> str:
    return "\n".join(
        [
            r"\begin{tabular}{l" + "r" * (len(headings) - 1) + "}",
            r"\toprule",
            " & ".join(map(_latex, headings)) + r" \\",
            r"\midrule",
            *(" & ".join(map(_latex, line)) + r" \\" for line in lines),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


_LATEX = dict(
    pair.split(" ", 1)
    for pair in (
        *(rf"{sign} \{sign}" for sign in "&%$#_{}"),
        *(r"\ \textbackslash{}", r"~ \textasciitilde{}", r"^ \textasciicircum{}", r"| \textbar{}"),
        *("< $<$", "> $>$", "[ {[}", "] {]}"),  # a bracket after \\ would be read as a distance
        *(r"† $\dagger$", r"‡ $\ddagger$", r"≈ $\approx$", r"· $\cdot$", r"× $\times$"),
        *(r"▲ $\bigtriangleup$", r"▼ $\bigtriangledown$", r"α $\alpha$", r"± $\pm$"),
        *("– --", "− $-$", r"… \dots{}"),
    )
)
_LATIN_ENDS = 0x180  # letters from here on are unknown to LaTeX unless a package brings them


def _latex(text: str) -> str:
    """Text that LaTeX sets as it is; letters that it lacks are named by their numbers."""
    found: list[str] = []
    for letter in " ".join(text.split()).replace("--", "-\0-"):
        plain = letter.isprintable() and ord(letter) < _LATIN_ENDS
        other = "{}" if letter == "\0" else f"U+{ord(letter):04X}"
        found.append(_LATEX.get(letter) or (letter if plain else other))
    return "".join(found)


def as_csv(rows: Sequence[Row]) -> str:
    """A line for each row; a text that a spreadsheet would run as a formula gets an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(Row.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        fields = row.document().items()
        writer.writerow({name: _no_formula(value) for name, value in fields})
    return text.getvalue().rstrip("\n")


def _no_formula(value: object) -> object:
    return (
        f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
    )


def as_json(rows: Sequence[Row]) -> str:
    """The rows as a list of objects."""
    return json.dumps([row.document() for row in rows], indent=2, ensure_ascii=False)


TEXTS: dict[str, Callable[[Sequence[Row]], str]] = {
    "table": as_table,
    "csv": as_csv,
    "json": as_json,
    "markdown": as_markdown,
    "latex": as_latex,
}
