"""Runs -> rows: each number beside the baseline's, what it shows, and flipped answers.

A row says whether its number is better, worse or the same, with what certainty, and why it may not
be compared or trusted. It does not know where runs are kept (`store.py`), how anything was measured
(`evaluate/`), or how rows are written (`formats.py`). Next: `formats.py`.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from laco.errors import RecipeError
from laco.evaluations import Metric
from laco.recipe import Recipe
from laco.statistics import Paired, paired
from laco.wording import describe

Verdict = Literal["baseline", "better", "worse", "same", ""]
Answer = Mapping[str, Any]  # to one question; see `evaluations.Outcome`
Answers = Callable[[str], Sequence[Answer] | None]  # by an evaluation's key; `store.answers` is one

UNSEEN = 5e-4  # of a number, which is told with one digit of a per cent

SETTINGS = (  # how a number was measured: two are compared where all of these are the same
    *("source", "digest", "window", "stride", "windows", "bos"),  # text
    *("split", "version", "shots", "limit", "questions", "seed", "harness"),  # questions
    *(
        "prompt",
        "generate",
        "batch",
        "tokens",
        "processor",
        "threads",
    ),  # speed, and what is written
)


class Measured(Protocol):
    """What a row is made from; `store.Run` is one."""

    @property
    def key(self) -> str: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def metrics(self) -> Sequence[Metric]: ...


@dataclass(frozen=True)
class Row:
    """One metric of one run, beside the baseline's.

    `delta` is value − baseline and `ratio` is value / baseline; both are empty where the baseline
    lacks the metric. `badge` names the settings that differ from the baseline's, and is empty where
    the two numbers may be compared. Where both runs answered the same questions, `gained` to `high`
    are what `statistics.paired` found, and `words` says it. `leak` says how many of the items share
    text with what the run was calibrated on. `task` is the zero-shot task, and `main` is false for
    a task's metrics that tables of papers leave out.
    """

    key: str
    label: str
    metric: str
    value: float
    unit: str
    better: Literal["lower", "higher"]
    stderr: float | None = None
    baseline: float | None = None
    delta: float | None = None
    ratio: float | None = None
    verdict: Verdict = ""
    badge: str = ""
    gained: int | None = None
    lost: int | None = None
    p: float | None = None
    low: float | None = None
    high: float | None = None
    words: str = ""
    leak: str = ""
    task: str = ""
    main: bool = True

    def document(self) -> dict[str, Any]:
        """The row as JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Flip:
    """A question that two runs answered unlike.

    `before` and `after` are the baseline's answer and the other run's: places among the `choices`,
    as `target` is, or texts where there are none. `change` says what the metric makes of it.
    """

    id: str
    question: str
    choices: tuple[str, ...]
    target: int | str
    before: int | str
    after: int | str
    before_scores: tuple[float, ...]
    after_scores: tuple[float, ...]
    change: Literal["gained", "lost", "other"]


def table(
    runs: Sequence[Measured], baseline: Measured | None = None, answers: Answers | None = None
) -> list[Row]:
    """Every metric of every run, with its delta against `baseline` (unset: the first run).

    With `answers`, differences on the same questions are judged question by question.
    """
    if not runs:
        return []
    base = baseline if baseline is not None else runs[0]
    names = heads([*runs, *(() if base in runs else (base,))])
    read = functools.cache(answers) if answers else lambda _key: None
    return [_row(run, names[run.key], metric, base, read) for run in runs for metric in run.metrics]


def heads(runs: Sequence[Measured]) -> dict[str, str]:
    """A name by key for each run; equal labels are told apart by the key's beginning."""
    labels = {run.key: describe(run.recipe) for run in runs}
    seen = Counter(labels.values())
    return {
        key: label if seen[label] == 1 else f"{label} · {key[3:9]}" for key, label in labels.items()
    }


