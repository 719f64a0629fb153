"""How many windows LoRA needs to bring back what laco+ brings back from N.

SmolLM2 pruned by Wanda to 50 % with 64 windows. LoRA (r 8, the learning rate that was the better
one in `compensation.py`, the best of its epochs, merged under the mask) learns from 8, 40 and 200
windows of 256 tokens of text of another domain, as in the paper, and of the same text as laco+;
laco+ (the preset `laco-plus`) from each N. Where LoRA's shares of the perplexity gap reach laco+'s
is read between its points, or from the line through them where they do not; it is said which.

    python bench/samples.py --text file:c4.txt --wikitext wiki.test.raw --other file:stories.txt

Without them: the bundle's Wikipedia text, and its WikiHow instructions as the other domain. More
than two hours on one core.

Last line: `samples FACTOR`, the most windows of the other domain over N that one of laco+'s N was
worth to LoRA, counted only as far as LoRA was measured.
"""

from __future__ import annotations

import tempfile

from shared.recovered import Growth
from shared.recovery import BETTER, EPOCHS, Race, best_lora, parser, plus, share

from laco.recipe import Calibration, Prune, Wanda
from laco.store import RunStore

COUNTS = (8, 16)  # laco+'s; LoRA's fewest are no more than these
POINTS = (8, 40, 200)  # LoRA's; the next, five times as many, takes hours


def main() -> None:
    options = parser(__doc__, quick="laco+ on 4 windows, LoRA on 4 and 20, one epoch")
    options.add_argument(
        "--other", default="bundled:wikihow", help="LoRA's text, of another domain"
    )
    given = options.parse_args()
    counts, points, epochs = ((4,), (4, 20), 1) if given.quick else (COUNTS, POINTS, EPOCHS)
    same = f"{given.text}@calibration"  # the other domain is taken whole: nothing is measured on it
    change = Prune(method=Wanda(), calibration=Calibration(source=same, windows=64))
    with tempfile.TemporaryDirectory() as folder:
        race = Race(RunStore(folder), change, given.text, given.wikitext, points[0])
        dense, pruned = race.original(), race.after()
        ours: dict[int, float] = {}
        for count in counts:
            after = race.after(*plus(Calibration(source=same, windows=count)))
            ours[count] = share(after, pruned, dense)
            print(f"laco+ on {count} windows closes {ours[count]:.1%}", flush=True)
        best = 0.0
        for source in (given.other, same):
            shares: list[float] = []
            for windows in points:
                race.text = Calibration(source=source, windows=windows)
                lora, _ = best_lora(race, (BETTER,), epochs, pruned, dense, log=False)
                shares.append(share(lora, pruned, dense))
                print(f"LoRA on {windows} windows of {source} closes {shares[-1]:.1%}", flush=True)
            growth = Growth(list(points), shares)
            for count, wanted in ours.items():
                needed, beyond = growth.needed(wanted)
                how = "from the line, not measured" if beyond else "interpolated"
                times = needed / count
                print(f"N {count}: {times:.1f} times as many of {source} ({how})", flush=True)
                if source == given.other:
                    best = max(best, min(needed, points[-1]) / count)
    print(f"samples {best:.1f}")


if __name__ == "__main__":
    main()
