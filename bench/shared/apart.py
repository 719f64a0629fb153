"""Figures that a benchmark takes in a process of its own, so that others leave no mark on them."""

from __future__ import annotations

import subprocess
import sys


def printed_apart(script: str, *arguments: str) -> int:
    """The last word, a number, that `script` prints when it is run with these arguments."""
    return numbers_apart(script, *arguments)[-1]


def numbers_apart(script: str, *arguments: str) -> list[int]:
    """The numbers in the last line that `script` prints when it is run with these arguments."""
    command = [sys.executable, script, *arguments]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [int(word) for word in printed.strip().splitlines()[-1].split()]
