"""A figure that a benchmark takes in a process of its own, so that others leave no mark on it."""

from __future__ import annotations

import subprocess
import sys


def printed_apart(script: str, *arguments: str) -> int:
    """The last word, a number, that `script` prints when it is run with these arguments."""
    command = [sys.executable, script, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True).stdout.split()[-1])
