"""Work on one model by several devices, a process each: what the others are started with.

The walk that prunes and compensates, and the evaluations that go over running text, can be shared;
the rest is done by the first device. How processes meet is in `ranks.py`. Next: `rework.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from laco.context import Context
from laco.errors import RecipeError
from laco.evaluate import evaluate
from laco.evaluations import Divergence, Evaluation, Outcome, Perplexity
from laco.lazy import LayerWriter, LazyModel
from laco.models import LoadedModel
from laco.ranks import Ranks, together
from laco.recipe import Compensate, ModelRef, Prune, Structured
from laco.rework import Texts, rework
from laco.streamed import load_fitting

SHARED = (Perplexity, Divergence)  # evaluations of which each device can do a share


def walked(
    student: LazyModel,
    teacher: LazyModel,
    ends: Sequence[int],
    step: Prune | Compensate,
    texts: Texts,
    writer: LayerWriter,
    context: Context,
) -> dict[str, Any]:
    """`rework` by all devices of the context.

    RecipeError when there are fewer windows than devices, or for a method that has to see the whole
    model before it decides.
    """
    devices = context.devices
    if len(devices) > 1:
        held_out = len(texts.tokens) - texts.training
        if min(texts.training, held_out or len(devices)) < len(devices):
            raise RecipeError(
                f"{step.kind}: {texts.training} windows to learn from and {held_out} to judge by "
                f"do not go round {len(devices)} devices; take more windows, or fewer devices."
            )
        if isinstance(step, Prune) and (
            isinstance(step.method, Structured) or step.allocation == "sensitivity"
        ):
            raise RecipeError(
                "prune: narrower layers, and shares by sensitivity, are decided by one device; "
                "name one."
            )
    where = student.folder, teacher.folder, student.ref, tuple(ends), step, texts, writer.folder
    with together(devices, _walk, *where) as ranks:
        return rework(student, teacher, ends, step, texts, writer, replace(context, ranks=ranks))


def _walk(
    ranks: Ranks,
    device: str,
    student: Path,
    teacher: Path,
    ref: ModelRef,
    ends: Sequence[int],
    step: Prune | Compensate,
    texts: Texts,
    place: Path,
) -> None:
    ours, theirs = LazyModel(student, ref, device), LazyModel(teacher, ref, device)
    writer = LayerWriter(ours, place)
    rework(ours, theirs, ends, step, texts, writer, Context(device, ranks=ranks))


def evaluated(
    lm: LoadedModel,
    spec: Evaluation,
    context: Context,
    original: Callable[[], LoadedModel],
    folder: Path,
    source: Path,
) -> Outcome:
    """`evaluate` by all devices of the context, where the evaluation can be shared.

    `source` is the folder of the model that `original` loads.
    """
    devices = context.devices if isinstance(spec, SHARED) else ()
    with together(devices, _evaluate, folder, source, lm.ref, spec) as ranks:
        return evaluate(lm, spec, replace(context, ranks=ranks), original, folder)


def _evaluate(
    ranks: Ranks, device: str, folder: Path, source: Path, ref: ModelRef, spec: Evaluation
) -> None:
    lm = load_fitting(folder, ref, device)
    context = Context(device, ranks=ranks)
    evaluate(lm, spec, context, lambda: load_fitting(source, ref, device), folder)
