"""Runs as trees: from which result each was made, and what was made from it.

A run hangs on the run of the longest beginning of its recipe that is there, so a tree keeps
together when one in the middle was removed. Pure: it knows recipes and what people say of runs,
and no store. Next: `ui/lineage.py`, which draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from laco.annotations import NOTHING, Annotation
from laco.listing import Run
from laco.recipe import Recipe
from laco.wording import describe, describe_step


@dataclass(frozen=True)
class Node:
    """A run in its tree: `depth` below the root, `step` being what was done since the one above."""

    run: Run
    parent: str | None
    depth: int
    step: str
    said: Annotation
    children: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name that people gave it, else what was done since the node above."""
        return self.said.name or self.step


def tree(
    runs: Sequence[Run], said: Mapping[str, Annotation] | None = None, archived: bool = True
) -> list[Node]:
    """Every run as a node, each above what was made from it; the oldest first among equals.

    Without `archived`, what is put away is left out; what was made from it hangs higher up.
    """
    said = said or {}
    shown = {run.key: run for run in runs if archived or not said.get(run.key, NOTHING).archived}
    parents = {key: _parent(run, shown) for key, run in shown.items()}
    below: dict[str | None, list[str]] = {}
    for key in sorted(shown, key=lambda key: shown[key].created):
        below.setdefault(parents[key], []).append(key)
    found: list[Node] = []
    waiting = [(key, 0) for key in reversed(below.get(None, []))]
    while waiting:
        key, depth = waiting.pop()
        children = below.get(key, [])
        step = _step(shown[key], parents[key], shown)
        about = said.get(key, NOTHING)
        found.append(Node(shown[key], parents[key], depth, step, about, tuple(children)))
        waiting += [(child, depth + 1) for child in reversed(children)]
    return found


def descendants(runs: Sequence[Run], key: str) -> list[str]:
    """Keys of all that was made from a run, by whatever way, each after what it was made from."""
    nodes = {node.run.key: node for node in tree(runs)}
    found: list[str] = []
    waiting = list(nodes[key].children) if key in nodes else []
    while waiting:
        found.append(waiting.pop(0))
        waiting += nodes[found[-1]].children
    return found


def names(runs: Sequence[Run], said: Mapping[str, Annotation]) -> dict[str, str]:
    """A name by key for each run: people's own, else its recipe; equal ones are told apart."""
    labels = {run.key: said.get(run.key, NOTHING).name or describe(run.recipe) for run in runs}
    counts: dict[str, int] = {}
    for label in labels.values():
        counts[label] = counts.get(label, 0) + 1
    return {
        key: label if counts[label] == 1 else f"{label} · {key[3:9]}"
        for key, label in labels.items()
    }


def origins(kept: Sequence[Sequence[int]], layers: int) -> list[int]:
    """Of each layer that is left, which of the original's it is.

    `kept` lists, edit after edit, the layers that stayed; there are `layers` at the end.
    """
    if not kept:
        return list(range(layers))
    found = list(kept[0])
    for stayed in kept[1:]:
        found = [found[index] for index in stayed]
    return found


def _parent(run: Run, runs: Mapping[str, Run]) -> str | None:
    """The run that this one was made from, of those that are there."""
    for key in reversed(_keys(run.recipe)[:-1]):
        if key in runs:
            return key
    below = Path(run.recipe.model.path).name  # of a result's folder that was taken as a model
    return below if below in runs and below != run.key else None


def _step(run: Run, parent: str | None, runs: Mapping[str, Run]) -> str:
    """What was done since the node above, in words; the whole recipe for a root."""
    if parent is None:
        return describe(run.recipe)
    above = runs[parent].recipe
    same = above.model == run.recipe.model
    steps = run.recipe.steps[len(above.steps) :] if same else run.recipe.steps
    return ", ".join(map(describe_step, steps)) or describe(run.recipe)


def _keys(recipe: Recipe) -> tuple[str, ...]:
    return _keys_of(recipe.model_dump_json())


@lru_cache(maxsize=4096)
def _keys_of(recipe: str) -> tuple[str, ...]:
    """The keys of a recipe; a page asks again for those of all runs."""
    return tuple(Recipe.model_validate_json(recipe).keys())
