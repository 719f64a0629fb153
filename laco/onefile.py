"""Runs as one HTML file that needs no network: what was done, numbers, figures, where from.

It is what the Compare page, the Report page and `laco compare --format html` hand out. Every text
in it is escaped; figures are static SVG, so it holds no script. Next: `chapters.py`, a run in it.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version

from laco import __version__, columns, drawing
from laco.chapters import chapter, plain_table, table_of, texts
from laco.drawing import Bar, Point
from laco.evaluations import Metric
from laco.formats import LEGEND, MARKS, PAIRED, format_cell, notes, pairs
from laco.rows import Measured, Row
from laco.story import Story
from laco.wording import describe, format_value

STYLE = """
:root{color-scheme:light dark;--ink:#1c1c1c;--quiet:#5f5f5f;--paper:#fff;--box:#f4f4f2;
--rule:#d9d9d9;--good:#0b6aa8;--bad:#a84300;--warn:#8a4b00}
@media (prefers-color-scheme:dark){:root{--ink:#ececec;--quiet:#a8a8a8;--paper:#15171a;
--box:#22252a;--rule:#3a3d42;--good:#6cb8ef;--bad:#f0a060;--warn:#e0b070}}
@media print{:root{color-scheme:light;--ink:#000;--quiet:#444;--paper:#fff;--box:#f4f4f2;
--rule:#bbb;--good:#0b6aa8;--bad:#a84300;--warn:#8a4b00}body{margin:0;font-size:11pt}
figure,tr,h2,h3,.texts>div{break-inside:avoid}h2,h3{break-after:avoid}
figure,.wide{overflow:visible}td{min-width:0}pre{white-space:pre-wrap}}
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;
color:var(--ink);background:var(--paper)}
h1{margin:0 0 .3rem}h2{margin:2.4rem 0 .5rem;font-size:1.3rem}
h3{margin:1.4rem 0 .3rem;font-size:1rem}
h4{margin:0;font-size:.85rem;color:var(--quiet);font-weight:600}
section{border-top:1px solid var(--rule);margin-top:2.4rem}section h2{margin-bottom:0}
p{margin:.4rem 0}.quiet,figcaption{color:var(--quiet);font-size:.9rem}
.remark{white-space:pre-wrap;border-left:3px solid var(--good);padding-left:.8rem}
.tag{background:var(--box);border-radius:.6rem;padding:.1rem .6rem;font-size:.85rem}
.wide{overflow-x:auto}.wide:not(.left) td{min-width:6rem}
.wide span{white-space:nowrap}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
td,th{padding:.3rem .7rem;border-bottom:1px solid var(--rule);text-align:right;vertical-align:top}
th{max-width:15rem}td:first-child,th:first-child,.left td,.left th{text-align:left}
.left td{min-width:6rem}h1,h2,h3{overflow-wrap:anywhere}
.better{color:var(--good);font-weight:600}.worse{color:var(--bad);font-weight:600}
.same{color:var(--quiet)}.note{color:var(--warn)}
pre{background:var(--box);padding:.8rem;overflow-x:auto;font-size:13px}
summary{cursor:pointer;padding:.3rem 0;color:var(--good)}
.beside{display:grid;grid-template-columns:repeat(auto-fit,minmax(16rem,1fr));gap:.8rem}
.texts>div{background:var(--box);padding:.7rem .9rem;border-radius:.4rem}
.texts p{white-space:pre-wrap;overflow-wrap:anywhere}
figure{margin:.8rem 0;overflow-x:auto}
svg{width:100%;min-width:30rem;height:auto;display:block}svg text{fill:var(--ink)}
.axis,.error{stroke:var(--quiet);stroke-width:1.3}.grid{stroke:var(--rule)}
.front{fill:none;stroke:var(--quiet);stroke-dasharray:3 4}.line{fill:none;stroke-width:2}
.key{padding-left:1.6rem;margin:.3rem 0}.dot{display:inline-block;width:.7rem;height:.7rem;
border-radius:50%;margin-right:.4rem}
"""
COLOURS = (  # of runs, the baseline's first: told apart by colour-blind eyes, on light and on dark
    *("#d98e00", "#1f86c9", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#9a8500", "#8c8c8c"),
)
STYLE += "".join(
    f".c{place}.full{{fill:{colour}}}.c{place}.empty{{fill:none;stroke:{colour};stroke-width:2.5;"
    f"stroke-dasharray:3 2}}.c{place}.line{{stroke:{colour}}}.c{place}.dot{{background:{colour}}}"
    for place, colour in enumerate(COLOURS)
)
PACKAGES = ("torch", "transformers", "lm_eval", "numpy")
NO_SETTING = ("answers", "main", "leak")  # of a metric's details
MOST_CHAPTERS = 24  # runs that are told of at length


def page(
    rows: Sequence[Row],
    runs: Sequence[Measured] = (),
    stories: Mapping[str, Story] | None = None,
) -> str:
    """The file. With `runs`, also what was done to each; with `stories`, figures by layer too."""
    known = stories or {}
    measured = {run.key: run for run in runs}
    labels = {row.key: _name(row.key, row.label, known) for row in rows}
    for key, run in measured.items():
        labels.setdefault(key, _name(key, describe(run.recipe), known))
    shown = [(labels[key], run) for key, run in measured.items()]
    base = next((row.key for row in rows if row.verdict == "baseline"), "")
    against = f", against {labels[base]}" if base else ""
    when = time.strftime("%Y-%m-%d")
    written = [(label, known[run.key]) for label, run in shown if run.key in known]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>laco: runs compared</title><style>{STYLE}</style></head><body><main>",
            f"<h1>Runs compared</h1><p>{_count(len(labels))}{escape(against)}.</p>",
            *_numbers(rows, labels),
            *_charts(rows, labels),
            texts(written),
            *(
                chapter(label, run, known.get(run.key), measured.get(base))
                for label, run in shown[:MOST_CHAPTERS]
            ),
            *_measurements(shown),
            _versions(when),
            "</main></body></html>",
        ]
    )


def _name(key: str, label: str, known: Mapping[str, Story]) -> str:
    """What people call a run, else what was done."""
    return (known[key].said.name if key in known else "") or label


def _count(runs: int) -> str:
    more = f"; the first {MOST_CHAPTERS} at length" if runs > MOST_CHAPTERS else ""
    return f"{runs} run{'s' if runs != 1 else ''}{more}"


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
    parts = [table_of(["", *map(escape, labels.values())], lines)]
    if any(row.verdict in MARKS for row in rows):
        parts.append(f"<p>{LEGEND}</p>")
    parts += [f'<p class="note">{escape(note)}</p>' for note in notes(rows)]
    headings, judged = pairs(rows)
    if judged:
        parts.append(
            "<details><summary>Question by question: gained, lost, and how certain a difference is"
            f"</summary><p>{PAIRED}</p>{plain_table(headings, judged)}</details>"
        )
    return parts


def _charts(rows: Sequence[Row], labels: Mapping[str, str]) -> list[str]:
    """Quality, the same against cost, and tasks."""
    base = [row.key for row in rows if row.verdict == "baseline"]
    places = {key: n for n, key in enumerate(dict.fromkeys([*base, *labels]))}
    qualities, costs = columns.qualities(rows), columns.costs(rows)
    parts: list[str] = []
    if qualities:
        found = list(columns.of_metric(rows, qualities[0]).values())
        told = _told(found, labels)
        drawn = drawing.bars({"": _bars(found, labels, places)}, f"{qualities[0]}: {told}.")
        better = f"{found[0].better} is better; with one standard error"
        parts.append(_chart(qualities[0], better, drawn))
    if qualities and costs:
        found_both = columns.against(rows, qualities[0], costs[0])
        if found_both.quality:
            title = f"{qualities[0]} against {costs[0]}"
            joined = "Joined: no other run is better in both."
            parts.append(_chart(title, joined, _points(found_both, labels, places)))
    tasks = columns.by_task(rows)
    if tasks:
        groups = {task: _bars(list(of.values()), labels, places) for task, of in tasks.items()}
        told = "; ".join(
            f"{task}: {_told(list(of.values()), labels)}" for task, of in tasks.items()
        )
        drawn = drawing.bars(groups, f"Accuracy by task. {told}.")
        parts.append(_chart("Tasks", "The metric that papers report, higher is better.", drawn))
    return parts


def _bars(rows: Sequence[Row], labels: Mapping[str, str], places: Mapping[str, int]) -> list[Bar]:
    return [
        Bar(
            labels[row.key],
            row.value,
            format_cell(row),
            places[row.key],
            row.stderr or 0.0,
            bool(row.badge),
        )
        for row in rows
    ]


def _points(found: columns.Against, labels: Mapping[str, str], places: Mapping[str, int]) -> str:
    spots = [
        Point(
            labels[good.key],
            dear.value,
            good.value,
            f"{_said(good)}, {_said(dear)}",
            places[good.key],
            good.stderr or 0.0,
            bool(good.badge),
        )
        for good, dear in zip(found.quality, found.cost, strict=True)
    ]
    names = found.cost[0].metric, found.quality[0].metric.partition("[")[0]
    best = ", ".join(labels[found.quality[place].key] for place in found.front)
    words = f"{names[1]} against {names[0]} of {len(spots)} runs; no run beats {best} in both."
    return drawing.points(spots, found.front, names, words)


def _said(row: Row) -> str:
    """A value with what it is of: `perplexity 27.5`, `106.7 M parameters`."""
    name = row.metric.partition("[")[0]
    value = format_value(row.value, row.unit)
    return f"{name} {value}" if row.metric != name or row.unit else f"{value} {name}"


def _told(rows: Sequence[Row], labels: Mapping[str, str]) -> str:
    return ", ".join(f"{labels[row.key]} {format_value(row.value, row.unit)}" for row in rows)


def _chart(title: str, words: str, drawn: str) -> str:
    heading = f"<h2>{escape(title)}</h2>"
    return f"<figure>{heading}{drawn}<figcaption>{escape(words)}</figcaption></figure>"


def _measurements(shown: Sequence[tuple[str, Measured]]) -> list[str]:
    """How each number was taken: settings, and the digests of the data."""
    if not shown:
        return []
    lines = [
        [label, metric.name, _value(metric), _settings(metric)]
        for label, run in shown
        for metric in run.metrics
    ]
    table = plain_table(["run", "metric", "value", "settings"], lines)
    return [f"<h2>How it was measured</h2><details><summary>Settings</summary>{table}</details>"]


def _versions(when: str) -> str:
    """When this file was written, and what is installed where that was."""
    found = {"Python": platform.python_version(), "laco": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    told = ", ".join(f"{name} {number}" for name, number in found.items())
    return f"<h2>Versions</h2><p>Written on {when} with {escape(told)}.</p>"


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
