"""Recovery methods side by side on one changed model: what `compensation.py` and others measure.

All get the same windows and start from the same files. Perplexities are of the saved model, except
where LoRA's adapters are kept apart, which no file holds. After each way back the zeros in the
saved files are counted, and a run ends where they are not the share that was asked for.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laco import corpora, engine, models
from laco.context import Context
from laco.evaluate import evaluate
from laco.evaluations import Perplexity, Request
from laco.finetune import merge_adapters, train_adapters
from laco.layers import linears
from laco.memory import peak_memory
from laco.presets import presets
from laco.recipe import Calibration, Compensate, Finetune, ModelRef, Prune, Recipe, Step
from laco.steps.sparsity import Sparse
from laco.store import RunStore

STORE = Path(__file__).parents[2] / "cache"
RATES = (5e-4, 1e-3)  # LoRA's; the better one counts
BETTER = RATES[1]  # of them, in `compensation.py` and `collapse_compensation.py`
EPOCHS = 3  # LoRA's; the best one counts
LENGTH = 256
MEGABYTE = 1 << 20
OFF = 1e-3  # how far the share of zeros may be from the one asked for


@dataclass
class Result:
    """One way to bring the model back: perplexities by text, seconds and peak bytes it took."""

    perplexity: tuple[float, ...]
    seconds: float = 0.0
    peak: int = 0


class Race:
    """The changed model and the text that all sides get."""

    def __init__(
        self, store: RunStore, change: Step, text: str, wikitext: str | None, windows: int
    ) -> None:
        self.store, self.change = store, change
        pinned = models.pin(ModelRef(path=models.BUNDLED), STORE)
        folder = models.folder_of(pinned, STORE)
        self.model = models.pin(ModelRef(path=str(folder)), STORE)
        self.text = Calibration(source=f"{text}@calibration", windows=windows)
        sources = [f"{text}@heldout", *([f"file:{wikitext}"] if wikitext else [])]
        self.measures = tuple(Perplexity(source=source, window=LENGTH) for source in sources)

    def original(self) -> Result:
        """The untouched model."""
        return self._run(())

    def after(self, *steps: Step) -> Result:
        """The changed model after these steps, and what they took."""
        return self._run((self.change, *steps))

    def _run(self, steps: tuple[Step, ...]) -> Result:
        recipe = Recipe(model=self.model, steps=steps)
        request = Request(recipe=recipe, evaluations=self.measures)
        report = engine.run(request, self.store, Context())
        method = self.change.method if isinstance(self.change, Prune) else None
        if steps and isinstance(method, Sparse):
            self._count_zeros(recipe.key, method.sparsity)
        after = report["steps"][1:]
        return Result(
            tuple(metric["value"] for metric in report["metrics"]),
            sum(step["seconds"] for step in after),
            max((step["peak_bytes"] for step in after), default=0),
        )

    def lora(self, rate: float, epochs: int) -> tuple[Result, Result]:
        """LoRA merged (where weights are zero they stay so), and with its adapters apart."""
        step = Finetune(learning_rate=rate, epochs=epochs, calibration=self.text)
        lm = self._saved(Recipe(model=self.model, steps=(self.change,)).key)
        _, train, held_out = corpora.learning(self.text, step.held_out, lm.tokenizer)
        with peak_memory("cpu") as peak:
            adapters, report = train_adapters(lm, step, train, held_out, Context(), None)
        seconds = report["seconds"]
        apart = Result(self._measured(lm), seconds, peak.peak)
        merge_adapters(lm, adapters, keep_zeros=True)
        print(f"  LoRA {rate:g}: best epoch {report['best_epoch']} of {epochs}", flush=True)
        return Result(self._measured(lm), seconds, peak.peak), apart

    def _saved(self, key: str) -> models.LoadedModel:
        artifact = self.store.artifact(key)
        assert artifact is not None
        assert artifact.path is not None
        return models.load_folder(artifact.path, self.model, "cpu")

    def _count_zeros(self, key: str, asked: float) -> None:
        weights = [
            linear.get_parameter("weight")
            for layer in self._saved(key).layers
            for _, linear in linears(layer)
        ]
        found = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
        if abs(found - asked) > OFF:
            raise SystemExit(f"The saved file has {found:.2%} zeros; {asked:.2%} were asked for.")

    def _measured(self, lm: models.LoadedModel) -> tuple[float, ...]:
        return tuple(evaluate(lm, measure, Context()).metrics[0].value for measure in self.measures)


def share(found: Result, changed: Result, original: Result, log: bool = False) -> float:
    """The share of the gap in perplexity (or in its logarithm) that is closed, over all texts."""
    measure = math.log if log else float
    triples = zip(found.perplexity, changed.perplexity, original.perplexity, strict=True)
    shares = [(measure(c) - measure(f)) / (measure(c) - measure(o)) for f, c, o in triples]
    return sum(shares) / len(shares)


def crossing(wanted: float, windows: Sequence[int], shares: Sequence[float]) -> float | None:
    """Where shares reach `wanted`, by straight lines over the logarithm of the windows.

    The first number where that share reaches it already; None where none does.
    """
    if shares[0] >= wanted:
        return float(windows[0])
    for index in range(1, len(windows)):
        low, high = shares[index - 1], shares[index]
        if high >= wanted:
            part = (wanted - low) / (high - low)
            start, stop = math.log(windows[index - 1]), math.log(windows[index])
            return math.exp(start + part * (stop - start))
    return None


def plus(text: Calibration) -> list[Step]:
    """The steps of the preset `laco-plus` after its pruning, on this text."""
    return [
        step.model_copy(update={"calibration": text})
        for step in presets()["laco-plus"].steps
        if isinstance(step, Compensate | Finetune)
    ]


def best_lora(
    race: Race, rates: Sequence[float], epochs: int, changed: Result, original: Result, log: bool
) -> tuple[Result, Result]:
    """LoRA with the learning rate whose merged model closes most: merged, and adapters apart."""
    tried = [race.lora(rate, epochs) for rate in rates]
    return max(tried, key=lambda pair: share(pair[0], changed, original, log))


def parser(about: str | None, quick: str) -> argparse.ArgumentParser:
    """The options that the benchmarks of recovery share; `quick` says what is smaller then."""
    found = argparse.ArgumentParser(description=about)
    found.add_argument("--quick", action="store_true", help=quick)
    found.add_argument("--text", default="bundled:wikipedia", help="a corpus with two parts")
    found.add_argument("--wikitext", help="WikiText-2's test text as a file")
    return found


def sides(race: Race, changed: str, quick: bool, log: bool = False) -> dict[str, Result]:
    """The original, the model that is called `changed`, and each way to bring it back, by name."""
    found = {"original": race.original(), changed: race.after()}
    compensate, *tune = plus(race.text)
    found["laco+, compensation alone"] = race.after(compensate)
    found["laco+"] = race.after(compensate, *tune)
    rates, epochs = (RATES[:1], 1) if quick else (RATES, EPOCHS)
    lora, apart = best_lora(race, rates, epochs, found[changed], found["original"], log)
    return found | {"LoRA, merged": lora, "LoRA, adapters apart": apart}


def ratio(found: dict[str, Result], log: bool = False) -> float:
    """The share of the gap that laco+ closes over LoRA's; what `sides` gave, in its order."""
    original, changed, *_ = found.values()
    ours, theirs = found["laco+"], found["LoRA, merged"]
    return share(ours, changed, original, log) / share(theirs, changed, original, log)


def told(race: Race, results: dict[str, Result], log: bool = False) -> None:
    """Print a line for each result; the first two are the original and the changed model."""
    original, changed, *_ = results.values()
    texts = " / ".join(measure.source for measure in race.measures)
    windows = race.text.windows
    print(f"{windows} windows of {LENGTH} tokens of {race.text.source}; perplexity on {texts}")
    for name, result in results.items():
        numbers = " / ".join(f"{value:.2f}" for value in result.perplexity)
        print(
            f"{name:28} {numbers:>16}  closes {share(result, changed, original, log):6.1%}"
            f"  {result.seconds:6.0f} s  peak {result.peak / MEGABYTE:6.0f} MB"
        )
