"""Runs, jobs and documents -> data frames, ready to be shown. Pure, as `charts.py`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from laco import devices
from laco.formats import pairs
from laco.jobs import JobStatus
from laco.places import LOCAL
from laco.report import Flip, Row, describe, format_cell, format_value, heads
from laco.store import Run
from laco.ui.progress import duration
from laco.wording import Difference

COLOURS = {"better": "#2f86c9", "worse": "#d9730d", "same": "#8c8c8c"}  # on light and on dark


def runs_table(runs: Sequence[Run]) -> pd.DataFrame:
    """A row for each run: what, when, its first perplexity, layers, parameters."""
    return pd.DataFrame(
        [
            {
                "run": describe(run.recipe),
                "made": when(run.created),
                "perplexity": _value(run, "perplexity"),
                "layers": _value(run, "layers"),
                "parameters": _value(run, "parameters"),
                "key": run.key[:11],
            }
            for run in runs
        ]
    )


def _value(run: Run, name: str) -> str:
    for metric in run.metrics:
        if metric.name == name or metric.name.startswith(f"{name}["):
            return format_value(metric.value, metric.unit)
    return "–"


def jobs_table(statuses: Sequence[JobStatus]) -> pd.DataFrame:
    """A row for each job."""
    return pd.DataFrame(
        [
            {
                "state": status.state,
                "job": status.label or status.id,
                "progress": status.fraction or 0.0,
                "time left": duration(status.seconds_left) if status.seconds_left else "–",
                "message": (status.error or status.message or "").partition("\n")[0],
                "attempt": f"{status.attempt} of {status.attempts}" if status.attempt else "–",
                "place": status.place,
                "device": status.device or "–",
                "sent": when(status.created),
                "by": status.owner or "–",
                "took": _took(status),
                "id": status.id,
            }
            for status in statuses
        ]
    )


def devices_table(store: Path, statuses: Sequence[JobStatus]) -> pd.DataFrame:
    """A row for each device that is here: its memory, how many jobs it takes, what it works on."""
    slots = devices.slots(store)
    places = [devices.about(name) for name in dict.fromkeys([*devices.devices_here(), *slots])]
    return pd.DataFrame(
        [
            {
                "device": place.name,
                "": place.label,
                "free": _bytes(place.memory_free),
                "memory": _bytes(place.memory_total),
                "jobs at once": slots.count(place.name),
                "at work": ", ".join(
                    status.label or status.id
                    for status in statuses
                    if status.active and (status.place, status.device) == (LOCAL, place.name)
                ),
            }
            for place in places
        ]
    )


def _bytes(count: int | None) -> str:
    return "–" if count is None else format_value(count, "bytes")


def _took(status: JobStatus) -> str:
    if status.started is None:
        return "–"
    return duration((status.ended or time.time()) - status.started)


def when(seconds: float) -> str:
    """A moment as local date and time."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def influence_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each layer: influence, its spread over shards, and whether its rank is certain."""
    return pd.DataFrame(
        {
            "layer": range(document["layers"]),
            "influence": document["influence"],
            "spread": document["influence_spread"],
            "rank": ["uncertain" if doubt else "certain" for doubt in document["rank_uncertain"]],
        }
    ).set_index("layer")


def frame(matrix: Sequence[Sequence[float]]) -> pd.DataFrame:
    """A square matrix with its indices."""
    return pd.DataFrame(matrix).round(4)


def what_if_table(document: Mapping[str, Any], measure: str) -> pd.DataFrame:
    """Length by start."""
    rows = [f"{length} layers" for length in document["lengths"]]
    return pd.DataFrame(document[measure], index=rows, columns=document["starts"])


LAYER_COLUMNS = {  # of a walk's row: what it is called, and how many digits tell
    "original": "stands for layer",
    "alone": "error as it came",
    "pruned": "error before",
    "ridge": "closed form",
    "adam": "gradient",
    "kept": "kept",
    "error": "error",
    "alone_cka": "CKA as it came",
    "cka": "CKA",
    "damping": "damping",
    "zeros": "zeros",
    "channels": "channels left",
    "groups": "head groups left",
    "seconds": "seconds",
}


