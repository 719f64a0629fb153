"""How laco starts itself as another program: the command, and where Python finds laco.

Nothing here knows what that program does. Next: `schedule.py`, `worker.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import laco


def python_module(name: str, python: str = "") -> list[str]:
    """The command that runs a module; files in the current folder cannot stand in for it.

    `python`: the interpreter; empty: this process's own.
    """
    return [python or sys.executable, "-P", "-u", "-m", name]


def python_path() -> str:
    """PYTHONPATH under which laco is found also where it is not installed."""
    paths = [str(Path(laco.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)


def module_environment() -> dict[str, str]:
    """The environment of this process, in which laco is found."""
    return {**os.environ, "PYTHONPATH": python_path()}
