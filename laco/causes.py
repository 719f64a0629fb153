"""Why work ended, in words: from how a process went, or from what it raised.

Knows signals, memory and disks; not what the work was. Next: `queue.py`, which tells the user.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laco.disk import is_full
from laco.errors import LacoError

_SCARCE = 0.05  # of the machine's memory: with less free, that is why it was killed
_SIGNALS = {
    signal.SIGKILL: "by someone, or for memory",
    signal.SIGTERM: "as when the machine goes down or a time limit is reached",
    signal.SIGSEGV: "a crash inside a library",
    signal.SIGBUS: "a file or shared memory that had no room or could not be read",
    signal.SIGABRT: "a library found itself in a wrong state",
    signal.SIGILL: "an instruction that this processor lacks",
    signal.SIGXCPU: "the limit on processor time",
    signal.SIGXFSZ: "the limit on the size of files",
}
_ADVICE = {
    signal.SIGKILL: "If it was for memory, use a smaller model, bfloat16, or fewer or shorter "
    "windows.",
    signal.SIGBUS: "Free some disk or shared memory.",
}
_FOR_MEMORY = "Use a smaller model, dtype bfloat16, or fewer or shorter windows."


def of_death(code: int | None, oom_kills: int, report: Mapping[str, Any]) -> tuple[str, str]:
    """What became of a worker that wrote no end, to follow "The worker was …", and what to do.

    `code` is how its process ended as `Popen.returncode` says it, None if nobody saw it;
    `oom_kills` how often the kernel killed for memory meanwhile; `report` the worker's last word.
    """
    free, total = report.get("memory_free"), report.get("memory_total")
    scarce = free is not None and total is not None and free < _SCARCE * total
    if code in (None, -signal.SIGKILL) and (oom_kills or scarce):
        held = ""
        if report.get("memory") is not None and free is not None:
            held = (
                f" (it held {report['memory'] / 1e9:.1f} GB and {free / 1e9:.1f} GB were free, "
                "when last heard of)"
            )
        return f"killed for memory: the machine had none left{held}", _FOR_MEMORY
    if code is None:
        return "gone when nobody watched it", ""
    if code >= 0:
        return f"ended early, with exit status {code}", ""
    kind = signal.Signals(-code) if -code in set(signal.Signals) else None
    why = _SIGNALS.get(kind) if kind else None
    advice = _ADVICE.get(kind, "") if kind else ""
    return f"killed by signal {-code}{f': {why}' if why else ''}", advice


def of_error(error: Exception, message: str) -> str:
    """What to tell the user of an error that came up at `message`.

    A `LacoError`'s own sentence; for lack of memory or disk what lacked, and what to do; for
    anything else the kind and the text.
    """
    if isinstance(error, LacoError):
        return "\n".join([str(error), *getattr(error, "__notes__", ())])
    first = str(error).partition("\n")[0].rstrip(".")
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which must not be imported here
        return f"CUDA out of memory while: {message} ({first}). {_FOR_MEMORY}"
    if lacks_memory(error):
        return f"Out of memory while: {message}. {_FOR_MEMORY}"
    if is_full(error):
        return f"No space left on the disk while: {message} ({first}). Free some, then retry."
    return traceback.format_exception_only(error)[-1].strip()


def count_oom_kills() -> int:
    """How often the kernel has killed for memory here since the machine started, if it tells."""
    found = [0]
    for file in (_own_group() / "memory.events", Path("/proc/vmstat")):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        found += [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return max(found)


def _own_group() -> Path:
    """The folder of this process's control group, version 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    return Path("/sys/fs/cgroup", *names)


def lacks_memory(error: Exception) -> bool:
    """Whether this error says that memory ran out: Python's, torch's, or a GPU's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("out of memory", "can't allocate memory")
    )
