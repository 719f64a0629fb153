"""Whether two models differ on the same questions, or by no more than chance.

Works on what was answered, question by question, and knows neither models nor where the answers
are kept (`store.py`). Next: `report.py`, which sets runs beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laco.errors import RecipeError

RESAMPLES = 2000
ALARM = 0.05  # how often two equally good models may be called different, at most
DRAWS = 1 << 22  # counts in memory at a time


@dataclass(frozen=True)
class Paired:
    """Two models on the same questions. `difference` is the mean of mine − baseline's.

    `gained` questions went better than with the baseline and `lost` went worse; `p` is McNemar's
    exact two-sided p of these two counts; `low` and `high` bound 95 % of the difference.
    """

    gained: int
    lost: int
    p: float
    difference: float
    low: float
    high: float
    questions: int

    @property
    def within_noise(self) -> bool:
        """Whether chance explains the difference.

        It doesn't where both say so: p is at most 0.05, and zero lies outside the interval. For
        right and wrong answers the first alone keeps false alarms to 5 %, whatever the number of
        questions, since the test is exact. For other numbers p takes each question's sign alone,
        and the interval only the mean; asking both keeps alarms below what either would raise.
        """
        return self.p > ALARM or self.low <= 0 <= self.high

    @property
    def words(self) -> str:
        """The verdict in one line: `within noise: 12 gained, 15 lost of 200, p 0.70`."""
        verdict = "better" if self.difference > 0 else "worse"
        if self.within_noise:
            verdict = "within noise"
        p = f"p {self.p:.2f}" if self.p >= 0.1 else f"p {self.p:.3f}"
        if self.p < 0.001:
            p = "p below 0.001"
        return f"{verdict}: {self.gained} gained, {self.lost} lost of {self.questions}, {p}"


def paired(mine: Sequence[float], baseline: Sequence[float], seed: int = 0) -> Paired:
    """How one model does against another on the same questions, in the same order.

    A number for each question, more is better: 1 and 0 for right and wrong, or any other. The
    interval is the bootstrap's, by percentiles: questions are drawn again with replacement, each
    with both answers, 2,000 times. Raises `RecipeError` for sequences that are no pairs of finite
    numbers.
    """
    if len(mine) != len(baseline):
        raise RecipeError(
            f"There are {len(mine)} answers to set against {len(baseline)}; compare models on the "
            "same questions."
        )
    if not len(mine):
        raise RecipeError("There are no answers to compare; ask at least one question.")
    differences = np.asarray(mine, np.float64) - np.asarray(baseline, np.float64)  # [questions]
    if not np.isfinite(differences).all():
        place = int(np.flatnonzero(~np.isfinite(differences))[0])
        raise RecipeError(
            f"Question {place} has no finite pair of numbers; leave it out for both models."
        )
    gained, lost = int((differences > 0).sum()), int((differences < 0).sum())
    low, high = interval(differences, np.random.default_rng(seed))
    return Paired(
        gained=gained,
        lost=lost,
        p=mcnemar(gained, lost),
        difference=float(differences.mean()),
        low=low,
        high=high,
        questions=len(differences),
    )


def mcnemar(gained: int, lost: int) -> float:
    """The probability that a fair coin splits gained + lost questions at least so unevenly.

    Two-sided and exact (McNemar, Psychometrika 12, 1947); 1 where there are none.
    """
    unlike = gained + lost
    ways = tail = 1  # of `unlike` tosses to give no heads; then up to as many as the lesser count
    for heads in range(1, min(gained, lost) + 1):
        ways = ways * (unlike - heads + 1) // heads
        tail += ways
    return min(1.0, 2 * tail / 2**unlike)  # whole numbers to here, so exact


def interval(differences: np.ndarray, generator: np.random.Generator) -> tuple[float, float]:
    """The bounds of 95 % of the means of `differences` [questions], drawn with replacement.

    How often each distinct value comes up in a draw is multinomial, so the values are drawn as
    counts: three of them for right and wrong answers, however many questions there are.
    """
    values, counts = np.unique(differences, return_counts=True)
    share = counts / len(differences)
    means: list[np.ndarray] = []
    rows = max(1, DRAWS // len(values))
    for start in range(0, RESAMPLES, rows):
        size = min(rows, RESAMPLES - start)
        drawn = generator.multinomial(len(differences), share, size=size)  # [size, values]
        means.append(drawn @ values / len(differences))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)
