"""Recipes and numbers as a person reads them: in a line of words, and where two are unlike.

Knows what a recipe is, and nothing of runs, models or pages. Next: `report.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

from laco.recipe import Collapse, Drop, Merge, Recipe, Step

ORDERS = {
    "best_first": "best-first",
    "top_down": "Algorithm 1",
    "influence": "by influence",
    "angular": "by angle",
}
OBJECTIVES = {"kl": "KL", "cosine": "cosine", "perplexity": "perplexity"}


@dataclass(frozen=True)
class Difference:
    """A place where two recipes are unlike; `None` where one of them has nothing there."""

    path: str
    left: Any
    right: Any


def describe(recipe: Recipe) -> str:
    """The recipe in one line: the model, then each step.

    Collapses that follow each other and differ only in their target are told together.
    """
    name = recipe.model.path.removeprefix("bundled:").rstrip("/").rsplit("/", 1)[-1]
    words: list[str] = []
    before: Step | None = None
    for step in recipe.steps:
        if _goes_on(before, step) and isinstance(step, Collapse):
            words[-1] = f"{words[-1].removesuffix(' layers')}, then {step.target_layers} layers"
        else:
            words.append(describe_step(step))
        before = step
    return ", ".join([name, *words])


def describe_step(step: Step) -> str:
    """One step in a few words."""
    if isinstance(step, Drop):
        return f"drop {_count(len(step.layers), 'layer')} ({', '.join(map(str, step.layers))})"
    if isinstance(step, Merge):
        spans = ", ".join(f"[{start}, {stop})" for start, stop in step.spans)
        return f"merge {spans} ({step.merge})"
    return _describe_collapse(step)


def diff(left: Recipe, right: Recipe) -> list[Difference]:
    """The fields in which two recipes differ, by path (`steps.0.threshold`)."""
    found = [
        Difference(f"model.{name}", getattr(left.model, name), getattr(right.model, name))
        for name in type(left.model).model_fields
    ]
    for index in range(max(len(left.steps), len(right.steps))):
        a = left.steps[index] if index < len(left.steps) else None
        b = right.steps[index] if index < len(right.steps) else None
        place = f"steps.{index}"
        if a is None or b is None or a.kind != b.kind:
            found.append(Difference(place, a and describe_step(a), b and describe_step(b)))
        else:
            left_fields, right_fields = _leaves(a.model_dump()), _leaves(b.model_dump())
            found += [
                Difference(f"{place}.{path}", left_fields[path], right_fields[path])
                for path in left_fields
            ]
    return [difference for difference in found if difference.left != difference.right]


def format_value(value: float, unit: str = "") -> str:
    """A number as a person reads it: four digits, thousands as k, M, G; bytes as MB."""
    if not math.isfinite(value):
        return str(value)
    if unit in ("bytes", "B"):
        return f"{value / 1e6:,.1f} MB" if abs(value) < 1e9 else f"{value / 1e9:,.2f} GB"
    if unit == "share":
        return f"{100 * value:.1f} %"
    size = abs(value)
    for limit, suffix in ((1e9, " G"), (1e6, " M")):
        if size >= limit:
            return f"{value / limit:,.4g}{suffix}"
    text = f"{value:,.0f}" if size >= 1e4 or value == int(value) else f"{value:.4g}"
    return f"{text} {unit}" if unit in ("s", "nats") else text


def _goes_on(before: Step | None, step: Step) -> bool:
    """Whether `step` is the collapse before it once more, to another number of layers."""
    if not isinstance(before, Collapse) or not isinstance(step, Collapse):
        return False
    targets = (before.target_layers, step.target_layers)
    same = before.model_copy(update={"target_layers": step.target_layers}) == step
    return same and None not in targets and 1 not in targets and before.threshold is None


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The fields of nested data by their dotted paths."""
    if not isinstance(value, dict):
        return {path: value}
    nested = cast("dict[str, Any]", value)
    found: dict[str, Any] = {}
    for name, item in nested.items():
        found.update(_leaves(item, f"{path}.{name}" if path else name))
    return found


def _describe_collapse(step: Collapse) -> str:
    words = [ORDERS[step.order]]
    if step.order == "top_down":
        words.append(f"(C={step.span}, I={step.interval}, {step.merge})")
    elif step.order == "best_first":
        span = f", {step.span} at a time" if step.span > 2 else ""
        words.append(f"({OBJECTIVES[step.objective]}, {step.merge}{span})")
    else:
        words.append(f"({step.merge})")
    if step.target_layers is not None:
        words.append(f"to {_count(step.target_layers, 'layer')}")
    if step.target_share is not None:
        words.append(f"to {100 * step.target_share:g} % of the layers")
    if step.threshold is not None:
        words.append(f"while {_limit(step)}")
    return "collapse " + " ".join(words)


def _limit(step: Collapse) -> str:
    sign = ">" if step.objective == "cosine" else "<"
    return f"{OBJECTIVES[step.objective]} {sign} {step.threshold:g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
