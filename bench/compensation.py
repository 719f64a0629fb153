"""How much of what Wanda at 50 % loses comes back: layer-wise compensation against LoRA.

SmolLM2, 64 windows of 256 tokens for both. The share of the perplexity gap (pruned to original)
that is closed, averaged over held-out text of the same kind and WikiText-2. laco+ is the preset
`laco-plus`: compensation, then a short tuning in low rank, merged under the mask. LoRA is
r 8 on the same windows, the better of two learning rates and the best of its epochs, merged under
the mask as well, so that both files have the same zeros. Above the last line: LoRA with its
adapters kept apart, compensation without the tuning, seconds and peak memory; with
`--paper` also the paper's mode on the same windows.

    python bench/compensation.py --text file:c4.txt --wikitext wiki.test.raw

Without `--text` the bundle's Wikipedia text is used, and without `--wikitext` that text alone.

Last line: `compensation RATIO`, laco+'s share over LoRA's; it should be at least 1.10.
"""

from __future__ import annotations

import tempfile

from shared.recovery import Race, parser, ratio, sides, told

from laco.recipe import Calibration, Compensate, Prune, Wanda
from laco.store import RunStore


def main() -> None:
    options = parser(__doc__, quick="8 windows, one epoch")
    options.add_argument("--paper", action="store_true", help="also the paper's mode, slowest")
    given = options.parse_args()
    windows = 8 if given.quick else 64
    learned = Calibration(source=f"{given.text}@calibration", windows=windows)
    change = Prune(method=Wanda(sparsity=0.5), calibration=learned)
    with tempfile.TemporaryDirectory() as folder:
        race = Race(RunStore(folder), change, given.text, given.wikitext, windows)
        found = sides(race, "Wanda 50 %", given.quick)
        if given.paper:
            paper = Compensate.model_validate({"mode": "paper", "calibration": race.text})
            found["paper mode, same windows"] = race.after(paper)
        told(race, found)
    seconds = found["laco+"].seconds / found["LoRA, merged"].seconds
    print(f"laco+ took {seconds:.2f} of LoRA's time (limit 2)")
    print(f"compensation {ratio(found):.3f}")


if __name__ == "__main__":
    main()
