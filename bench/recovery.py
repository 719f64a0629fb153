"""The experiments on bringing models back: what is lost, and how much of it each way returns.

SmolLM2; perplexity on held-out text of the kind learned from and on WikiText-2.

- prune: {magnitude, Wanda, SparseGPT} × {50, 60, 70 %, 2:4} × {nothing, paper mode, laco+, LoRA}
- collapse: best-first to 24 and 21 layers × {nothing, laco+, LoRA}
- windows: laco+ and LoRA on 8, 32, 128 and 512 windows after Wanda at 50 %
- parts: laco+ without its least squares, its gradient, its tuning; with other targets

    python bench/recovery.py --text file:c4.txt --wikitext wiki.test.raw [--only prune]

Hours on a CPU, so that most of it learns from 16 windows, and LoRA with one learning rate: the
better of the two in `compensation.py` and `collapse_compensation.py`, which learn from 64 and tell
times. Each cell goes to `docs/recovery.json` as soon as it is measured, so a run that was stopped
goes on; `docs/recovery.md` is drawn from it.

Last line: `recovery CELLS`, how many cells are measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

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
METHODS = {"Wanda": Wanda, "SparseGPT": SparseGPT, "magnitude": Magnitude}
LEVELS: dict[str, dict[str, Any]] = {
    "50 %": {"sparsity": 0.5},
    "60 %": {"sparsity": 0.6},
    "70 %": {"sparsity": 0.7},
    "2:4": {"pattern": "2:4"},
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
        for windows in (8, 32, 128, 512):
            for way, steps in ways(learned(text, windows), paper=False).items():
                if steps:
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


EXPERIMENTS = ("prune", "collapse", "windows", "parts")


def page(measured: dict[str, Any]) -> str:
    """`recovery.md`: a table for each experiment."""
    lines = [
        "# What comes back, measured",
        "",
        f"SmolLM2-135M, {WINDOWS} windows of {LENGTH} tokens where nothing else is said; LoRA with "
        f"a learning rate of {BETTER:g}, the best of {EPOCHS} epochs, merged under the mask; the "
        f"paper's mode with {EPOCHS} epochs; "
        f"perplexity on {' / '.join(measured['texts'])}. Made by `bench/recovery.py`; what is not "
        "there has not been measured yet. What each way takes is in `performance.md`.",
        "",
        f"Original: {_pair(measured['original'])}.",
    ]
    for experiment in EXPERIMENTS:
        rows = measured["cells"].get(experiment, {})
        if rows:
            lines += ["", f"## {experiment}", "", "| model | way back | perplexity |"]
            lines += ["|---|---|---|"]
        for name, cell in rows.items():
            model, _, way = name.partition(" | ")
            numbers = _pair(cell)
            lines.append(f"| {model} | {way} | {numbers} |")
    return "\n".join(lines) + "\n"


def _pair(values: list[float]) -> str:
    return " / ".join(f"{value:,.2f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default="bundled:wikipedia", help="a corpus with two parts")
    parser.add_argument("--wikitext", help="WikiText-2's test text as a file")
    parser.add_argument("--only", choices=EXPERIMENTS, action="append")
    parser.add_argument("--draw", action="store_true", help="only draw the page again")
    given = parser.parse_args()
    kept = DOCS / "recovery.json"
    measured: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"cells": {}}

    def keep() -> None:
        kept.write_text(json.dumps(measured, indent=1) + "\n")
        (DOCS / "recovery.md").write_text(page(measured))

    for experiment in () if given.draw else given.only or EXPERIMENTS:
        done = measured["cells"].setdefault(experiment, {})
        missing = [(n, c) for n, c in cells(experiment, given.text).items() if n not in done]
        for change, group in groupby(missing, key=lambda cell: cell[1][0]):
            with tempfile.TemporaryDirectory(dir=STORE) as folder:
                race = Race(RunStore(folder), change, given.text, given.wikitext, WINDOWS)
                if "original" not in measured:
                    names = [m.source.rpartition("/")[2].partition("@")[0] for m in race.measures]
                    measured["texts"] = names
                    measured["original"] = list(race.original().perplexity)
                for name, (_, steps) in group:
                    done[name] = list(race.after(*steps).perplexity)
                    print(f"{experiment}: {name}: {_pair(done[name])}", flush=True)
                    keep()
    if given.draw:
        keep()
    print(f"recovery {sum(map(len, measured['cells'].values()))}")


if __name__ == "__main__":
    main()
