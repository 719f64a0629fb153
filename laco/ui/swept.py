"""A sweep's members -> figures and a table: curves over a field, parallel coordinates. Pure.

One line a value of what else varies, the original as a dashed line; what has not ended, or failed,
is in the table alone. Next: `sweeping.py`, which shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from laco import columns
from laco.evaluations import Metric
from laco.report import format_value
from laco.rows import table
from laco.sweep import Values, field_names, text_of, told
from laco.sweeps import Standing, headings
from laco.ui.charts import ORANGE, WIDE, axis_for
from laco.ui.pictures import COLOURS, Picture

SIZES = 3  # of the numbers that say what a member takes, beside the metric
GONE = "parameters gone"  # an axis that no field is: the share of the original's
MOST_TICKS = 12
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
DASHES = ("solid", "dot", "dashdot", "longdash")


def fields(found: Sequence[Standing]) -> dict[str, str]:
    """A short name by the place of each field that varies."""
    return headings(found)[0]


def qualities(found: Sequence[Standing]) -> list[str]:
    """The metrics that say how good a member is, perplexity first; none until one is measured."""
    return columns.qualities(table([one for one in found if one.values and one.metrics]))


def axes(found: Sequence[Standing]) -> list[str]:
    """What a curve can be drawn over: each field, and the share of parameters that went."""
    ended = [one for one in found if _value(one, "parameters") is not None]
    sized = any(one.values for one in ended) and any(not one.values for one in ended)
    return [*fields(found), *([GONE] if sized else [])]


def curves(found: Sequence[Standing], metric: str, axis: str, how: str = "grid") -> Picture:
    """A metric over a field, or over the share of parameters gone: a line for each other choice.

    Members of a list, whose fields vary together, are one line.
    """
    names = fields(found)
    others = [path for path in names if path != axis]
    if how == "list":
        others = []
    elif axis == GONE:
        others = others[1:]  # the first is what the line goes along
    points = [one for one in found if one.values and _value(one, metric) is not None]
    lines: dict[str, list[Standing]] = {}
    for one in points:
        lines.setdefault(told({path: one.values.get(path) for path in others}), []).append(one)
    figure = go.Figure()
    for place, (name, line) in enumerate(lines.items()):
        along = sorted(line, key=lambda one: _sortable(_along(one, axis, found)))
        figure.add_scatter(
            x=[_along(one, axis, found) for one in along],
            y=[_value(one, metric) for one in along],
            error_y={"type": "data", "array": [_error(one, metric) for one in along]},
            mode="lines+markers",
            name=escape(name) if others else escape(metric),
            line={
                "color": COLOURS[place % len(COLOURS)],
                "dash": DASHES[place // len(COLOURS) % len(DASHES)],
            },
            marker={"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 8},
            text=[f"{escape(told(one.values))}<br>{_said(one, metric)}" for one in along],
            hovertemplate="%{text}<extra></extra>",
        )
    values = [value for one in found if (value := _value(one, metric)) is not None]
    original = next((one for one in found if not one.values), None)
    base = None if original is None else _value(original, metric)
    if original is not None and base is not None:
        across = sorted((_along(one, axis, found) for one in points), key=_sortable)
        figure.add_scatter(
            x=list(dict.fromkeys(across)),
            y=[base] * len(dict.fromkeys(across)),
            mode="lines",
            line={"dash": "dash", "color": ORANGE},
            name=f"original {_said(original, metric)}",
            hovertemplate="%{fullData.name}<extra></extra>",
        )
    better = next((m.better for one in found for m in one.metrics if m.name == metric), "lower")
    title = f"{escape(metric.partition('[')[0])}, {better} is better"
    figure.update_layout(
        height=440,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        showlegend=True,
        legend={"orientation": "h", "y": -0.18},
        xaxis={"title": names.get(axis, axis), **_across(points, axis)},
        yaxis=axis_for(title, values),
    )
    words = "; ".join(
        f"{name}: " + ", ".join(f"{_at(one, axis, found)} {_said(one, metric)}" for one in line)
        for name, line in lines.items()
    )
    start = f"{metric} over {names.get(axis, axis)}"
    return Picture(figure, f"{start}. {words}.", frame(points))


def parallel(found: Sequence[Standing], metric: str) -> Picture:
    """A line for each member through all its values and its numbers, coloured by the metric."""
    points = [one for one in found if one.values and _value(one, metric) is not None]
    names = fields(found)
    dimensions = [
        _dimension(name, [one.values.get(path) for one in points]) for path, name in names.items()
    ]
    shown = [metric, *columns.costs(table(points))[:SIZES]] if points else []
    dimensions += [
        _dimension(name.partition("[")[0], values)
        for name in dict.fromkeys(shown)
        if None not in (values := [_value(one, name) for one in points])
    ]
    colour = [float(_value(one, metric) or 0) for one in points]
    figure = go.Figure(
        go.Parcoords(
            dimensions=dimensions,
            line={"color": _logged(colour), "colorscale": "Viridis", "showscale": False},
        )
    )
    figure.update_layout(height=360, margin={"l": 70, "r": 70, "t": 60, "b": 30})
    words = f"Parallel coordinates of {len(points)} members, coloured by {metric}."
    return Picture(figure, words, frame(points))


def frame(found: Sequence[Standing]) -> pd.DataFrame:
    """A row for each member: values, state, numbers; a field is text where not all are numbers."""
    names, metrics = headings(found)
    data: dict[str, list[Any]] = {}
    for path, name in names.items():
        given = [one.values.get(path) if one.values else None for one in found]
        data[name] = given if _numbers([v for v in given if v is not None]) else _texts(given)
    data["state"] = [one.state if one.values else f"{one.state} (original)" for one in found]
    for name in metrics:
        data[name] = [_value(one, name) for one in found]
    if any(one.error for one in found):
        data["what went wrong"] = [one.error for one in found]
    data["key"] = [one.key[:11] for one in found]
    return pd.DataFrame(data)


def choices_table(members: Sequence[Values]) -> pd.DataFrame:
    """What would be started: a row for each member's values."""
    names = field_names(list(dict.fromkeys(path for values in members for path in values)))
    return pd.DataFrame(
        [
            {name: text_of(values[path]) for path, name in names.items()}
            if values
            else dict.fromkeys(names.values(), "original")
            for values in members
        ]
    )


