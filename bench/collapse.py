"""What a collapse of SmolLM2 to 21 of 30 layers costs in perplexity, by order of search.

Best-first (KL, drop), the paper's Algorithm 1 (C = 4, I = 2, ten sentences, telescoped, its
threshold bisected to 21 layers), ShortGPT and angular, each on the bundle's calibration text and
measured on its held-out Wikipedia text, with the seconds that each search took.

Last line: `collapse RATIO`, best-first's perplexity over the original's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from laco import corpora, models
from laco.collapse import plan_collapse
from laco.context import Context
from laco.evaluate import evaluate
from laco.evaluations import Perplexity
from laco.merging import apply_edit
from laco.recipe import Collapse, ModelRef

STORE = Path(__file__).parent.parent / "cache"
LAYERS = 21


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half of the text to search on")
    quick = parser.parse_args().quick
    measure = Perplexity(window=256, windows=16 if quick else 32)
    best_first = Collapse(target_layers=LAYERS)
    if quick:
        shorter = best_first.calibration.model_copy(update={"length": 128})
        best_first = best_first.model_copy(update={"calibration": shorter})
    steps = {
        "best-first KL, drop": best_first,
        "Algorithm 1, telescoped": Collapse(
            order="top_down", span=4, interval=2, target_layers=LAYERS, merge="telescoped"
        ),
        "ShortGPT": Collapse(order="influence", target_layers=LAYERS),
        "angular": Collapse(order="angular", target_layers=LAYERS),
    }
    context = Context()
    ref = models.pin(ModelRef(path=models.BUNDLED), STORE)
    (dense,) = evaluate(models.load(ref, STORE, "cpu"), measure, context).metrics
    print(f"{'order':26} {'layers':>6} {'perplexity':>12} {'ratio':>9} {'search s':>9}")
    print(f"{'original':26} {30:6} {dense.value:12.2f} {1:9.3f}")
    ratios = {}
    for name, step in steps.items():
        lm = models.load(ref, STORE, "cpu")
        plan = plan_collapse(lm, step, corpora.windows(step.calibration, lm.tokenizer), context)
        report = apply_edit(lm.layers, plan.as_step(step))
        (found,) = evaluate(lm, measure, context).metrics
        ratios[name] = found.value / dense.value
        print(
            f"{name:26} {report['layers_after']:6} {found.value:12.2f} {ratios[name]:9.3f} "
            f"{plan.seconds_search:9.1f}   without {report['removed']}"
        )
    print(f"collapse {ratios['best-first KL, drop']:.3f}")


if __name__ == "__main__":
    main()
