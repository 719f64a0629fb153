"""Whether a job has room: what it is expected to take at its peak, against what is free.

Estimates are `expected.py`'s, from the recipe and the headers of the model's files; where those
are not here yet nothing is known, and the job starts. Next: `schedule.py`, which asks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from laco import card, devices, reference
from laco.devices import CPU, about
from laco.errors import JobError, LacoError
from laco.evaluations import Divergence, Latency, ParameterSimilarity, Request, WhatIf
from laco.expected import expected, streamed
from laco.machine import Speed, speed_here
from laco.recipe import Collapse, Finetune, ModelRef
from laco.store import RunStore


def expected_peak(request: Request, store: RunStore) -> int | None:
    """Bytes at the peak of what is still to be done of a request, the program included.

    None where nothing is known: a model that has to be fetched first, or that cannot be read (its
    worker will say so). No network is asked.
    """
    try:
        recipe = store.whole(request.recipe)
        ref = _at_hand(recipe.model)
        if ref is None:
            return None
        about_it = card.inspect(ref, store.folder)
    except LacoError:
        return None
    pinned = recipe.model_copy(update={"model": reference.pin(ref, store.folder)})
    done = store.longest_prefix(pinned.keys())
    works = [*recipe.steps[done:], *request.evaluations, *request.analyses]
    speed = speed_here(store.folder)
    totals = [about(name).memory_total for name in devices.slots(store.folder)]
    most = None if None in totals else max(filter(None, totals), default=None)
    return max((_peak(about_it, work, speed, most) for work in works), default=None)


def check(memory: int | None, places: Iterable[str]) -> None:
    """Raise `JobError`, with the numbers, for a job that no device here could ever hold."""
    totals = {name: about(name).memory_total for name in places}
    if memory is None or any(total is None or total >= memory for total in totals.values()):
        return
    there = ", ".join(f"{name} has {_gigabytes(total)}" for name, total in totals.items())
    raise JobError(
        f"This needs about {_gigabytes(memory)} of memory and {there}; use a smaller model, dtype "
        "bfloat16, or fewer or shorter windows, or submit it with --anyway."
    )


def waits_for(
    row: sqlite3.Row,
    device: str,
    running: Iterable[sqlite3.Row],
    report: Callable[[sqlite3.Row], Mapping[str, Any]],
) -> str:
    """Why a job cannot start on a device now, in words for its message; empty if it can.

    Jobs that run there and have not yet taken all that they are expected to have it set aside.
    """
    if row["memory"] is None:
        return ""
    place = about(device)
    if place.memory_free is None:
        return ""
    field = "memory" if device == CPU else "device_memory"
    others = [other for other in running if (other["device"] or CPU) == device]
    promised = sum(
        max(0, (other["memory"] or 0) - (report(other).get(field) or 0)) for other in others
    )
    free = place.memory_free - promised
    if free >= row["memory"]:
        return ""
    kept = f", {_gigabytes(promised)} more are set aside for jobs that run" if promised else ""
    return (
        f"Waits for memory: about {_gigabytes(row['memory'])} are needed and "
        f"{_gigabytes(place.memory_free)} are free on {device}{kept}"
    )


def _at_hand(ref: ModelRef) -> ModelRef | None:
    """The reference as a folder or file that is here; None for a model still to be fetched."""
    if reference.kind_of(ref.path) != "hub":
        return ref
    from huggingface_hub import try_to_load_from_cache

    name, _, said = ref.path.partition("@")
    config = try_to_load_from_cache(name, "config.json", revision=said or ref.revision)
    if not isinstance(config, str):
        return None
    folder = config.rpartition("/")[0]
    return ref.model_copy(update={"path": folder, "revision": "main"})


def _peak(about_it: Mapping[str, Any], work: Any, speed: Speed, most: int | None) -> int:
    """Bytes of one piece of work; with its model streamed where no device could ever hold it."""
    whole = int(about_it["expected"]["memory_bytes"])
    try:
        peak = expected(about_it, work, speed).memory_bytes
    except KeyError:  # no formula of its own: the model in memory, and a batch
        peak = whole
    if isinstance(work, Divergence) or (isinstance(work, Finetune) and work.loss == "kl"):
        peak = max(peak, whole + int(about_it["bytes"]))  # the original beside it
    if most is not None and peak > most and _can_be_streamed(work):
        return min(peak, streamed(about_it, speed))
    return peak


def _can_be_streamed(work: Any) -> bool:
    """Whether it never needs the weights of more than one layer."""
    if isinstance(work, Collapse):
        return work.merge == "drop" or work.order in ("influence", "angular")
    if isinstance(work, WhatIf):
        return work.merge == "drop"
    return not isinstance(work, Finetune | ParameterSimilarity | Latency)


def _gigabytes(count: float | None) -> str:
    return "unknown" if count is None else f"{count / 1e9:.1f} GB"
