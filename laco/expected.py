"""What a piece of work takes on this machine before it starts: memory and seconds, from a card.

Operations and bytes are counted from the model's card and what is to be done; how fast the machine
is says `machine.py`. On the CPU; a GPU is not estimated. No torch here, and no weights. How good
the estimates are says `bench/expected.py`. Next: `machine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from laco.checkpoint import BYTES
from laco.evaluations import Perplexity, Similarity
from laco.machine import Speed
from laco.steps.depth import Collapse, Drop, Merge
from laco.steps.recovery import Compensate, Finetune
from laco.steps.sparsity import Prune, SparseGPT, Structured

FLOAT = 4  # bytes of float32
BATCH = 1024  # tokens that go through a layer at a time on a CPU
PASS_TOKENS = 1 << 15  # that go through a model together when it is read layer by layer
STATE_BYTES = 1 << 30  # of hidden states at all depths, then
FIT_PRODUCTS = 16  # of conjugate gradients, for each damping
DAMPINGS = 2  # that are tried, of three: on SmolLM2; on random weights 1.1 to 2.3, by held-out text
TRIAL = 256  # tokens of a candidate of a search at a time; the first always
SEEN = 0.45  # of the others, until it is known not to be the best
START_BYTES, START_SECONDS = 50 << 20, 0.8  # of the checks and the tokenizer before work begins
TEXT_BYTES, TEXT_SECONDS = 200 << 20, 1.0  # of the text that is learned from, the start included
LOAD_COPIES = 9  # what reading and checking weights takes, in copies of them
SAVE_COPIES = 18  # what saving them takes beside writing: checked, read back, moved
FILE_SECONDS = 0.015  # of a layer's own file, beside its bytes
ALONE = 1.15  # how much longer a window takes by itself, than as one of a few
PEFT_SECONDS = 0.8  # of its import
DROPPED_SECONDS = 20e-9  # of a number that dropout decides on
CHANGE_COPIES = 50  # what zeroing and counting takes beside the choice, in copies of the weights
MERGE_COPIES = 40  # what adding LoRA's products takes, in copies of the weights
REMOVED = 0.2  # of the layers, where a search ends by a threshold that nobody can foresee


@dataclass(frozen=True)
class Expected:
    """Estimates of a piece of work: bytes at its peak, the program's own included, and seconds."""

    memory_bytes: int
    seconds: float

    def document(self) -> dict[str, Any]:
        """The estimates as JSON data, seconds to three digits."""
        return {**asdict(self), "seconds": float(f"{self.seconds:.3g}")}


def products(parameters: float, attention: int, length: int) -> float:
    """Multiplications and additions for one token in a layer; half of a window is before it."""
    return 2 * parameters + 2 * length * attention


@dataclass(frozen=True)
class _Shape:
    """What a card says of a model, as the formulas use it."""

    layers: int
    parameters: float  # of a layer, in the mean
    active: float  # of them, what one token goes through
    largest: float  # parameters of the largest layer
    outside: float  # parameters that are in no layer
    hidden: int
    inner: int
    attention: int  # heads × their width
    vocabulary: int
    width: int  # bytes of a number

    @property
    def kept(self) -> int:
        """Numbers of a token in a layer that a way back through it needs."""
        return 14 * self.hidden + 5 * self.inner

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> _Shape:
        count = card["layers"]
        layers = card["layer_parameters"] or [card["parameters"] / count] * count
        mean = sum(layers) / count
        experts = card["parts"]["mlp"] / count * (1 - card["active_share"])
        return cls(
            count,
            mean,
            mean - experts,
            max(layers),
            card["parameters"] - sum(layers),
            card["hidden_size"],
            card["intermediate_size"],
            card["heads"] * card["head_dim"],
            card["vocab_size"],
            BYTES[card["dtype"]],
        )


