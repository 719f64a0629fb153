"""Find which layers to collapse, in four orders of search.

A search gives a `CollapsePlan`, which is data: spans, and every candidate tried with its score.
Carrying it out is `merging.apply_edit`; scoring candidates is `candidates.Trials`. So a plan can
be shown, edited and run again without a search. Next: `candidates.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from laco.candidates import HIGHER_IS_BETTER, Scores, Trials
from laco.context import Context
from laco.corpora import Windows
from laco.errors import RecipeError
from laco.merging import Group, can_merge, merge_groups
from laco.models import LoadedModel
from laco.ranking import block_angles, layer_influence
from laco.recipe import THRESHOLDS, Collapse, Merge, Span
from laco.streamed import require_whole

BISECTIONS = 10  # a cosine threshold to within 2 / 2**10
LOOSEST = 100.0  # nats, or times the original's perplexity: worse than any candidate of use


@dataclass(frozen=True)
class Candidate:
    """One merge that was tried. The span is in the indices of the layers before the search.

    Not `exact`: it was left once it could not be the best; its score is at best this.
    """

    step: int
    start: int
    stop: int
    score: float
    accepted: bool
    exact: bool = True


@dataclass
class CollapsePlan:
    """The spans that a search chose, in order, and what it saw on the way."""

    spans: list[Span] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    threshold: float | None = None
    seconds_search: float = 0.0

    def as_step(self, step: Collapse) -> Merge:
        """The plan as a step that needs no search."""
        return Merge(spans=tuple(self.spans), merge=step.merge, parameters=step.parameters)

    def document(self, step: Collapse) -> dict[str, Any]:
        """The plan as JSON data."""
        return {
            **asdict(self),
            "order": step.order,
            "objective": step.objective if step.order in ("best_first", "top_down") else step.order,
            "merge": step.merge,
            "parameters": step.parameters,
        }


def plan_collapse(
    lm: LoadedModel, step: Collapse, windows: Windows, context: Context
) -> CollapsePlan:
    """The spans to merge, found in the order that `step` names. Leaves the model as it was.

    Raises `RecipeError` when the bounds do not fit the model, or when no candidate meets the
    threshold (with the best score there was).
    """
    bounds = Bounds.of(step, len(lm.layers))
    if step.order in ("best_first", "top_down") and step.merge != "drop":
        require_whole(lm, f"A search that merges layers ({step.merge})", "let it drop them")
    started = time.perf_counter()
    plan = _ORDERS[step.order](lm, step, bounds, windows, context)
    plan.seconds_search = time.perf_counter() - started
    return plan


@dataclass(frozen=True)
class Bounds:
    """A collapse's numbers, settled for a model of a certain depth."""

    layers: int
    lowest: int
    highest: int
    target: int | None
    threshold: float

    @classmethod
    def of(cls, step: Collapse, layers: int) -> Bounds:
        """Check `step` against a model of `layers` layers (`RecipeError`)."""
        highest = layers - 1 if step.highest is None else step.highest
        target = step.target_layers
        if step.target_share is not None:
            target = max(1, round(step.target_share * layers))
        if highest > layers:
            raise RecipeError(
                f"collapse: highest is {highest}, past the end; the model has {layers} layers."
            )
        if highest - step.lowest < step.span:
            raise RecipeError(
                f"collapse: no window of {step.span} layers fits between lowest ({step.lowest}) "
                f"and highest ({highest}); lower span or lowest."
            )
        if target is not None and target >= layers:
            raise RecipeError(
                f"collapse: target_layers is {target}, but the model has only {layers} layers; "
                f"ask for {layers - 1} or fewer."
            )
        fewest = layers - (highest - step.lowest) + 1
        if target is not None and target < fewest:
            raise RecipeError(
                f"collapse: {target} layers cannot be reached between lowest ({step.lowest}) and "
                f"highest ({highest}); the fewest is {fewest}."
            )
        threshold = step.threshold
        if threshold is None:
            threshold = THRESHOLDS[step.objective]
        return cls(layers, step.lowest, highest, target, threshold)


def first_window(layers: int, span: int, highest: int | None = None) -> Span:
    """The first window of Algorithm 1: the `span` layers below `highest` (unset: the last layer).

    The paper counts layers from 1 with H = n; counted from 0 that is highest = n − 1, so the last
    layer is outside of the first window.
    """
    top = layers - 1 if highest is None else highest
    return (top - span, top)


