"""Text of others in our Markdown: names, paths and errors shown as they stand, never as markup.

Streamlit escapes HTML by itself; what is left are links, and pictures that every reader's browser
would fetch. Next: `progress.py`.
"""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """The text as Markdown that shows it in one line, without links, pictures or colours.

    Backquotes stay, since our own errors set commands in them.
    """
    return re.sub(r"([\\\[])", r"\\\1", " ".join(text.split()))


def on_badge(text: str) -> str:
    """The text for a badge, which escapes brackets by itself, and would a second time."""
    return " ".join(text.split()).replace("\\", "\\\\")


def code(text: str) -> str:
    """The text as Markdown that shows it as code, whatever backquotes are in it."""
    line = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def caption(text: str) -> str:
    """The text for a figure, which takes some HTML: shown as it stands."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
