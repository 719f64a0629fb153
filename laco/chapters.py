"""One run in the one-file report: what was done to it, what came of it, how to have it again.

Everything that is not ours is escaped here. Next: `drawing.py`, which draws the figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from laco import commands, drawing
from laco.rows import Measured
from laco.story import Document, Story
from laco.wording import describe_step, diff

MOST_TEXTS, LONGEST = 4, 700  # prompts shown, and characters of a text
SHOWN_TENSORS = 12  # columns of a table of changes


def chapter(label: str, run: Measured, story: Story | None, base: Measured | None) -> str:
    """The run under its name: its note, its steps, figures by layer, and its recipe."""
    parts = [f'<section><h2>{escape(label)}</h2><p class="quiet">{escape(run.key)}</p>']
    if story is not None:
        parts += _said(story)
    steps = "".join(f"<li>{escape(line)}</li>" for line in steps_told(run, story))
    parts.append(f'<ol start="0">{steps}</ol>')
    if story is not None:
        parts += [*_walks(story), *_map(story), *_change(story)]
    parts.append(_again(run, base))
    return "\n".join([*parts, "</section>"])


def texts(shown: Sequence[tuple[str, Story]]) -> str:
    """What the runs wrote after the same prompts, beside each other; empty if nothing is kept."""
    prompts = dict.fromkeys(prompt for _, story in shown for prompt in story.texts)
    parts: list[str] = []
    for prompt in list(prompts)[:MOST_TEXTS]:
        cells = [
            f"<div><h4>{escape(label)}</h4><p>{escape(_cut(story.texts[prompt]))}</p></div>"
            for label, story in shown
            if prompt in story.texts
        ]
        parts.append(f'<h3>“{escape(prompt)}”</h3><div class="beside texts">{"".join(cells)}</div>')
    if not parts:
        return ""
    heading = (
        "<h2>What they write</h2><p>Each takes the token that it holds likeliest, after one of the "
        "ready prompts.</p>"
    )
    return heading + "".join(parts)


def _said(story: Story) -> list[str]:
    tags = "".join(f'<span class="tag">#{escape(tag)}</span> ' for tag in story.said.tags)
    note = f'<p class="remark">{escape(story.said.note)}</p>' if story.said.note else ""
    return [f"<p>{tags}</p>" if tags else "", note]


def steps_told(run: Measured, story: Story | None) -> list[str]:
    """The recipe in words, the model first, then each step with what it took and what went."""
    reports = story.steps if story is not None else ()
    lines = [f"{run.recipe.model.path}, {run.recipe.model.dtype}"]
    for place, step in enumerate(run.recipe.steps):
        told = describe_step(step)
        if place < len(reports):
            told += f" ({_duration(reports[place]['seconds'])})"
            told += _outcome(reports[place]["report"])
        lines.append(told)
    return lines


def _outcome(report: Document) -> str:
    """What a step did, in words: which layers went, how sparse it is."""
    parts: list[str] = []
    if report.get("removed"):
        went = ", ".join(map(str, report["removed"]))
        parts.append(f"layers {went} of {report.get('layers_before', '?')} went")
    if report.get("sparsity"):
        parts.append(f"{100 * report['sparsity']:.1f} % of the weights in layers are zero")
    return f": {'; '.join(parts)}" if parts else ""


def _walks(story: Story) -> list[str]:
    """Errors by layer, before and after, of the last step that walked the layers."""
    from laco.ui.curves import through_depth  # brings plotly
    from laco.ui.told import walk_summary

    rows = story.walk
    if rows is None:
        return []
    words = walk_summary(rows, len(rows))
    errors = drawing.lines(through_depth(rows), ("layer", "relative error"), words)
    return [_figure("Error by layer", errors, words)]


def _map(story: Story) -> list[str]:
    """How alike the hidden states are between depths."""
    if story.similarity is None:
        return []
    matrix = story.similarity["measures"]["cosine"]
    known = [value for row in matrix for value in row if value is not None]
    words = (
        f"Mean cosine between the hidden states at {len(matrix)} depths, from {min(known):.3f} to "
        f"{max(known):.3f}. Bright: alike, so what lies between can go."
    )
    drawn = drawing.heat_map(matrix, (min(known), max(known)), "depth", words)
    influence = story.similarity["influence"]
    rows = [[str(layer), f"{value:.4g}"] for layer, value in enumerate(influence)]
    table = _folded("Influence of each layer", ["layer", "influence"], rows)
    return [_figure("How alike its layers are", drawn, words), table]


def _change(story: Story) -> list[str]:
    """How far the weights of each layer are from the original's."""
    from laco.ui.strips import change_table, change_told

    if story.change is None or not story.change["layers"]:
        return []
    rows = story.change["layers"]
    line: list[float | None] = [None] * (1 + max(row["layer"] for row in rows))
    for row in rows:
        line[row["layer"]] = None if row["change"] is None else 100 * row["change"]
    words = change_told(story.change)
    drawn = drawing.lines({"weights": line}, ("layer of the original", "change, %"), words)
    table = change_table(story.change)
    headings = ["layer", *map(str, list(table.columns)[:SHOWN_TENSORS])]
    lines = [
        [str(layer), *("–" if cell != cell else f"{cell:.4g}" for cell in cells[:SHOWN_TENSORS])]
        for layer, cells in zip(table.index, table.to_numpy(dtype=float), strict=True)
    ]
    folded = _folded("By layer and tensor, in per cent", headings, lines)
    return [_figure("How far its weights are from the original's", drawn, words), folded]


def _again(run: Measured, base: Measured | None) -> str:
    """The recipe as JSON, where it differs from the baseline's, and the commands to repeat it."""
    document = json.dumps(run.recipe.model_dump(mode="json"), indent=2, ensure_ascii=False)
    again = commands.run_again(commands.asked(run.metrics))
    unlike = diff(base.recipe, run.recipe) if base is not None and base.key != run.key else []
    differences = plain_table(
        ["field", "baseline", "this run"],
        [[item.path, _shown(item.left), _shown(item.right)] for item in unlike],
    )
    return (
        "<details><summary>Its recipe, and how to have it again</summary>"
        f"{differences if unlike else ''}<p>As recipe.json:</p><pre>{escape(document)}</pre>"
        f"<pre>{escape(again)}</pre></details>"
    )


def _figure(title: str, drawn: str, words: str) -> str:
    return (
        f"<figure><h3>{escape(title)}</h3>{drawn}<figcaption>{escape(words)}</figcaption></figure>"
    )


def _folded(title: str, headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    table = plain_table(headings, lines)
    return f"<details><summary>{escape(title)}</summary>{table}</details>"


def plain_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of plain texts, aligned to the left."""
    escaped = [[escape(cell) for cell in line] for line in lines]
    return table_of([escape(heading) for heading in headings], escaped, "wide left")


def table_of(headings: Sequence[str], lines: Iterable[Sequence[str]], kind: str = "wide") -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{cell}</th>" for cell in headings)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f'<div class="{kind}"><table><tr>{head}</tr>\n{body}</table></div>'


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
