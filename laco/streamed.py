"""A model larger than the memory, as any other model: each layer is read when it runs.

All else that takes a `LoadedModel` (maps, searches, perplexity, scores) works on one of these as it
is, and gives the same numbers; only where it would look at the weights of a layer that is not
running, there are none. A pass reads the files once, so many tokens go through together; a layer
takes them some at a time. What is done with a model is not known here. Next: `lazy.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laco import checkpoint
from laco.disk import explained
from laco.errors import ArchitectureError, ModelError
from laco.expected import PASS_TOKENS
from laco.layers import check_finite
from laco.lazy import LazyModel
from laco.memory import free_memory
from laco.models import LoadedModel, check_folder, load_folder
from laco.recipe import ModelRef
from laco.shards import weight_files
from laco.walk import BATCH_TOKENS, BATCH_TOKENS_ELSEWHERE, Call, Tape, answer_as

ROOM = 1.1  # of a model's bytes are to be free, or it is streamed


def load_fitting(folder: Path, ref: ModelRef, device: str) -> LoadedModel:
    """The model of a folder on `device`, if there is room for it.

    Else spread over all devices of that kind, if these have room together, else streamed.
    """
    if fits(folder, ref, [device]):
        return load_folder(folder, ref, device)
    alike = devices_like(device)
    if len(alike) > 1 and fits(folder, ref, alike):
        return load_folder(folder, ref, device, spread=True)
    return load_streamed(folder, ref, device)


def devices_like(device: str) -> list[str]:
    """All devices of this kind that torch has here."""
    kind = torch.device(device).type
    return [f"{kind}:{n}" for n in range(torch.get_device_module(kind).device_count())]


def fits(folder: Path, ref: ModelRef, devices: Sequence[str]) -> bool:
    """Whether the model of a folder has room on devices now, in the number format of `ref`."""
    _, dtype = check_folder(folder, ref, devices[0])
    with explained(folder):
        held = sum(file.stat().st_size for file in weight_files(folder))
    size = held * dtype.itemsize / checkpoint.BYTES[checkpoint.checkpoint_dtype(folder)]
    return size * ROOM <= sum(map(free_memory, devices))


def load_streamed(folder: Path, ref: ModelRef, device: str) -> LoadedModel:
    """The model of a folder, of which a layer has weights only while it runs.

    What is no layer (embedding, norms, head) is on `device` for good. ModelError as of
    `models.load_folder`; NumericalError when a layer runs for the first time and is not finite.
    """
    lazy = LazyModel(folder, ref, device)
    lazy.load_outside()
    tokens: int | None = PASS_TOKENS
    tapes: list[Tape] = []
    try:
        tapes = [lazy.tape(windows, 2) for windows in (1, 2)]
    except ArchitectureError:  # its layers are told more of each batch, which only a pass knows
        tokens = None
    for index, layer in enumerate(lazy.stack):
        calls = [tape.calls[index] for tape in tapes]
        layer.forward = _on_demand(lazy, index, layer.forward, calls)
    return LoadedModel(lazy.model, lazy.tokenizer, lazy.stack, ref, tokens)


def is_whole(lm: LoadedModel) -> bool:
    """Whether all weights of a model are in memory."""
    return not next(lm.layers[0].parameters()).is_meta


def require_whole(lm: LoadedModel, what: str, instead: str) -> None:
    """ModelError for work that looks at the weights of many layers at once."""
    if not is_whole(lm):
        raise ModelError(
            f"{what} needs the whole model in memory, and there is no room for it; {instead}, use "
            "a larger device, or dtype bfloat16."
        )


class _Whole(Exception):  # noqa: N818 - a signal, not an error
    """A layer is told something of each window, so its batch has to stay whole."""


def _on_demand(
    lazy: LazyModel, index: int, forward: Callable[..., Any], calls: Sequence[Call]
) -> Callable[..., Any]:
    """The layer's forward pass, with its weights read before and let go afterwards.

    `calls`: how the layer is called with one window and with two, if that is known.
    """
    layer = lazy.stack[index]
    seen = False

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        hidden, *rest = args if args else (kwargs.pop("hidden_states"),)
        tokens = BATCH_TOKENS.get(hidden.device.type, BATCH_TOKENS_ELSEWHERE)
        size = max(1, tokens // hidden.shape[1])
        given = [Call(tuple(rest), kwargs)]
        if len(hidden) > size:
            with suppress(_Whole):
                given = [_fewer(given[0], calls, len(hidden), n) for n in _sizes(len(hidden), size)]
        lazy.read(index)
        try:
            if not seen:
                check_finite(layer, f"layer {index} of {lazy.folder}")
                seen = True
            if len(given) == 1:
                return forward(hidden, *given[0].args, **given[0].kwargs)
            extras: int | None = None
            out = torch.empty_like(hidden)
            for call, part, into in zip(given, hidden.split(size), out.split(size), strict=True):
                found = forward(part, *call.args, **call.kwargs)
                extras = len(found) - 1 if isinstance(found, tuple) else None
                into.copy_(found[0] if isinstance(found, tuple) else found)
            return answer_as(out, extras)
        finally:
            lazy.release(index)

    return run


def _sizes(windows: int, size: int) -> list[int]:
    """How many windows each part has, all but the last `size`."""
    return [min(size, windows - start) for start in range(0, windows, size)]


def _fewer(given: Call, calls: Sequence[Call], windows: int, few: int) -> Call:
    """A call of a layer with `windows` windows as one with `few`; `_Whole` if that cannot be."""
    if not calls:
        raise _Whole
    one, two = calls
    if given.kwargs.keys() != one.kwargs.keys() or len(given.args) != len(one.args):
        raise _Whole
    args = tuple(
        _cut(*values, windows, few) for values in zip(given.args, one.args, two.args, strict=True)
    )
    kwargs = {
        name: _cut(value, one.kwargs[name], two.kwargs[name], windows, few)
        for name, value in given.kwargs.items()
    }
    return Call(args, kwargs)


def _cut(value: Any, one: Any, two: Any, windows: int, few: int) -> Any:
    """An argument for fewer windows. `one` and `two` are what it is with one window and two."""
    if type(value) is not type(one):
        raise _Whole
    if isinstance(value, list | tuple):
        if len(value) != len(one):
            raise _Whole
        parts = zip(value, one, two, strict=True)
        return type(value)(_cut(*items, windows, few) for items in parts)
    if not isinstance(value, Tensor) or value.dim() == 0 or len(one) == len(two):
        return value
    rows = value.unflatten(0, (windows, -1))  # as many of a window, whatever they are of
    if not bool((rows == rows[:1]).all()):
        raise _Whole
    return rows[:few].flatten(0, 1)
