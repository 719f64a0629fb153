"""Run a model layer by layer, each fed with what the layers before it produce.

A `Tape` remembers how the model called each of its layers on one batch: the hidden states that
went in, and the masks and position embeddings, which differ from layer to layer in some families.
It does not know what a layer computes, nor which layers are run on it. Next: `similarity.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from laco.layers import LayerStack

BATCH_TOKENS = {"cpu": 1024}  # tokens through a layer at a time: more is no faster
BATCH_TOKENS_ELSEWHERE = 8192

Run = Callable[[nn.Module, Tensor], Tensor]
Visit = Callable[[int, nn.Module, list[Tensor], list[Run]], None]


class _LastLayerReached(Exception):  # noqa: N818 - a signal, not an error
    """Ends a forward pass once every layer's arguments are known."""


@dataclass(frozen=True)
class Call:
    """What a layer was called with besides its hidden states."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Tape:
    """How a model called its layers on one batch.

    tokens: [batch, seq]; inputs: [batch, seq, hidden], what the first layer is fed (depth 0).
    """

    tokens: Tensor
    inputs: Tensor
    calls: tuple[Call, ...]
    extras: int | None  # values that a layer returns beside its hidden states; None: no tuple

    @torch.no_grad()
    def run(self, layer: nn.Module, origin: int, hidden: Tensor) -> Tensor:
        """What `layer` makes of `hidden` [batch, seq, hidden], called as layer `origin` was."""
        return self.call(layer, origin, hidden)

    def call(self, layer: nn.Module, origin: int, hidden: Tensor) -> Tensor:
        """The same as `run`, with gradients where they are switched on.

        `hidden` may be in another number format than the model's, and `layer` with it: what was
        recorded in the model's format (position embeddings, masks) is then handed on in that one.
        """
        call = self.calls[origin]
        args, kwargs = call.args, call.kwargs
        if hidden.dtype != self.inputs.dtype:
            args, kwargs = _recast((args, kwargs), self.inputs.dtype, hidden.dtype)
        out = layer(hidden, *args, **kwargs)
        return out[0] if isinstance(out, tuple) else out


def _recast(value: Any, before: torch.dtype, after: torch.dtype) -> Any:
    """The value with every tensor in it that is in one number format in another."""
    if isinstance(value, Tensor):
        return value.to(after) if value.dtype == before else value
    if type(value) in (tuple, list):
        return type(value)(_recast(item, before, after) for item in value)
    if type(value) is dict:
        return {name: _recast(item, before, after) for name, item in value.items()}
    return value


@torch.no_grad()
def record(stack: LayerStack, tokens: Tensor, *, shallow: bool = False) -> Tape:
    """The tape of the model as it stands on `tokens` [batch, seq]; padding at the right is fine.

    The pass ends when the last layer is reached, so it costs all layers but that one. A `shallow`
    one runs the first layer alone, on two tokens, to learn the shape of its answer; apart from
    that each layer answers with what it is fed, and needs no weights. The tape is the same, unless
    a layer's arguments are made of hidden states.
    """
    inputs: list[Tensor] = []
    calls: list[Call] = []
    extras: list[int | None] = []
    last = len(stack) - 1
    idle = stack[1:] if shallow else []
    if shallow and tokens.numel() > 2:
        extras.append(record(stack, tokens[:1, :2], shallow=True).extras)
        idle = stack[:]

    def before(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kwargs = dict(kwargs)
        hidden, *rest = args if args else (kwargs.pop("hidden_states"),)
        if not calls:
            inputs.append(hidden)
        calls.append(Call(tuple(rest), kwargs))
        if len(calls) - 1 == last and last:
            raise _LastLayerReached

    def after(_layer: nn.Module, _args: tuple[Any, ...], out: Any) -> None:
        extras.append(len(out) - 1 if isinstance(out, tuple) else None)
        if not last:  # a single layer has to run, or the shape of its answer stays unknown
            raise _LastLayerReached

    def unchanged(*args: Any, **kwargs: Any) -> Tensor | tuple[Any, ...]:
        return answer_as(args[0] if args else kwargs["hidden_states"], extras[0])

    tokens = tokens.to(stack.model.get_input_embeddings().get_parameter("weight").device)
    with ExitStack() as until:
        for layer in stack:
            handle = layer.register_forward_pre_hook(before, with_kwargs=True)
            until.callback(handle.remove)
        until.callback(stack[0].register_forward_hook(after).remove)
        for layer in idle:
            until.enter_context(_shadowed(layer, unchanged))
        with suppress(_LastLayerReached):
            stack.model(input_ids=tokens, use_cache=False)
    return Tape(tokens, inputs[0], tuple(calls), extras[0])


def answer_as(hidden: Tensor, extras: int | None) -> Tensor | tuple[Any, ...]:
    """Hidden states as a layer returns them, `extras` values beside them."""
    return hidden if extras is None else (hidden, *[None] * extras)


class Given(nn.Module):
    """Stands for the whole stack: whatever it is fed, it answers with given hidden states."""

    def __init__(self, answer: Tensor | tuple[Any, ...]):
        super().__init__()
        self.answer = answer

    def forward(self, *_args: Any, **_kwargs: Any) -> Tensor | tuple[Any, ...]:
        return self.answer


@torch.no_grad()
def final_hidden(stack: LayerStack, tape: Tape, hidden: Tensor) -> Tensor:
    """What the model makes of the last layer's output before its head: [batch, seq, hidden].

    That is the final norm, and a projection where the family has one.
    """
    with swapped(stack, nn.ModuleList([Given(answer_as(hidden, tape.extras))])):
        return stack.trunk(input_ids=tape.tokens, use_cache=False)[0]


@dataclass
class _Final(BaseModelOutputWithPast):
    """The trunk's answer: final hidden states, and None for whatever else a head asks for."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def logits(stack: LayerStack, final: Tensor) -> Tensor:
    """The model's own head on `final` [batch, chunk, hidden]: [batch, chunk, vocabulary].

    Soft caps and scales are the model's own, since its own code runs. Gradients are as ambient.
    """

    def forward(*_args: Any, **_kwargs: Any) -> _Final:
        return _Final(last_hidden_state=final)  # type: ignore[arg-type]

    tokens = torch.zeros(final.shape[:2], dtype=torch.long, device=final.device)
    with _shadowed(stack.trunk, forward):
        return stack.model(input_ids=tokens, use_cache=False).logits


