"""What the full similarity map costs beyond a plain pass through the same layers.

Plainly: SmolLM2's layers on one window of 512 tokens at a time, without the LM head and without a
KV cache. The map (all measures, four shards, CKA, the document) reads the same windows. The two
take turns window by window in one run, each on a model of its own, so that what else the machine
does falls on both. Peak memory is measured in a process of its own for each.

Last line: `similarity RATIO`, the map's seconds over the plain pass's; it should be at most 1.10.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from shared.apart import printed_apart

from laco import corpora, models
from laco.context import Context
from laco.evaluations import Similarity
from laco.memory import peak_memory
from laco.models import LoadedModel
from laco.recipe import Calibration, ModelRef
from laco.similarity import layer_similarity

STORE = Path(__file__).parent.parent / "cache"
LENGTH = 512
MEGABYTE = 1 << 20


def load() -> LoadedModel:
    return models.load(models.pin(ModelRef(path=models.BUNDLED), STORE), STORE, "cpu")


def spec_of(windows: int) -> Similarity:
    return Similarity(calibration=Calibration(windows=windows, length=LENGTH))


@torch.no_grad()
def plain_pass(lm: LoadedModel, window: torch.Tensor) -> None:
    """The layers on one window [length]; neither head nor cache."""
    lm.layers.trunk(input_ids=window.unsqueeze(0), use_cache=False)


def seconds(windows: int) -> tuple[float, float]:
    """Seconds of the map and of the plain passes, taking turns window by window."""
    lm, other, spec = load(), load(), spec_of(windows)
    text = corpora.windows(spec.calibration, lm.tokenizer)
    plain_pass(other, text.tokens[0])
    layer_similarity(
        lm, corpora.windows(spec_of(1).calibration, lm.tokenizer), spec_of(1), Context()
    )
    plain: list[float] = []

    def turn(_fraction: float, _message: str) -> None:
        began = time.perf_counter()
        plain_pass(other, text.tokens[len(plain)])
        plain.append(time.perf_counter() - began)

    began = time.perf_counter()
    layer_similarity(lm, text, spec, Context(progress=turn))
    return time.perf_counter() - began - sum(plain), sum(plain)


def growth(what: str, windows: int) -> int:
    """Bytes by which memory rises above the loaded model and its text, at most."""
    lm, spec = load(), spec_of(windows)
    text = corpora.windows(spec.calibration, lm.tokenizer)
    plain_pass(lm, text.tokens[0][:8])  # the libraries' own buffers
    with peak_memory("cpu") as found:
        if what == "map":
            layer_similarity(lm, text, spec, Context())
        else:
            for window in text.tokens:
                plain_pass(lm, window)
    return found.growth


def growth_apart(what: str, windows: int) -> int:
    return printed_apart(__file__, "--growth", what, "--windows", str(windows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="16 windows instead of 64")
    parser.add_argument("--growth", choices=["map", "plain"], help="print only this growth, bytes")
    parser.add_argument("--windows", type=int)
    given = parser.parse_args()
    windows = given.windows or (16 if given.quick else 64)
    if given.growth:
        print(growth(given.growth, windows))
        return
    few = min(windows, 8)
    plain_bytes, map_bytes = growth_apart("plain", few), growth_apart("map", few)
    map_seconds, plain_seconds = seconds(windows)
    print(f"{windows} windows of {LENGTH} tokens, {torch.get_num_threads()} threads")
    print(f"plain pass {plain_seconds:.2f} s, peak {plain_bytes / MEGABYTE:.0f} MB above the model")
    print(f"full map   {map_seconds:.2f} s, peak {map_bytes / MEGABYTE:.0f} MB above the model")
    print(f"memory grows by {(map_bytes - plain_bytes) / MEGABYTE:.0f} MB (limit 64)")
    print(f"similarity {map_seconds / plain_seconds:.3f}")


if __name__ == "__main__":
    main()
