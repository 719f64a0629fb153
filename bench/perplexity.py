"""How much faster laco measures perplexity than the model's own loss does.

The usual way: `model(ids, labels=ids)` without gradients, eight windows of 512 tokens a call.
laco reads the same windows of the bundle's held-out text. The two take turns call by call in one
run, and their perplexities must agree to four digits. Peak memory is measured in a process of its
own for each.

Last line: `perplexity RATIO`, laco's tokens per second over the usual way's; it should be at least
1.3.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import torch
from shared.apart import printed_apart

from laco import models
from laco.context import Context
from laco.corpora import stream
from laco.evaluate import evaluate
from laco.evaluations import Metric, Perplexity
from laco.memory import peak_memory
from laco.models import LoadedModel
from laco.recipe import ModelRef

STORE = Path(__file__).parent.parent / "cache"
LENGTH = 512
CALL = 8  # windows in one call of the usual way
MEGABYTE = 1 << 20


def load() -> LoadedModel:
    return models.load(models.pin(ModelRef(path=models.BUNDLED), STORE), STORE, "cpu")


def spec_of(windows: int) -> Perplexity:
    return Perplexity(window=LENGTH, windows=windows, bos="never")


def calls_of(lm: LoadedModel, windows: int) -> list[torch.Tensor]:
    """The text that `spec_of` reads, as the usual way takes it: [windows, length] a call."""
    ids, _digest = stream(spec_of(windows).source, lm.tokenizer, windows * LENGTH)
    return list(ids.view(windows, LENGTH).split(CALL))


@torch.no_grad()
def usual(lm: LoadedModel, ids: torch.Tensor) -> float:
    return float(lm.model(ids, labels=ids).loss)  # type: ignore[operator]


def laco(lm: LoadedModel, windows: int, context: Context) -> Metric:
    (metric,) = evaluate(lm, spec_of(windows), context).metrics
    return metric


def race(windows: int) -> tuple[float, float, float, float]:
    """Seconds and perplexity of laco, then of the usual way."""
    lm = load()
    calls = calls_of(lm, windows)
    usual(lm, calls[0])
    laco(lm, CALL, Context())
    losses: list[float] = []
    taken = 0.0

    def turn(fraction: float, _message: str) -> None:
        nonlocal taken
        began = time.perf_counter()
        while len(losses) < round(fraction * windows) // CALL:
            losses.append(usual(lm, calls[len(losses)]))
        taken += time.perf_counter() - began

    began = time.perf_counter()
    ours = laco(lm, windows, Context(progress=turn)).value
    spent = time.perf_counter() - began - taken
    return spent, ours, taken, math.exp(sum(losses) / len(losses))


def growth(what: str) -> int:
    """Bytes by which memory rises above the loaded model, at most, over one call's windows."""
    lm = load()
    calls = calls_of(lm, CALL)
    usual(lm, calls[0][:1, :8])  # the libraries' own buffers
    with peak_memory("cpu") as found:
        if what == "laco":
            laco(lm, CALL, Context())
        else:
            for ids in calls:
                usual(lm, ids)
    return found.growth


def growth_apart(what: str) -> int:
    return printed_apart(__file__, "--growth", what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="16 windows instead of 64")
    parser.add_argument("--growth", choices=["laco", "usual"], help="print only this growth, bytes")
    given = parser.parse_args()
    if given.growth:
        print(growth(given.growth))
        return
    windows = 16 if given.quick else 64
    usual_bytes, laco_bytes = growth_apart("usual"), growth_apart("laco")
    spent, ours, usual_spent, theirs = race(windows)
    tokens = windows * LENGTH
    print(f"{windows} windows of {LENGTH} tokens, {torch.get_num_threads()} threads")
    for name, value, time_, peak in (
        ("model(ids, labels=ids)", theirs, usual_spent, usual_bytes),
        ("laco", ours, spent, laco_bytes),
    ):
        print(
            f"{name:22} perplexity {value:.5f}, {tokens / time_:.0f} tokens/s, "
            f"peak {peak / MEGABYTE:.0f} MB above the model"
        )
    print(f"peak memory {laco_bytes / usual_bytes:.3f} of the usual way's (limit 0.5)")
    if abs(ours / theirs - 1) > 5e-5:
        sys.exit("the two perplexities differ in their first four digits")
    print(f"perplexity {usual_spent / spent:.3f}")


if __name__ == "__main__":
    main()
