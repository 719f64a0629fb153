"""The experiments on bringing models back: what is lost, and how much of it each way returns.

SmolLM2; perplexity on held-out text of the kind learned from and on WikiText-2.

- prune: {magnitude, Wanda, SparseGPT} × {50 %, 2:4, 60, 70 %} × {nothing, paper mode, laco+, LoRA}
- collapse: best-first to 24 and 21 layers × {nothing, laco+, LoRA}
- windows: laco+ and LoRA on 8, 32, 128 and 512 windows after Wanda at 50 %, LoRA on 200 as well
  (25 times 8; 25 times 32 take more than an hour on two cores)
- parts: laco+ without its least squares, its gradient, its tuning; with other targets

    python bench/recovery.py --text file:c4.txt --wikitext wiki.test.raw [--only "prune | Wanda"]

Hours on a CPU, so that most of it learns from 16 windows, and LoRA with one learning rate: the
better of the two in `compensation.py` and `collapse_compensation.py`, which learn from 64 and tell
times. Each cell goes to `docs/recovery.json` as soon as it is measured, so a run that was stopped
goes on; `docs/recovery.md` and its figure are drawn from it.

Last line: `recovery CELLS`, how many cells are measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

from shared.recovered import EXPERIMENTS, Measured, draw, pair
from shared.recovery import BETTER, EPOCHS, LENGTH, STORE, Race, plus

from laco.recipe import (
    Calibration,
    Collapse,
    Compensate,
    Finetune,
    Magnitude,
    Prune,
    SparseGPT,
    Step,
    Wanda,
)
from laco.store import RunStore

DOCS = Path(__file__).parent.parent / "docs"
KEPT = DOCS / "recovery.json"
METHODS = {"Wanda": Wanda, "SparseGPT": SparseGPT, "magnitude": Magnitude}
LEVELS: dict[str, dict[str, Any]] = {
    "50 %": {"sparsity": 0.5},
    "2:4": {"pattern": "2:4"},
    "60 %": {"sparsity": 0.6},
    "70 %": {"sparsity": 0.7},
}
WINDOWS = 16
Cell = tuple[Step, tuple[Step, ...]]  # what is done to the model, and how it is brought back


def learned(text: str, windows: int = WINDOWS) -> Calibration:
    return Calibration(source=f"{text}@calibration", windows=windows, length=LENGTH)


def ways(text: Calibration, paper: bool) -> dict[str, tuple[Step, ...]]:
    """Each way to bring a model back, by name."""
    compensate, tune = plus(text)
    found: dict[str, tuple[Step, ...]] = {"nothing": ()}
    if paper:
        fields = {"mode": "paper", "epochs": EPOCHS, "calibration": text}
        found["paper mode"] = (Compensate.model_validate(fields),)
    found["laco+"] = (compensate, tune)
    found["LoRA"] = (Finetune(learning_rate=BETTER, epochs=EPOCHS, calibration=text),)
    return found


def cells(experiment: str, text: str) -> dict[str, Cell]:
    """The cells of one experiment by name, `changed model | way back`."""
    base = learned(text)
    half = Prune(method=Wanda(), calibration=base)
    found: dict[str, Cell] = {}
    if experiment == "prune":
        for method, kind in METHODS.items():
            for level, fields in LEVELS.items():
                change = Prune(method=kind.model_validate(fields), calibration=base)
                for way, steps in ways(base, paper=True).items():
                    found[f"{method} {level} | {way}"] = (change, steps)
    elif experiment == "collapse":
        for layers in (24, 21):
            for way, steps in ways(base, paper=False).items():
                found[f"{layers} layers | {way}"] = (Collapse(target_layers=layers), steps)
    elif experiment == "windows":
        for windows in (8, 32, 128, 200, 512):
            for way, steps in ways(learned(text, windows), paper=False).items():
                if way == "LoRA" or (way == "laco+" and windows != 200):
                    found[f"{windows} windows | {way}"] = (half, steps)
    else:
        compensate, tune = plus(base)
        variants: dict[str, tuple[Step, ...]] = {
            "everything": (compensate, tune),
            "no tuning": (compensate,),
            "least squares alone": (compensate.model_copy(update={"epochs": 0}),),
            "tuning alone": (tune,),
            "least squares, tuning": (
                compensate.model_copy(update={"epochs": 0}),
                tune,
            ),
            "KL in place of cross-entropy": (
                compensate,
                tune.model_copy(update={"loss": "kl"}),
            ),
            "four epochs, no tuning": (compensate.model_copy(update={"epochs": 4}),),
            "alpha 0.5, no tuning": (compensate.model_copy(update={"alpha": 0.5}),),
            "alpha 0, no tuning": (compensate.model_copy(update={"alpha": 0.0}),),
        }
        found |= {f"Wanda 50 % | {way}": (half, steps) for way, steps in variants.items()}
    return found


def about() -> str:
    """How it was measured, the page's first words."""
    return (
        f"SmolLM2-135M, {WINDOWS} windows of {LENGTH} tokens where nothing else is said; LoRA with "
        f"a learning rate of {BETTER:g}, the best of {EPOCHS} epochs, merged under the mask; the "
        f"paper's mode with {EPOCHS} epochs. Made by `bench/recovery.py`; what is not there has "
        "not been measured yet. What each way takes is in `performance.md`."
    )


def read() -> dict[str, Any]:
    """What was measured so far, by this process or by another beside it."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {"cells": {}}


def write(document: dict[str, Any], text: str) -> None:
    """Keep it, in the order of `cells`, and draw the page."""
    found = document["cells"]
    document["cells"] = {
        experiment: {name: done[name] for name in cells(experiment, text) if name in done}
        for experiment in EXPERIMENTS
        if (done := found.get(experiment))
    }
    KEPT.write_text(json.dumps(document, indent=1) + "\n")
    draw(Measured(document["original"], document["texts"], document["cells"]), DOCS, about())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default="bundled:wikipedia", help="a corpus with two parts")
    parser.add_argument("--wikitext", help="WikiText-2's test text as a file")
    parser.add_argument(
        "--only",
        action="append",
        metavar="START",
        help='cells that begin so, "prune | Wanda"; two processes can share the work',
    )
    parser.add_argument("--draw", action="store_true", help="only draw the page again")
    given = parser.parse_args()
    wanted = [
        (experiment, name, cell)
        for start in ([] if given.draw else given.only or [""])
        for experiment in EXPERIMENTS
        for name, cell in cells(experiment, given.text).items()
        if f"{experiment} | {name}".startswith(start)
        and name not in read()["cells"].get(experiment, {})
    ]
    for change, group in groupby(wanted, key=lambda entry: entry[2][0]):
        with tempfile.TemporaryDirectory(dir=STORE) as folder:
            race = Race(RunStore(folder), change, given.text, given.wikitext, WINDOWS)
            for experiment, name, (_, steps) in group:
                cell = list(race.after(*steps).perplexity)
                document = read()
                if "original" not in document:
                    names = [m.source.rpartition("/")[2].partition("@")[0] for m in race.measures]
                    document["texts"] = names
                    document["original"] = list(race.original().perplexity)
                document["cells"].setdefault(experiment, {})[name] = cell
                write(document, given.text)
                print(f"{experiment}: {name}: {pair(cell)}", flush=True)
    document = read()
    if given.draw:
        write(document, given.text)
    print(f"recovery {sum(map(len, document['cells'].values()))}")


if __name__ == "__main__":
    main()
