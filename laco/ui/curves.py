"""Numbers -> plotly figures by layer: errors and CKA of a walk, sensitivity, losses of training.

Pure, as `charts.py`. Knows the rows that a walk leaves, nothing of who walked. Lines differ by
colour, mark and dash, since colour alone is not seen by all. Next: `walks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from laco.ui.charts import BLUE, GREEN, GREY, ORANGE, axis_for

Rows = Sequence[Mapping[str, Any]]
Lines = dict[str, list[float | None]]
STYLES = (  # of the lines in a chart, in turn
    {
        "line": {"color": ORANGE, "dash": "dash"},
        "marker": {"color": ORANGE, "symbol": "circle-open"},
    },
    {"line": {"color": BLUE}, "marker": {"color": BLUE, "symbol": "circle"}},
    {"line": {"color": GREEN, "dash": "dot"}, "marker": {"color": GREEN, "symbol": "diamond"}},
)
FEW = 12  # places on an axis that each get a tick
STAGES = {"pruned": "before", "ridge": "closed form", "adam": "gradient"}  # a layer's compensation


def through_depth(rows: Rows, name: str = "error") -> Lines:
    """What accumulates from layer to layer, before and after: `error` or `cka`, by line.

    Compensation of a result tells what it came with; pruning and compensation in one walk tell
    of each layer before its own compensation; pruning alone has one line.
    """
    beside = "alone" if name == "error" else "alone_cka"
    own = [row.get(name) for row in rows]
    if any(row.get(beside) is not None for row in rows):
        return {"as it came": [row.get(beside) for row in rows], "compensated": own}
    if name == "error" and any(row.get("pruned") is not None for row in rows):
        return {"pruned": [row.get("pruned") for row in rows], "compensated": own}
    done = any(row.get("kept") for row in rows)
    return {"compensated" if done else "pruned": own}


def by_stage(rows: Rows) -> Lines:
    """What each layer's own compensation did: its error before, and after each stage."""
    lines = {title: [row.get(name) for row in rows] for name, title in STAGES.items()}
    return {title: line for title, line in lines.items() if any(v is not None for v in line)}


def layer_lines(lines: Lines, of: int, title: str, most: float | None = None) -> go.Figure:
    """Lines over the layers 0 … `of` − 1, as far as they go; logarithmic where needed.

    `most`: the largest value that there can be, which stays in sight.
    """
    figure = go.Figure()
    single = len(lines) == 1
    for (name, values), style in zip(lines.items(), STYLES[single:], strict=False):
        figure.add_scatter(
            x=list(range(len(values))),
            y=values,
            name=name,
            mode="lines+markers",
            hovertemplate="layer %{x}: %{y:.4g}<extra>" + name + "</extra>",
            **style,
        )
    known = [value for line in lines.values() for value in line if value is not None]
    y: dict[str, Any] = {"title": title}
    if most is None:
        y = axis_for(title, known, rangemode="tozero")
    elif known:
        room = max(most - min(known), 1e-3) * 0.05
        y["range"] = [min(known) - room, most + room]
    figure.update_layout(**_layout(xaxis={"title": "layer", "range": [-0.5, of - 0.5]}, yaxis=y))
    figure.update_layout(showlegend=not single)
    return figure


def one_line_a_layer(
    places: Sequence[float], lines: Sequence[Sequence[float]], titles: tuple[str, str]
) -> go.Figure:
    """A thin line for each layer, the first layers dark, the last bright (sensitivity, losses)."""
    figure = go.Figure()
    last = max(1, len(lines) - 1)
    colours = sample_colorscale("Viridis", [0.9 * layer / last for layer in range(len(lines))])
    for layer, (values, colour) in enumerate(zip(lines, colours, strict=True)):
        figure.add_scatter(
            x=list(places)[: len(values)],
            y=list(values),
            name=f"layer {layer}",
            mode="lines+markers",
            line={"color": colour, "width": 1.5},
            marker={"size": 4},
            hovertemplate=f"layer {layer}: " + "%{y:.4g} at %{x:.4g}<extra></extra>",
        )
    known = [value for line in lines for value in line]
    x: dict[str, Any] = {"title": titles[0]}
    if len(places) <= FEW:
        x["tickvals"] = list(places)
    figure.update_layout(**_layout(xaxis=x, yaxis=axis_for(titles[1], known)))
    figure.update_layout(showlegend=False)
    return figure


def layer_bars(values: Sequence[float], title: str) -> go.Figure:
    """A bar for each layer, in per cent (the sparsity that it got)."""
    figure = go.Figure(
        go.Bar(
            x=list(range(len(values))),
            y=[100 * value for value in values],
            marker={"color": BLUE},
            hovertemplate="layer %{x}: %{y:.1f} %<extra></extra>",
        )
    )
    figure.update_layout(**_layout(xaxis={"title": "layer"}, yaxis={"title": title}))
    return figure


def training(report: Mapping[str, Any]) -> go.Figure:
    """LoRA's loss by step, the held-out loss by epoch, and the original's as a line."""
    curve, epochs = report["curve"], report["epochs"]
    figure = go.Figure()
    figure.add_scatter(
        x=[point["step"] for point in curve],
        y=[point["loss"] for point in curve],
        name="training text",
        mode="lines",
        line={"color": GREY, "width": 1.5},
    )
    figure.add_scatter(
        x=[0, *(item["step"] for item in epochs)],
        y=[report["held_out_before"], *(item["held_out"] for item in epochs)],
        name="held-out text",
        **STYLES[1],
    )
    original = report.get("original_held_out")
    if original is not None:
        figure.add_hline(
            original,
            line_dash="dash",
            line_color=ORANGE,
            annotation_text="the original's, on held-out text",
        )
    known = [point["loss"] for point in curve] + ([original] if original is not None else [])
    known += [report["held_out_before"], *(item["held_out"] for item in epochs)]
    figure.update_layout(
        **_layout(xaxis={"title": "step"}, yaxis=axis_for("loss, nats per token", known))
    )
    return figure


def _layout(**axes: Any) -> dict[str, Any]:
    return {
        "height": 320,
        "margin": {"l": 60, "r": 10, "t": 30, "b": 45},
        "legend": {"orientation": "h", "y": 1.14},
        **axes,
    }
