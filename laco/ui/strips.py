"""Two models by layer -> figures: which of the original's layers each has, how far weights moved.

Pure, as `charts.py`. Layers are those of the original, counted from 0. Next: `pairs.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from laco.ui.charts import BLUE, GREY
from laco.ui.spans import listed


def presence(layers: int, sides: Mapping[str, Sequence[int]]) -> go.Figure:
    """A row of cells for each model: filled where it has the layer, empty where that went."""
    figure = go.Figure()
    for row, (name, there) in enumerate(sides.items()):
        gone = sorted(set(range(layers)) - set(there))
        for places, symbol, words in ((there, "square", "there"), (gone, "x-thin-open", "gone")):
            figure.add_scatter(
                x=list(places),
                y=[row] * len(places),
                mode="markers",
                name=words,
                showlegend=row == 0,
                legendgroup=words,
                marker={
                    "symbol": symbol,
                    "size": 13 if symbol == "square" else 9,
                    "color": BLUE if symbol == "square" else GREY,
                    "line": {"width": 0 if symbol == "square" else 2, "color": GREY},
                },
                hovertemplate=f"{escape(name)}<br>layer %{{x}}: {words}<extra></extra>",
            )
    names = [escape(name if len(name) < 40 else f"{name[:39]}…") for name in sides]
    figure.update_layout(
        height=110 + 46 * len(sides),
        margin={"l": 10, "r": 10, "t": 30, "b": 45},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        xaxis={"title": "layer of the original", "range": [-0.8, layers - 0.2], "zeroline": False},
        yaxis={
            "tickvals": list(range(len(sides))),
            "ticktext": names,
            "range": [len(sides) - 0.5, -0.5],
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
        },
    )
    return figure


def presence_told(sides: Mapping[str, Sequence[int]], layers: int) -> str:
    """Which layers each model lacks, in a sentence for each."""
    told: list[str] = []
    for name, there in sides.items():
        gone = sorted(set(range(layers)) - set(there))
        words = (
            f"lacks {listed(gone)} of the original" if gone else "has all layers of the original"
        )
        told.append(f"{name} {words}.")
    return " ".join(told)


def change_bars(document: Mapping[str, Any]) -> go.Figure:
    """A bar for each layer that both models have: how far its weights moved, in per cent."""
    rows = [row for row in document["layers"] if row["change"] is not None]
    figure = go.Figure(
        go.Bar(
            x=[row["layer"] for row in rows],
            y=[100 * row["change"] for row in rows],
            marker={"color": BLUE},
            hovertemplate="layer %{x}: %{y:.2f} %<extra></extra>",
        )
    )
    figure.update_layout(
        height=320,
        margin={"l": 60, "r": 10, "t": 30, "b": 45},
        xaxis={"title": "layer of the original"},
        yaxis={"title": "change of the weights, %", "rangemode": "tozero"},
    )
    return figure


def change_told(document: Mapping[str, Any]) -> str:
    """How far weights moved: the least and the most, and what was left out."""
    rows = [row for row in document["layers"] if row["change"] is not None]
    if not rows:
        return "The two have no layer in common whose weights can be compared."
    least = min(rows, key=lambda row: row["change"])
    most = max(rows, key=lambda row: row["change"])
    unlike = sorted({name for row in document["layers"] for name in row["unlike"]})
    rest = document["rest"]["change"]
    parts = [
        f"From {100 * least['change']:.1f} % in layer {least['layer']} to "
        f"{100 * most['change']:.1f} % in layer {most['layer']}"
        if most["change"]
        else f"No weight of the {len(rows)} layers that both have differs"
    ]
    if rest is not None:
        parts.append(f"embedding, final norm and head {100 * rest:.1f} %")
    if unlike:
        parts.append(f"left out, of unlike shapes: {', '.join(unlike)}")
    return f"{'; '.join(parts)}."


def change_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each layer: the change of all its weights and of each tensor, in per cent."""
    rows = document["layers"]
    names = list(dict.fromkeys(name for row in rows for name in row["tensors"]))
    table = {"all": [_percent(row["change"]) for row in rows]}
    table |= {name: [_percent(row["tensors"].get(name)) for row in rows] for name in names}
    return pd.DataFrame(table, index=pd.Index([row["layer"] for row in rows], name="layer, %"))


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)
