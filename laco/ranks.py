"""Several processes that go over one text together, each with its share of the windows.

All do the same work; what has to be known of all windows is summed or put together here, so that
each comes to the same numbers as one process would alone. Processes are started by `together`; what
they do is handed in. No torch until there is more than one. Next: `parallel.py`.
"""

from __future__ import annotations

import os
import pickle  # nosec B403
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laco.errors import JobError
from laco.programs import module_environment, python_module

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = timedelta(hours=2)  # for one that is still at its share
TASK = "task.pickle"
GRACE_SECONDS = 10.0
GLANCE_SECONDS = 0.1  # how often those who wait for each other look who is still there


@dataclass(frozen=True)
class Ranks:
    """The number of a process among `count` that work together; window w is that of w % count."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes what they make."""
        return self.rank == 0

    def share(self, windows: Tensor) -> Tensor:
        """Of windows [windows, ...] those of this process."""
        return windows[self.rank :: self.count]

    def own(self, windows: Tensor) -> Tensor:
        """Of the numbers of some windows those of this process, as places in its share."""
        return windows[windows % self.count == self.rank] // self.count

    def add(self, *tensors: Tensor) -> None:
        """Put into each tensor its sum over all processes."""
        if self.count > 1:
            from torch import distributed

            for tensor in tensors:
                distributed.all_reduce(tensor)

    def mean(self, values: Tensor) -> float:
        """The mean of the values of all processes."""
        if self.count == 1:
            return float(values.mean())
        import torch

        sums = torch.stack([values.sum().double(), values.new_tensor(values.numel()).double()])
        self.add(sums)
        return float(sums[0] / sums[1])

    def led(self, value: Any) -> Any:
        """What the first process has."""
        if self.count == 1:
            return value
        from torch import distributed

        held = [value]
        distributed.broadcast_object_list(held, src=0)
        return held[0]

    def whole(self, share: Tensor) -> Tensor:
        """The windows of all processes in order, from the share [windows, ...] of each."""
        if self.count == 1:
            return share
        import torch
        from torch import distributed

        parts: list[Any] = [None] * self.count
        distributed.all_gather_object(parts, share.cpu())
        whole = torch.empty((sum(map(len, parts)), *share.shape[1:]), dtype=share.dtype)
        for rank, part in enumerate(parts):
            whole[rank :: self.count] = part
        return whole


ALONE = Ranks()


@contextmanager
def together(
    devices: Sequence[str], follow: Callable[..., object], *arguments: object
) -> Iterator[Ranks]:
    """The process that asks as the first of several, one for each device; the others `follow`.

    `follow(ranks, device, *arguments)` is a function of a module, and does the same as the body.
    With one device or none, the body is alone. JobError when another process ends before its time.
    """
    if len(devices) < 2:
        yield ALONE
        return
    from torch import distributed

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, TASK).write_bytes(pickle.dumps((tuple(devices), follow, arguments)))
        others = [_started(folder, rank) for rank in range(1, len(devices))]
        try:
            _join(0, devices, folder, lambda: any(other.poll() is not None for other in others))
            yield Ranks(0, len(devices))
            for other in others:
                with suppress(subprocess.TimeoutExpired):
                    other.wait(GRACE_SECONDS)
        except RuntimeError as error:
            lost = [d for d, o in zip(devices[1:], others, strict=True) if o.poll() is not None]
            if not lost:
                raise
            raise JobError(
                f"The process on {lost[0]} ended before the work was done; the log says why."
            ) from error
        finally:
            for other in others:
                other.kill()
                other.wait()
            if distributed.is_initialized():
                distributed.destroy_process_group()


def _started(folder: str, rank: int) -> subprocess.Popen[bytes]:
    """A process that is not the first. It knows nothing of the program that is run in this one."""
    command = [*python_module("laco.ranks"), folder, str(rank), str(os.getpid())]
    return subprocess.Popen(command, env=module_environment())


def enter() -> None:
    """The life of a process that is not the first."""
    from torch import distributed

    folder, rank, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    devices, follow, arguments = pickle.loads(Path(folder, TASK).read_bytes())  # nosec B301
    _join(rank, devices, folder, lambda: os.getppid() != first)
    follow(Ranks(rank, len(devices)), devices[rank], *arguments)
    distributed.destroy_process_group()


def _join(rank: int, devices: Sequence[str], folder: str, lost: Callable[[], bool]) -> None:
    """Meet the others. RuntimeError once one is `lost`: torch would wait for it for hours."""
    import torch
    from torch import distributed

    cuda = devices[rank].startswith("cuda")
    if cuda:
        torch.cuda.set_device(devices[rank])
    file = str(Path(folder, "meeting"))
    store = distributed.FileStore(file, len(devices))  # pyright: ignore[reportPrivateImportUsage]
    store.set(str(rank), "here")
    while not store.check([str(other) for other in range(len(devices))]):
        if lost():
            raise RuntimeError("A process ended before it met the others.")
        time.sleep(GLANCE_SECONDS)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=store,
        rank=rank,
        world_size=len(devices),
        timeout=PATIENCE,
    )


if __name__ == "__main__":
    enter()
