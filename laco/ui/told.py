"""Walks and training in sentences: what their charts show, for who does not see them.

Pure, as `words.py`. Next: `walks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from laco.ui.curves import STAGES, through_depth
from laco.ui.spans import listed

Rows = Sequence[Mapping[str, Any]]


def walk_summary(rows: Rows, of: int) -> str:
    """Error and CKA after the last layer so far, before and after, and where the error is worst."""
    if not rows:
        return f"None of {of} layers is done yet."
    last = rows[-1]
    so_far = f"After {len(rows)} of {of} layers" if len(rows) < of else f"After all {of} layers"
    errors, agreements = through_depth(rows), through_depth(rows, "cka")
    found = []
    for name, values in errors.items():
        cka = agreements.get(name, [None])[-1]
        beside = "" if cka is None else f" (CKA {cka:.4f})"
        if values[-1] is not None:
            found.append(f"{values[-1]:.3g} {name}{beside}")
    worst = max(rows, key=lambda row: row["error"])
    return (
        f"{so_far} the relative error is {', '.join(found)}. "
        f"The largest after any layer is {worst['error']:.3g}, after layer {worst['layer']}"
        + (" so far." if len(rows) < of else ".")
        + (f" Layer {last['layer']} took {last['seconds']:.1f} s." if len(rows) < of else "")
    )


def notes(rows: Rows) -> list[str]:
    """What was noted of layers, each sentence once, with the layers that it is of."""
    layers: dict[str, list[int]] = {}
    for row in rows:
        for note in row.get("notes", ()):
            layers.setdefault(note, []).append(row["layer"])
    return [
        f"{'All layers' if len(found) == len(rows) else listed(found).capitalize()}: {note}"
        for note, found in layers.items()
    ]


def stages_summary(rows: Rows) -> str:
    """Which stage was kept in how many layers."""
    kept = [row.get("kept") for row in rows]
    counts = [f"{title} in {kept.count(name)}" for name, title in STAGES.items() if name in kept]
    return f"Error of each layer before and after its own compensation. Kept: {', '.join(counts)}."


def losses_summary(losses: Sequence[Sequence[float]]) -> str:
    """How many layers ended lower than they began."""
    told = [line for line in losses if line]
    lower = sum(line[-1] < line[0] for line in told)
    return f"Training loss by epoch: in {lower} of {len(told)} layers the last is below the first."


def sensitivity_summary(
    levels: Sequence[float], errors: Sequence[Sequence[float]], shares: Sequence[float]
) -> str:
    """The layers that suffer least and most, and the range of sparsity that was given."""
    last = [line[-1] for line in errors]
    least, most = last.index(min(last)), last.index(max(last))
    return (
        f"At {100 * levels[-1]:g} % layer {least} suffers least ({last[least]:.3g}) and layer "
        f"{most} most ({last[most]:.3g}). Layers got {100 * min(shares):.0f} to "
        f"{100 * max(shares):.0f} %."
    )


def training_so_far(document: Mapping[str, Any]) -> str:
    """How far LoRA has come, and its latest losses."""
    last, epochs = document["curve"][-1], document["epochs"]
    held_out = epochs[-1]["held_out"] if epochs else document["held_out_before"]
    return (
        f"Training loss {last['loss']:.3f} nats per token at step {last['step']}; the latest "
        f"held-out loss is {held_out:.4f}."
    )


def training_summary(report: Mapping[str, Any]) -> str:
    """The losses before and after LoRA, beside the original's, and the epoch that was kept."""
    original = report.get("original_held_out")
    beside = "" if original is None else f" The original's is {original:.4f}."
    filled = report.get("zeros_filled", 0)
    zeros = f"{filled:,} weights that were zero are no longer" if filled else "No zero was filled"
    return (
        f"Held-out loss {report['held_out_before']:.4f} before, {report['held_out_after']:.4f} "
        f"after, in nats per token; epoch {report['best_epoch']} of {len(report['epochs'])} was "
        f"kept.{beside} {zeros}."
    )