@dataclass(frozen=True)
class _Costs:
    """Seconds and bytes of the pieces that work is made of, for one model on one machine."""

    of: _Shape
    speed: Speed

    def layers(self, tokens: float, length: int, kind: str = "forward") -> float:
        """Seconds that tokens take through every layer, in windows of `length`."""
        work = self.of.layers * products(self.of.active, self.of.attention, length) * tokens
        return work / self.speed.at(kind, self.of.hidden)

    def matrix(self, count: float) -> float:
        """Seconds of plain products, so many multiplications and additions."""
        return count / self.speed.at("forward", 2048)

    def head(self, tokens: float) -> float:
        """Seconds that tokens take through the head, with their log-sum-exp."""
        return tokens * self.of.vocabulary * self.speed.at("head", self.of.hidden)

    @property
    def bytes(self) -> float:
        """Of all the weights."""
        return (self.of.layers * self.of.parameters + self.of.outside) * self.of.width

    def load(self) -> float:
        """Seconds until a model is in memory."""
        return LOAD_COPIES * self.bytes / self.speed.copy

    def save(self) -> float:
        """Seconds until a model is on the disk, read back and known to be whole."""
        files = FILE_SECONDS * self.of.layers
        return self.bytes / self.speed.write + SAVE_COPIES * self.bytes / self.speed.copy + files

    def pass_bytes(self, tokens: float) -> float:
        """Of the activations of tokens that go through a layer at a time."""
        return FLOAT * tokens * (2 * self.of.hidden + 3 * max(self.of.inner, self.of.attention))

    def whole(self, extra: float, seconds: float) -> Expected:
        """Work on the model in memory."""
        memory = self.speed.program + TEXT_BYTES + self.bytes + extra
        return Expected(round(memory), START_SECONDS + self.load() + seconds)


def loaded(card: Mapping[str, Any], speed: Speed) -> int:
    """Bytes that a model with this card takes while it is in memory, the program included."""
    return _Costs(_Shape.of(card), speed).whole(0, 0).memory_bytes


def streamed(card: Mapping[str, Any], speed: Speed) -> int:
    """Bytes that work takes on a model with this card that is read layer by layer."""
    of = _Shape.of(card)
    weights = (of.outside + 2 * of.largest) * of.width
    states = 3 * PASS_TOKENS * of.hidden * of.width + STATE_BYTES
    passing = _Costs(of, speed).pass_bytes(BATCH)
    return round(speed.program + TEXT_BYTES + weights + states + passing)


def usual(card: Mapping[str, Any], speed: Speed) -> dict[str, dict[str, Any]]:
    """What each capability takes with its form's own settings, as JSON data."""
    return {name: expected(card, work, speed).document() for name, work in _USUAL.items()}


def expected(card: Mapping[str, Any], work: Any, speed: Speed) -> Expected:
    """What `work` (a step, `Similarity` or `Perplexity`) takes on a model with this card.

    Loading and saving are included, the start of the program is not. KeyError for other work.
    """
    return _FORMULAS[type(work)](_Costs(_Shape.of(card), speed), work)


def _similarity(costs: _Costs, work: Similarity) -> Expected:
    tokens, length = _tokens(work), work.calibration.length
    depths = costs.of.layers + 1
    compared = costs.matrix(2 * depths * depths * costs.of.hidden * tokens) * 2  # in float64
    states = depths * length * costs.of.hidden * costs.of.width
    seconds = TEXT_SECONDS + ALONE * costs.layers(tokens, length) + compared
    return costs.whole(states + costs.pass_bytes(length), seconds)


def _perplexity(costs: _Costs, work: Perplexity) -> Expected:
    tokens = (work.windows or 0) * work.window
    seconds = costs.layers(tokens, work.window) + costs.head(tokens)
    return costs.whole(costs.pass_bytes(BATCH), seconds)


def _collapse(costs: _Costs, work: Collapse) -> Expected:
    tokens, length = _tokens(work), work.calibration.length
    count = costs.of.layers
    goal = work.target_layers or round((work.target_share or 1 - REMOVED) * count)
    one = costs.layers(tokens, length)
    states = tokens * costs.of.width * costs.of.hidden * count
    if work.order in ("influence", "angular"):
        return costs.whole(states / count, TEXT_SECONDS + one + costs.save())
    kl = work.objective == "kl"
    head = costs.head(tokens) if work.objective != "cosine" else 0.0
    seconds = TEXT_SECONDS + 2 * one + 2 * head  # what the original says
    batches = max(1.0, tokens / max(TRIAL, length))
    seen = (1 + SEEN * (batches - 1)) / batches if work.order == "best_first" else 1.0
    for left in range(count, goal, 1 - work.span):
        tries = left - work.span + 1 if work.order == "best_first" else 1
        seconds += tries * seen * (one * left / count / 2 + head)
    predictions = FLOAT * tokens * costs.of.vocabulary if kl else 0.0
    return costs.whole(states + predictions, seconds + costs.save())


def _moved(costs: _Costs, _work: Merge | Drop) -> Expected:
    """From file to file: a merged layer and what it is made of in memory, or the embedding."""
    of = costs.of
    held = (2 * of.largest + of.vocabulary * of.hidden) * of.width
    memory = costs.speed.program + START_BYTES + held
    return Expected(round(memory), START_SECONDS + costs.load() + costs.save())


