"""The what-if map: what collapsing any one span would do to the model's output.

Scores come from `candidates.Trials`, which runs each candidate from its first changed layer up.
It changes nothing; to carry a span out, write it into a `Merge` step. Next: `candidates.py`.
"""

from __future__ import annotations

import time
from typing import Any

from laco.candidates import Trials
from laco.context import Context
from laco.corpora import Windows
from laco.evaluations import WhatIf
from laco.merging import can_merge, default_parameters, merge_groups
from laco.models import LoadedModel
from laco.streamed import require_whole


def what_if(lm: LoadedModel, spec: WhatIf, windows: Windows, context: Context) -> dict[str, Any]:
    """Cosine and KL of the model with one span collapsed, for every start and length.

    `cosine[i][j]` and `kl[i][j]` are of `lengths[i]` layers from `starts[j]` on, or None where the
    span would reach past the end or its layers cannot merge. KL is in nats per token.
    """
    if spec.merge != "drop":
        require_whole(lm, f"A map of merged layers ({spec.merge})", "let it drop them")
    started = time.perf_counter()
    trials = Trials(lm, windows, ("cosine", "kl"))
    layers = len(lm.layers)
    lengths = list(range(2, min(spec.longest, layers) + 1))
    maps: dict[str, list[list[float | None]]] = {"cosine": [], "kl": []}
    for row, length in enumerate(lengths):
        for name in maps:
            maps[name].append([None] * layers)
        for start in range(layers - length + 1):
            context.step((row + start / layers) / len(lengths), f"{length} layers from {start} on")
            if not can_merge(lm.layers, (start, start + length), spec.merge):
                continue
            groups = trials.groups[start : start + length]
            merged = merge_groups(groups, spec.merge, default_parameters(spec.merge))
            for name, score in trials.score(start, length, merged).values.items():
                maps[name][row][start] = score
    return {
        "starts": list(range(layers)),
        "lengths": lengths,
        **maps,
        "layers": layers,
        "merge": spec.merge,
        "tokens": int(windows.lengths.sum()),
        "source": windows.source,
        "digest": windows.digest,
        "seconds": time.perf_counter() - started,
    }
