"""What models wrote after one prompt: texts that grow token by token, and where they first differ.

It does not know who writes or who reads. Next: `warm.py`, which asks for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Token:
    """One token further, as `writing.Piece` has it: the text so far, and what was likely next."""

    text: str
    top: tuple[tuple[str, float], ...]
    end: str


@dataclass(frozen=True)
class Text:
    """What one model has written so far; `doing` and `error` are words for whoever waits."""

    tokens: tuple[Token, ...] = ()
    doing: str = ""
    error: str = ""

    @property
    def text(self) -> str:
        """All of it, without the prompt."""
        return self.tokens[-1].text if self.tokens else ""

    @property
    def end(self) -> str:
        """Why nothing follows; empty while something may."""
        return self.tokens[-1].end if self.tokens else ""


def difference(texts: Sequence[Text]) -> int | None:
    """The first character at which any two texts differ; None if none do so far.

    A text that still grows differs by its characters only; one that its model ended differs also
    by what another has beyond it.
    """
    places = [
        place
        for one, other in itertools.combinations(texts, 2)
        if (place := _differs(one, other)) is not None
    ]
    return min(places, default=None)


def token_at(text: Text, place: int | None) -> Token | None:
    """The token that brought a text beyond the character `place`; the first for None."""
    if place is None:
        return text.tokens[0] if text.tokens else None
    beyond = (token for token in text.tokens if len(token.text) > place)
    return next(beyond, text.tokens[-1] if text.end == "its own" else None)


def start_of(text: Text, place: int) -> int | None:
    """Where the token begins that brought a text beyond the character `place`; None if none did."""
    ends = [0, *(len(token.text) for token in text.tokens)]
    beyond = next((before for before, end in itertools.pairwise(ends) if end > place), None)
    return ends[-1] if beyond is None and text.end == "its own" else beyond


def text_of(lines: Sequence[Mapping[str, Any]], index: int) -> Text:
    """The text of one model, from the lines that were said of all."""
    mine = [line for line in lines if line.get("model") == index]
    tokens = tuple(
        Token(line["text"], tuple((word, share) for word, share in line["top"]), line["end"])
        for line in mine
        if "text" in line
    )
    doing = next((line["doing"] for line in reversed(mine) if "doing" in line), "")
    return Text(tokens, doing, next((line["error"] for line in mine if "error" in line), ""))


def _differs(one: Text, other: Text) -> int | None:
    if one.error or other.error or not one.tokens or not other.tokens:
        return None
    pairs = enumerate(zip(one.text, other.text, strict=False))
    shorter = min(len(one.text), len(other.text))
    common = next((place for place, (mine, its) in pairs if mine != its), shorter)
    for text, beside in ((one, other), (other, one)):
        if len(text.text) == common:  # it may go on as the other does, unless it is over
            over = text.end == "its own" and len(beside.text) > common
            return common if over else None
    return common
