"""A model's card, and what removing layers does to it, as they stand on a page.

The numbers come from `laco.card`, which reads headers alone. Next: `../../pages/model.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from laco import card as cards

UNITS = {
    "layers": ("Layers", ""),
    "parameters": ("Parameters", ""),
    "bytes": ("Size of the weights", "bytes"),
    "kv_bytes_per_token": ("KV cache per token", "bytes"),
    "speed": ("Expected speed", "×"),
}


def show(card: dict[str, Any]) -> None:
    """The card: its numbers, and what laco can do with the model, or why not."""
    st.write(card)


def show_consequences(card: dict[str, Any], removed: Sequence[int]) -> None:
    """What is left without these layers, beside what there is."""
    st.write(cards.consequences(card, removed))
