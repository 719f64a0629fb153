"""Numbers -> plotly figures: scores of a search, quality against cost, a bar for each run.

Pure: no Streamlit, no store, tested by themselves. Colours are from the Okabe-Ito palette, which
colour-blind eyes can tell apart; lines and text are left to the theme, so that light and dark
are both readable. `maps.py` draws the heat maps. Next: `../../pages/compare.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#8c8c8c"
WIDE = 20  # from here on, the largest value over the smallest asks for a logarithmic axis


def candidate_scores(plan: Mapping[str, Any]) -> go.Figure:
    """Every candidate that a search tried, in order, with its score and what became of it."""
    figure = go.Figure()
    for state, colour, symbol in (
        ("accepted", BLUE, "circle"),
        ("not taken", ORANGE, "circle-open"),
        ("left early, at this or worse", GREY, "x-thin-open"),
    ):
        tried = [
            (place, item) for place, item in enumerate(plan["candidates"]) if _state(item) == state
        ]
        if not tried:
            continue
        figure.add_scatter(
            x=[place for place, _ in tried],
            y=[item["score"] for _, item in tried],
            customdata=[[item["start"], item["stop"]] for _, item in tried],
            mode="markers",
            name=state,
            marker={"color": colour, "symbol": symbol, "size": 8},
            hovertemplate="[%{customdata[0]}, %{customdata[1]}): %{y:.4g}<extra>"
            + state
            + "</extra>",
        )
    if plan.get("threshold") is not None:
        figure.add_hline(plan["threshold"], line_dash="dash", line_color=GREY)
    figure.update_layout(
        height=320,
        margin={"l": 50, "r": 10, "t": 30, "b": 45},
        legend={"orientation": "h", "y": 1.12},
        xaxis={"title": "candidates in the order they were tried"},
        yaxis={"title": str(plan.get("objective") or "score")},
    )
    return figure


def _state(candidate: Mapping[str, Any]) -> str:
    """What became of a candidate: not exact, it was left once it could not be the best."""
    if candidate["accepted"]:
        return "accepted"
    return "not taken" if candidate["exact"] else "left early, at this or worse"


def value_bars(
    labels: Sequence[str],
    values: Sequence[float],
    errors: Sequence[float | None],
    title: str,
    baseline: int | None = None,
) -> go.Figure:
    """A bar for each run with its standard error; the baseline's in another colour."""
    colours = [ORANGE if place == baseline else BLUE for place in range(len(values))]
    figure = go.Figure(
        go.Bar(
            x=list(values),
            y=_apart(labels),
            orientation="h",
            marker={"color": colours},
            error_x={"type": "data", "array": [error or 0 for error in errors], "color": GREY},
            text=[f"{value:,.4g}" for value in values],
            textposition="inside",
            insidetextanchor="start",
            hovertemplate="%{y}: %{x:,.4g}<extra></extra>",
        )
    )
    figure.update_layout(
        height=110 + 44 * len(values),
        margin={"l": 10, "r": 20, "t": 10, "b": 45},
        xaxis=axis_for(title, values, rangemode="tozero"),
        yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 6},
    )
    return figure


def trade_off(
    labels: Sequence[str],
    costs: Sequence[float],
    values: Sequence[float],
    errors: Sequence[float | None],
    front: Sequence[int],
    titles: tuple[str, str],
) -> go.Figure:
    """Quality against cost; the runs that none beats in both (`front`: their places) are joined."""
    figure = go.Figure()
    path = sorted(front, key=lambda place: costs[place])
    figure.add_scatter(
        x=[costs[place] for place in path],
        y=[values[place] for place in path],
        mode="lines",
        line={"color": GREEN, "dash": "dot"},
        name="Pareto front",
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=list(costs),
        y=list(values),
        error_y={"type": "data", "array": [error or 0 for error in errors], "color": GREY},
        mode="markers",
        marker={
            "size": 11,
            "color": [GREEN if place in front else GREY for place in range(len(costs))],
            "symbol": ["diamond" if place in front else "circle" for place in range(len(costs))],
        },
        text=list(labels),
        hovertemplate="%{text}<br>%{x:,.4s} · %{y:,.4g}<extra></extra>",
        name="runs",
    )
    figure.update_layout(
        height=380,
        margin={"l": 50, "r": 10, "t": 30, "b": 45},
        legend={"orientation": "h", "y": 1.12},
        xaxis={"title": titles[0]},
        yaxis=axis_for(titles[1], values),
    )
    return figure


def axis_for(title: str, values: Sequence[float], **linear: Any) -> dict[str, Any]:
    """An axis for these values: logarithmic, and it says so, where one would dwarf the others."""
    if not values or min(values) <= 0 or max(values) < WIDE * min(values):
        return {"title": title, **linear}
    low, high = log10(min(values)), log10(max(values))
    margin = 0.1 * (high - low)
    ends = [low - margin, high + margin]
    return {"title": f"{title} (logarithmic)", "type": "log", "range": ends}


def _apart(labels: Sequence[str]) -> list[str]:
    """Labels in short lines, unlike each other, since equal names would share one bar."""
    seen: dict[str, int] = {}
    found = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        found.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return ["<br>".join(wrap(label, 30)) for label in found]
