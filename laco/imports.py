"""Modules that bring torch and transformers, imported in a quarter less time.

It does not know what it imports. Next: `worker.py`, where most of it is done.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Any


def imported(*names: str) -> tuple[Any, ...]:
    """The modules of these names, which stay until the process ends.

    A module holds nothing that is garbage, so none is looked for while they come in, and what is
    in memory by then is never looked through again.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return tuple(import_module(name) for name in names)
    finally:
        gc.freeze()
        if collects:
            gc.enable()
