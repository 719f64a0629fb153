"""What a step saves and what it takes, in plain words, from the model's card alone.

Pure functions. How long and how much is estimated in `laco/expected.py`. Next: `cards.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laco.checkpoint import BYTES
from laco.expected import expected
from laco.machine import Speed
from laco.recipe import Prune, Structured
from laco.steps.sparsity import units_left
from laco.ui.cards import amount
from laco.ui.progress import duration

UNMEASURED = "Its speed is assumed; `laco doctor` measures it."
COSTS = {
    "compensate": "Memory: the program, one of the original's layers in its number format, the "
    "layer at work in float32 with its gradient and Adam's two states, activations of one step, "
    "and two streams of hidden states. Time: passes of both models, and for each epoch one forth "
    "and back; a GPU is far quicker.",
    "finetune": "Memory: the program, the whole model, and the activations of one step in all its "
    "layers. Time: for each epoch one pass forth and back through the layers and the head; a GPU "
    "is far quicker.",
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


def takes(card: Mapping[str, Any], work: Any, speed: Speed) -> str:
    """What a step takes on this machine, in a sentence; `COSTS` says what was counted."""
    found = expected(card, work, speed)
    words = (
        f"Expected: about {amount(found.memory_bytes, 'bytes')} of memory and "
        f"{duration(found.seconds)} on this machine's processor."
    )
    return words if speed.machine else f"{words} {UNMEASURED}"
