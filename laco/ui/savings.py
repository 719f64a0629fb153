"""What a step saves and what it takes, in plain words, from the model's card alone.

Pure functions. Estimates come from counts of operations and bytes; `COSTS` has the formulas.
Next: `cards.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from laco.card import FLOPS_PER_CORE
from laco.checkpoint import BYTES
from laco.recipe import Compensate, Finetune, Prune, Structured
from laco.steps.sparsity import units_left
from laco.ui.cards import amount
from laco.ui.progress import duration

FLOAT = 4  # bytes of float32, in which layers are trained
COSTS = {
    "compensate": "Device: one of the original's layers in its number format, and the layer at "
    "work in float32 with its gradient and Adam's two states (16 bytes a parameter); activations "
    "of one step come on top. Host: two streams of hidden states, tokens × width × bytes each. "
    "Time: 2 operations a parameter and token for each forward pass (the original's, the "
    "result's), 6 for each epoch, on this machine's processor; a GPU is far quicker.",
    "finetune": "The whole model; the activations of one step (for each token and layer about 12 "
    "widths and 4 MLP widths); predictions of 256 tokens at a time, three times over. Time: 6 "
    "operations a parameter and token for each epoch, on this machine's processor; a GPU is far "
    "quicker.",
}


def promised(card: Mapping[str, Any], step: Prune) -> list[str]:
    """What pruning will and will not save: a sentence each."""
    method, parts = step.method, card["parts"]
    inside = parts["attention"] + parts["mlp"]
    if isinstance(method, Structured):
        gone = parts["mlp"] * method.channels + parts["attention"] * method.groups
        width = BYTES[card["dtype"]]
        return [
            f"About {amount(gone)} of {amount(card['parameters'])} parameters go: weights shrink "
            f"from {amount(card['bytes'], 'bytes')} to about "
            f"{amount(card['bytes'] - gone * width, 'bytes')}.",
            *_narrowed(card, method),
            "Narrower layers save bytes, memory and time in any runtime, and cost more quality "
            "for each weight that goes than single zeros do.",
        ]
    sentences = [
        f"About {amount(method.sparsity * inside)} of the {amount(inside)} weights in the layers "
        "become zero.",
        f"Bytes stay: zeros take as much room as other numbers ({amount(card['bytes'], 'bytes')} "
        "before and after).",
    ]
    if method.pattern == "2:4":
        words = (
            "Time stays too, except in a runtime with sparse kernels: 2:4 is the pattern that "
            "NVIDIA's sparse cores take."
        )
    elif method.pattern != "unstructured":
        words = (
            f"Time stays too: {method.pattern} is not the 2:4 that NVIDIA's sparse cores take, and "
            "few runtimes have kernels for it."
        )
    else:
        words = (
            "Time stays too, except in a runtime with sparse kernels; zeros without a pattern "
            "gain little on GPUs even there."
        )
    return [*sentences, words]


def _narrowed(card: Mapping[str, Any], method: Structured) -> list[str]:
    found = []
    if method.channels:
        before = card["intermediate_size"]
        after = units_left(before, method.channels, method.multiple)
        found.append(f"Each MLP keeps about {after:,} of {before:,} channels.")
    if method.groups:
        before = card["kv_heads"]
        after = units_left(before, method.groups, 1)
        found.append(
            f"About {after} of {before} groups of heads stay, and as much of the KV cache."
        )
    return found


@dataclass(frozen=True)
class Expected:
    """Estimates of what a step takes; `host` is memory beside the device."""

    device: int  # bytes
    host: int  # bytes
    seconds: float

    def words(self) -> str:
        """The estimates in a sentence."""
        host = f", {amount(self.host, 'bytes')} of hidden states beside it" if self.host else ""
        return (
            f"Expected: about {amount(self.device, 'bytes')} on the device{host}; about "
            f"{duration(self.seconds)} on this machine's processor. Estimates from counts, good to "
            "a factor of a few."
        )


def expected(card: Mapping[str, Any], step: Compensate | Finetune) -> Expected:
    """What compensation or LoRA takes on a model with this card; `COSTS` has the formulas."""
    text = step.calibration
    learned, judged = text.windows * text.length, step.held_out * text.length
    count, width = card["layers"], BYTES[card["dtype"]]
    layers = card["layer_parameters"] or [card["parameters"] // count] * count
    speed = FLOPS_PER_CORE * (os.cpu_count() or 1)
    if isinstance(step, Finetune):
        predictions = 3 * FLOAT * min(256, step.batch_tokens) * card["vocab_size"]
        kept = 12 * card["hidden_size"] + 4 * card["intermediate_size"]  # for a token, in a layer
        activations = step.batch_tokens * count * kept * width
        work = 6 * card["parameters"] * learned * step.epochs
        return Expected(card["bytes"] + activations + predictions, 0, work / speed)
    passes = 2 if step.alpha in (0, 1) else 3
    work = sum(layers) * (2 * passes * (learned + judged) + 6 * step.epochs * learned)
    return Expected(
        device=max(layers) * (width + 4 * FLOAT),
        host=2 * (learned + judged) * card["hidden_size"] * width,
        seconds=work / speed,
    )
