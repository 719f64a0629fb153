"""Stands where the engine is, in the browser tests: leaves results like it, without torch.

Every step gives a folder that the pages can read, every wanted evaluation its numbers. A model
that is dropped layer 1 fails; one that is dropped layer 2 takes some seconds and says how far it
is. Nothing of it is measured.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from laco import reference
from laco.context import Context
from laco.errors import ModelError
from laco.evaluations import Footprint, Perplexity, Request
from laco.recipe import Drop, Merge, Recipe
from laco.store import RunStore
from tests.pages import prepared

SLOW_SECONDS = 12.0


def run(request: Request, store: RunStore, context: Context) -> dict[str, Any]:
    """Carry out a request, in a manner of speaking."""
    ref = reference.pin(request.recipe.model, store.folder)
    recipe = Recipe(model=ref, steps=request.recipe.steps)
    store.add_model(recipe.keys()[0], Recipe(model=ref))
    if recipe.steps and isinstance(recipe.steps[-1], Drop):
        _dropped(recipe.steps[-1], context)
    done, left = [], prepared.LAYERS
    for place, step in enumerate(recipe.steps):
        context.step(place / len(recipe.steps), f"step {place + 1}: {step.kind}")
        report: dict[str, Any] = {}
        if isinstance(step, Merge):
            left -= sum(stop - start - 1 for start, stop in step.spans)
        elif isinstance(step, Drop):
            left -= len(step.layers)
        else:
            report = prepared.walk("compensate", left)
        about = {
            "kind": step.kind,
            "seconds": 1.0,
            "cached": False,
            "peak_bytes": 1,
            "report": report,
        }
        done.append(about)
        so_far = Recipe(model=ref, steps=recipe.steps[: place + 1])
        if store.artifact(so_far.key) is None:
            write = partial(_write, layers=left)
            store.save(so_far.key, so_far, done, write)
    lost = (
        3.0
        * (prepared.LAYERS - left)
        / (1 + sum(step.kind == "compensate" for step in recipe.steps))
    )
    numbers = prepared.metrics(19.5 + lost, left, 0.5)
    for spec in request.evaluations:
        if isinstance(spec, Perplexity):
            store.add_metrics(recipe.key, spec, numbers[:1])
        elif isinstance(spec, Footprint):
            store.add_metrics(recipe.key, spec, numbers[1:])
    return {"key": recipe.key}


def _write(folder: Path, layers: int) -> None:
    prepared.model_folder(folder, layers)


def _dropped(step: Drop, context: Context) -> None:
    if 1 in step.layers:
        raise ModelError("The model is of cheese; choose another.")
    if 2 not in step.layers:
        return
    end = time.monotonic() + SLOW_SECONDS
    while (left := end - time.monotonic()) > 0:
        context.step(1 - left / SLOW_SECONDS, "layer by layer")
        time.sleep(0.2)