def layers_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each layer of a walk; columns that no row has are left out. Zeros in per cent."""
    columns = {
        title: [_cell(row, name) for row in rows]
        for name, title in LAYER_COLUMNS.items()
        if any(row.get(name) is not None for row in rows)
    }
    layers = pd.Index([row["layer"] for row in rows], name="layer")
    return pd.DataFrame(columns, index=layers)


def _cell(row: Mapping[str, Any], name: str) -> Any:
    value = row.get(name)
    if name == "zeros" and value is not None:
        return f"{100 * value / max(1, row['weights']):.1f} %"
    if isinstance(value, Mapping):  # of units that went with their importance
        return f"{value['kept']} of {value['of']}, {100 * value['lost']:.1f} % of importance gone"
    return float(f"{value:.4g}") if isinstance(value, float) else value


def training_table(report: Mapping[str, Any]) -> pd.DataFrame:
    """LoRA's losses, an epoch a row; epoch 0 is before training."""
    before = {"epoch": 0, "step": 0, "held_out": report["held_out_before"], "seconds": 0.0}
    table = pd.DataFrame([*report["epochs"], before]).set_index("epoch").sort_index().round(4)
    return table.rename(columns={"train": "training text", "held_out": "held-out text"})


def lines_table(places: Sequence[float], lines: Sequence[Sequence[float]]) -> pd.DataFrame:
    """A row for each layer, a column for each place on the axis."""
    columns = [f"{place:g}" for place in places]
    return pd.DataFrame(lines, columns=columns).rename_axis("layer")


def candidates_table(plan: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each candidate that a search tried; not exact: it was left, at this or worse."""
    return pd.DataFrame(plan["candidates"])


def comparison(rows: Sequence[Row], runs: Sequence[Run]) -> Styler:
    """A row for each metric, a column for each run; deltas are signed and coloured by direction.

    Blue is better, orange worse, grey within noise; a mark stands beside the colour. A dagger marks
    a number that was measured with other settings than the baseline's, a double one a leak.
    """
    names = heads(runs) | {row.key: row.label for row in rows}
    metrics = list(dict.fromkeys(row.metric for row in rows))
    text = {name: dict.fromkeys(metrics, "–") for name in names.values()}
    style = {name: dict.fromkeys(metrics, "") for name in names.values()}
    for row in rows:
        column = text[names[row.key]]
        cell, before = format_cell(row), column[row.metric]
        column[row.metric] = cell if before == "–" else f"{before}; {cell}"
        if row.verdict in COLOURS:
            style[names[row.key]][row.metric] = f"color: {COLOURS[row.verdict]}; font-weight: 600"
    index = pd.Index(metrics, name="metric")
    return pd.DataFrame(text, index=index).style.apply(
        lambda _: pd.DataFrame(style, index=index), axis=None
    )


def paired(rows: Sequence[Row]) -> pd.DataFrame:
    """A row for each difference that was judged question by question."""
    headings, lines = pairs(rows)
    return pd.DataFrame(lines, columns=headings)


def flips(found: Sequence[Flip]) -> pd.DataFrame:
    """A row for each question whose answer changed: what is right, picked before, picked now."""
    return pd.DataFrame(
        [
            {
                "change": flip.change,
                "question": flip.question,
                "right": _choice(flip, flip.target),
                "before": _choice(flip, flip.before),
                "now": _choice(flip, flip.after),
            }
            for flip in found
        ]
    )


def choices(flip: Flip) -> pd.DataFrame:
    """A row for each choice of a question, with what both runs think of it; else both answers."""
    if not flip.choices:
        return pd.DataFrame(
            {"": ["right", "before", "now"], "answer": [flip.target, flip.before, flip.after]}
        )
    unknown = [None] * len(flip.choices)
    places = range(len(flip.choices))
    return pd.DataFrame(
        {
            "choice": flip.choices,
            "right": ["✓" if place == flip.target else "" for place in places],
            "picked before": ["●" if place == flip.before else "" for place in places],
            "log-likelihood before": flip.before_scores or unknown,
            "picked now": ["●" if place == flip.after else "" for place in places],
            "log-likelihood now": flip.after_scores or unknown,
        }
    )


def _choice(flip: Flip, place: int | str) -> str:
    if isinstance(place, int) and place < len(flip.choices):
        return flip.choices[place]
    return str(place)


def differences(found: Sequence[Difference], left: str, right: str) -> pd.DataFrame:
    """Where two recipes are unlike."""
    return pd.DataFrame(
        [
            {"field": item.path, left: _shown(item.left), right: _shown(item.right)}
            for item in found
        ],
        columns=["field", left, right],
    )


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)
