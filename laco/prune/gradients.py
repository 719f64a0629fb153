"""The gradient of a model's loss by every weight, one layer in memory at a time.

Forward first, with the hidden state at each depth kept on the host; then from the head back, each
layer read again, run with gradients, and released. It does not know what gradients are for. Next:
`importance.py`; `lazy.py`, which reads the layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from laco.context import Context
from laco.errors import NumericalError
from laco.lazy import LazyModel
from laco.walk import Given, answer_as, swapped

Visit = Callable[[int, nn.Module], None]


def layer_gradients(
    lazy: LazyModel, tokens: Tensor, batch: int, visit: Visit, context: Context
) -> float:
    """The model's mean cross-entropy on `tokens` [windows, length], after `visit` of each layer.

    `visit(index, layer)` is called from the last layer to the first; the layer is in float32, and
    `.grad` of its parameters is that of the mean over all predicted tokens. It is released
    afterwards. `batch` windows are on the device at a time; the host holds depth + 1 hidden states
    of all windows. NumericalError, naming the place, when a gradient is not finite.
    """
    depth = len(lazy.stack)
    states = [lazy.inputs(tokens)]  # of each depth [windows, length, hidden]
    for index in range(depth):
        context.step(0.4 * index / depth, f"forward through layer {index} of {depth}")
        states.append(_forward(lazy, index, states[-1], batch))
    context.step(0.4, "gradient of the loss at the head")
    loss, gradient = _at_head(lazy, tokens, states.pop(), batch)
    if not math.isfinite(loss) or not bool(gradient.isfinite().all()):
        raise NumericalError(
            "The loss, or its gradient by the last layer's output, is not finite; use other text, "
            "or run the model in another dtype."
        )
    for index in reversed(range(depth)):
        context.step(1 - 0.6 * (index + 1) / depth, f"back through layer {index} of {depth}")
        layer = lazy.read(index, torch.float32).requires_grad_(True)
        try:
            _backward(lazy, index, layer, states.pop(), gradient, batch)
            if not bool(gradient.isfinite().all()):
                raise NumericalError(
                    f"The gradient by the input of layer {index} is not finite; use other text, "
                    "or run the model in another dtype."
                )
            visit(index, layer)
        finally:
            layer.zero_grad()
            layer.requires_grad_(False)
            lazy.release(index)
    return loss


@torch.no_grad()
def _forward(lazy: LazyModel, index: int, states: Tensor, batch: int) -> Tensor:
    layer = lazy.read(index)
    outputs = torch.empty_like(states)
    for part, output in zip(states.split(batch), outputs.split(batch), strict=True):
        tape = lazy.tape(len(part), part.shape[1])
        output.copy_(tape.call(layer, index, part.to(lazy.device)))
    lazy.release(index)
    return outputs


def _at_head(lazy: LazyModel, tokens: Tensor, states: Tensor, batch: int) -> tuple[float, Tensor]:
    """The mean loss, and its gradient by the last layer's output, float32 on the host."""
    predicted = tokens[:, 1:].numel()
    gradient = torch.empty(states.shape)
    total = 0.0
    with lazy.outside():
        for start in range(0, len(tokens), batch):
            part = slice(start, start + batch)
            windows = tokens[part].to(lazy.device)
            hidden = states[part].to(lazy.device).requires_grad_(True)
            extras = lazy.tape(*windows.shape).extras
            with swapped(lazy.stack, nn.ModuleList([Given(answer_as(hidden, extras))])):
                logits = lazy.stack.model(input_ids=windows, use_cache=False).logits
            flat = logits[:, :-1].flatten(0, 1).float()  # [tokens, vocabulary]
            loss = nn.functional.cross_entropy(flat, windows[:, 1:].flatten(), reduction="sum")
            loss.backward()  # of the sum, since a mean's gradient may vanish in 16 bits
            assert hidden.grad is not None
            gradient[part] = hidden.grad.float().cpu() / predicted
            total += float(loss.detach())
    return total / predicted, gradient


def _backward(
    lazy: LazyModel, index: int, layer: nn.Module, states: Tensor, gradient: Tensor, batch: int
) -> None:
    """Add to the layer's `.grad`, and take `gradient`, of its output, to that of its input."""
    for part, above in zip(states.split(batch), gradient.split(batch), strict=True):
        hidden = part.to(lazy.device, torch.float32).requires_grad_(True)
        output = lazy.tape(len(part), part.shape[1]).call(layer, index, hidden)
        output.backward(above.to(lazy.device))
        assert hidden.grad is not None
        above.copy_(hidden.grad)