def pareto(runs: Sequence[Measured], quality: str, cost: str) -> list[str]:
    """Keys of the runs that no other run beats in one metric without losing in the other."""
    points: dict[str, tuple[float, float]] = {}
    for run in runs:
        a, b = _find(run.metrics, quality), _find(run.metrics, cost)
        if a is not None and b is not None:
            points[run.key] = (_loss(a), _loss(b))
    return front(points)


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Of points that should be low in both, those that no other is below in one and not above."""
    return [
        key
        for key, point in points.items()
        if not any(
            other != point and other[0] <= point[0] and other[1] <= point[1]
            for other in points.values()
        )
    ]


def flipped(baseline: Sequence[Answer], mine: Sequence[Answer], metric: str = "acc") -> list[Flip]:
    """The questions whose answer changed, in the order of the data.

    A question counts where another choice was picked, or where `metric` judges it otherwise. Raises
    `RecipeError` where the two were not asked the same questions.
    """
    if not _same_questions(baseline, mine):
        raise RecipeError(
            "These two runs were not asked the same questions; measure both with the same settings."
        )
    pick = "picked_norm" if metric.endswith("_norm") else "picked"
    found: list[Flip] = []
    for a, b in zip(baseline, mine, strict=True):
        before, after = a.get(pick, a["picked"]), b.get(pick, b["picked"])
        gain = float(b.get(metric, 0)) - float(a.get(metric, 0))
        if before != after or gain:
            found.append(
                Flip(
                    id=a["id"],
                    question=a["question"],
                    choices=tuple(a.get("choices", ())),
                    target=a["target"],
                    before=before,
                    after=after,
                    before_scores=tuple(a.get("log_likelihoods", ())),
                    after_scores=tuple(b.get("log_likelihoods", ())),
                    change="gained" if gain > 0 else "lost" if gain < 0 else "other",
                )
            )
    return found


def _row(run: Measured, label: str, metric: Metric, baseline: Measured, read: Answers) -> Row:
    row = Row(
        key=run.key,
        label=label,
        metric=metric.name,
        value=metric.value,
        unit=metric.unit,
        better=metric.better,
        stderr=metric.stderr,
        leak=_leak(metric.details),
        task=str(metric.details.get("task", "")),
        main=metric.details.get("main") is not False,
    )
    if run.key == baseline.key:
        return replace(row, verdict="baseline")
    other = _find(baseline.metrics, metric.name, metric.details)
    if other is None:
        return row
    row = replace(
        row,
        baseline=other.value,
        delta=metric.value - other.value,
        ratio=metric.value / other.value if other.value else None,
        badge=unlike(metric.details, other.details),
    )
    if row.badge:
        return row
    pair = _paired(metric, other, read)
    if pair is None:
        return replace(row, verdict=_verdict(metric, other))
    better: Verdict = "better" if pair.difference > 0 else "worse"
    return replace(
        row,
        verdict="same" if pair.within_noise else better,
        gained=pair.gained,
        lost=pair.lost,
        p=pair.p,
        low=pair.low,
        high=pair.high,
        words=pair.words,
    )


def unlike(mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The settings that differ, in words; empty when the numbers may be compared."""
    return ", ".join(
        f"{name} {mine.get(name)}, baseline {other.get(name)}"
        for name in SETTINGS
        if mine.get(name) != other.get(name)
    )


def _find(
    metrics: Iterable[Metric], name: str, details: Mapping[str, Any] | None = None
) -> Metric | None:
    """The metric of that name; measured with the same settings, where there are several."""
    named = [metric for metric in metrics if metric.name == name]
    if details is not None:
        named.sort(key=lambda metric: bool(unlike(metric.details, details)))
    return named[0] if named else None


def _paired(metric: Metric, other: Metric, read: Answers) -> Paired | None:
    """The two on the same questions; None where the answers to them are not there."""
    keys = metric.details.get("answers"), other.details.get("answers")
    if metric.better != "higher" or not all(keys):
        return None
    mine, theirs = (read(str(key)) or () for key in keys)
    name = metric.name.partition("[")[0]
    if not mine or not _same_questions(theirs, mine):
        return None
    values, others = _values(mine, name), _values(theirs, name)
    return None if values is None or others is None else paired(values, others)


def _values(answers: Sequence[Answer], name: str) -> list[float] | None:
    """A metric of each question; None where it has no number for one of them."""
    found = [answer.get(name) for answer in answers]
    numbers = [float(value) for value in found if isinstance(value, int | float)]
    return numbers if len(numbers) == len(found) else None


def _same_questions(one: Sequence[Answer], other: Sequence[Answer]) -> bool:
    return [answer["id"] for answer in one] == [answer["id"] for answer in other]


def _verdict(metric: Metric, other: Metric) -> Verdict:
    """Better or worse; `same` within twice the two standard errors together.

    Both errors count as independent, though the text is the same: the judgement is careful. A
    change that would be told as 0.0 % is none.
    """
    delta = metric.value - other.value
    if abs(delta) < UNSEEN * abs(other.value):
        return "same"
    if abs(delta) <= 2 * math.hypot(metric.stderr or 0.0, other.stderr or 0.0):
        return "same"
    return "better" if (delta < 0) == (metric.better == "lower") else "worse"


def _leak(details: Mapping[str, Any]) -> str:
    """How much of what it was measured on stands in the calibration text; empty if nothing does."""
    found = details.get("leak")
    if not found:
        return ""
    return f"{found['items']} of {found['of']} items share text with the calibration"


def _loss(metric: Metric) -> float:
    return metric.value if metric.better == "lower" else -metric.value
