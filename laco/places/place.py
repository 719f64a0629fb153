"""What a place for jobs beyond this machine is: the questions put to it, and the answers.

The same command does a job everywhere, in the same folder: `python -m laco.worker STORE/jobs/ID`.
A place starts it, says whether it is still there, and stops it. How far a job is stands in the
folder alone; no place is asked for it. Next: `ray.py`, `slurm.py`; `watch.py`, which asks.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from laco.programs import python_module, python_path

PLACE = "LACO_PLACE"  # in a worker's environment: where it runs, if not on the store's machine


class Seen(NamedTuple):
    """What a place says of a job, with its words for that.

    waiting: it has the job and nothing to run it on yet; done: its process ended well; failed: its
    process was seen to end otherwise; lost: nobody knows; expired: the place waited for too long
    and has given up, though nothing is wrong with the job.
    """

    state: Literal["waiting", "running", "done", "failed", "lost", "expired"]
    words: str = ""


@dataclass(frozen=True)
class Capacity:
    """What a place has. `free_gpus` and `free_cpus` are None where it does not say.

    `most_gpus` is what the largest node has: a job runs on one node.
    """

    nodes: int
    gpus: float
    cpus: float
    free_gpus: float | None = None
    free_cpus: float | None = None
    most_gpus: float = 0

    def __str__(self) -> str:
        """`2 nodes, 3 GPUs (1 free), 16 CPUs (16 free)`."""
        gpus = counted(self.gpus, "GPU", self.free_gpus)
        return f"{counted(self.nodes, 'node')}, {gpus}, {counted(self.cpus, 'CPU', self.free_cpus)}"


@dataclass(frozen=True)
class Work:
    """A job about to be started somewhere: its folder, and where its relative paths begin."""

    job: str
    attempt: int
    folder: Path
    cwd: Path

    @property
    def name(self) -> str:
        """What a place calls this attempt; the same each time, so that it is started once."""
        return f"laco-{self.job}-a{self.attempt}"

    def shell(self, place: str, python: str, threads: int, gpu: bool) -> str:
        """The line that does the job in a shell; its process becomes the worker itself."""
        said = {
            "LACO_ATTEMPT": str(self.attempt),
            PLACE: place,
            "PYTHONPATH": python_path(),
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            **({} if gpu else {"CUDA_VISIBLE_DEVICES": ""}),
        }
        handed = ("LACO_ENGINE", "LACO_SHARE")
        said |= {name: os.environ[name] for name in handed if name in os.environ}
        words = [*(f"{name}={value}" for name, value in said.items())]
        words += [*python_module("laco.worker", python), str(self.folder)]
        log, cwd, store = (
            shlex.quote(str(path))
            for path in (self.folder / "log.txt", self.cwd, self.folder.parent.parent)
        )
        # Without `exec` the shell would get the signal to stop, and the worker would not.
        return f"cd {cwd} 2>/dev/null || cd {store}; exec env {shlex.join(words)} >>{log} 2>&1"


class Place(Protocol):
    """Somewhere that jobs run. What cannot be asked or refuses raises `JobError`: one sentence.

    `patience`: seconds between two looks at a job.
    """

    name: str
    patience: float

    def check(self) -> None:
        """Raise `JobError` where jobs cannot be sent there now."""
        ...

    def submit(self, work: Work) -> str:
        """Send a job; the handle by which the place knows it. Twice for one attempt: once."""
        ...

    def state(self, handle: str) -> Seen: ...

    def cancel(self, handle: str) -> None:
        """Have the job stopped, gently and then for good. What has ended stays as it is."""
        ...

    def capacity(self) -> Capacity: ...


def counted(count: float, noun: str, free: float | None = None) -> str:
    """`3 GPUs (1 free)`."""
    many = f"{count:g} {noun}{'' if count == 1 else 's'}"
    return many if free is None else f"{many} ({free:g} free)"
