"""Recipes and numbers as a person reads them: in a line of words, and where two are unlike.

Knows what a recipe is, and nothing of runs, models or pages. Next: `report.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from laco.recipe import (
    Collapse,
    Compensate,
    Drop,
    Finetune,
    Magnitude,
    Merge,
    Prune,
    Recipe,
    SparseGPT,
    Spec,
    Step,
    Structured,
    Wanda,
)

ORDERS = {
    "best_first": "best-first",
    "top_down": "Algorithm 1",
    "influence": "by influence",
    "angular": "by angle",
}
OBJECTIVES = {"kl": "KL", "cosine": "cosine", "perplexity": "perplexity"}
SHOWN_UNITS = ("s", "nats", "nats/token", "tokens/s")
METHODS = {
    "magnitude": "magnitude",
    "wanda": "Wanda",
    "sparsegpt": "SparseGPT",
    "flap": "FLAP",
    "taylor": "Taylor",
}


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
    if isinstance(step, Prune):
        return _describe_prune(step)
    if isinstance(step, Compensate):
        alpha = "" if step.alpha == 1 else f", α {step.alpha:g}"
        return f"compensated ({step.mode}{alpha})"
    if isinstance(step, Finetune):
        return f"LoRA r {step.rank}" + (" (KL)" if step.loss == "kl" else "")
    return _describe_collapse(step)


def describe_method(method: Magnitude | Wanda | SparseGPT | Structured) -> str:
    """What decides which weights go, and how many: `Wanda 50 %`, `FLAP 20 % of channels`."""
    if isinstance(method, Structured):
        parts = ((method.channels, "channels"), (method.groups, "head groups"))
        told = " and ".join(f"{100 * share:g} % of {what}" for share, what in parts if share)
        return f"{METHODS[method.importance]} {told}"
    sparse = method.pattern != "unstructured"
    return f"{METHODS[method.kind]} {method.pattern if sparse else f'{100 * method.sparsity:g} %'}"


def diff(left: Recipe, right: Recipe) -> list[Difference]:
    """The fields in which two recipes differ, by path (`steps.0.threshold`)."""
    found = _unlike(left.model, right.model, "model")
    for index in range(max(len(left.steps), len(right.steps))):
        a = left.steps[index] if index < len(left.steps) else None
        b = right.steps[index] if index < len(right.steps) else None
        found += _unlike(a, b, f"steps.{index}")
    return found


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
    return f"{text} {unit}" if unit in SHOWN_UNITS else text


def _goes_on(before: Step | None, step: Step) -> bool:
    """Whether `step` is the collapse before it once more, to another number of layers."""
    if not isinstance(before, Collapse) or not isinstance(step, Collapse):
        return False
    targets = (before.target_layers, step.target_layers)
    same = before.model_copy(update={"target_layers": step.target_layers}) == step
    return same and None not in targets and 1 not in targets and before.threshold is None


def _unlike(left: Any, right: Any, path: str) -> list[Difference]:
    """Where two values are unlike; specs of one kind are looked into."""
    if left == right:
        return []
    if isinstance(left, Spec) and type(left) is type(right):
        return [
            difference
            for name in type(left).model_fields
            for difference in _unlike(getattr(left, name), getattr(right, name), f"{path}.{name}")
        ]
    return [Difference(path, _said(left), _said(right))]


def _said(value: Any) -> Any:
    """A value of a recipe; a spec in a few words."""
    if isinstance(value, Magnitude | Wanda | SparseGPT | Structured):
        return describe_method(value)
    if isinstance(value, Collapse | Merge | Drop | Prune | Compensate | Finetune):
        return describe_step(value)
    return value


def _describe_prune(step: Prune) -> str:
    words = describe_method(step.method)
    if step.allocation == "sensitivity":
        words += " by sensitivity"
    if step.compensation is not None:
        words += f", each layer {describe_step(step.compensation)}"
    return words


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
