"""How much of what Wanda at 50 % loses comes back: layer-wise compensation against LoRA.

SmolLM2, 64 windows of 256 tokens for both. The share of the perplexity gap (pruned to original)
that is closed, averaged over held-out text of the same kind and WikiText-2. laco+ is the preset
`laco-plus`: compensation, then a short distillation in low rank, merged under the mask. LoRA is
r 8 on the same windows, the better of two learning rates and the best of its epochs, merged under
the mask as well, so that both files have the same zeros. Above the last line: LoRA with its
adapters kept apart, compensation without the distillation, seconds and peak memory; with
`--paper` also the paper's mode on the same windows.

    python bench/compensation.py --text file:c4.txt --wikitext wiki.test.raw

Without `--text` the bundle's Wikipedia text is used, and without `--wikitext` that text alone.

Last line: `compensation RATIO`, laco+'s share over LoRA's; it should be at least 1.10.
"""

from __future__ import annotations

import argparse
import tempfile

from shared.recovery import EPOCHS, RATES, Race, best_lora, plus, share, told

from laco.recipe import Calibration, Compensate, Prune, Wanda
from laco.store import RunStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8 windows, one epoch")
    parser.add_argument("--text", default="bundled:wikipedia", help="a corpus with two parts")
    parser.add_argument("--wikitext", help="WikiText-2's test text as a file")
    parser.add_argument("--paper", action="store_true", help="also the paper's mode, slowest")
    given = parser.parse_args()
    windows, epochs, rates = (8, 1, RATES[:1]) if given.quick else (64, EPOCHS, RATES)
    learned = Calibration(source=f"{given.text}@calibration", windows=windows)
    change = Prune(method=Wanda(sparsity=0.5), calibration=learned)
    with tempfile.TemporaryDirectory() as folder:
        race = Race(RunStore(folder), change, given.text, given.wikitext, windows)
        dense, pruned = race.original(), race.after()
        found = {"original": dense, "Wanda 50 %": pruned}
        compensate, *distil = plus(race.text)
        found["laco+, compensation alone"] = race.after(compensate)
        found["laco+"] = race.after(compensate, *distil)
        lora, apart = best_lora(race, rates, epochs, pruned, dense, log=False)
        found |= {"LoRA, merged under the mask": lora, "LoRA, adapters apart": apart}
        if given.paper:
            paper = Compensate.model_validate({"mode": "paper", "calibration": race.text})
            found["paper mode, same windows"] = race.after(paper)
        told(race, found)
    print(f"laco+ took {found['laco+'].seconds / lora.seconds:.2f} of LoRA's time (limit 2)")
    print(f"compensation {share(found['laco+'], pruned, dense) / share(lora, pruned, dense):.3f}")


if __name__ == "__main__":
    main()