def _best_first(
    lm: LoadedModel, step: Collapse, bounds: Bounds, windows: Windows, context: Context
) -> CollapsePlan:
    """Try every start, take the best, and again, until the target or the threshold."""
    trials = Trials(lm, windows, [step.objective], step.cosine_over)
    plan = CollapsePlan(threshold=None if bounds.target else bounds.threshold)
    higher = HIGHER_IS_BETTER[step.objective]
    fewest = bounds.target or bounds.layers - (bounds.highest - bounds.lowest) + 1
    last: dict[int, float] = {}  # scores of the round before: the likely best is tried first
    for round_number in range(bounds.layers):
        left = len(trials.groups)
        length = min(step.span, left - fewest + 1)
        starts = [
            index
            for index in reversed(range(left - length + 1))  # the quickest to try first
            if trials.groups[index].start >= bounds.lowest
            and trials.groups[index + length - 1].stop <= bounds.highest
            and can_merge(
                lm.layers,
                (trials.groups[index].start, trials.groups[index + length - 1].stop),
                step.merge,
            )
        ]
        if length < 2 or not starts:
            break
        starts.sort(key=lambda index: last.get(trials.groups[index].start, 0.0), reverse=higher)
        best: tuple[float, int, Group] | None = None
        tried: list[tuple[Group, Scores]] = []
        for number, index in enumerate(starts):
            done = bounds.layers - left + number / len(starts)
            context.step(
                done / (bounds.layers - fewest),
                f"{left} layers: trying to merge at {trials.groups[index].start}",
            )
            merged = _merged(trials, index, length, step)
            scores = trials.score(index, length, merged, rival=best[0] if best else None)
            score = last[merged.start] = scores.values[step.objective]
            if best is None or (score > best[0] if higher else score < best[0]):
                best = (score, index, merged)
            tried.append((merged, scores))
        assert best is not None
        met = best[0] > bounds.threshold if higher else best[0] <= bounds.threshold
        accept = bounds.target is not None or met
        for merged, scores in sorted(tried, key=lambda pair: pair[0].start):
            score = scores.values[step.objective]
            chosen = accept and merged is best[2]
            plan.candidates.append(
                Candidate(round_number, merged.start, merged.stop, score, chosen, scores.exact)
            )
        if not accept:
            break
        plan.spans.append((best[2].start, best[2].stop))
        trials.accept(best[1], length, best[2])
    return _reached(plan, step, bounds)


def _top_down(
    lm: LoadedModel, step: Collapse, bounds: Bounds, windows: Windows, context: Context
) -> CollapsePlan:
    """Algorithm 1 (arXiv:2402.11187). With a target, the highest threshold that reaches it."""
    trials = Trials(lm, windows, [step.objective], step.cosine_over)
    seen: dict[tuple[Span, ...], float] = {}  # so that bisection pays for each stack once
    if bounds.target is None:
        plan = _descend(trials, step, bounds, bounds.threshold, context, seen)
        return _reached(plan, step, bounds)
    higher = HIGHER_IS_BETTER[step.objective]
    loose, strict = (-1.0, 1.0) if higher else (LOOSEST, 0.0)
    best = _descend(trials, step, bounds, loose, context.part(0, 0.3), seen)
    left = _layers_left(best, bounds.layers)
    if left != bounds.target:
        raise RecipeError(
            f"collapse: Algorithm 1 reaches {left} layers with every merge accepted, not "
            f"{bounds.target}; lower interval or raise span."
        )
    for number in range(BISECTIONS):
        middle = (loose + strict) / 2
        part = context.part(0.3 + 0.7 * number / BISECTIONS, 0.3 + 0.7 * (number + 1) / BISECTIONS)
        plan = _descend(trials, step, bounds, middle, part, seen)
        if _layers_left(plan, bounds.layers) == bounds.target:
            loose, best = middle, plan
        else:
            strict = middle
    return best


