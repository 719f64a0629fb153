"""Text as tokens: windows to calibrate on, and running text to measure perplexity on.

No special token is added, except where a sentence is encoded as the tokenizer does by itself.
Where text comes from is in `texts.py`; this module knows tokens only. Next: `walk.py`, which feeds
them to a model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laco import texts
from laco.errors import CalibrationError
from laco.recipe import Calibration
from laco.texts import SOURCES

POOL = 1_000_000  # characters that windows are drawn from, at least, where a source has as many
_MARGIN = 64  # tokens at the end of a cut text that the cut may have changed

# A sentence: 20 characters or more up to a full stop that ends no initial and no abbreviation of
# one letter, then white space or the end of the line.
_SENTENCE = re.compile(r"[^\n]{20,}?(?<![A-Z])[.!?][\"')\]]*(?=\s|$)")


@dataclass(frozen=True)
class Windows:
    """Token ids to show a model.

    `tokens` is [windows, length]; where a row has fewer (`unit="sentence"`), zeros follow its
    `lengths` tokens. `digest` is a hash of the ids that count, in order: equal digests, equal text.
    """

    tokens: Tensor  # [windows, length] int64
    lengths: Tensor  # [windows] int64
    digest: str
    source: str


def corpus_names() -> list[str]:
    """The sources known by name; `file:PATH` is one more."""
    return list(SOURCES)


def windows(spec: Calibration, tokenizer: Any) -> Windows:
    """The windows that `spec` describes; the same spec and tokenizer give the same ones.

    unit "window": the documents with a blank line between two (no BOS, no EOS) are tokenised,
    cut into windows that don't overlap, and `spec.windows` of these drawn by the seed. Drawn from
    are the first million characters, or as many more as that takes. Within that million, more
    windows of the same seed begin with the same ones.

    unit "sentence": the first sentence of each of `spec.windows` documents drawn by the seed,
    encoded as the tokenizer does by itself (so with a BOS if it has that habit, as LaCo's
    published code), cut to `spec.length` tokens and padded on the right.

    Raises `CalibrationError` when the source is missing, or has less text than that.
    """
    if spec.unit == "sentence":
        return _sentences(spec, tokenizer)
    needed = spec.windows * spec.length
    running = _joined(texts.documents(spec.source))
    ids = _encode(running, tokenizer, needed, least=POOL)
    whole = len(ids) // spec.length  # windows that there are to draw from
    if whole < spec.windows:
        raise CalibrationError(
            f"{spec.source} has {len(ids):,} tokens, and {spec.windows:,} windows of "
            f"{spec.length:,} take {needed:,}; ask for at most {whole:,} windows, for shorter "
            "ones, or choose a longer text."
        )
    cut = torch.tensor(ids[: whole * spec.length]).reshape(whole, spec.length)
    tokens = cut[_order(whole, spec.seed)[: spec.windows]]  # [windows, length]
    lengths = torch.full((spec.windows,), spec.length)
    return Windows(tokens, lengths, digest_of(tokens.flatten()), spec.source)


def learning(spec: Calibration, held_out: int, tokenizer: Any) -> tuple[Windows, Tensor, Tensor]:
    """The windows of `spec` to learn from, and `held_out` further ones, of the same seed.

    All of them as `windows` gives them, then the two parts, [windows, length] each.
    """
    more = spec.model_copy(update={"windows": spec.windows + held_out})
    found = windows(more, tokenizer)
    return found, found.tokens[: spec.windows], found.tokens[spec.windows :]


def stream(source: str, tokenizer: Any, limit: int | None = None) -> tuple[Tensor, str]:
    """A source as one row of token ids, [tokens] int64, and their digest; no special tokens.

    A plain text file is taken exactly as it stands; WikiText-2 of the hub as its rows joined with
    two line breaks, C4 and PTB with a space (the usual protocols); other sources as their
    documents with a blank line between two. With `limit`, the first that many tokens, and the
    text is read and tokenised only as far as these take. Raises `CalibrationError` when the
    source is missing or has no two tokens.
    """
    ids = _encode(texts.pieces(source), tokenizer, limit)[:limit]
    if len(ids) < 2:
        raise CalibrationError(f"{source} has no text to measure; choose a longer one.")
    tokens = torch.tensor(ids)
    return tokens, digest_of(tokens)


def digest_of(tokens: Tensor) -> str:
    """A hash of token ids, [tokens]."""
    ids = tokens.to(torch.int64).contiguous().numpy().astype("<i8")
    return hashlib.blake2b(ids.tobytes(), digest_size=16).hexdigest()


def _sentences(spec: Calibration, tokenizer: Any) -> Windows:
    pool: list[str] = []
    characters = 0
    for document in texts.documents(spec.source):
        if found := _SENTENCE.search(document):
            pool.append(found.group().strip())
        characters += len(document)
        if characters >= POOL and len(pool) >= spec.windows:
            break
    pool = list(dict.fromkeys(pool))
    if len(pool) < spec.windows:
        raise CalibrationError(
            f"{spec.source} has {len(pool):,} documents that begin with a sentence, and "
            f"{spec.windows:,} are asked for; ask for fewer, or choose a longer text."
        )
    drawn = [pool[index] for index in _order(len(pool), spec.seed)[: spec.windows].tolist()]
    rows = [row[: spec.length] for row in tokenizer(drawn, verbose=False)["input_ids"]]
    tokens = torch.zeros(spec.windows, spec.length, dtype=torch.int64)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    lengths = torch.tensor([len(ids) for ids in rows])
    used = torch.tensor([token for ids in rows for token in ids])
    return Windows(tokens, lengths, digest_of(used), spec.source)


def _joined(documents: Iterator[str]) -> Iterator[str]:
    for index, document in enumerate(documents):
        yield f"\n\n{document}" if index else document


def _order(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _encode(pieces: Iterator[str], tokenizer: Any, enough: int | None, least: int = 0) -> list[int]:
    """Token ids of the text in `pieces`: of all of it, or of so much that `enough` come out.

    Tokenised as one text, so that it does not matter how it came in pieces. A text cut short
    loses its last few tokens, which may be others than in the whole.
    """
    text, exhausted = "", False
    wanted = None if enough is None else max(least, 6 * (enough + _MARGIN))
    while True:
        text, exhausted = _grow(text, pieces, wanted)
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if exhausted or wanted is None:
            return ids
        if enough is not None and len(ids) >= enough + _MARGIN:
            return ids[:-_MARGIN]
        wanted *= 2


def _grow(text: str, pieces: Iterator[str], wanted: int | None) -> tuple[str, bool]:
    """The text with pieces put to its end up to `wanted` characters, and whether none are left."""
    parts, size = [text], len(text)
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if wanted is not None and size >= wanted:
            return "".join(parts), False
    return "".join(parts), True
