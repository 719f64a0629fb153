"""Ranges of layers: from a drag, a click or typed text to `[start, stop)`, and into words.

One convention on every page: a range is a pair of depths. Depth 0 lies after the embedding, depth
k after layer k-1. The layers between depth `start` and depth `stop` are `start … stop-1`; they
become one, layer `start`. Knows neither Streamlit nor models. Next: `charts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor
from typing import Any

from laco.errors import RecipeError
from laco.reading import short
from laco.recipe import Drop, Merge, Span

FEW = 6  # layers that are named one by one
PAIR = re.compile(r"\s*\[?\s*(-?[0-9]{1,9})\s*[:,]\s*(-?[0-9]{1,9})\s*[)\]]?\s*")


def span_of_selection(selection: Mapping[str, Any], layers: int) -> Span | None:
    """The range that a box or a clicked cell of the depth map stands for; None if there is none.

    A box covers the depths whose cells it touches at their middle. A box over the influence bars
    (`yref` y2) covers the layers whose bars it touches. Fewer than two layers are no range.
    """
    if selection.get("box"):
        box = selection["box"][-1]
        if box.get("yref") == "y2":
            ends = (floor(min(box["x"])), ceil(max(box["x"])))
        else:
            corners = [*box["x"], *box["y"]]
            ends = (floor(min(corners) + 0.5), floor(max(corners) + 0.5))
    elif selection.get("points"):
        point = selection["points"][-1]
        ends = (min(point["x"], point["y"]), max(point["x"], point["y"]))
        if any(end != int(end) for end in ends):
            return None  # a bar was clicked; only cells stand for ranges
    else:
        return None
    start, stop = max(0, int(ends[0])), min(layers, int(ends[1]))
    return (start, stop) if stop - start >= 2 else None


def span_of_candidate(selection: Mapping[str, Any]) -> Span | None:
    """The range of a clicked cell of the what-if map, whose axes are start and length."""
    if not selection.get("points"):
        return None
    point = selection["points"][-1]
    return (int(point["x"]), int(point["x"]) + int(point["y"]))


def clamped(ends: Sequence[int], layers: int) -> Span:
    """The nearest pair of depths that this model has, in order."""
    low, high = min(ends), max(ends)
    return (min(max(low, 0), layers), min(max(high, 0), layers))


def parse_spans(text: str) -> tuple[Span, ...]:
    """Ranges written `6:10, 20:22` or `[[6, 10], [20, 22]]`. Raises `RecipeError`."""
    inner = text.strip().removeprefix("[[").removesuffix("]]")
    parts = re.split(r"[;\n]|(?<=[)\]])\s*,|(?<=\d),(?=\s*\d+\s*:)", inner)
    return tuple(_pair(part) for part in parts if part.strip())


def _pair(text: str) -> Span:
    match = PAIR.fullmatch(text)
    if match is None:
        shown = short(text.strip())
        raise RecipeError(f"'{shown}' is no range; write start:stop, for example 6:10.")
    return (int(match[1]), int(match[2]))


def parse_layers(text: str) -> tuple[int, ...]:
    """Layers written `7, 8, 12`. Raises `RecipeError`."""
    parts = [part for part in re.split(r"[,;\s]+", text) if part]
    for part in parts:
        if not re.fullmatch(r"-?[0-9]{1,9}", part):
            raise RecipeError(f"'{short(part)}' is no layer; write numbers, for example 7, 8, 12.")
    return tuple(int(part) for part in parts)


def text_of_spans(spans: Iterable[Span]) -> str:
    """The ranges as `parse_spans` reads them."""
    return ", ".join(f"{start}:{stop}" for start, stop in spans)


def removed_by(step: Merge | Drop, layers: int) -> tuple[int, ...]:
    """The layers that go. Raises `RecipeError` where the step reaches past the last layer."""
    if isinstance(step, Drop):
        gone = set(step.layers)
        if max(gone) >= layers:
            raise RecipeError(f"Layer {max(gone)} is not there; the last one is {layers - 1}.")
    else:
        for start, stop in step.spans:
            if stop > layers:
                raise RecipeError(
                    f"Range {start}:{stop} ends past the model's {layers} layers; "
                    f"choose a stop of {layers} at most."
                )
        gone = {layer for start, stop in step.spans for layer in range(start + 1, stop)}
    if len(gone) >= layers:
        raise RecipeError("No layer would be left; choose fewer layers.")
    return tuple(sorted(gone))


def kept(removed: Iterable[int], layers: int) -> tuple[int, ...]:
    """The layers that stay."""
    gone = set(removed)
    return tuple(layer for layer in range(layers) if layer not in gone)


def listed(layers: Sequence[int]) -> str:
    """Layers in words: `layer 7`, `layers 7, 8, 9`, `no layer`."""
    if not layers:
        return "no layer"
    return ("layer " if len(layers) == 1 else "layers ") + ", ".join(map(str, layers))


def in_ranges(layers: Sequence[int]) -> str:
    """Layers in few words: `no layer`, `layer 7`, `layers 0–6, 9, 10 and 12–29`."""
    if len(layers) < 2:
        return listed(layers)
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    said = ", ".join(parts)
    head, comma, tail = said.rpartition(", ")
    return f"layers {head} and {tail}" if comma else f"layers {said}"


def counted(layers: Sequence[int]) -> str:
    """Layers one by one while they are few, in ranges beyond that."""
    return listed(layers) if len(layers) <= FEW else in_ranges(layers)


def spoken(span: Span) -> str:
    """What collapsing this range does: `Layers 6–9 become layer 6; layers 7, 8, 9 go`."""
    start, stop = span
    if stop - start < 2:
        return "A range needs two layers at least: choose depths that lie two or more apart."
    gone = counted(range(start + 1, stop))
    verb = "goes" if stop - start == 2 else "go"
    return f"Layers {start}–{stop - 1} become layer {start}; {gone} {verb}."
