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
from laco.collapse import plan_collapse
from laco.context import Context
from laco.evaluate import evaluate
from laco.evaluations import Perplexity
from laco.merging import apply_edit
from laco.models import LoadedModel
from laco.recipe import Calibration, Collapse, Merge, Merging, ModelRef

ROOT = Path(__file__).parent.parent
STORE = ROOT / "cache"
MERGES = get_args(Merging)
ORDERS = {
    "best_first": "best-first KL",
    "top_down": "Algorithm 1",
    "influence": "ShortGPT",
    "angular": "angular",
}
SHORT = Calibration(windows=4, length=128)  # half of the default: four searches in minutes
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
        self.windows = windows
        self.plans: dict[str, Any] = {}
        self.cells: dict[str, Any] = {}
        if results.exists():
            document = json.loads(results.read_text())
            self.plans, self.cells = document["plans"], document["cells"]

    def save(self) -> None:
        document = {
            "model": models.BUNDLED,
            "window": 256,
            "windows": self.windows,
            "plans": self.plans,
            "cells": self.cells,
        }
        self.results.write_text(json.dumps(document, indent=1) + "\n")

    def load(self) -> LoadedModel:
        return models.load(self.ref, STORE, "cpu")

    def plan(self, order: Any, merge: Any, layer_counts: tuple[int, ...]) -> None:
        """Search for every number of layers, unless that was done before."""
        names = {n: f"{order} {merge} {n}" for n in layer_counts}
        if order in ("influence", "angular") and merge != "drop":  # they look at no merge
            self.plans |= {names[n]: self.plans[f"{order} drop {n}"] for n in layer_counts}
        missing = [n for n in layer_counts if names[n] not in self.plans]
        # One best-first search passes through all numbers of layers on its way to the least.
        searches = [min(missing)] if missing and order == "best_first" else missing
        for layers in searches:
            fields = {"order": order, "merge": merge, "target_layers": layers}
            if order == "best_first":
                fields["calibration"] = SHORT
            step = Collapse.model_validate(fields)
            lm = self.load()
            windows = corpora.windows(step.calibration, lm.tokenizer)
            found = plan_collapse(lm, step, windows, Context())
            for n in missing if order == "best_first" else [layers]:
                self.plans[names[n]] = {
                    "spans": found.spans[: len(lm.layers) - n] if n > layers else found.spans,
                    "threshold": found.threshold,
                }
            print(f"{order} {merge} {layers}: searched {found.seconds_search:.1f} s", flush=True)
            self.save()

    def measure(self, name: str) -> None:
        """The perplexity of one plan's model ("original": of the model as it is)."""
        if name in self.cells and self.cells[name].keys() >= self.measures.keys():
            return
        lm = self.load()
        if name != "original":
            _, merge, _ = name.split()
            fields = {"merge": merge, "spans": self.plans[name]["spans"]}
            apply_edit(lm.layers, Merge.model_validate(fields))
        self.cells[name] = {
            text: evaluate(lm, spec, Context()).metrics[0].value
            for text, spec in self.measures.items()
        }
        print(name, self.cells[name], flush=True)
        self.save()


def table(cells: dict[str, Any], layer_counts: tuple[int, ...]) -> str:
    """Every cell as a row of Markdown, the original first."""
    dense = cells["original"]
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
            shown = [_pair(cell) if cell else "not measured" for cell in row]
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
            points = [(n, cell["wikipedia"]) for n, cell in found if cell]
            if points:
                panel.plot(*zip(*points, strict=True), styles[merge], label=merge)
        panel.axhline(cells["original"]["wikipedia"], color="gray", linewidth=1)
        panel.set(title=title, xlabel="layers left of 30", yscale="log")
        panel.invert_xaxis()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("perplexity, held-out Wikipedia")
    panels[0].legend()
    plt.tight_layout()
    plt.savefig(path, dpi=110)


def draw(cells: dict[str, Any], text: str) -> None:
    """Write `docs/merges.md` and its figure."""
    (ROOT / "docs" / "merges.md").write_text(
        "# Merges and orders of search, measured\n\n"
        "SmolLM2-135M, perplexity on held-out Wikipedia / WikiText-2 test text, 8 windows of 256 "
        "tokens each. Best-first searched on 4 windows of 128 tokens, the others on their "
        "defaults. Made by `bench/merges.py`. What follows from it: "
        "[decisions/0003-defaults.md](decisions/0003-defaults.md).\n\n"
        f"{text}\n![Perplexity by layers left](merges.png)\n"
    )
    figure(cells, LAYERS, ROOT / "docs" / "merges.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wikitext", help="wiki.test.raw of WikiText-2, to measure on it too")
    parser.add_argument(
        "--quick", action="store_true", help="27 layers alone, a fourth of the text"
    )
    options = parser.parse_args()
    layer_counts = LAYERS[:1] if options.quick else LAYERS
    results = ROOT / ("cache/merges-quick.json" if options.quick else "docs/merges.json")
    experiment = Experiment(results, options.wikitext, windows=4 if options.quick else 8)
    started = time.perf_counter()
    for order in ORDERS:
        for merge in reversed(MERGES):
            experiment.plan(order, merge, layer_counts)
    experiment.measure("original")
    for layers in layer_counts:
        for order in ORDERS:
            for merge in reversed(MERGES):
                experiment.measure(f"{order} {merge} {layers}")
    print(f"{time.perf_counter() - started:.0f} s")
    text = table(experiment.cells, layer_counts)
    print(text)
    if not options.quick:
        draw(experiment.cells, text)
    layers = layer_counts[min(2, len(layer_counts) - 1)]
    best = {
        order: min(experiment.cells[f"{order} {merge} {layers}"]["wikipedia"] for merge in MERGES)
        for order in ("top_down", "best_first")
    }
    print(f"merges {best['top_down'] / best['best_first']:.2f}")


if __name__ == "__main__":
    main()
