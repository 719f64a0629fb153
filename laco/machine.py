"""How fast this machine is, as data: what estimates of time are made with.

`speed.py` measures it and puts it into the store; here it is read, without torch. Until it was
measured, `ASSUMED` stands in for it. Next: `speed.py`.
"""

from __future__ import annotations

import itertools
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laco.devices import cores
from laco.disk import read_json

FILE = "speed.json"  # in the store


@dataclass(frozen=True)
class Speed:
    """What a machine's processor and disk do.

    `forward`, `inputs`, `weights`: by width of the layer, `products` a second of a layer that is
    run; that is run and gone back through to its inputs; and to its weights too. `head`: by width,
    seconds for a token and a word of the vocabulary. `update`: parameters a second of Adam. `rank`:
    weights a second of which Wanda decides which go. `copy` and `write`: bytes a second, in
    memory and safely to disk. `program`: bytes that Python and its
    libraries hold by themselves.
    """

    machine: str
    forward: Mapping[str, float]
    inputs: Mapping[str, float]
    weights: Mapping[str, float]
    head: Mapping[str, float]
    update: float
    rank: float
    copy: float
    write: float
    program: int

    def at(self, kind: str, width: int) -> float:
        """The figure `kind` for layers of this width: straight lines between logarithms."""
        known = sorted((int(w), value) for w, value in getattr(self, kind).items())
        if width <= known[0][0]:
            return known[0][1]
        for (low, first), (high, second) in itertools.pairwise(known):
            if width <= high:
                part = math.log(width / low) / math.log(high / low)
                return first ** (1 - part) * second**part
        return known[-1][1]


# Of one core of a cloud machine: used, and said to be, until the machine at hand is measured.
ASSUMED = Speed(
    machine="",
    forward={"64": 2.3e10, "256": 5.7e10, "768": 6.2e10, "2048": 6.4e10},
    inputs={"64": 8.5e9, "256": 2.2e10, "768": 2.8e10, "2048": 3.5e10},
    weights={"64": 9.1e9, "256": 1.5e10, "768": 2.0e10, "2048": 2.2e10},
    head={"64": 8.4e-9, "256": 1.2e-8, "768": 2.8e-8, "2048": 6.2e-8},
    update=5e8,
    rank=3e7,
    copy=4e9,
    write=4e8,
    program=420 << 20,
)


def known_speed(store: Path) -> Speed | None:
    """The speed of this machine as it lies in the store; None if it was never measured here."""
    held = read_json(store / FILE)
    return Speed(**held) if held is not None and held["machine"] == machine() else None


def speed_here(store: Path) -> Speed:
    """The speed of this machine as it was measured; assumed, with no machine named, until then."""
    return known_speed(store) or ASSUMED


def machine() -> str:
    """What tells apart machines, and numbers of threads, that share a store."""
    threads = os.environ.get("OMP_NUM_THREADS") or cores()
    return f"{platform.node()}, {threads} threads"
