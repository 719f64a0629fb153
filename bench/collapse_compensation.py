"""How much of what a collapse to 21 layers loses comes back: compensation against LoRA.

SmolLM2 of 30 layers, collapsed best-first by KL; then 64 windows of 256 tokens for both sides. The
share of the gap in log perplexity (collapsed to original) that is closed, averaged over held-out
text of the same kind and WikiText-2. laco+ and LoRA are as in `compensation.py`; without `--text`
the bundle's Wikipedia text is used, and without `--wikitext` that text alone.

Last line: `collapse_compensation RATIO`, laco+'s share over LoRA's; it should be at least 1.0.
"""

from __future__ import annotations

import argparse
import tempfile

from shared.recovery import EPOCHS, RATES, Race, best_lora, plus, share, told

from laco.recipe import Collapse
from laco.store import RunStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8 windows, one epoch, 27 layers")
    parser.add_argument("--text", default="bundled:wikipedia", help="a corpus with two parts")
    parser.add_argument("--wikitext", help="WikiText-2's test text as a file")
    given = parser.parse_args()
    windows, epochs, rates = (8, 1, RATES[:1]) if given.quick else (64, EPOCHS, RATES)
    change = Collapse(target_layers=27 if given.quick else 21)
    with tempfile.TemporaryDirectory() as folder:
        race = Race(RunStore(folder), change, given.text, given.wikitext, windows)
        original, collapsed = race.original(), race.after()
        found = {"original": original, "collapsed": collapsed}
        compensate, *distil = plus(race.text)
        found["laco+, compensation alone"] = race.after(compensate)
        found["laco+"] = race.after(compensate, *distil)
        lora, apart = best_lora(race, rates, epochs, collapsed, original, log=True)
        found |= {"LoRA, merged": lora, "LoRA, adapters apart": apart}
        told(race, found, log=True)
    print(f"laco+ took {found['laco+'].seconds / lora.seconds:.2f} of LoRA's time")
    closed = [share(result, collapsed, original, log=True) for result in (found["laco+"], lora)]
    print(f"collapse_compensation {closed[0] / closed[1]:.3f}")


if __name__ == "__main__":
    main()
