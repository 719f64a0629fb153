"""How good the estimates of memory and time are that the Model page and `laco inspect` show.

Five models: SmolLM2, and four of random weights in other families and shapes. Of each, every kind
of work on little text: what `laco.expected` says beforehand, and what the work then takes in a
process of its own, as its report has it (the machine's speed is measured first, and again for
each model). A figure is off by the larger of estimate over measure and measure over estimate.

Last line: `expected FACTOR`, how far off the worst estimate is; it should be at most 1.2.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from shared.apart import numbers_apart
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from laco import engine, models
from laco.card import inspect
from laco.context import Context
from laco.evaluations import Perplexity, Request, Similarity
from laco.expected import expected
from laco.memory import peak_memory
from laco.recipe import (
    Calibration,
    Collapse,
    Compensate,
    Finetune,
    Merge,
    ModelRef,
    Prune,
    Recipe,
    Structured,
    Wanda,
)
from laco.speed import measured
from laco.store import RunStore

STORE = Path(__file__).parent.parent / "cache"
LENGTH = 256
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "qwen2": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 12,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "phi3": {
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "pad_token_id": 0,
    },
    "llama": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}


def text(windows: int) -> Calibration:
    return Calibration(windows=windows, length=LENGTH)


WORK: dict[str, Any] = {
    "similarity": Similarity(calibration=text(4)),
    "collapse": Collapse(target_share=0.9, calibration=text(1)),
    "merge": Merge(spans=((1, 3),), merge="rdsc"),
    "sparsity": Prune(method=Wanda(), calibration=text(4)),
    "compensation": Prune(compensation=Compensate(epochs=1, held_out=2, calibration=text(4))),
    "width": Prune(method=Structured(), calibration=text(4)),
    "lora": Finetune(epochs=1, held_out=2, calibration=text(4)),
    "evaluation": Perplexity(window=LENGTH, windows=8),
}


def folder(family: str) -> Path:
    """A model of random weights with SmolLM2's tokenizer; made if it is not there yet."""
    smol = models.folder_of(models.pin(ModelRef(path=models.BUNDLED), STORE), STORE)
    if family == "smollm2":
        return smol
    place = STORE / "bench" / f"expected-{family}"
    if not (place / "config.json").exists():
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, vocab_size=49152, **SHAPES[family])
        AutoModelForCausalLM.from_config(config).save_pretrained(place)
        AutoTokenizer.from_pretrained(smol).save_pretrained(place)
    return place


def request(place: Path, name: str) -> Request:
    model, work = models.pin(ModelRef(path=str(place)), STORE), WORK[name]
    if isinstance(work, Similarity):
        return Request(recipe=Recipe(model=model), analyses=(work,))
    if isinstance(work, Perplexity):
        return Request(recipe=Recipe(model=model), evaluations=(work,))
    return Request(recipe=Recipe(model=model, steps=(work,)))


def taken(place: Path, name: str) -> tuple[int, float]:
    """Peak bytes and seconds of the work, in this process."""
    with tempfile.TemporaryDirectory(dir=STORE) as store:
        began = time.perf_counter()
        with peak_memory("cpu") as peak:
            engine.run(request(place, name), RunStore(store), Context())
        return peak.peak, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="SmolLM2 and GPT-2 alone")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        memory, seconds = taken(Path(given.one[0]), given.one[1])
        print(memory, round(1000 * seconds))
        return
    worst = 1.0
    families = ["smollm2", *SHAPES][: 2 if given.quick else None]
    # In processes of their own, or what they leave behind would count as the program's memory.
    apart = multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)
    print(f"{'model':9}{'work':14}{'memory expected / taken':>30}{'seconds expected / taken':>30}")
    for family in families:
        place = apart.apply(folder, (family,))
        card = inspect(models.pin(ModelRef(path=str(place)), STORE), STORE)
        speed = apart.apply(measured)
        for name, work in WORK.items():
            guess = expected(card, work, speed)
            memory, milliseconds = numbers_apart(__file__, "--one", str(place), name)
            seconds = milliseconds / 1000
            factors = [
                max(one / other, other / one)
                for one, other in ((guess.memory_bytes, memory), (guess.seconds, seconds))
            ]
            worst = max(worst, *factors)
            print(
                f"{family:9}{name:14}"
                f"{guess.memory_bytes / 1e6:9.0f} / {memory / 1e6:6.0f} MB {factors[0]:6.2f}"
                f"{guess.seconds:14.2f} / {seconds:6.2f} s {factors[1]:6.2f}",
                flush=True,
            )
    print(f"expected {worst:.2f}")


if __name__ == "__main__":
    main()
