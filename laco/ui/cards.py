"""A model's card, and what removing layers does to it, as they stand on a page.

The numbers come from `laco.card`, which reads headers alone. Next: `../../pages/model.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from laco import card as cards
from laco.report import format_value
from laco.ui.plain import code, plain
from laco.ui.progress import duration

SHAPES = {  # fields of a card in words
    "model_type": "family",
    "hidden_size": "width (hidden size)",
    "intermediate_size": "width of the MLP",
    "heads": "attention heads",
    "kv_heads": "key and value heads",
    "head_dim": "width of a head",
    "vocab_size": "vocabulary",
    "context_length": "longest text, in tokens",
    "tied": "head tied to the embedding",
}
NAMES = {"lora": "LoRA", "mlp": "MLP"}  # of capabilities and parts, where it is not their own
TITLES = {  # what an edit changes: its name and its unit
    "layers": ("Layers", ""),
    "parameters": ("Parameters", ""),
    "bytes": ("Weights", "bytes"),
    "kv_bytes_per_token": ("KV cache per token", "bytes"),
    "speed": ("Expected speed", "×"),
}


def show(card: Mapping[str, Any]) -> None:
    """The card: its numbers, and what laco can do with the model, or why not."""
    expected = card["expected"]
    for place, (title, value) in zip(
        st.columns(4),
        (
            ("Layers", str(card["layers"])),
            ("Parameters", amount(card["parameters"])),
            (f"Weights in {card['dtype']}", amount(card["bytes"], "bytes")),
            ("On disk", amount(card["file_bytes"], "bytes")),
        ),
        strict=True,
    ):
        place.metric(title, value, border=True)
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown("**Shape**")
        st.table(shape_table(card), hide_index=True)
        st.markdown("**Parameters by part**")
        st.table(parts_table(card), hide_index=True)
    with right:
        st.markdown("**What laco can do with it**")
        for (able, reason), names in by_reason(card).items():
            icon, no = (":material/check_circle:", "") if able else (":material/block:", "no ")
            said = ", ".join(f"{no}**{NAMES.get(name, name)}**" for name in names)
            st.markdown(f"{icon} {said}: {plain(reason)}")
        st.markdown("**Expected here**")
        st.table(expected_table(card), hide_index=True)
        speed = "measured" if expected["measured"] else "assumed (`laco doctor` measures it)"
        st.caption(
            f"{amount(expected['memory_bytes'], 'bytes')} of memory while it is loaded. Each with "
            f"its form's own settings, on the processor of this machine, whose speed is {speed}."
        )
    if card.get("left_out"):
        st.caption(f"Beside the layers: {card['left_out']}.")
    source = card["source"]
    st.markdown(f"{code(source['path'])} at {code(source['revision'])}")


def by_reason(card: Mapping[str, Any]) -> dict[tuple[bool, str], list[str]]:
    """What can be done, and what cannot, under the reason that is given for it."""
    found: dict[tuple[bool, str], list[str]] = {}
    for name, verdict in card["capabilities"].items():
        found.setdefault((verdict["ok"], verdict["reason"]), []).append(name)
    return found


def shape_table(card: Mapping[str, Any]) -> pd.DataFrame:
    """The sizes of a model's tensors, one a row."""
    rows = [(title, _said(card.get(field))) for field, title in SHAPES.items()]
    return pd.DataFrame(rows, columns=["size", "value"])


def expected_table(card: Mapping[str, Any]) -> pd.DataFrame:
    """What each thing that can be done takes here, one a row."""
    rows = [
        (NAMES.get(name, name), amount(work["memory_bytes"], "bytes"), duration(work["seconds"]))
        for name, work in card["expected"]["work"].items()
        if card["capabilities"][name]["ok"]
    ]
    return pd.DataFrame(rows, columns=["work", "memory", "time"])


def parts_table(card: Mapping[str, Any]) -> pd.DataFrame:
    """The parameters of each part that the model has, and their share."""
    rows = [
        (NAMES.get(part, part), amount(size), f"{100 * size / card['parameters']:.1f} %")
        for part, size in card["parts"].items()
        if size
    ]
    sizes = card["layer_parameters"]
    if sizes:
        low, high = amount(min(sizes)), amount(max(sizes))
        each = low if low == high else f"{low} to {high}"
        rows.append(("one layer", each, f"{100 * max(sizes) / card['parameters']:.1f} %"))
    return pd.DataFrame(rows, columns=["part", "parameters", "share"])


def show_consequences(card: Mapping[str, Any], removed: Sequence[int]) -> None:
    """What is left without these layers, beside what there is. Raises `LacoError`."""
    changes = consequences_table(card, removed)
    st.table(changes, hide_index=True)
    st.caption(
        "Speed of decoding at batch 1, from the bytes read for each token; measure it on your "
        "own hardware."
    )


def consequences_table(card: Mapping[str, Any], removed: Sequence[int]) -> pd.DataFrame:
    """Before, after and the change in per cent, one quantity a row."""
    found = cards.consequences(card, removed)
    rows = []
    for name, (title, unit) in TITLES.items():
        before, after = found["before"][name], found["after"][name]
        change = f"{100 * (after / before - 1):+.1f} %".replace("-", "−")
        cells = (amount(before, unit), amount(after, unit), change)
        rows.append((title, *(cell.replace(" ", "\u00a0") for cell in cells)))  # in one line
    return pd.DataFrame(rows, columns=["what", "now", "then", "change"])


def amount(value: float, unit: str = "") -> str:
    """A number with its unit: `134.5 M`, `538.1 MB`, `46.1 kB`, `1.08 ×`."""
    if unit == "×":
        return f"{value:.2f} ×"
    if unit == "bytes" and abs(value) < 1e6:
        return f"{value / 1e3:,.1f} kB"
    return format_value(value, unit)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
