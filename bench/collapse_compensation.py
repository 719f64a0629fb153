"""How much of what a collapse to 21 layers loses comes back: compensation against LoRA.

SmolLM2 of 30 layers, collapsed best-first by KL; then 64 windows of 256 tokens for both sides. The
share of the gap in log perplexity (collapsed to original) that is closed, averaged over held-out
text of the same kind and WikiText-2. laco+ and LoRA are as in `compensation.py`; without `--text`
the bundle's Wikipedia text is used, and without `--wikitext` that text alone.

Last line: `collapse_compensation RATIO`, laco+'s share over LoRA's; it should be at least 1.0.
"""

from __future__ import annotations

import tempfile

from shared.recovery import Race, parser, ratio, sides, told

from laco.recipe import Collapse
from laco.store import RunStore


def main() -> None:
    given = parser(__doc__, quick="8 windows, one epoch, 27 layers").parse_args()
    windows, layers = (8, 27) if given.quick else (64, 21)
    change = Collapse(target_layers=layers)
    with tempfile.TemporaryDirectory() as folder:
        race = Race(RunStore(folder), change, given.text, given.wikitext, windows)
        found = sides(race, "collapsed", given.quick, log=True)
        told(race, found, log=True)
    seconds = found["laco+"].seconds / found["LoRA, merged"].seconds
    print(f"laco+ took {seconds:.2f} of LoRA's time")
    print(f"collapse_compensation {ratio(found, log=True):.3f}")


if __name__ == "__main__":
    main()