def _descend(
    trials: Trials,
    step: Collapse,
    bounds: Bounds,
    threshold: float,
    context: Context,
    seen: dict[tuple[Span, ...], float],
) -> CollapsePlan:
    """One run of Algorithm 1's loop, line by line, at one threshold."""
    plan = CollapsePlan(threshold=threshold)
    trials.restart()
    higher = HIGHER_IS_BETTER[step.objective]
    first = index = bounds.highest - step.span  # l = H − C
    while index >= bounds.lowest:
        left = len(trials.groups)
        more = min(step.span - 1, left - 1 - index)  # K
        if bounds.target is not None:
            more = min(more, left - bounds.target)
        if more < 1:
            break
        context.step(1 - (index + 1) / (first + 1), f"{left} layers: trying to merge at {index}")
        span = (trials.groups[index].start, trials.groups[index + more].stop)
        if not can_merge(trials.stack, span, step.merge):
            index -= 1
            continue
        merged: Group | None = None
        path = (*plan.spans, span)
        if path not in seen:
            merged = _merged(trials, index, more + 1, step)
            seen[path] = trials.score(index, more + 1, merged).values[step.objective]
        score = seen[path]
        accepted = score > threshold if higher else score <= threshold
        plan.candidates.append(Candidate(len(plan.candidates), *span, score, accepted))
        if accepted:
            plan.spans.append(span)
            merged = merged or _merged(trials, index, more + 1, step)
            trials.accept(index, more + 1, merged)
            index = min(index - step.interval, len(trials.groups) - 1 - step.span)
        else:
            index -= 1
    return plan


def _influence(
    lm: LoadedModel, step: Collapse, bounds: Bounds, windows: Windows, context: Context
) -> CollapsePlan:
    """ShortGPT: the layers of least influence go, each run of them into the layer before it."""
    assert bounds.target is not None
    influence = layer_influence(lm, windows, context)
    allowed = range(bounds.lowest + 1, bounds.highest)
    ranked = sorted(allowed, key=influence.__getitem__)
    removed = set(ranked[: bounds.layers - bounds.target])
    tried = [Candidate(0, k, k + 1, influence[k], k in removed) for k in allowed]
    return CollapsePlan(spans=_runs(removed), candidates=tried)


def _angular(
    lm: LoadedModel, step: Collapse, bounds: Bounds, windows: Windows, context: Context
) -> CollapsePlan:
    """Gromov et al.: the block with the least angle between its ends goes, into the layer below."""
    assert bounds.target is not None
    length = bounds.layers - bounds.target
    angles = block_angles(lm, windows, length, context)
    allowed = range(bounds.lowest + 1, bounds.highest - length + 1)
    best = min(allowed, key=angles.__getitem__)
    tried = [Candidate(0, k, k + length, angles[k], k == best) for k in allowed]
    return CollapsePlan(spans=[(best - 1, best + length)], candidates=tried)


_ORDERS: dict[str, Callable[..., CollapsePlan]] = {
    "best_first": _best_first,
    "top_down": _top_down,
    "influence": _influence,
    "angular": _angular,
}


def _merged(trials: Trials, index: int, length: int, step: Collapse) -> Group:
    return merge_groups(trials.groups[index : index + length], step.merge, step.parameters)


def _runs(removed: set[int]) -> list[Span]:
    """Removed layers as spans, each run falling into the layer before it."""
    spans: list[Span] = []
    for index in sorted(removed):
        if spans and spans[-1][1] == index:
            spans[-1] = (spans[-1][0], index + 1)
        else:
            spans.append((index - 1, index + 1))
    return spans


def _layers_left(plan: CollapsePlan, layers: int) -> int:
    gone = {k for start, stop in plan.spans for k in range(start + 1, stop)}
    return layers - len(gone)


def _reached(plan: CollapsePlan, step: Collapse, bounds: Bounds) -> CollapsePlan:
    """The plan, or a `RecipeError` when nothing in it met the threshold."""
    if plan.spans:
        return plan
    higher = HIGHER_IS_BETTER[step.objective]
    best = (max if higher else min)(plan.candidates, key=lambda c: c.score)
    raise RecipeError(
        f"collapse: no candidate met the threshold ({step.objective} "
        f"{'above' if higher else 'at most'} {bounds.threshold:g}); the best was {best.score:.4g}, "
        f"layers {best.start} to {best.stop - 1} merged. Move the threshold past it, or give "
        "target_layers."
    )
