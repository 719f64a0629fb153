"""What laco does with each family, tried: families by checks, each cell works or says why not.

A check runs the very functions that the engine runs, on a tiny model in a folder, and ends with a
stock reload wherever something was written. `docs/families.md` is made from the answers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from laco import card, models
from laco.adapters import insert_adapters, merge_adapters
from laco.context import Context
from laco.corpora import Windows
from laco.errors import LacoError
from laco.evaluate import evaluate
from laco.evaluations import Perplexity, Similarity
from laco.layers import LayerStack
from laco.lazy import LayerWriter, LazyModel
from laco.merging import apply_edit
from laco.models import LoadedModel
from laco.prune import check_pattern, prunable, prune_layer
from laco.prune.widths import check_structured
from laco.recipe import Compensate, Drop, Finetune, Merge, ModelRef, Prune, Structured, Wanda
from laco.restack import restack
from laco.rework import Texts, rework
from laco.similarity import layer_similarity
from tests import tiny

BUILDERS: dict[str, Callable[[], PreTrainedModel]] = {
    **tiny.ARCHITECTURES,
    **tiny.PROBED,
    **tiny.RHYTHMIC,
    **tiny.REFUSED,
}
LENGTH = 10
REPAIR = Compensate(epochs=1, learning_rate=1e-3, batch_tokens=4 * LENGTH)


@dataclass
class Subject:
    """A tiny model of a family in a folder, and room for what is made of it."""

    family: str
    room: Path

    @cached_property
    def folder(self) -> Path:
        return tiny.save(BUILDERS[self.family](), self.room / "model")

    @property
    def ref(self) -> ModelRef:
        return ModelRef(path=str(self.folder))

    @cached_property
    def card(self) -> dict[str, Any]:
        return card.inspect(self.ref, self.room)

    @cached_property
    def loaded(self) -> LoadedModel:
        """For checks that leave it as it is."""
        return self.load()

    def load(self) -> LoadedModel:
        return models.load_folder(self.folder, self.ref, "cpu")

    @cached_property
    def lazy(self) -> LazyModel:
        """The folder opened layer by layer, for those who leave it as it is."""
        return LazyModel(self.folder, self.ref, "cpu")

    def walked(self, step: Any, name: str) -> tuple[dict[str, Any], Path]:
        """The report of a walk over the model on disk, and the folder that it wrote."""
        student, teacher = LazyModel(self.folder, self.ref, "cpu"), self.lazy
        target = self.room / name
        writer = LayerWriter(student, target)
        ends = list(range(len(student.stack)))
        report = rework(student, teacher, ends, step, Texts(text(4), 4), writer, Context())
        writer.finish(report["fields"])
        return report, target

    @cached_property
    def compensated(self) -> tuple[dict[str, Any], Path]:
        """Pruned to 2:4 and compensated in one walk."""
        method = Wanda(pattern="2:4")
        step = Prune(method=method, calibration=REPAIR.calibration, compensation=REPAIR)
        return self.walked(step, "compensated")


def text(windows: int) -> Tensor:
    return tiny.tokens(windows, LENGTH)


def stock(folder: Path) -> PreTrainedModel:
    """The folder as stock transformers loads it, every tensor in its place."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    model, found = loaded
    assert not any(found.values()), found
    return model.eval().requires_grad_(False)  # some families compute in another order for those


def saved_and_reloaded(lm: LoadedModel, folder: Path) -> None:
    """A stock reload of what is in memory has its weights, bit for bit, and predicts alike."""
    models.save_folder(lm, folder)
    again = stock(folder)
    weights = again.state_dict()
    assert weights.keys() == lm.model.state_dict().keys()
    assert all(torch.equal(weights[n], tensor) for n, tensor in lm.model.state_dict().items())
    with torch.no_grad():
        ours, theirs = (m(text(2), use_cache=False).logits for m in (lm.model, again))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def written_alike(subject: Subject, step: Drop | Merge, folder: Path) -> None:
    """Written from file to file, as the engine does, an edited model is the one in `folder`."""
    streamed = folder.with_name(f"{folder.name}-streamed")
    restack(subject.lazy, step, streamed, Context())
    same_folders(streamed, folder)


