"""What the outside gives to long work: a device, a place for progress, a way to be stopped.

Core code takes a `Context` and calls `step`; it never learns whether a page, a terminal or a
test is listening. Next: `engine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from laco.errors import Cancelled
from laco.ranks import ALONE, Ranks


def _silent(_fraction: float, _message: str) -> None:
    pass


def _unheard(_document: Mapping[str, Any]) -> None:
    pass


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Context:
    """The device to work on, where progress goes, and whether to stop.

    `publish` takes what there is of a result so far, for whoever watches. `devices`: all that may
    share the work, where there are several; `ranks`: which share is this process's.
    """

    device: str = "cpu"
    progress: Callable[[float, str], None] = _silent
    cancelled: Callable[[], bool] = _never
    publish: Callable[[Mapping[str, Any]], None] = _unheard
    devices: tuple[str, ...] = ()
    ranks: Ranks = ALONE

    def step(self, fraction: float, message: str) -> None:
        """Report progress (0 to 1), and raise `Cancelled` when someone asked to stop."""
        if self.cancelled():
            raise Cancelled
        self.progress(min(max(fraction, 0.0), 1.0), message)

    def part(self, start: float, stop: float) -> Context:
        """A context for a part of this work: its 0 to 1 is our `start` to `stop`."""

        def progress(fraction: float, message: str) -> None:
            self.progress(start + (stop - start) * fraction, message)

        return replace(self, progress=progress)
