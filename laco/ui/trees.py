"""Nodes -> the tree of results as a figure, and the same as an indented table.

Pure, as `charts.py`. A line for each result, shifted to the right under the one that it was made
from; an export stands below its result. Marks differ by form and colour. Next: `lineage.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from laco.evaluations import Metric
from laco.lineage import Node
from laco.ui.charts import BLUE, GREEN, GREY, ORANGE
from laco.wording import format_value

KINDS = {  # of the last step: what the legend says, its mark and its colour
    "": ("original", "square", ORANGE),
    "collapse": ("fewer layers", "circle", BLUE),
    "merge": ("fewer layers", "circle", BLUE),
    "drop": ("fewer layers", "circle", BLUE),
    "prune": ("pruned", "diamond", "#CC79A7"),
    "compensate": ("compensated", "triangle-up", GREEN),
    "finetune": ("LoRA", "star", "#8f7a00"),
    "export": ("export", "x-thin-open", GREY),
}
LINE, WIDTH, INDENT = 46, 78, "\u2003"  # pixels of a line, characters of a label, a blank
SHOWN = ("perplexity", "layers", "parameters")


@dataclass(frozen=True)
class Line:
    """One line of the tree; `key` is that of the result, also for its export."""

    key: str
    depth: int
    kind: str
    label: str
    numbers: str
    archived: bool = False


def lines(
    nodes: Sequence[Node],
    metrics: Mapping[str, Sequence[Metric]],
    sizes: Mapping[str, int],
) -> list[Line]:
    """The lines of these nodes. A result on disk has a size in bytes."""
    found: list[Line] = []
    for node in nodes:
        run = node.run
        kind = run.recipe.steps[-1].kind if run.recipe.steps else ""
        told = numbers(metrics.get(run.key, ()), sizes.get(run.key))
        tags = "".join(f" #{tag}" for tag in node.said.tags)
        found.append(Line(run.key, node.depth, kind, node.label + tags, told, node.said.archived))
        for export in node.said.exports:
            place = export.folder
            gone = "" if Path(place).is_dir() else "no longer there"
            label = f"export to {place}"
            found.append(Line(run.key, node.depth + 1, "export", label, gone))
    return found


def numbers(metrics: Sequence[Metric], size: int | None = None) -> str:
    """The main numbers of a run in one line: `perplexity 27.5 · 27 layers · 106.7 M parameters`."""
    first: dict[str, Metric] = {}
    for metric in metrics:
        first.setdefault(metric.name.partition("[")[0], metric)
    parts: list[str] = []
    for name in SHOWN:
        if name in first:
            value = format_value(first[name].value, first[name].unit)
            parts.append(f"{name} {value}" if name == "perplexity" else f"{value} {name}")
    if size:
        parts.append(format_value(size, "bytes"))
    return " · ".join(parts)


def figure(found: Sequence[Line], chosen: str | None) -> go.Figure:
    """The tree from top to bottom; the chosen result has a ring. A click chooses a mark."""
    chart = go.Figure()
    _branches(chart, found)
    seen: set[str] = set()
    for title, symbol, colour in dict.fromkeys(KINDS.values()):
        places = [i for i, line in enumerate(found) if KINDS[line.kind][0] == title]
        if not places or title in seen:
            continue
        seen.add(title)
        chart.add_scatter(
            x=[found[place].depth for place in places],
            y=places,
            customdata=[found[place].key for place in places],
            mode="markers+text",
            text=[_words(found[place]) for place in places],
            textposition="middle right",
            name=title,
            marker={
                "symbol": symbol,
                "size": 13,
                "color": colour,
                "opacity": [0.45 if found[place].archived else 1.0 for place in places],
                "line": {"width": 2 if symbol.endswith("open") else 0, "color": colour},
            },
            selected={"marker": {"opacity": 1}},
            unselected={"marker": {"opacity": 1}},
            hovertemplate="%{text}<extra></extra>",
            cliponaxis=False,
        )
    for place, line in enumerate(found):
        if line.key == chosen and line.kind != "export":
            chart.add_scatter(
                x=[line.depth],
                y=[place],
                mode="markers",
                marker={"symbol": "circle-open", "size": 23, "line": {"width": 2.5}},
                marker_color="#d6003c",
                hoverinfo="skip",
                showlegend=False,
            )
    chart.update_layout(
        height=70 + LINE * len(found),
        margin={"l": 5, "r": 5, "t": 40, "b": 5},
        dragmode="pan",
        legend={"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
        xaxis={"visible": False, "range": [-0.6, 36], "fixedrange": True},
        yaxis={"visible": False, "range": [len(found) - 0.4, -0.6], "fixedrange": True},
        clickmode="event+select",
    )
    return chart


def table(found: Sequence[Line]) -> pd.DataFrame:
    """The same tree as a table: labels shifted to the right by their depth."""
    return pd.DataFrame(
        [
            {
                "result": INDENT * line.depth + ("└ " if line.depth else "") + line.label,
                "": "archived" if line.archived else KINDS[line.kind][0],
                "numbers": line.numbers or "–",
                "key": line.key[:11],
            }
            for line in found
        ],
        columns=["result", "", "numbers", "key"],
    )


def told(found: Sequence[Line]) -> str:
    """What the figure shows, in a sentence."""
    results = [line for line in found if line.kind != "export"]
    roots = [line.label for line in results if line.depth == 0]
    deep = max((line.depth for line in results), default=0)
    return (
        f"Tree of {len(results)} results, made from {', '.join(roots[:4]) or 'nothing'}, at most "
        f"{deep} deep. The table below has the same lines."
    )


def _branches(chart: go.Figure, found: Sequence[Line]) -> None:
    """Lines from each mark down and to the right to those below it."""
    x: list[float | None] = []
    y: list[float | None] = []
    above: dict[int, int] = {}
    for place, line in enumerate(found):
        above[line.depth] = place
        if line.depth and line.depth - 1 in above:
            x += [line.depth - 1, line.depth - 1, line.depth, None]
            y += [above[line.depth - 1], place, place, None]
    chart.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": GREY, "width": 1.2},
        hoverinfo="skip",
        showlegend=False,
    )


def _words(line: Line) -> str:
    """A label and its numbers, as plotly's markup."""
    label = line.label if len(line.label) <= WIDTH else f"{line.label[: WIDTH - 1]}…"
    put_away = " (archived)" if line.archived else ""
    below = f"<br>\u2002{escape(line.numbers)}" if line.numbers else ""
    return f"\u2002<b>{escape(label)}</b>{put_away}{below}"


def options(nodes: Sequence[Node]) -> dict[str, Any]:
    """Names by key for a list to choose from, shifted by depth as in the tree."""
    return {
        node.run.key: f"{INDENT * node.depth}{'└ ' if node.depth else ''}{node.label}"
        f" · {node.run.key[3:9]}"
        for node in nodes
    }
