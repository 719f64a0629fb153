"""The help on the pages: sections of `docs/methods.md`, which is the one place that says it.

Next: `../../docs/methods.md`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import streamlit as st

from laco.recipe import Compensate, Finetune, Prune, Structured

FILE = Path(__file__).parents[2] / "docs" / "methods.md"
NARROWING = {"flap": "flap", "taylor": "taylor", "magnitude": "magnitude (width)"}  # by importance


@lru_cache
def section(heading: str) -> str:
    """What stands under that heading, up to the next one of any level. `KeyError` without it."""
    found = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)",
        FILE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    if found is None:
        raise KeyError(f"{FILE.name} has no section {heading!r}")
    return found[1].strip()


def headings(step: Prune | Compensate | Finetune) -> tuple[str, ...]:
    """The sections that say what this step computes."""
    if isinstance(step, Finetune):
        return ("LoRA",)
    if isinstance(step, Compensate):
        return ("Layer-wise compensation", f"mode: {step.mode}", "alpha: what a layer aims at")
    if isinstance(step.method, Structured):
        return (NARROWING[step.method.importance],)
    found = [step.method.kind]
    if step.method.pattern != "unstructured":
        found.append("n:m")
    if step.allocation == "sensitivity":
        found.append("Allocation by sensitivity")
    more = headings(step.compensation) if step.compensation is not None else ()
    return (*found, *more)


def explain(step: Prune | Compensate | Finetune) -> None:
    """What the step computes, where it is from, what it costs, when to use it."""
    with st.expander("What this computes, what it costs, and when to use it"):
        for heading in headings(step):
            st.markdown(f"**{heading}**")
            st.markdown(section(heading))
