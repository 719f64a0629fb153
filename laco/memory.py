"""Peak memory of a piece of work: on the GPU what torch allocated, on the CPU what was resident.

Used by the engine's reports and by the benchmarks, so that both mean the same by "peak".
"""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from laco import devices

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


@dataclass
class Peak:
    """Bytes at the start of the work, and at most during it. 0 until the work has ended."""

    start: int = 0
    peak: int = 0

    @property
    def growth(self) -> int:
        """How far the peak rose above the start, in bytes."""
        return self.peak - self.start


@contextmanager
def peak_memory(device: str) -> Iterator[Peak]:
    """Measure the body. Off Linux, a CPU's peak is that of the whole process so far."""
    found = Peak()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        found.start = torch.cuda.memory_allocated(device)
        yield found
        found.peak = torch.cuda.max_memory_allocated(device)
        return
    if _CLEAR.exists():
        _CLEAR.write_text("5")  # sets VmHWM back to what is resident now
    found.start = _resident("VmRSS")
    yield found
    found.peak = _resident("VmHWM")


def give_back() -> None:
    """Return to the system what was freed, so that work done next cannot hide its memory in it."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


def free_memory(device: str) -> int:
    """Bytes that a new process could take on a device; where a device does not tell, in all."""
    ask = getattr(torch.get_device_module(torch.device(device).type), "mem_get_info", None)
    return ask(device)[0] if ask else devices.free_memory()


def _resident(field: str) -> int:
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
