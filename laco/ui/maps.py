"""Numbers -> heat maps: depths over influence, parameters, and the what-if map.

Pure, as `charts.py`. Viridis throughout, and bright always means similar, so removable. Knows
the documents that an analysis leaves, nothing of who made them. Next: `../../pages/similarity.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from laco.recipe import Span
from laco.ui.charts import BLUE, GREY, ORANGE

MAP_WIDTH, MAP_HEIGHT, BARS_HEIGHT = 600, 450, 130
LEAST_INFLUENCE = 1e-4  # where the bars of layers that change nothing end
CONFIG = {
    "displaylogo": False,
    "modeBarButtonsToRemove": ["zoomIn2d", "zoomOut2d", "autoScale2d", "lasso2d"],
}


@dataclass(frozen=True)
class Measure:
    """How a measure is named and read."""

    title: str
    note: str
    alike_is_high: bool = True
    bright: str = "similar = removable"


MEASURES = {
    "cosine": Measure("Cosine", "Mean cosine between the hidden states at two depths; 1: alike"),
    "angular": Measure("Angular", "Angle over π (Gromov et al.); 0: alike", False),
    "relative_l2": Measure("Relative L2", "‖h_j − h_i‖ / ‖h_i‖; 0: alike", False),
    "cka": Measure("CKA", "Linear CKA over a sample of tokens; 1: alike"),
}

SPREAD = Measure("Standard deviation", "Over parts of the text; 0: certain", False, "certain")


def depth_map(
    document: Mapping[str, Any], measure: str, span: Span | None = None, cells: bool = False
) -> go.Figure:
    """The map of a Similarity document over the influence of its layers, on one axis of depths.

    `span` is outlined. With `cells`, an invisible marker lies on every cell, because a browser
    tells of clicks on markers and not on heat maps; without, a box can be dragged.
    """
    figure = _square(
        document["measures"][measure], measure, document["spread"].get(measure), named=True
    )
    depths = document["depths"]
    figure.add_trace(_influence_bars(document))
    if cells:
        rows, columns = np.mgrid[0:depths, 0:depths]
        values = np.array(document["measures"][measure])
        figure.add_trace(_targets(columns, rows, values, _between(depths).ravel()))
    if span is not None:
        _outline(figure, span[0] - 0.5, span[1] + 0.5, span[0] - 0.5, span[1] + 0.5)
        figure.add_shape(
            type="rect",
            y0=0,
            y1=1,
            x0=span[0],
            x1=span[1],
            yref="y2 domain",
            fillcolor=ORANGE,
            opacity=0.25,
            line_width=0,
        )
    total = MAP_HEIGHT + BARS_HEIGHT
    figure.update_layout(
        width=MAP_WIDTH,
        height=total + 70,
        dragmode="pan" if cells else "select",
        bargap=0.15,
        yaxis={"domain": [BARS_HEIGHT / total + 0.04, 1]},
        yaxis2={
            "domain": [0, BARS_HEIGHT / total],
            "title": "influence (log)",
            "fixedrange": True,
            "type": "log",  # the first layer's is often fifty times that of those in the middle
            "dtick": 1,
        },
        xaxis={
            "anchor": "y2",
            "title": "depth (layer k lies between depths k and k+1)",
            "dtick": 5 if depths > 12 else 1,
        },
    )
    figure.update_traces(
        colorbar={"len": 1 - BARS_HEIGHT / total, "y": 1, "yanchor": "top"},
        selector={"type": "heatmap"},
    )
    return figure


def square_map(
    matrix: Sequence[Sequence[float]],
    measure: str,
    axis: str = "layer",
    limits: tuple[float, float] | None = None,
    title: str = "",
) -> go.Figure:
    """A map without bars: parameters, or one of several maps side by side on one scale."""
    figure = _square(matrix, measure, None, axis, limits)
    figure.update_layout(height=440, title=title, xaxis={"title": axis})
    figure.update_yaxes(scaleanchor="x")
    return figure


def limits_of(matrices: Sequence[Sequence[Sequence[float]]]) -> tuple[float, float]:
    """The least and the greatest value of several maps, for one colour scale."""
    values = np.concatenate([np.array(matrix, dtype=float).ravel() for matrix in matrices])
    return float(np.nanmin(values)), float(np.nanmax(values))


def what_if_map(
    document: Mapping[str, Any], measure: str, chosen: Sequence[Span] = ()
) -> go.Figure:
    """What one collapse costs, by start and length; a click on a cell chooses it.

    Bright is cheap: a high cosine, or a low KL (drawn by its logarithm, shown in nats).
    """
    starts, lengths = document["starts"], document["lengths"]
    grid = np.array(document[measure], dtype=float)  # [lengths, starts]; None becomes nan
    shown = np.log10(np.maximum(grid, 1e-6)) if measure == "kl" else grid
    name = "KL in nats" if measure == "kl" else "cosine"
    figure = go.Figure(
        go.Heatmap(
            x=starts,
            y=lengths,
            z=shown.round(4),
            customdata=grid.round(5),
            colorscale="Viridis",
            reversescale=measure == "kl",
            hoverongaps=False,
            hovertemplate="start %{x}, %{y} layers: %{customdata:.4g}<extra></extra>",
            colorbar={"title": {"text": _colour_title(name, measure == "kl"), "side": "right"}},
        )
    )
    if measure == "kl":
        ticks = {"tickprefix": "10<sup>", "ticksuffix": "</sup>", "dtick": 1}
        figure.update_traces(colorbar=ticks, selector={"type": "heatmap"})
    columns, rows = np.meshgrid(starts, lengths)
    there = ~np.isnan(grid)
    figure.add_trace(_targets(columns[there], rows[there], grid[there]))
    for start, stop in chosen:
        length = stop - start
        _outline(figure, start - 0.5, start + 0.5, length - 0.5, length + 0.5)
    figure.update_layout(
        height=340,
        dragmode="pan",
        margin={"l": 50, "r": 10, "t": 10, "b": 45},
        xaxis={"title": "first layer of the range", "fixedrange": True, "zeroline": False},
        yaxis={"title": "layers that become one", "fixedrange": True, "dtick": 1},
    )
    return figure


def _square(
    matrix: Sequence[Sequence[float]],
    measure: str,
    spread: Sequence[Sequence[float]] | None,
    axis: str = "depth",
    limits: tuple[float, float] | None = None,
    named: bool = False,
) -> go.Figure:
    """A heat map; `named` says of each cell which layers lie between its depths."""
    about = MEASURES.get(measure, SPREAD)
    values = np.array(matrix, dtype=float)
    size = len(values)
    hover = f"{axis} %{{y}} and {axis} %{{x}}: %{{z:.4f}}"
    if named:
        hover = "depths %{y} and %{x}, layers between: %{text}: %{z:.4f}"
    figure = go.Figure(
        go.Heatmap(
            z=values.astype(np.float32),
            x=np.arange(size),
            y=np.arange(size),
            customdata=None if spread is None else np.array(spread, dtype=np.float32),
            text=_between(size) if named else None,
            colorscale="Viridis",
            reversescale=not about.alike_is_high,
            zmin=limits[0] if limits else None,
            zmax=limits[1] if limits else None,
            hovertemplate=hover
            + ("" if spread is None else " ± %{customdata:.4f}")
            + "<extra></extra>",
            colorbar={
                "title": {
                    "text": _colour_title(about.title, not about.alike_is_high, about.bright),
                    "side": "right",
                },
                "thickness": 16,
            },
        )
    )
    figure.update_layout(margin={"l": 55, "r": 10, "t": 30, "b": 50}, showlegend=False)
    figure.update_xaxes(
        range=[-0.5, size - 0.5],
        fixedrange=True,
        constrain="domain",
        zeroline=False,
        showgrid=False,
    )
    figure.update_yaxes(
        range=[size - 0.5, -0.5],
        fixedrange=True,
        constrain="domain",
        zeroline=False,
        showgrid=False,
        title=axis,
    )
    return figure


def _colour_title(name: str, low_is_bright: bool, bright: str = Measure.bright) -> str:
    return f"{name}: {'low' if low_is_bright else 'high'} = {bright}"


def _influence_bars(document: Mapping[str, Any]) -> go.Bar:
    """A bar between depth k and k+1 for layer k; hatched where its rank is uncertain."""
    uncertain = document.get("rank_uncertain") or [False] * document["layers"]
    return go.Bar(
        x=[layer + 0.5 for layer in range(document["layers"])],
        y=[max(value, LEAST_INFLUENCE) for value in document["influence"]],
        customdata=list(enumerate(document["influence"])),
        error_y={
            "type": "data",
            "array": document["influence_spread"],
            "thickness": 1.2,
            "color": GREY,
        },
        marker={
            "color": BLUE,
            "pattern": {"shape": ["/" if doubt else "" for doubt in uncertain], "size": 5},
        },
        yaxis="y2",
        hovertemplate="layer %{customdata[0]}: influence %{customdata[1]:.4f}<extra></extra>",
    )


def _between(depths: int) -> np.ndarray:
    """Which layers lie between two depths, for every pair: few letters, as there are many."""
    low, high = np.minimum(*np.mgrid[0:depths, 0:depths]), np.maximum(*np.mgrid[0:depths, 0:depths])
    words = [
        "none" if a == b else f"{a}" if b - a == 1 else f"{a} to {b - 1}"
        for a, b in zip(low.ravel(), high.ravel(), strict=True)
    ]
    return np.array(words).reshape(depths, depths)


def _targets(
    columns: np.ndarray, rows: np.ndarray, values: np.ndarray, words: np.ndarray | None = None
) -> go.Scatter:
    """Invisible markers that take the clicks; `words` say more of each when it is pointed at."""
    unseen = {"marker": {"opacity": 0}}
    return go.Scatter(
        x=columns.ravel().astype(np.int16),
        y=rows.ravel().astype(np.int16),
        customdata=values.ravel().astype(np.float32),
        mode="markers",
        marker={"symbol": "square", "size": 12, "opacity": 0},
        selected=unseen,
        unselected=unseen,
        text=words,
        hovertemplate=(
            "start %{x}, %{y} layers: %{customdata:.4g}<extra></extra>"
            if words is None
            else "depths %{y} and %{x}, layers between: %{text}: %{customdata:.4f}<extra></extra>"
        ),
        showlegend=False,
    )


def _outline(figure: go.Figure, x0: float, x1: float, y0: float, y1: float) -> None:
    """A rectangle that is seen on dark and on bright cells: white around red."""
    for colour, width in (("#ffffff", 5), ("#d6003c", 2.5)):
        figure.add_shape(
            type="rect", x0=x0, x1=x1, y0=y0, y1=y1, line={"color": colour, "width": width}
        )
