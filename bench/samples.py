"""How many windows LoRA needs to bring back what laco+ brings back from N.

SmolLM2 pruned by Wanda to 50 %. laco+ (the preset `laco-plus`) learns from N windows of 256 tokens
of the text; LoRA (r 8, the learning rate that was the better one in `compensation.py`, the best of
its epochs, merged under the mask) from 1, 5 and 25 times as many of text of another domain, as in
the paper, and of the same text. N is the least of 4, 8 and 16 for which laco+ closes as much of the
perplexity gap as LoRA on 25 N windows of the other domain; the table shows all that was measured on
the way.

    python bench/samples.py --text file:c4.txt --wikitext wiki.test.raw --other file:stories.txt

Without them: the bundle's Wikipedia text, and its WikiHow instructions as the other domain.

Last line: `samples FACTOR`, the windows of the other domain on which LoRA closes as much, over N:
interpolated between the measured ones on a logarithmic axis, and at most 25, where it was not tried
further.
"""

from __future__ import annotations

import tempfile

from shared.recovery import (
    BETTER,
    EPOCHS,
    Race,
    Result,
    best_lora,
    crossing,
    parser,
    plus,
    share,
)

from laco.recipe import Calibration, Prune, Wanda
from laco.store import RunStore

FACTORS = (1, 5, 25)


def main() -> None:
    options = parser(__doc__, quick="N is 4, factors 1 and 5, one epoch")
    options.add_argument(
        "--other", default="bundled:wikihow", help="LoRA's text, of another domain"
    )
    given = options.parse_args()
    counts, factors = ((4,), FACTORS[:2]) if given.quick else ((4, 8, 16), FACTORS)
    epochs = 1 if given.quick else EPOCHS
    change = Prune(
        method=Wanda(), calibration=Calibration(source=f"{given.text}@calibration", windows=64)
    )
    found = 0.0
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(folder)
        for count in counts:
            race = Race(store, change, given.text, given.wikitext, count)
            dense, pruned = race.original(), race.after()
            wanted = share(race.after(*plus(race.text)), pruned, dense)
            print(f"laco+ on {count} windows closes {wanted:.1%}", flush=True)
            by_text: dict[str, float] = {}
            for name, source in (("other", given.other), ("same", given.text)):
                shares: list[float] = []
                for times in factors:
                    race.text = Calibration(source=f"{source}@calibration", windows=count * times)
                    lora: Result
                    lora, _ = best_lora(race, (BETTER,), epochs, pruned, dense, log=False)
                    shares.append(share(lora, pruned, dense))
                    print(
                        f"LoRA on {count * times} windows of {source} closes {shares[-1]:.1%}",
                        flush=True,
                    )
                reached = crossing(wanted, factors, shares)
                by_text[name] = factors[-1] if reached is None else reached
                if name == "other" and shares[-1] > wanted and count != counts[-1]:
                    break  # LoRA on the most windows is ahead: a larger N
            found = by_text["other"]
            if "same" in by_text:
                print(f"N {count}; on equal text the factor is {by_text['same']:.1f}")
                break
    print(f"samples {found:.1f}")


if __name__ == "__main__":
    main()