def walk(stack: LayerStack, batches: Sequence[Tensor], visit: Visit) -> list[Tensor]:
    """What the last layer makes of each batch, after `visit(index, layer, inputs, runs)` of each.

    `inputs` holds one hidden state per batch, [batch, seq, hidden]; `runs[b](layer, hidden)` calls
    a layer as the model called this one on batch b. `visit` may edit the layer in place: the next
    layer's inputs come from the edited one.
    """
    tapes = [record(stack, tokens) for tokens in batches]
    hidden = [tape.inputs for tape in tapes]
    for index, layer in enumerate(stack):
        runs: list[Run] = [partial(_run_as, tape, index) for tape in tapes]
        visit(index, layer, hidden, runs)
        hidden = [run(layer, states) for run, states in zip(runs, hidden, strict=True)]
    return hidden


def _run_as(tape: Tape, origin: int, layer: nn.Module, hidden: Tensor) -> Tensor:
    return tape.run(layer, origin, hidden)


@contextmanager
def swapped(stack: LayerStack, layers: nn.ModuleList) -> Iterator[None]:
    """Let the trunk loop over other modules; indices and config stay as they are."""
    before = stack.module_list
    stack.module_list = layers
    try:
        yield
    finally:
        stack.module_list = before


@contextmanager
def _shadowed(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let another function answer for a module."""
    before = vars(module).get("forward")  # device hooks put one here
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before
