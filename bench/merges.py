"""The experiment that decides laco's defaults: how to merge, and in which order to search.

Four merges × {Algorithm 1, best-first KL, ShortGPT, angular} on SmolLM2 at 10 to 50 % fewer
layers; perplexity on the bundle's held-out Wikipedia text and on WikiText-2 from a file. Results
go to `docs/merges.json` one by one, so that a run that was stopped goes on; from them
`docs/merges.md` and `docs/merges.png` are drawn.

    python bench/merges.py --wikitext wiki.test.raw

Last line: `merges RATIO`, Algorithm 1's perplexity over best-first's at 30 % fewer layers, each
with its best merge.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, get_args

from laco import corpora, models
from laco.collapse import CollapsePlan, plan_collapse
from laco.context import Context
from laco.evaluate import evaluate
from laco.evaluations import Perplexity
from laco.merging import apply_merge
from laco.models import LoadedModel
from laco.recipe import Collapse, Merging, ModelRef

ROOT = Path(__file__).parent.parent
STORE = ROOT / "cache"
MERGES = get_args(Merging)
ORDERS = {
    "best_first": "best-first KL",
    "top_down": "Algorithm 1",
    "influence": "ShortGPT",
    "angular": "angular",
}
LAYERS = (27, 24, 21, 18, 15)  # of 30: 10, 20, 30, 40, 50 % fewer


class Experiment:
    """The cells measured so far, and what the others need."""

    def __init__(self, results: Path, wikitext: str | None, windows: int) -> None:
        self.results = results
        self.ref = models.pin(ModelRef(path=models.BUNDLED), STORE)
        self.measures = {"wikipedia": Perplexity(window=256, windows=windows)}
        if wikitext:
            self.measures["wikitext2"] = Perplexity(
                source=f"file:{wikitext}", window=256, windows=windows
            )
        self.cells: dict[str, Any] = {}
        if results.exists():
            self.cells = json.loads(results.read_text())["cells"]
        self.windows = windows

    def load(self) -> LoadedModel:
        return models.load(self.ref, STORE, "cpu")

    def measure(self, lm: LoadedModel) -> dict[str, float]:
        return {
            name: evaluate(lm, spec, Context(), None, None)[0].value
            for name, spec in self.measures.items()
        }

    def keep(self, name: str, cell: dict[str, Any]) -> None:
        self.cells[name] = cell
        document = {
            "model": models.BUNDLED,
            "window": 256,
            "windows": self.windows,
            "cells": self.cells,
        }
        self.results.write_text(json.dumps(document, indent=1) + "\n")
        print(name, {k: v for k, v in cell.items() if k != "spans"}, flush=True)

    def run(self, merge: Any, order: Any, layer_counts: tuple[int, ...]) -> None:
        """Measure one merge in one order at every number of layers."""
        missing = [n for n in layer_counts if f"{order} {merge} {n}" not in self.cells]
        if not missing:
            return
        if order == "best_first":  # one search passes through all numbers of layers
            plan = self.search(merge, order, min(missing))
            plans = {n: CollapsePlan(spans=plan.spans[: 30 - n]) for n in missing}
            for shorter in plans.values():
                shorter.seconds_search = plan.seconds_search
        else:
            plans = {n: self.search(merge, order, n) for n in missing}
        for n, plan in plans.items():
            lm = self.load()
            step = Collapse(order=order, merge=merge, target_layers=n)
            report = apply_merge(lm.layers, plan.as_step(step))
            cell = {
                "removed": report["removed"],
                "spans": plan.spans,
                "seconds_search": round(plan.seconds_search, 1),
                "threshold": plan.threshold,
                "perplexity": self.measure(lm),
            }
            self.keep(f"{order} {merge} {n}", cell)

    def search(self, merge: Any, order: Any, layers: int) -> CollapsePlan:
        step = Collapse(order=order, merge=merge, target_layers=layers)
        lm = self.load()
        return plan_collapse(lm, step, corpora.windows(step.calibration, lm.tokenizer), Context())


def table(cells: dict[str, Any], layer_counts: tuple[int, ...]) -> str:
    """Every cell as a row of Markdown, the original first."""
    dense = cells["original"]["perplexity"]
    heads = " | ".join(f"{n} layers" for n in layer_counts)
    lines = [
        f"Original, 30 layers: {_pair(dense)}.",
        "",
        f"| order | merge | {heads} |",
        "|---|---|" + "---|" * len(layer_counts),
    ]
    for order, title in ORDERS.items():
        for merge in MERGES:
            row = [cells.get(f"{order} {merge} {n}") for n in layer_counts]
            if not any(row):
                continue
            shown = [_pair(cell["perplexity"]) if cell else "not measured" for cell in row]
            lines.append(f"| {title} | `{merge}` | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _pair(perplexity: dict[str, float]) -> str:
    return " / ".join(f"{v:,.1f}" if v < 1000 else f"{v:,.0f}" for v in perplexity.values())


def figure(cells: dict[str, Any], layer_counts: tuple[int, ...], path: Path) -> None:
    """Perplexity against layers left, a panel an order, a line a merge."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    styles = dict(zip(MERGES, ("o-", "s--", "^-.", "D:"), strict=True))
    _, panels = plt.subplots(1, len(ORDERS), figsize=(14, 3.8), sharey=True)
    for panel, (order, title) in zip(panels, ORDERS.items(), strict=True):
        for merge in MERGES:
            found = [(n, cells.get(f"{order} {merge} {n}")) for n in layer_counts]
            points = [(n, cell["perplexity"]["wikipedia"]) for n, cell in found if cell]
            if points:
                panel.plot(*zip(*points, strict=True), styles[merge], label=merge)
        panel.axhline(cells["original"]["perplexity"]["wikipedia"], color="gray", linewidth=1)
        panel.set(title=title, xlabel="layers left of 30", yscale="log")
        panel.invert_xaxis()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("perplexity, held-out Wikipedia")
    panels[0].legend()
    plt.tight_layout()
    plt.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wikitext", required=True, help="wiki.test.raw of WikiText-2")
    parser.add_argument(
        "--quick", action="store_true", help="27 layers alone, a fourth of the text"
    )
    options = parser.parse_args()
    layer_counts = LAYERS[:1] if options.quick else LAYERS
    results = ROOT / ("cache/merges-quick.json" if options.quick else "docs/merges.json")
    experiment = Experiment(results, options.wikitext, windows=4 if options.quick else 16)
    started = time.perf_counter()
    if "original" not in experiment.cells:
        experiment.keep("original", {"perplexity": experiment.measure(experiment.load())})
    for order in ("influence", "angular", "top_down", "best_first"):
        for merge in reversed(MERGES):
            experiment.run(merge, order, layer_counts)
    print(f"{time.perf_counter() - started:.0f} s")
    text = table(experiment.cells, layer_counts)
    print(text)
    if not options.quick:
        (ROOT / "docs" / "merges.md").write_text(
            "# Merges and orders of search, measured\n\n"
            "SmolLM2-135M, perplexity on held-out Wikipedia / WikiText-2 test text, 16 windows of "
            "256 tokens each; made by `bench/merges.py`. What follows from it: "
            "[decisions/0003-defaults.md](decisions/0003-defaults.md).\n\n"
            f"{text}\n![Perplexity by layers left](merges.png)\n"
        )
        figure(experiment.cells, layer_counts, ROOT / "docs" / "merges.png")
    layers = layer_counts[min(2, len(layer_counts) - 1)]
    best = {
        order: min(
            experiment.cells[f"{order} {merge} {layers}"]["perplexity"]["wikipedia"]
            for merge in MERGES
        )
        for order in ("top_down", "best_first")
    }
    print(f"merges {best['top_down'] / best['best_first']:.2f}")


if __name__ == "__main__":
    main()
