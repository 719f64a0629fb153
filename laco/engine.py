"""Carry out a request: run a recipe's missing steps, then measure what is not measured yet.

The loop is all there is: find the longest prefix of the recipe that lies on disk, load it, apply
the steps after it, save each. What a step does is in `collapse.py`, `restack.py`, `rework.py` and
`finetune.py`; where things are kept is `store.py`. Numbers are taken from the saved model, read
back, never from the one in memory, so that they hold for the file that a user gets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from laco import annotations, corpora, models
from laco.analyses import IN_MEMORY, changed_weights
from laco.annotations import Exported
from laco.collapse import plan_collapse
from laco.context import Context
from laco.corpora import Windows
from laco.disk import discard, free_place, link_files
from laco.errors import LacoError
from laco.evaluate import pinned
from laco.evaluate.seen import Shown, guarded
from laco.evaluations import (
    Analysis,
    Evaluation,
    Request,
    WeightChange,
)
from laco.export import export
from laco.finetune import finetune
from laco.lazy import LayerWriter, LazyModel
from laco.locks import alone
from laco.memory import give_back, peak_memory
from laco.merging import group_ends
from laco.models import LoadedModel
from laco.parallel import evaluated, walked
from laco.recipe import Collapse, Compensate, Drop, Finetune, Merge, Prune, Recipe, chained_key
from laco.restack import restack
from laco.rework import STATE, Texts
from laco.sharing import Shared
from laco.store import RunStore
from laco.streamed import load_fitting

Report = dict[str, Any]


def run(request: Request, store: RunStore, context: Context) -> Report:
    """Carry out `request`, and return what the command line prints of it.

    `{"key", "path", "steps", "metrics", "analyses"}`, and `export` if one was asked for; whatever
    was in the store already is taken from there. Raises `LacoError`, with the step as a note, or
    `Cancelled`; either leaves in the store what was finished before.
    """
    if request.export is not None:
        free_place(request.export.folder)  # before hours of work for it
    shared = Shared(store)
    recipe = settle(shared.inputs(request.recipe), store)
    keys = recipe.keys()
    store.add_model(keys[0], Recipe(model=recipe.model))
    request = request.model_copy(update={"evaluations": tuple(map(pinned, request.evaluations))})
    shared.take(keys, (*request.evaluations, *request.analyses), context)
    missing = _missing_evaluations(request, store, keys[-1])
    undone = _missing_analyses(request, store, keys[-1])
    unshared = (*missing, *undone)
    done = store.longest_prefix(keys)
    exports = 0 if request.export is None else 1
    stages = max(1, len(recipe.steps) - done + len(missing) + len(undone) + exports)

    def stage(number: int) -> Context:
        return context.part(number / stages, (number + 1) / stages)

    for number, index in enumerate(range(done, len(recipe.steps))):
        with _making(keys[index + 1], store, stage(number)) as is_made:
            if not is_made:
                STEPS[type(recipe.steps[index])](recipe, keys, index, store, stage(number))
                shared.give(keys[index + 1], stage(number))
    number = len(recipe.steps) - done
    for analysis in [spec for spec in undone if isinstance(spec, WeightChange)]:
        undone.remove(analysis)
        found = changed_weights(
            recipe,
            analysis,
            store,
            lambda one: _folder(one, one.keys(), len(one.steps), store),
            stage(number),
        )
        store.add_analysis(keys[-1], analysis, found)
        number += 1
    if missing or undone:
        lm = _load(recipe, keys, len(recipe.steps), store, context)
        shown = Shown(recipe, lm.tokenizer)
        for evaluation in missing:
            _evaluate(lm, recipe, keys, evaluation, shown, store, stage(number))
            number += 1
        for analysis in undone:
            document = IN_MEMORY[type(analysis)](lm, analysis, stage(number))
            store.add_analysis(keys[-1], analysis, document)
            number += 1
        del lm  # an export loads it anew
    shared.give_measured(keys[-1], unshared)
    report = _report(request, store, keys, done) | shared.report()
    if request.export is not None:
        report["export"] = export(recipe, store, request.export, stage(number))
        said = Exported(
            folder=report["export"]["path"], dtype=request.export.dtype, created=time.time()
        )
        annotations.add_export(store, keys[-1], said)
    context.step(1.0, "done")
    return report


def settle(recipe: Recipe, store: RunStore) -> Recipe:
    """The recipe with its model pinned; one that starts from a result continues its recipe."""
    whole = store.whole(recipe)
    return whole.model_copy(update={"model": models.pin(whole.model, store.folder)})


def _folder(recipe: Recipe, keys: list[str], done: int, store: RunStore) -> Path:
    """Where the model after the first `done` steps lies."""
    if done == 0:
        return models.folder_of(recipe.model, store.folder)
    artifact = store.artifact(keys[done])
    assert artifact is not None
    assert artifact.path is not None
    return artifact.path


def _load(
    recipe: Recipe, keys: list[str], done: int, store: RunStore, context: Context
) -> LoadedModel:
    """The model after the first `done` steps, to be looked at: streamed if it has no room."""
    context.step(0.0, f"loading {recipe.model.path}")
    return load_fitting(_folder(recipe, keys, done, store), recipe.model, context.device)


def _original(recipe: Recipe, store: RunStore, device: str) -> LoadedModel:
    return load_fitting(models.folder_of(recipe.model, store.folder), recipe.model, device)


def _finetune(
    recipe: Recipe, keys: list[str], index: int, store: RunStore, context: Context
) -> None:
    """Apply step `index`, a training of the whole model in memory, and save the result."""
    step = recipe.steps[index]
    assert isinstance(step, Finetune)
    with _reported(recipe, keys, index, store, context) as (reports, report):
        folder = _folder(recipe, keys, index, store)
        lm = models.load_folder(folder, recipe.model, context.device)
        windows, train, held_out = corpora.learning(step.calibration, step.held_out, lm.tokenizer)
        original = partial(_original, recipe, store, context.device)
        report |= finetune(lm, step, train, held_out, context, original)
        report["calibration"] = _text_report(windows)
    _save(recipe, keys, index, store, reports, lambda folder: models.save_folder(lm, folder))


def _rework(recipe: Recipe, keys: list[str], index: int, store: RunStore, context: Context) -> None:
    """Apply step `index`, a walk over the model on disk, and save the result.

    What is written of it lies under `unfinished/` until it is whole; a walk that was stopped goes
    on from there.
    """
    step = recipe.steps[index]
    assert isinstance(step, Prune | Compensate)
    with _reported(recipe, keys, index, store, context) as (reports, report):
        teacher, student = (
            LazyModel(_folder(recipe, keys, done, store), recipe.model, context.device)
            for done in (0, index)
        )
        earlier = [one["report"]["kept"] for one in reports if "kept" in one["report"]]
        ends = group_ends(len(teacher.stack), earlier)
        writer = LayerWriter(student, store.unfinished(keys[index + 1]))
        texts, about = _texts(step, student.tokenizer)
        report |= walked(student, teacher, ends, step, texts, writer, context)
        report["calibration"] = about
        writer.finish(report["fields"])
    _save_walked(recipe, keys, index, store, reports)


def _restack(
    recipe: Recipe, keys: list[str], index: int, store: RunStore, context: Context
) -> None:
    """Apply step `index`, after which there are fewer layers, and save the result.

    A search needs the model in memory, and lets go of it before the files are written.
    """
    step = recipe.steps[index]
    assert isinstance(step, Collapse | Merge | Drop)
    place = store.unfinished(keys[index + 1])
    with _reported(recipe, keys, index, store, context) as (reports, report):
        said: Report = {}
        writing = context
        if isinstance(step, Collapse):
            discard(place)  # of a search that may have ended otherwise
            lm = _load(recipe, keys, index, store, context)
            step, said = _searched(lm, step, context.part(0, 0.95))
            del lm
            give_back()
            writing = context.part(0.95, 1)
        elif isinstance(step, Merge):
            said = {"spans": [list(span) for span in step.spans]}
        source = LazyModel(_folder(recipe, keys, index, store), recipe.model, context.device)
        report |= {**restack(source, step, place, writing), **said}
    _save_walked(recipe, keys, index, store, reports)


def _save_walked(
    recipe: Recipe, keys: list[str], index: int, store: RunStore, reports: list[Report]
) -> None:
    """Keep what a walk wrote, with its reports."""
    place = store.unfinished(keys[index + 1])
    _save(recipe, keys, index, store, reports, lambda folder: link_files(place, folder, STATE))
    discard(place)


@contextmanager
def _making(key: str, store: RunStore, context: Context) -> Iterator[bool]:
    """Nobody else makes the result under `key` meanwhile. Whether another had just made it."""
    waiting = partial(context.step, 0.0, "waiting for another job that makes the same result")
    with alone(store.folder / "locks" / key, waiting):
        yield store.artifact(key) is not None


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
    keys: list[str],
    evaluation: Evaluation,
    shown: Shown,
    store: RunStore,
    context: Context,
) -> None:
    def original() -> LoadedModel:
        return _original(recipe, store, context.device) if recipe.steps else lm

    folder = _folder(recipe, keys, len(recipe.steps), store)
    source = models.folder_of(recipe.model, store.folder)
    found = evaluated(lm, evaluation, context, original, folder, source)
    metrics = guarded(lm, shown, evaluation, found)
    store.add_metrics(keys[-1], evaluation, metrics, found.answers)


def _searched(lm: LoadedModel, step: Collapse, context: Context) -> tuple[Merge, Report]:
    """What a search found, as a step, and what there is to tell of it."""
    windows = corpora.windows(step.calibration, lm.tokenizer)
    plan = plan_collapse(lm, step, windows, context)
    return plan.as_step(step), {**plan.document(step), "calibration": _text_report(windows)}


def _text_report(windows: Windows) -> Report:
    return {
        "source": windows.source,
        "digest": windows.digest,
        "tokens": int(windows.lengths.sum()),
    }


STEPS: dict[type, Callable[..., None]] = {
    Collapse: _restack,
    Merge: _restack,
    Drop: _restack,
    Prune: _rework,
    Compensate: _rework,
    Finetune: _finetune,
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
