"""How many windows LoRA needs to bring back what laco+ brings back from N.

SmolLM2 pruned by Wanda to 50 % with 64 windows. LoRA (r 8, the learning rate that was the better
one in `compensation.py`, the best of its epochs, merged under the mask) learns from 8, 40 and 200
windows of 256 tokens of text of another domain, as in the paper, and of the same text as laco+;
laco+ (the preset `laco-plus`) from each N. Where LoRA's shares of the perplexity gap reach laco+'s
is read between its points, or from the line through them where they do not; it is said which.

    python bench/samples.py --text file:c4.txt --wikitext wiki.test.raw --other file:stories.txt

Without them: the bundle's Wikipedia text, and its WikiHow instructions as the other domain. More
than two hours on one core; each perplexity goes to `docs/samples.json` as soon as it is measured,
so a run that was stopped goes on. Delete that file to measure anew.

Last line: `samples FACTOR`, the most windows of the other domain over N that one of laco+'s N was
worth to LoRA, counted only as far as LoRA was measured.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shared.recovered import Growth, pair
from shared.recovery import BETTER, EPOCHS, Race, Result, best_lora, parser, plus, share

from laco.recipe import Calibration, Prune, Wanda
from laco.store import RunStore

KEPT = Path(__file__).parent.parent / "docs" / "samples.json"
COUNTS = (8, 16)  # laco+'s; LoRA's fewest are no more than these
POINTS = (8, 40, 200)  # LoRA's; the next, five times as many, takes hours


def short(source: str) -> str:
    """What a text is called, without its folder."""
    return source.rpartition("/")[2].partition("@")[0]


def kept(path: Path, name: str, measure: Callable[[], Result]) -> Result:
    """What was measured under this name, read from the file or measured now and written to it."""
    cells = json.loads(path.read_text()) if path.exists() else {}
    if name not in cells:
        cells[name] = list(measure().perplexity)
        path.write_text(json.dumps(cells, indent=1) + "\n")
    print(f"{name}: {pair(cells[name])}", flush=True)
    return Result(tuple(cells[name]))


def main() -> None:
    options = parser(__doc__, quick="laco+ on 4 windows, LoRA on 4 and 20, one epoch; nothing kept")
    options.add_argument(
        "--other", default="bundled:wikihow", help="LoRA's text, of another domain"
    )
    given = options.parse_args()
    counts, points, epochs = ((4,), (4, 20), 1) if given.quick else (COUNTS, POINTS, EPOCHS)
    same = f"{given.text}@calibration"  # the other domain is taken whole: nothing is measured on it
    change = Prune(method=Wanda(), calibration=Calibration(source=same, windows=64))
    with tempfile.TemporaryDirectory() as folder:
        race = Race(RunStore(folder), change, given.text, given.wikitext, points[0])
        path = Path(folder) / "samples.json" if given.quick else KEPT
        dense = kept(path, "original", race.original)
        pruned = kept(path, "Wanda 50 %", race.after)

        def ours(windows: int) -> Result:
            return race.after(*plus(Calibration(source=same, windows=windows)))

        def theirs(source: str, windows: int) -> Result:
            race.after()  # whose files LoRA starts from
            race.text = Calibration(source=source, windows=windows)
            return best_lora(race, (BETTER,), epochs, pruned, dense, log=False)[0]

        wanted: dict[int, float] = {}
        for count in counts:
            name = f"laco+ on {count} windows of {short(same)}"
            wanted[count] = share(kept(path, name, partial(ours, count)), pruned, dense)
            print(f"  closes {wanted[count]:.1%}", flush=True)
        best = 0.0
        for source in (given.other, same):
            shares: list[float] = []
            for windows in points:
                name = f"LoRA on {windows} windows of {short(source)}"
                cell = kept(path, name, partial(theirs, source, windows))
                shares.append(share(cell, pruned, dense))
                print(f"  closes {shares[-1]:.1%}", flush=True)
            growth = Growth(list(points), shares)
            for count, reached in wanted.items():
                needed, beyond = growth.needed(reached)
                how = "from the line, not measured" if beyond else "interpolated"
                times = needed / count
                print(f"N {count}: {times:.1f} times as many of {short(source)} ({how})")
                if source == given.other:
                    best = max(best, min(needed, points[-1]) / count)
    print(f"samples {best:.1f}")


if __name__ == "__main__":
    main()
