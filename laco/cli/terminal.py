"""How commands speak: answers on standard output, progress and errors on standard error.

It knows nothing of models or runs, and imports nothing heavy, so that `--help` is quick.
Next: `cli/__init__.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import typer

INTERRUPTED = 130  # what a shell expects after Ctrl-C
EVERY_SECONDS = 5.0  # between progress lines that are kept (a log)


def answer(document: Any, text: str, as_json: bool) -> None:
    """Print the answer: the document as JSON, or the text."""
    if as_json:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    print(text)


def note(text: str) -> None:
    """Tell the person something that is not the answer."""
    print(text, file=sys.stderr, flush=True)


def columns(lines: Sequence[Sequence[Any]], headings: Sequence[str] = ()) -> str:
    """Cells under each other, as wide as they need to be."""
    cells = [[str(cell) for cell in line] for line in ([headings] if headings else []) + [*lines]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def write_file(path: Path, text: str) -> None:
    """Put the text under `path` in one move. Raises `StoreError` when that cannot be."""
    from laco.errors import StoreError

    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}.") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def when(seconds: float | None) -> str:
    """A time of day as people write it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "–"


@contextlib.contextmanager
def working() -> Iterator[tuple[Callable[[float, str], None], Callable[[], bool]]]:
    """A place for progress, and whether someone pressed Ctrl-C (twice stops at once).

    Meanwhile whatever libraries print goes to standard error: standard output is the answer's.
    """
    stopping = False
    shown = 0.0

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping:
            raise KeyboardInterrupt
        stopping = True
        note("\nStopping; once more to stop at once.")

    def progress(fraction: float, message: str) -> None:
        nonlocal shown
        line = f"{100 * fraction:3.0f} %  {message}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line[:110]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - shown >= EVERY_SECONDS:
            shown = time.monotonic()
            note(line)

    before = {name: signal.signal(name, stop) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield progress, lambda: stopping
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def speak(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0 done, 1 a `LacoError`, 2 usage, 130 Ctrl-C."""
    from laco.errors import Cancelled, LacoError

    try:
        app(arguments, prog_name="laco")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except LacoError as error:
        notes = "".join(f" ({text})" for text in getattr(error, "__notes__", ()))
        note(f"{error}{notes}")
        return 1
    except (Cancelled, KeyboardInterrupt):
        note("Stopped.")
        return INTERRUPTED
    return 0
