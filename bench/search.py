"""How much faster laco's Algorithm 1 is than the published procedure, written plainly.

Plainly: for every candidate a deep copy of the whole current model, the merge in that copy, then
2 × |D| whole passes, one by the copy and one by the original for each sentence. Both run in one
process on the same sentences with C = 4, I = 2, T = 0.65; their decisions must be the same.

Last line: `search RATIO`, the plain seconds over laco's.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from laco import corpora, models
from laco.collapse import plan_collapse
from laco.context import Context
from laco.layers import LayerStack
from laco.merging import merge_layers
from laco.recipe import SENTENCES, Collapse, ModelRef

STORE = Path(__file__).parent.parent / "cache"


@torch.no_grad()
def published(
    model: Any, sentences: list[torch.Tensor], step: Collapse
) -> list[tuple[int, int, bool]]:
    """The decisions of the published procedure: start and length in the current model, accepted."""
    current = copy.deepcopy(model)
    decisions: list[tuple[int, int, bool]] = []
    index = len(LayerStack(model)) - 1 - step.span
    while index >= 0:
        depth = len(LayerStack(current))
        more = min(step.span - 1, depth - 1 - index)
        candidate = copy.deepcopy(current)
        stack = LayerStack(candidate)
        merged = merge_layers(stack[index : index + more + 1], step.merge, step.parameters)
        origins = [*range(index + 1), *range(index + more + 1, depth)]
        stack.keep([*stack[:index], merged, *stack[index + more + 1 :]], origins)
        similarities = []
        for ids in sentences:
            ours, theirs = (
                m(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[-1]
                for m in (candidate, model)
            )
            similarities.append(F.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0))
        accepted = float(torch.stack(similarities).mean()) > 0.65
        decisions.append((index, more + 1, accepted))
        if accepted:
            current = candidate
            index = min(index - step.interval, len(LayerStack(current)) - 1 - step.span)
        else:
            index -= 1
    return decisions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three sentences instead of ten")
    quick = parser.parse_args().quick
    ref = models.pin(ModelRef(path=models.BUNDLED), STORE)
    lm = models.load(ref, STORE, "cpu")
    step = Collapse(
        order="top_down",
        span=4,
        interval=2,
        threshold=0.65,
        merge="telescoped",
        calibration=SENTENCES.model_copy(update={"windows": 3 if quick else 10}),
    )
    windows = corpora.windows(step.calibration, lm.tokenizer)
    sentences = [
        row[None, :length]
        for row, length in zip(windows.tokens, windows.lengths.tolist(), strict=True)
    ]
    for ids in sentences:  # both start warm
        lm.model(input_ids=ids)

    started = time.perf_counter()
    plan = plan_collapse(lm, step, windows, Context())
    ours = time.perf_counter() - started
    started = time.perf_counter()
    expected = published(lm.model, sentences, step)
    plain = time.perf_counter() - started

    found, extents = [], [(i, i + 1) for i in range(len(lm.layers))]
    for candidate in plan.candidates:
        inside = [i for i, e in enumerate(extents) if candidate.start <= e[0] < candidate.stop]
        found.append((inside[0], len(inside), candidate.accepted))
        if candidate.accepted:
            extents[inside[0] : inside[-1] + 1] = [(candidate.start, candidate.stop)]
    print(f"sentences {len(sentences)}, candidates {len(found)}, layers left {len(extents)}")
    print(f"published procedure {plain:.2f} s, laco {ours:.2f} s")
    if found != expected:
        sys.exit(f"the decisions differ:\n{found}\n{expected}")
    print("the decisions are the same")
    print(f"search {plain / ours:.2f}")


if __name__ == "__main__":
    main()
