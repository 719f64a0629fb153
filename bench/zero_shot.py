"""How much faster zero-shot tasks are than in the harness's own HFLM, with the same scores.

SmolLM2, 200 questions of HellaSwag and 200 of ARC-Easy, from prompts to metrics on both sides. HFLM
runs at its best batch size, which the first 16 questions of each task decide. Above the last line:
seconds by task and side; the greatest difference between log-likelihoods of a choice and HFLM's at
batch size 1, on the first 16 questions, beside that of HFLM at its best batch size from itself at 1
(float32 rounds otherwise in other shapes); how many of all questions were answered otherwise; and,
on three questions, how far both are from each other in float64, and each in float32 from that.

    python bench/zero_shot.py

Last line: `zero_shot RATIO`, HFLM's seconds over laco's; it should be at least 2.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from shared.recovery import STORE

from laco import models
from laco.context import Context
from laco.evaluate import harness
from laco.evaluate.zero_shot import zero_shot
from laco.evaluations import Outcome, ZeroShot
from laco.recipe import ModelRef

TASKS = ("hellaswag", "arc_easy")
SIZES = (1, 4, 8, 16, 32)
FEW = 16  # questions that decide the batch size


class Plain(harness.Stock):
    """The harness's own model, in the place of ours."""

    shared = False
    size = 1

    def __init__(self, lm: models.LoadedModel, _context: Context) -> None:
        super().__init__(pretrained=lm.model, tokenizer=lm.tokenizer, batch_size=self.size)


def ask(lm: models.LoadedModel, task: str, limit: int, size: int | None) -> tuple[Outcome, float]:
    """The outcome and seconds; with `size`, of HFLM at that batch size."""
    ours = harness.Asking
    if size is not None:
        harness.Asking = type("Sized", (Plain,), {"size": size})  # type: ignore[misc]
    try:
        started = time.perf_counter()
        found = zero_shot(lm, ZeroShot(task=task, limit=limit), Context())
        return found, time.perf_counter() - started
    finally:
        harness.Asking = ours


def difference(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> float:
    """The greatest difference between two log-likelihoods of the same choice, in nats."""
    pairs = zip(one, other, strict=True)
    return max(
        abs(a - b)
        for mine, theirs in pairs
        for a, b in zip(mine["log_likelihoods"], theirs["log_likelihoods"], strict=True)
    )


def exactly(lm: models.LoadedModel, task: str) -> None:
    """Print how far both sides are from each other in float64, and from that in float32."""
    sides = {"laco": None, "HFLM": 1}
    single = {name: ask(lm, task, 3, size)[0].answers for name, size in sides.items()}
    lm.model.double()
    double = {name: ask(lm, task, 3, size)[0].answers for name, size in sides.items()}
    lm.model.float()
    told = ", ".join(f"{name} {difference(single[name], double[name]):.1e}" for name in sides)
    apart = difference(double["laco"], double["HFLM"])
    print(f"  in float64 the two differ by {apart:.1e} nats; float32 differs from it by: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="24 questions of each task")
    limit = 24 if parser.parse_args().quick else 200
    pinned = models.pin(ModelRef(path=models.BUNDLED), STORE)
    lm = models.load(pinned, STORE, "cpu")
    ask(lm, TASKS[0], 2, None)  # imports, first touches
    ours = theirs = 0.0
    for task in TASKS:
        tried = {size: ask(lm, task, FEW, size) for size in SIZES}
        best = min(SIZES, key=lambda size: tried[size][1])
        mine, seconds = ask(lm, task, limit, None)
        stock, stock_seconds = ask(lm, task, limit, best)
        ours, theirs = ours + seconds, theirs + stock_seconds
        single = tried[1][0].answers
        flips = sum(
            a["picked"] != b["picked"] for a, b in zip(mine.answers, stock.answers, strict=True)
        )
        few = stock.answers[:FEW]
        print(
            f"{task}: {limit} questions; HFLM {stock_seconds:.1f} s at batch size {best}, laco "
            f"{seconds:.1f} s: {stock_seconds / seconds:.2f} times; log-likelihoods differ from "
            f"HFLM's at batch size 1 by {difference(mine.answers[:FEW], single):.1e} nats, and "
            f"HFLM's at {best} by {difference(few, single):.1e}; {flips} answers differ",
            flush=True,
        )
        exactly(lm, task)
        for a, b in zip(mine.metrics, stock.metrics, strict=True):
            print(f"  {a.name} laco {a.value:.4f}, HFLM {b.value:.4f}")
    print(f"zero_shot {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
