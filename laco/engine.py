"""Carry out a request: run a recipe's missing steps, then measure what is not measured yet.

The loop is all there is: find the longest prefix of the recipe that lies on disk, load it, apply
the steps after it, save each. What a step does is in `merging.py`, `collapse.py`, `rework.py` and
`finetune.py`; where things are kept is `store.py`. Numbers are taken from the saved model, read
back, never from the one in memory, so that they hold for the file that a user gets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from laco import corpora, models
from laco.collapse import plan_collapse
from laco.context import Context
from laco.corpora import Windows
from laco.disk import free_place, move_files
from laco.errors import LacoError, ModelError
from laco.evaluate import evaluate, pinned
from laco.evaluate.seen import Shown, guarded
from laco.evaluations import (
    Analysis,
    Evaluation,
    ParameterSimilarity,
    Request,
    Similarity,
    WhatIf,
)
from laco.export import export
from laco.finetune import finetune
from laco.lazy import LayerWriter, LazyModel
from laco.memory import peak_memory
from laco.merging import apply_drop, apply_merge, group_ends
from laco.models import LoadedModel
from laco.recipe import Collapse, Compensate, Drop, Finetune, Merge, Prune, Recipe, chained_key
from laco.rework import Texts, rework
from laco.similarity import layer_similarity, parameter_similarity
from laco.store import RunStore
from laco.whatif import what_if

Report = dict[str, Any]


def run(request: Request, store: RunStore, context: Context) -> Report:
    """Carry out `request`, and return what the command line prints of it.

    `{"key", "path", "steps", "metrics", "analyses"}`, and `export` if one was asked for; whatever
    was in the store already is taken from there. Raises `LacoError`, with the step as a note, or
    `Cancelled`; either leaves in the store what was finished before.
    """
    if request.export is not None:
        free_place(request.export.folder)  # before hours of work for it
    recipe = settle(request.recipe, store)
    keys = recipe.keys()
    store.add_model(keys[0], Recipe(model=recipe.model))
    request = request.model_copy(update={"evaluations": tuple(map(pinned, request.evaluations))})
    missing = _missing_evaluations(request, store, keys[-1])
    undone = _missing_analyses(request, store, keys[-1])
    done = store.longest_prefix(keys)
    exports = 0 if request.export is None else 1
    stages = max(1, len(recipe.steps) - done + len(missing) + len(undone) + exports)

    def stage(number: int) -> Context:
        return context.part(number / stages, (number + 1) / stages)

    lm: LoadedModel | None = None
    for number, index in enumerate(range(done, len(recipe.steps))):
        if isinstance(recipe.steps[index], Prune | Compensate):
            lm = None  # these read the files layer by layer
            _rework(recipe, keys, index, store, stage(number))
        else:
            lm = lm or _load(recipe, keys, index, store, context)
            _advance(lm, recipe, keys, index, store, stage(number))
    lm = None
    number = len(recipe.steps) - done
    if missing or undone:
        lm = _load(recipe, keys, len(recipe.steps), store, context)
        shown = Shown(recipe, lm.tokenizer)
        for evaluation in missing:
            _evaluate(lm, recipe, keys[-1], evaluation, shown, store, stage(number))
            number += 1
        for analysis in undone:
            document = ANALYSES[type(analysis)](lm, analysis, stage(number))
            store.add_analysis(keys[-1], analysis, document)
            number += 1
    lm = None
    report = _report(request, store, keys, done)
    if request.export is not None:
        report["export"] = export(recipe, store, request.export, stage(number))
    context.step(1.0, "done")
    return report


def settle(recipe: Recipe, store: RunStore) -> Recipe:
    """The recipe with its model pinned; one that starts from a result continues its recipe."""
    key = store.resolve(recipe.model.path)
    if key is None:
        return recipe.model_copy(update={"model": models.pin(recipe.model, store.folder)})
    earlier = store.artifact(key)
    if earlier is None:
        raise ModelError(f"Result {key} is no longer in the store; run its recipe again.")
    return settle(earlier.recipe.then(*recipe.steps), store)


def _load(
    recipe: Recipe, keys: list[str], done: int, store: RunStore, context: Context
) -> LoadedModel:
    """The model after the first `done` steps, from its artifact."""
    context.step(0.0, f"loading {recipe.model.path}")
    if done == 0:
        return models.load(recipe.model, store.folder, context.device)
    artifact = store.artifact(keys[done])
    assert artifact is not None
    assert artifact.path is not None
    return models.load_folder(artifact.path, recipe.model, context.device)


def _advance(
    lm: LoadedModel, recipe: Recipe, keys: list[str], index: int, store: RunStore, context: Context
) -> None:
    """Apply step `index` to `lm` and save the result."""

    def original() -> LoadedModel:
        return models.load(recipe.model, store.folder, context.device)

    step = recipe.steps[index]
    options = {"original": original} if isinstance(step, Finetune) else {}
    with _reported(recipe, keys, index, store, context) as (reports, report):
        report |= STEPS[type(step)](lm, step, context, **options)
    _save(recipe, keys, index, store, reports, lambda folder: models.save_folder(lm, folder))


def _rework(recipe: Recipe, keys: list[str], index: int, store: RunStore, context: Context) -> None:
    """Apply step `index`, a walk over the model on disk, and save the result.

    What is written of it lies under `unfinished/` until it is whole; a walk that was stopped goes
    on from there.
    """
    step = recipe.steps[index]
    assert isinstance(step, Prune | Compensate)
    before = store.artifact(keys[index])
    original = models.folder_of(recipe.model, store.folder)
    source = original if before is None or before.path is None else before.path
    with _reported(recipe, keys, index, store, context) as (reports, report):
        teacher = LazyModel(original, recipe.model, context.device)
        student = LazyModel(source, recipe.model, context.device)
        earlier = [done["report"]["kept"] for done in reports if "kept" in done["report"]]
        ends = group_ends(len(teacher.stack), earlier)
        writer = LayerWriter(student, store.unfinished(keys[index + 1]))
        texts, about = _texts(step, student.tokenizer)
        report |= rework(student, teacher, ends, step, texts, writer, context)
        report["calibration"] = about
        writer.finish(report["fields"])
    _save(recipe, keys, index, store, reports, lambda folder: move_files(writer.folder, folder))


def _texts(step: Prune | Compensate, tokenizer: Any) -> tuple[Texts, Report]:
    """The windows that a walk learns from and is judged on, and where they are from."""
    repair = step if isinstance(step, Compensate) else step.compensation
    spec = step.calibration if repair is None else repair.calibration
    held_out = 0 if repair is None else repair.held_out
    windows, _, _ = corpora.learning(spec, held_out, tokenizer)
    return Texts(windows.tokens, spec.windows), _text_report(windows)


@contextmanager
def _reported(
    recipe: Recipe, keys: list[str], index: int, store: RunStore, context: Context
) -> Iterator[tuple[list[Report], Report]]:
    """The reports of the steps so far, and that of step `index`, which the body fills in."""
    step = recipe.steps[index]
    before = store.artifact(keys[index])
    reports = [dict(report) for report in before.steps] if before is not None else []
    report: Report = {}
    started = time.perf_counter()
    try:
        with peak_memory(context.device) as peak:
            yield reports, report
    except LacoError as error:
        error.add_note(f"in step {index} ({step.kind}) of the recipe")
        raise
    reports.append(
        {
            "kind": step.kind,
            "seconds": time.perf_counter() - started,
            "cached": False,
            "peak_bytes": peak.peak,
            "report": report,
        }
    )
    context.step(1.0, "saving")


def _save(
    recipe: Recipe,
    keys: list[str],
    index: int,
    store: RunStore,
    reports: list[Report],
    write: Callable[[Path], None],
) -> None:
    so_far = Recipe(model=recipe.model, steps=recipe.steps[: index + 1])
    store.save(keys[index + 1], so_far, reports, write)


def _evaluate(
    lm: LoadedModel,
    recipe: Recipe,
    key: str,
    evaluation: Evaluation,
    shown: Shown,
    store: RunStore,
    context: Context,
) -> None:
    artifact = store.artifact(key)
    folder = models.folder_of(recipe.model, store.folder)  # an untouched model lies there
    if artifact is not None and artifact.path is not None:
        folder = artifact.path

    def original() -> LoadedModel:
        if not recipe.steps:
            return lm
        return models.load(recipe.model, store.folder, context.device)

    found = evaluate(lm, evaluation, context, original, folder)
    metrics = guarded(lm, shown, evaluation, found)
    store.add_metrics(key, evaluation, metrics, found.answers)


def _collapse(lm: LoadedModel, step: Collapse, context: Context) -> Report:
    windows = corpora.windows(step.calibration, lm.tokenizer)
    plan = plan_collapse(lm, step, windows, context)
    report = apply_merge(lm.layers, plan.as_step(step))
    return {**report, **plan.document(step), "calibration": _text_report(windows)}


def _merge(lm: LoadedModel, step: Merge, _context: Context) -> Report:
    return {**apply_merge(lm.layers, step), "spans": [list(span) for span in step.spans]}


def _drop(lm: LoadedModel, step: Drop, _context: Context) -> Report:
    return apply_drop(lm.layers, step)


def _finetune(
    lm: LoadedModel, step: Finetune, context: Context, original: Callable[[], LoadedModel]
) -> Report:
    windows, train, held_out = corpora.learning(step.calibration, step.held_out, lm.tokenizer)
    report = finetune(lm, step, train, held_out, context, original)
    return {**report, "calibration": _text_report(windows)}


def _text_report(windows: Windows) -> Report:
    return {
        "source": windows.source,
        "digest": windows.digest,
        "tokens": int(windows.lengths.sum()),
    }


def _similarity(lm: LoadedModel, spec: Similarity, context: Context) -> Report:
    return layer_similarity(lm, corpora.windows(spec.calibration, lm.tokenizer), spec, context)


def _parameter_similarity(lm: LoadedModel, _spec: ParameterSimilarity, context: Context) -> Report:
    return parameter_similarity(lm, context)


def _what_if(lm: LoadedModel, spec: WhatIf, context: Context) -> Report:
    return what_if(lm, spec, corpora.windows(spec.calibration, lm.tokenizer), context)


STEPS: dict[type, Callable[..., Report]] = {
    Collapse: _collapse,
    Merge: _merge,
    Drop: _drop,
    Finetune: _finetune,
}

ANALYSES: dict[type, Callable[..., Report]] = {
    Similarity: _similarity,
    ParameterSimilarity: _parameter_similarity,
    WhatIf: _what_if,
}


def _missing_evaluations(request: Request, store: RunStore, key: str) -> list[Evaluation]:
    return [spec for spec in request.evaluations if not store.metrics(key, spec)]


def _missing_analyses(request: Request, store: RunStore, key: str) -> list[Analysis]:
    return [spec for spec in request.analyses if store.analysis(key, spec) is None]


def _report(request: Request, store: RunStore, keys: list[str], done: int) -> Report:
    artifact = store.artifact(keys[-1])
    steps = [dict(step) for step in artifact.steps] if artifact is not None else []
    for index, step in enumerate(steps):
        step["cached"] = index < done
    metrics = [
        metric.document()
        for spec in request.evaluations
        for metric in store.metrics(keys[-1], spec) or ()
    ]
    analyses = [
        {"kind": spec.kind, "key": chained_key(keys[-1], spec)} for spec in request.analyses
    ]
    path = artifact.path if artifact is not None else None
    return {
        "key": keys[-1],
        "path": str(path) if path is not None else None,
        "steps": steps,
        "metrics": metrics,
        "analyses": analyses,
    }
