"""Several processes that go over one text together, each with its share of the windows.

All do the same work; what has to be known of all windows is summed or put together here, so that
each comes to the same numbers as one process would alone. Processes are started by `together`; what
they do is handed in. No torch until there is more than one. Next: `parallel.py`.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laco.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = timedelta(hours=2)  # for one that is still at its share
GRACE_SECONDS = 10.0


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

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder, "meeting")
        others = [
            context.Process(
                target=_enter,
                args=(rank, tuple(devices), meeting, follow, arguments),
                daemon=True,
            )
            for rank in range(1, len(devices))
        ]
        for other in others:
            other.start()
        try:
            _join(0, devices, meeting)
            yield Ranks(0, len(devices))
            for other in others:
                other.join(GRACE_SECONDS)
        except RuntimeError as error:
            lost = [d for d, other in zip(devices[1:], others, strict=True) if not other.is_alive()]
            if not lost:
                raise
            raise JobError(
                f"The process on {lost[0]} ended before the work was done; the log says why."
            ) from error
        finally:
            for other in others:
                other.kill()
                other.join()
            if distributed.is_initialized():
                distributed.destroy_process_group()


def _join(rank: int, devices: Sequence[str], meeting: Path) -> None:
    import torch
    from torch import distributed

    if devices[rank].startswith("cuda"):
        torch.cuda.set_device(devices[rank])
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if devices[rank].startswith("cuda") else "gloo",
        init_method=meeting.as_uri(),
        rank=rank,
        world_size=len(devices),
        timeout=PATIENCE,
    )


def _enter(
    rank: int,
    devices: Sequence[str],
    meeting: Path,
    follow: Callable[..., object],
    arguments: Sequence[object],
) -> None:
    """The life of a process that is not the first."""
    from torch import distributed

    try:
        _join(rank, devices, meeting)
        follow(Ranks(rank, len(devices)), devices[rank], *arguments)
        distributed.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
