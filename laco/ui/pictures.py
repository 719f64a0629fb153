"""Rows -> the figures of a comparison: a bar for each run, quality against cost, bars by task.

Pure, as `charts.py`: the Compare page and the HTML file (`laco/onefile.py`) draw the same figures.
A run has one colour in all of them, the baseline orange; what was measured with other settings
than the baseline's is hatched or hollow. Next: `compared.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from laco import columns
from laco.rows import Row
from laco.ui.charts import BLUE, GREEN, GREY, ORANGE, axis_for
from laco.wording import format_value

COLOURS = (BLUE, GREEN, "#D55E00", "#56B4E9", "#CC79A7", "#8f7a00", GREY)  # beside the baseline's
HATCH, NOTHING = "/", "rgba(0, 0, 0, 0)"
LINE = 21  # pixels of a line in a legend


@dataclass(frozen=True)
class Picture:
    """A figure with what it shows in words, and its numbers as a table."""

    figure: go.Figure
    words: str
    numbers: pd.DataFrame


def run_bars(rows: Sequence[Row], metric: str) -> Picture:
    """A bar for each run that has the metric, with its standard error."""
    found = list(columns.of_metric(rows, metric).values())
    colours = _colours(rows)
    values = [row.value for row in found]
    figure = go.Figure(
        go.Bar(
            x=values,
            y=[
                f"{label}<br><b>{format_value(row.value, row.unit)}</b>"
                for label, row in zip(_apart([row.label for row in found]), found, strict=True)
            ],
            orientation="h",
            marker=_marker(found, [colours[row.key] for row in found]),
            error_x=_errors(found),
            text=[_value(row) for row in found],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    )
    figure.update_layout(
        height=90 + 60 * len(found),
        margin={"l": 10, "r": 20, "t": 10, "b": 45},
        xaxis=axis_for(_title(found), values, rangemode="tozero", **_percent(found)),
        yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 6},
    )
    return Picture(figure, f"{metric}: {_told(found)}.", _numbers({metric: found}))


def trade_off(rows: Sequence[Row], quality: str, cost: str) -> Picture:
    """Quality against cost; the runs that none beats in both are joined."""
    found = columns.against(rows, quality, cost)
    colours = _colours(rows)
    path = sorted(found.front, key=lambda place: found.cost[place].value)
    figure = go.Figure()
    figure.add_scatter(
        x=[found.cost[place].value for place in path],
        y=[found.quality[place].value for place in path],
        mode="lines",
        line={"color": GREY, "dash": "dot"},
        name="Pareto front",
        hoverinfo="skip",
    )
    labels = _apart([row.label for row in found.quality], 60)
    for place, (good, dear) in enumerate(zip(found.quality, found.cost, strict=True)):
        symbol = "diamond" if place in found.front else "circle"
        figure.add_scatter(
            x=[dear.value],
            y=[good.value],
            error_y=_errors([good]),
            mode="markers",
            marker={
                "size": 12,
                "color": colours[good.key],
                "symbol": f"{symbol}-open" if good.badge else symbol,
            },
            name=labels[place],
            text=[f"{_value(good)} · {_value(dear)}"],
            hovertemplate="%{fullData.name}<br>%{text}<extra></extra>",
        )
    values = [row.value for row in found.quality]
    figure.update_layout(
        height=340 + LINE * (len(labels) + 2),
        margin={"l": 50, "r": 10, "t": 10, "b": 45},
        legend={"orientation": "v", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        xaxis={"title": _title(found.cost), **_percent(found.cost)},
        yaxis=axis_for(_title(found.quality), values, **_percent(found.quality)),
    )
    best = ", ".join(found.quality[place].label for place in path)
    words = f"{quality} against {cost} of {len(labels)} runs; no run beats {best or 'any'} in both."
    return Picture(figure, words, _numbers({quality: found.quality, cost: found.cost}))


def task_bars(rows: Sequence[Row]) -> Picture:
    """Zero-shot tasks beside each other: one group a task, one bar a run, with standard errors."""
    tasks = columns.by_task(rows)
    colours = _colours(rows)
    keys = [key for key in colours if any(key in found for found in tasks.values())]
    names = {row.key: row.label for row in rows}
    labels = _apart([names[key] for key in keys], 90)
    figure = go.Figure()
    for key, label in zip(keys, labels, strict=True):
        found = [(task, of_run[key]) for task, of_run in tasks.items() if key in of_run]
        figure.add_bar(
            x=[escape(task) for task, _ in found],
            y=[row.value for _, row in found],
            error_y=_errors([row for _, row in found]),
            marker=_marker([row for _, row in found], [colours[key]] * len(found)),
            text=[_value(row) for _, row in found],
            textposition="none",
            name=label,
            hovertemplate="%{x}<br>%{fullData.name}<br>%{text}<extra></extra>",
        )
    every = [row for of_run in tasks.values() for row in of_run.values()]
    figure.update_layout(
        height=340 + LINE * (len(keys) + 1),
        barmode="group",
        margin={"l": 50, "r": 10, "t": 10, "b": 45},
        legend={"orientation": "v", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        xaxis={"categoryorder": "array", "categoryarray": [escape(task) for task in tasks]},
        yaxis={"title": "accuracy", "rangemode": "tozero", **_percent(every)},
    )
    told = "; ".join(f"{task}: {_told(of_run.values())}" for task, of_run in tasks.items())
    numbers = {task: list(of_run.values()) for task, of_run in tasks.items()}
    return Picture(figure, f"Accuracy by task. {told}.", _numbers(numbers))


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    """A colour for each run, in the order of the rows; orange is the baseline's."""
    base = {row.key for row in rows if row.verdict == "baseline"}
    others = dict.fromkeys(row.key for row in rows if row.key not in base)
    found = {key: COLOURS[place % len(COLOURS)] for place, key in enumerate(others)}
    return {key: found.get(key, ORANGE) for key in dict.fromkeys(row.key for row in rows)}