def _prune(costs: _Costs, work: Prune) -> Expected:
    if work.compensation is not None:
        return _walk(costs, work.compensation, pruned=work)
    return _walk(costs, None, pruned=work)


def _compensate(costs: _Costs, work: Compensate) -> Expected:
    return _walk(costs, work, pruned=None)


def _walk(costs: _Costs, repair: Compensate | None, pruned: Prune | None) -> Expected:
    """One layer of each model at a time: read, changed, run, written."""
    text = repair or pruned
    assert text is not None
    of, learned, length = costs.of, _tokens(text), text.calibration.length
    judged = repair.held_out * length if repair else 0
    tokens = learned + judged
    one = costs.layers(1, length)  # seconds a token
    seconds = 2 * one * tokens + 2 * costs.load() + costs.save()
    streams = 2 * tokens * of.hidden * of.width
    passing = costs.pass_bytes(BATCH)
    if pruned is not None:
        seconds += one * learned + _choice(costs, pruned, learned)
    else:
        streams += judged * of.hidden * of.width
        seconds += one * judged
    if repair is not None:
        seconds += one * (2 * judged + (tokens if repair.alpha < 1 else 0))
        if repair.mode == "laco+":
            gram = 2 * of.inner * (of.inner + of.hidden) * learned
            fits = DAMPINGS * FIT_PRODUCTS * 2 * of.hidden * of.inner**2
            seconds += one * tokens + of.layers * costs.matrix(gram + fits)
            passing += FLOAT * (judged * (of.inner + of.hidden) + of.inner**2)
        steps = repair.epochs * learned / repair.batch_tokens
        seconds += repair.epochs * costs.layers(learned, length, "weights")
        seconds += steps * of.layers * of.parameters / costs.speed.update
        if repair.epochs:  # gradients, two moments, the weights before; what a way back needs
            passing = max(passing, FLOAT * (4 * of.largest + BATCH * of.kept))
    layer = of.largest * (FLOAT + of.width) + passing
    peak = costs.speed.program + TEXT_BYTES + streams + max(of.outside * of.width, layer)
    return Expected(round(peak), START_SECONDS + TEXT_SECONDS + seconds)


def _choice(costs: _Costs, pruned: Prune, tokens: int) -> float:
    """Seconds in which a method decides, in all layers, which weights go."""
    of, method = costs.of, pruned.method
    if isinstance(method, Structured):
        return 0.0
    seconds = of.parameters / costs.speed.rank
    seconds += CHANGE_COPIES * FLOAT * of.parameters / costs.speed.copy
    if isinstance(method, SparseGPT):
        widths = [of.hidden] * 6 + [of.inner]  # what each linear of a layer is fed
        grams = sum(2 * tokens * width**2 for width in widths)
        inverses = sum(4 * width**3 for width in widths)  # in float64, at half the speed
        seconds += costs.matrix(grams + inverses + 2 * of.parameters * of.hidden)
    return of.layers * seconds


def _finetune(costs: _Costs, work: Finetune) -> Expected:
    of, learned, length = costs.of, _tokens(work), work.calibration.length
    judged = work.held_out * length
    seconds = (work.epochs + 3) * (costs.layers(judged, length) + costs.head(judged))
    seconds += work.epochs * costs.layers(learned, length, "inputs")
    seconds += work.epochs * 3 * costs.head(learned)
    seconds += TEXT_SECONDS + PEFT_SECONDS
    seconds += MERGE_COPIES * of.layers * of.parameters * of.width / costs.speed.copy
    kept = of.kept
    if work.dropout:  # what every linear is fed, thinned out, and which of it was left out
        fed = 6 * of.hidden + of.inner
        kept += 2 * fed
        seconds += work.epochs * learned * of.layers * fed * DROPPED_SECONDS
    activations = work.batch_tokens * of.layers * kept * of.width
    return costs.whole(activations, seconds + costs.load() + costs.save())


def _tokens(work: Any) -> int:
    return work.calibration.windows * work.calibration.length


_FORMULAS: dict[type, Callable[[_Costs, Any], Expected]] = {
    Similarity: _similarity,
    Perplexity: _perplexity,
    Collapse: _collapse,
    Merge: _moved,
    Drop: _moved,
    Prune: _prune,
    Compensate: _compensate,
    Finetune: _finetune,
}

_USUAL: dict[str, Any] = {
    "similarity": Similarity(),
    "collapse": Collapse(),
    "merge": Merge(spans=((0, 2),)),
    "sparsity": Prune(),
    "compensation": Compensate(),
    "width": Prune(method=Structured()),
    "lora": Finetune(),
    "evaluation": Perplexity(),
}
