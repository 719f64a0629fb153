"""Stands where the engine is, in the scripts of load and crowd: works without torch or a model.

`asleep:SECONDS` tells once a second how far it is; anything else is a result that it keeps: an
artifact and a metric. Each time a job is carried out, a line in the store's `carried-out.txt` says
so.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from laco.context import Context
from laco.evaluations import Footprint, Metric, Request
from laco.recipe import Recipe
from laco.store import RunStore

REPORT = {"kind": "drop", "seconds": 1.0, "cached": False, "peak_bytes": 7, "report": {}}
WEIGHTS = bytes(100_000)


def run(request: Request, store: RunStore, context: Context) -> dict[str, Any]:
    """Carry out a request, in a manner of speaking."""
    with (store.folder / "carried-out.txt").open("a") as book:
        book.write(f"{Path(sys.argv[1]).name}\n")
    recipe = request.recipe
    word, _, seconds = recipe.model.path.partition(":")
    end = time.monotonic() + float(seconds or 0)
    while word == "asleep" and time.monotonic() < end:
        left = max(0.0, end - time.monotonic())
        context.step(1 - left / float(seconds), f"asleep, {left:.0f} s left, process {os.getpid()}")
        time.sleep(min(1.0, left))
    if word != "asleep":
        keep(recipe, store)
    return {"key": recipe.key}


def keep(recipe: Recipe, store: RunStore) -> None:
    """What a job leaves in the store."""
    store.add_model(recipe.keys()[0], Recipe(model=recipe.model))
    if recipe.steps:
        write = lambda folder: (folder / "model.safetensors").write_bytes(WEIGHTS)  # noqa: E731
        store.save(recipe.key, recipe, [REPORT] * len(recipe.steps), write)
    store.add_metrics(recipe.key, Footprint(), [Metric("layers", 9.0, "", "lower")])
