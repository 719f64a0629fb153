"""Runs beside each other as one HTML file that needs no network: tables, charts, where from.

It is what the Compare page and `laco compare --format html` hand out. Every text in it is escaped;
plotly.js stands in it once. Next: `ui/pictures.py`, which draws the charts.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from laco import __version__, columns, commands
from laco.evaluations import Metric
from laco.formats import LEGEND, MARKS, PAIRED, format_cell, notes, pairs
from laco.rows import Measured, Row
from laco.wording import diff, format_value

STYLE = """
:root{color-scheme:light}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:90rem;padding:0 1rem;
color:#1c1c1c;background:#fff}
h1{margin:0 0 .5rem}h2{margin:2.2rem 0 .6rem;font-size:1.25rem}
.wide{overflow-x:auto}.wide:not(.left) td{white-space:nowrap}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.3rem .7rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}
td:first-child,th:first-child,.left td,.left th{text-align:left}th{border-bottom:2px solid #999}
.better{color:#0b6aa8;font-weight:600}.worse{color:#b45309;font-weight:600}.same{color:#6b6b6b}
.note{color:#8a4b00}pre{background:#f5f5f5;padding:.8rem;overflow-x:auto;font-size:13px}
summary{cursor:pointer;padding:.2rem 0}
"""
PACKAGES = ("torch", "transformers", "lm_eval", "numpy")
NO_SETTING = ("answers", "main", "leak")  # of a metric's details


def page(rows: Sequence[Row], runs: Sequence[Measured] = ()) -> str:
    """The file. With `runs`, also their recipes, how they were measured, and the commands."""
    measured = {run.key: run for run in runs}
    labels = {row.key: row.label for row in rows}
    shown = [(labels.get(key, key), run) for key, run in measured.items()]
    base = next((row.key for row in rows if row.verdict == "baseline"), "")
    against = f", against {labels[base]}" if base else ""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>laco: runs compared</title><style>{STYLE}</style></head><body>",
            f"<h1>Runs compared</h1><p>{len(labels)} runs{escape(against)}.</p>",
            *_numbers(rows, labels),
            *_charts(rows),
            *_recipes(shown, measured.get(base)),
            *_measurements(shown),
            _versions(),
            "</body></html>",
        ]
    )


def _numbers(rows: Sequence[Row], labels: dict[str, str]) -> list[str]:
    """A line for each metric, a column for each run; notes; what the same questions showed."""
    cells: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        text = f'<span class="{escape(row.verdict)}">{escape(format_cell(row))}</span>'
        cells.setdefault(row.metric, {}).setdefault(row.key, []).append(text)
    lines = [
        [escape(name), *("; ".join(found.get(key, ["–"])) for key in labels)]
        for name, found in cells.items()
    ]
    parts = [_table(["", *map(escape, labels.values())], lines)]
    if any(row.verdict in MARKS for row in rows):
        parts.append(f"<p>{LEGEND}</p>")
    parts += [f'<p class="note">{escape(note)}</p>' for note in notes(rows)]
    headings, judged = pairs(rows)
    if judged:
        parts += [f"<h2>Question by question</h2><p>{PAIRED}</p>", _plain(headings, judged)]
    return parts


def _charts(rows: Sequence[Row]) -> list[str]:
    """Quality, the same against cost, and tasks; plotly.js comes with the first."""
    from laco.ui import pictures

    drawn: list[tuple[str, Any]] = []
    qualities, costs = columns.qualities(rows), columns.costs(rows)
    if qualities:
        drawn.append((qualities[0], pictures.run_bars(rows, qualities[0])))
    if qualities and costs:
        title = f"{qualities[0]} against {costs[0]}"
        drawn.append((title, pictures.trade_off(rows, qualities[0], costs[0])))
    if columns.by_task(rows):
        drawn.append(("Tasks", pictures.task_bars(rows)))
    parts: list[str] = []
    for place, (title, picture) in enumerate(drawn):
        chart = picture.figure.update_layout(template="plotly_white").to_html(
            full_html=False,
            include_plotlyjs=place == 0,
            div_id=f"chart-{place}",
            config={"displaylogo": False, "responsive": True},
        )
        words = escape(picture.words, quote=True)
        parts.append(f'<h2>{escape(title)}</h2><div role="img" aria-label="{words}">{chart}</div>')
    return parts


def _recipes(shown: Sequence[tuple[str, Measured]], base: Measured | None) -> list[str]:
    """Of each run: its recipe, where it differs from the baseline's, and how to have it again."""
    parts = ["<h2>Recipes, and how to have each run again</h2>"] if shown else []
    for label, run in shown:
        document = json.dumps(run.recipe.model_dump(mode="json"), indent=2, ensure_ascii=False)
        again = commands.run_again(commands.asked(run.metrics))
        differences = diff(base.recipe, run.recipe) if base is not None else []
        table = _plain(
            ["field", "baseline", "this run"],
            [[item.path, _said(item.left), _said(item.right)] for item in differences],
        )
        parts.append(
            f"<details><summary>{escape(label)} · {escape(run.key)}</summary>"
            f"{table if differences else ''}<p>As recipe.json:</p><pre>{escape(document)}</pre>"
            f"<pre>{escape(again)}</pre></details>"
        )
    return parts


def _measurements(shown: Sequence[tuple[str, Measured]]) -> list[str]:
    """How each number was taken: settings, and the digests of the data."""
    if not shown:
        return []
    lines = [
        [label, metric.name, _value(metric), _settings(metric)]
        for label, run in shown
        for metric in run.metrics
    ]
    table = _plain(["run", "metric", "value", "settings"], lines)
    return [f"<h2>How it was measured</h2><details><summary>Settings</summary>{table}</details>"]


def _versions() -> str:
    """What is installed where this file was written."""
    found = {"Python": platform.python_version(), "laco": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    told = ", ".join(f"{name} {number}" for name, number in found.items())
    return f"<h2>Versions</h2><p>Where this file was written: {escape(told)}.</p>"


def _value(metric: Metric) -> str:
    error = f" ± {metric.stderr:.3g}" if metric.stderr else ""
    return format_value(metric.value, metric.unit) + error


def _settings(metric: Metric) -> str:
    """Details that are plain values: lists of single measurements stay in the store."""
    return ", ".join(
        f"{name} {value}"
        for name, value in metric.details.items()
        if name not in NO_SETTING and isinstance(value, str | int | float | bool | None)
    )


def _said(value: Any) -> str:
    return "–" if value is None else str(value)


def _plain(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of plain texts, aligned to the left."""
    escaped = [[escape(cell) for cell in line] for line in lines]
    return _table([escape(heading) for heading in headings], escaped, "wide left")


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]], kind: str = "wide") -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{cell}</th>" for cell in headings)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f'<div class="{kind}"><table><tr>{head}</tr>\n{body}</table></div>'