def _marker(rows: Sequence[Row], colours: Sequence[str]) -> dict[str, Any]:
    """Bars in these colours; hatched where settings are unlike the baseline's."""
    pattern = {
        "shape": [HATCH if row.badge else "" for row in rows],
        "fgcolor": list(colours),
        "bgcolor": [NOTHING] * len(rows),
        "fillmode": "replace",
    }
    return {"color": list(colours), "pattern": pattern}


def _errors(rows: Sequence[Row]) -> dict[str, Any]:
    return {"type": "data", "array": [row.stderr or 0 for row in rows], "color": GREY}


def _percent(rows: Sequence[Row]) -> dict[str, Any]:
    shares = rows and all(row.unit == "share" for row in rows)
    return {"tickformat": ".0%"} if shares else {}


def _title(rows: Sequence[Row]) -> str:
    """The metric, and which way is better."""
    if not rows:
        return ""
    name, _, of = rows[0].metric.partition("[")
    name = rows[0].metric if rows[0].task or ":" not in of else name  # without the text's source
    return f"{escape(name)}, {rows[0].better} is better"


def _value(row: Row) -> str:
    error = f" ± {format_value(row.stderr, row.unit)}" if row.stderr else ""
    return format_value(row.value, row.unit) + error


def _told(rows: Iterable[Row]) -> str:
    return ", ".join(f"{row.label} {format_value(row.value, row.unit)}" for row in rows)


def _numbers(found: Mapping[str, Sequence[Row]]) -> pd.DataFrame:
    """A row for each run and metric, with the settings that are unlike the baseline's."""
    return pd.DataFrame(
        [
            {
                "of": name,
                "run": row.label,
                "value": row.value,
                "standard error": row.stderr,
                "not comparable": row.badge,
            }
            for name, rows in found.items()
            for row in rows
        ],
        columns=["of", "run", "value", "standard error", "not comparable"],
    )


def _apart(labels: Sequence[str], width: int = 30) -> list[str]:
    """Labels in short lines, as plotly's markup, and unlike each other: equal ones share a bar."""
    seen: dict[str, int] = {}
    found: list[str] = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        told = label if seen[label] == 1 else f"{label} ({seen[label]})"
        found.append("<br>".join(map(escape, wrap(told, width))))
    return found
