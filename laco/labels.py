"""Recipes in a few words, to know a run by.

For reading only: two different recipes may have the same label. Next: `report.py`, which says
more of a recipe and where two differ.
"""

from __future__ import annotations

from laco.recipe import Collapse, Drop, Merge, Recipe, Step


def label(recipe: Recipe) -> str:
    """A few words to know a run by: "SmolLM2-135M, collapse to 21 layers (best_first, drop)"."""
    return ", ".join([model_name(recipe.model.path), *map(step_words, recipe.steps)])


def model_name(path: str) -> str:
    """A model's short name: the last part of its path, of a result's key the beginning."""
    if path == "bundled:smollm2-135m":
        return "SmolLM2-135M"
    if path.startswith("k1-"):
        return path[:9]
    return path.removeprefix("bundled:").rstrip("/").rsplit("/", 1)[-1]


def step_words(step: Step) -> str:
    """What a step does, in a few words."""
    match step:
        case Collapse():
            goal = ""
            if step.target_layers is not None:
                goal = f" to {_count(step.target_layers)}"
            elif step.target_share is not None:
                goal = f" to {step.target_share:.0%} of the layers"
            elif step.threshold is not None:
                goal = f" at {step.objective} {step.threshold:g}"
            return f"collapse{goal} ({step.order}, {step.merge})"
        case Merge(spans=((start, stop),)):
            return f"merge layers {start} to {stop - 1} ({step.merge})"
        case Merge():
            return f"merge {len(step.spans)} spans ({step.merge})"
        case Drop():
            return f"drop {_count(len(step.layers))}"


def _count(layers: int) -> str:
    return f"{layers} layer{'' if layers == 1 else 's'}"