def _dimension(label: str, values: Sequence[Any]) -> dict[str, Any]:
    """An axis of parallel coordinates; words are placed by number, wide numbers by logarithm."""
    if not _numbers(values):
        texts = _texts(values)
        kinds = list(dict.fromkeys(texts))
        ticks = {"tickvals": list(range(len(kinds))), "ticktext": [escape(kind) for kind in kinds]}
        return {"label": escape(label), "values": [kinds.index(text) for text in texts], **ticks}
    if not _wide(values):
        few = sorted(set(values)) if len(set(values)) <= MOST_TICKS else []
        ticks = {"tickvals": few, "ticktext": [format_value(value) for value in few]} if few else {}
        return {"label": escape(label), "values": list(values), **ticks}
    ends = [log10(min(values)), log10(max(values))]
    powers = range(ceil(ends[0]), floor(ends[1]) + 1)
    return {
        "label": f"{escape(label)} (log)",
        "values": [log10(value) for value in values],
        "range": ends,
        "tickvals": list(powers),
        "ticktext": [f"{10.0**power:,g}" for power in powers],
    }


def _wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) >= WIDE * min(values)


def _logged(values: Sequence[float]) -> list[float]:
    return [log10(value) for value in values] if _wide(values) else list(values)


def _across(points: Sequence[Standing], axis: str) -> Mapping[str, Any]:
    """How a field's values lie along an axis: shares in per cent, words beside each other."""
    if axis == GONE:
        return {"tickformat": ".0%"}
    values: list[Any] = [one.values.get(axis) for one in points]
    if not _numbers(values):
        return {"type": "category", "categoryarray": list(dict.fromkeys(_texts(values)))}
    whole = all(float(value).is_integer() for value in values if value is not None)
    return {"tickvals": sorted(set(values))} if whole and len(set(values)) <= MOST_TICKS else {}


def _along(one: Standing, axis: str, found: Sequence[Standing]) -> Any:
    """Where a member lies on an axis."""
    if axis != GONE:
        value = one.values.get(axis)
        every = [other.values.get(axis) for other in found if other.values]
        return value if _numbers(every) else text_of(value)
    original = next((other for other in found if not other.values), None)
    whole = None if original is None else _value(original, "parameters")
    left = _value(one, "parameters")
    return None if not whole or left is None else 1 - left / whole


def _at(one: Standing, axis: str, found: Sequence[Standing]) -> str:
    along = _along(one, axis, found)
    return f"{along:.1%}" if axis == GONE and along is not None else text_of(along)


def _sortable(value: Any) -> tuple[bool, Any]:
    return (isinstance(value, str), 0.0 if value is None or isinstance(value, str) else value)


def _metric(one: Standing, name: str) -> Metric | None:
    return next((metric for metric in one.metrics if metric.name == name), None)


def _value(one: Standing, name: str) -> float | None:
    metric = _metric(one, name)
    return None if metric is None else metric.value


def _error(one: Standing, name: str) -> float:
    metric = _metric(one, name)
    return 0.0 if metric is None else metric.stderr or 0.0


def _said(one: Standing, name: str) -> str:
    metric = _metric(one, name)
    return "–" if metric is None else format_value(metric.value, metric.unit)


def _numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _texts(values: Sequence[Any]) -> list[str]:
    return ["" if value is None else text_of(value) for value in values]
