"""What jobs run on here: the GPUs or the processor, which of them take jobs, and their memory.

A device has the name that CUDA_VISIBLE_DEVICES would give it, or is `cpu`. What is free on a GPU
is asked of `nvidia-smi`, so no torch is needed. Next: `room.py`, whether a job fits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil

from laco.disk import read_json, write_json
from laco.errors import JobError, LacoError

CPU = "cpu"
FILE = "devices.json"  # in the store, once devices were chosen: {"devices": [names], "jobs": 1}
_FRESH_SECONDS = 2.0
_QUERY = ("--query-gpu=index,uuid,name,memory.total,memory.free", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Device:
    """A place for a job. Bytes are None where nobody tells."""

    name: str
    label: str
    memory_total: int | None
    memory_free: int | None


def devices_here() -> list[str]:
    """The names of the GPUs that this process may use; `cpu` alone where there are none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        found = [str(index) for index, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]
    else:
        parts = (part.strip() for part in given.split(","))
        found = [name for name in parts if name not in ("", "-1")]
    return found or [CPU]


def slots(store: Path) -> list[str]:
    """The device of each job that may run at once: by default every device here, one job each.

    `LACO_SLOTS` says how many jobs in all, before what was chosen for the store. A chosen device
    that is not here any more takes no jobs.
    """
    here = devices_here()
    held = read_json(store / FILE) or {}
    places = [name for name in held.get("devices", here) if name in here or name == CPU] or here
    wanted = os.environ.get("LACO_SLOTS", "")
    if wanted and not (wanted.isdecimal() and int(wanted) > 0):
        raise LacoError(f"LACO_SLOTS is {wanted!r}; give the number of jobs that may run at once.")
    count = int(wanted) if wanted else len(places) * int(held.get("jobs", 1))
    return [places[slot % len(places)] for slot in range(count)]


def choose(store: Path, names: Sequence[str], jobs: int = 1) -> None:
    """Let these devices take the store's jobs, so many at once each; none named: all that are here.

    JobError for one that is not here. What runs already stays where it is.
    """
    here = devices_here()
    for name in names:
        if name not in here and name != CPU:
            raise JobError(f"There is no device {name!r} here; choose of {', '.join(here)} or cpu.")
    if jobs < 1:
        raise JobError(f"{jobs} jobs at once on a device; give 1 or more.")
    write_json(store / FILE, {**({"devices": list(names)} if names else {}), "jobs": jobs})


def about(name: str) -> Device:
    """What there is to know of a device."""
    if name == CPU:
        total = psutil.virtual_memory().total
        limit = _group_memory()
        return Device(
            CPU,
            f"processor, {cores()} cores",
            min(total, limit[0]) if limit else total,
            free_memory(),
        )
    for index, uuid, label, total, free in _gpu_table(int(time.monotonic() / _FRESH_SECONDS)):
        if name == index or uuid.startswith(name):
            return Device(name, label, _mebibytes(total), _mebibytes(free))
    return Device(name, f"GPU {name}", None, None)


def free_memory() -> int:
    """Bytes of main memory that a new process could take, within what a container may have."""
    free = psutil.virtual_memory().available
    limit = _group_memory()
    return min(free, limit[0] - limit[1]) if limit else free


def cores() -> int:
    """How many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def environment(device: str, threads: int) -> dict[str, str]:
    """What a worker's environment has to say, so that it uses this device and no other."""
    # Threads that spin while they wait make all crawl where anything else wants the cores.
    said = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    said["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi counts
    kept = {name: os.environ.get(name, value) for name, value in said.items()}
    return {**kept, "CUDA_VISIBLE_DEVICES": "" if device == CPU else device}


@lru_cache(maxsize=1)
def _gpu_table(_moment: int) -> list[tuple[str, ...]]:
    """Each GPU's index, uuid, name, total and free mebibytes; empty where nobody tells."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, *_QUERY], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [tuple(part.strip() for part in line.split(",")) for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == 5]


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdecimal() else None


def _group_memory() -> tuple[int, int] | None:
    """The limit on this container's memory and what of it is taken for good, in bytes."""
    for folder, limit, usage in (
        (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            most, used = (int((folder / name).read_text()) for name in (limit, usage))
            lines = (folder / "memory.stat").read_text().splitlines()
        except (OSError, ValueError):  # "max" is no number: no limit
            continue
        cache = next((int(x.split()[1]) for x in lines if x.startswith("inactive_file ")), 0)
        return most, used - cache
    return None
