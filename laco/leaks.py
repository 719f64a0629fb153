"""Whether evaluation questions stand in the text that a model was calibrated on.

Both sides are words: lower case, letters and digits, nothing else. It knows text alone, neither
sources (`texts.py`) nor tasks. Next: `texts.py`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from laco.errors import RecipeError

RUN = 13  # words that no two texts share by chance; GPT-3's and the Pile's guard (2005.14165, C)
SHORTEST = 5  # words of an item that is looked for as a whole
CHUNK = 1 << 18  # words of calibration text at a time
_WORD = re.compile(r"[^\W_]+")
_APART = 0  # stands for a word that no item has, and for the end of a text


def leaked(calibration: Iterable[str], items: Sequence[str], n: int = RUN) -> list[bool]:
    """For each item, whether the calibration text has a run of `n` words of it.

    An item of fewer than `n` words leaks if the text has the whole of it in one run; one of fewer
    than five says too little and never leaks. A run lies within one text of `calibration`. Where
    words are not put apart by spaces (Chinese, Japanese), a sentence counts as one word, and
    nothing is found.

    Only the items' runs are kept, as 64-bit hashes; the calibration text passes by once, a chunk
    at a time, so it may be of any length. A run's hash is the exclusive or of a random number for
    each word at each place; two different runs collide with odds of 2⁻⁶⁴, so 100 million words of
    text against 100,000 runs give a false alarm once in two million times. Raises `RecipeError`
    when `n` is below 1.
    """
    if n < 1:
        raise RecipeError(f"A run of {n} words is none; use 1 or more.")
    numbers: dict[str, int] = {}
    words = [
        [numbers.setdefault(word, len(numbers) + 1) for word in _words(item)] for item in items
    ]
    places = np.random.default_rng(0).integers(
        0, 1 << 64, size=(n, len(numbers) + 1), dtype=np.uint64
    )
    wanted = {
        length: _Runs(length, places, words)
        for length in sorted({min(len(item), n) for item in words if len(item) >= min(SHORTEST, n)})
    }
    if wanted:
        for text in _chunks(calibration, numbers, overlap=max(wanted) - 1):
            for runs in wanted.values():
                runs.look_in(text)
    found = np.zeros(len(items), dtype=bool)
    for runs in wanted.values():
        found[runs.owners[runs.seen[runs.place]]] = True
    return found.tolist()


class _Runs:
    """The runs of one length that items are recognised by, and which of them were seen."""

    def __init__(self, length: int, places: np.ndarray, items: Sequence[Sequence[int]]):
        self.places = places[:length]  # [length, words + 1] random numbers
        n = len(places)
        owners, hashes = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
        for index, item in enumerate(items):
            if min(len(item), n) == length:
                hashes.append(self._hashes(np.array(item)))
                owners.append(np.full(len(hashes[-1]), index))
        self.owners = np.concatenate(owners)  # [runs]: whose run it is
        self.known, self.place = np.unique(np.concatenate(hashes), return_inverse=True)
        self.seen = np.zeros(len(self.known), dtype=bool)

    def look_in(self, text: np.ndarray) -> None:
        """Note the runs that `text` [words] has."""
        length = len(self.places)
        if len(text) < length:
            return
        gaps = np.concatenate([[0], np.cumsum(text == _APART)])
        whole = np.flatnonzero(gaps[length:] == gaps[:-length])  # starts of runs without a gap
        hashes = self._hashes(text, whole)
        place = np.searchsorted(self.known, hashes).clip(max=len(self.known) - 1)
        self.seen[place[self.known[place] == hashes]] = True

    def _hashes(self, text: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
        """The hash of the run at each start (unset: at every one), [starts] uint64."""
        if starts is None:
            starts = np.arange(len(text) - len(self.places) + 1)
        total = np.zeros(len(starts), np.uint64)
        for offset, numbers in enumerate(self.places):
            total ^= numbers[text[starts + offset]]
        return total


def _words(text: str) -> Iterator[str]:
    return (match[0] for match in _WORD.finditer(text.lower()))


def _chunks(texts: Iterable[str], numbers: dict[str, int], overlap: int) -> Iterator[np.ndarray]:
    """All texts as the numbers of their words, a chunk at a time; each repeats the last's end."""
    stream = itertools.chain.from_iterable(
        itertools.chain((numbers.get(word, _APART) for word in _words(text)), (_APART,))
        for text in texts
    )
    end = np.zeros(0, np.int64)
    while len(chunk := np.fromiter(itertools.islice(stream, CHUNK), np.int64)):
        chunk = np.concatenate([end, chunk])
        end = chunk[len(chunk) - min(overlap, len(chunk)) :]
        yield chunk
