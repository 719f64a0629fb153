"""Numbers -> plotly figures: the scores of a search; colours and axes of all figures.

Pure: no Streamlit, no store, tested by themselves. Colours are from the Okabe-Ito palette, which
colour-blind eyes can tell apart; lines and text are left to the theme, so that light and dark
are both readable. `maps.py` draws the heat maps. Next: `pictures.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

import plotly.graph_objects as go

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#8c8c8c"
WIDE = 10  # from here on, the largest value over the smallest asks for a logarithmic axis


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


def axis_for(title: str, values: Sequence[float], **linear: Any) -> dict[str, Any]:
    """An axis for these values: logarithmic, and it says so, where one would dwarf the others."""
    if not values or min(values) <= 0 or max(values) < WIDE * min(values):
        return {"title": title, **linear}
    low, high = log10(min(values)), log10(max(values))
    margin = 0.1 * (high - low)
    ends = [low - margin, high + margin]
    return {"title": f"{title} (logarithmic)", "type": "log", "range": ends}