def same_folders(one: Path, other: Path) -> None:
    """Two folders hold the same tensors under the same names, the same config and tokenizer."""
    ours, theirs = tensors_of(one), tensors_of(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(ours[name], tensor), name
    configs = [json.loads((folder / "config.json").read_text()) for folder in (one, other)]
    assert configs[0] == configs[1]
    for file in other.glob("*token*"):
        assert (one / file.name).read_bytes() == file.read_bytes(), file.name


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's files."""
    return {n: t for file in folder.glob("*.safetensors") for n, t in load_file(file).items()}


def similarity(subject: Subject) -> None:
    tokens = text(4)
    windows = Windows(tokens, torch.full((4,), LENGTH), "tiny", "tiny")
    found = layer_similarity(subject.loaded, windows, Similarity(), Context())
    assert len(found["influence"]) == tiny.DEPTH


def drop(subject: Subject) -> None:
    """Of single layers and pairs, all that can go: one at least."""
    refusals: list[LacoError] = []
    spans = [(start, start + size) for size in (1, 2) for start in range(tiny.DEPTH - size + 1)]
    for span in spans:
        lm = subject.load()
        try:
            step = Drop(layers=tuple(range(*span)))
            apply_edit(lm.layers, step)
        except LacoError as error:
            refusals.append(error)
            continue
        saved_and_reloaded(lm, subject.room / "dropped")
        written_alike(subject, step, subject.room / "dropped")
        return
    raise refusals[0]


def merge(subject: Subject) -> None:
    """The first neighbours that may merge do; those that may not are refused."""
    lm = subject.load()
    answers = {
        (start, start + 2): lm.layers.mergeable((start, start + 2))
        for start in range(tiny.DEPTH - 1)
    }
    refusals: list[LacoError] = []
    for span, reason in answers.items():
        step = Merge(spans=(span,), merge="mean")
        try:
            apply_edit(lm.layers, step)
        except LacoError as error:
            refusals.append(error)
            continue
        assert reason is None
        saved_and_reloaded(lm, subject.room / "merged")
        written_alike(subject, step, subject.room / "merged")
        return
    raise refusals[0]


def pruned(subject: Subject) -> None:
    """Layer by layer from the files, as the walk does that `compensation` goes."""
    model = subject.lazy
    check_pattern(model.stack, "unstructured")
    states, tape = model.inputs(text(4)), model.tape(4, LENGTH)
    for index in range(len(model.stack)):
        layer = model.read(index)
        feed = partial(tape.call, layer, index, states)
        prune_layer(layer, feed, Wanda(), 0.5, f"layer {index}")  # type: ignore[arg-type]
        for name, weight in prunable(layer):
            assert int((weight == 0).sum()) == weight.numel() // 2, name
        states = tape.run(layer, index, states)
        model.release(index)


def two_of_four(subject: Subject) -> None:
    _, folder = subject.compensated
    for name, weight in matrices(folder):
        assert bool(((weight == 0).reshape(len(weight), -1, 4).sum(-1) == 2).all()), name


def compensation(subject: Subject) -> None:
    report, _ = subject.compensated
    assert all(row["ridge"] is not None or row["adam"] is not None for row in report["layers"])
    assert report["sparsity"] == pytest.approx(0.5)


def matrices(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every matrix that is pruned, [out, in], of a folder as stock transformers loads it."""
    return itertools.chain.from_iterable(map(prunable, LayerStack(stock(folder))))


def width(subject: Subject) -> None:
    step = Prune(method=Structured(channels=0.5, multiple=1, importance="magnitude"))
    check_structured(subject.loaded.layers, step.method)  # type: ignore[arg-type]
    _, folder = subject.walked(step, "narrow")
    assert sum(p.numel() for p in stock(folder).parameters()) < subject.card["parameters"]


def groups(subject: Subject, share: float = 0.5) -> None:
    """Half of the groups of heads go, and stock classes load what is left."""
    step = Prune(method=Structured(channels=0, groups=share, importance="magnitude"))
    check_structured(subject.loaded.layers, step.method)  # type: ignore[arg-type]
    _, folder = subject.walked(step, "fewer-heads")
    assert sum(p.numel() for p in stock(folder).parameters()) < subject.card["parameters"]


def lora(subject: Subject) -> None:
    """Put in, changed, merged; that they learn is for `test_finetune.py`."""
    lm = subject.load()
    adapters = insert_adapters(lm, Finetune(rank=2, dropout=0))
    assert len(adapters.wrapped) >= 2 * tiny.DEPTH
    for parameter in adapters.parameters():
        parameter.data.normal_(std=0.1)
    with torch.no_grad():
        apart = lm.model(text(2), use_cache=False).logits
    merge_adapters(lm, adapters, keep_zeros=False)
    with torch.no_grad():
        merged = lm.model(text(2), use_cache=False).logits
    torch.testing.assert_close(merged, apart, atol=1e-3, rtol=1e-3)
    saved_and_reloaded(lm, subject.room / "tuned")


def perplexity(subject: Subject) -> None:
    lm, file = subject.loaded, subject.room / "words.txt"
    file.write_text("the quick brown fox jumps over the lazy dog " * 6)
    spec = Perplexity(source=f"file:{file}", window=16, windows=4)
    (metric,) = evaluate(lm, spec, Context()).metrics
    assert metric.value > 1


def export(subject: Subject) -> None:
    saved_and_reloaded(subject.loaded, subject.room / "saved")


CHECKS: dict[str, tuple[str, Callable[[Subject], None]]] = {  # check -> the card's word, the trial
    "similarity": ("similarity", similarity),
    "drop": ("collapse", drop),
    "merge": ("merge", merge),
    "Wanda": ("sparsity", pruned),
    "2:4": ("sparsity", two_of_four),
    "width": ("width", width),
    "compensate": ("compensation", compensation),
    "LoRA": ("lora", lora),
    "perplexity": ("evaluation", perplexity),
    "save": ("export", export),
}


def tried(subject: Subject, check: str) -> str | None:
    """Why the check is refused, in laco's own words, or None when it works."""
    try:
        CHECKS[check][1](subject)
    except LacoError as error:
        return str(error)
    return None


def head() -> str:
    """The two lines that begin the table."""
    return (
        f"| family | {' | '.join(CHECKS)} | why not, or only where |\n|{'---|' * (len(CHECKS) + 2)}"
    )


def row(subject: Subject, answers: dict[str, str | None]) -> str:
    """A family's row: yes or no for each check, and the card's reasons where it is not plain."""
    cells = ["yes" if answers[check] is None else "no" for check in CHECKS]
    told = subject.card["capabilities"]
    notes: dict[str, list[str]] = {}
    for check, (word, _) in CHECKS.items():
        reason = told[word]["reason"]
        if answers[check] is not None or "only within" in reason or "but not every" in reason:
            notes.setdefault(reason, []).append(check)
    if len(notes) == 1 and not any(answer is None for answer in answers.values()):
        said = [next(iter(notes))]  # of all alike
    else:
        said = [f"{', '.join(checks)}: {reason}" for reason, checks in notes.items()]
    return f"| `{subject.family}` | {' | '.join(cells)} | {'; '.join(said)} |"
