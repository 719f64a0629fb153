"""Searches against plain ones: a deep copy of the whole model for every candidate."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from laco import candidates
from laco.candidates import Trials
from laco.collapse import Candidate, CollapsePlan, first_window, plan_collapse
from laco.context import Context
from laco.corpora import Windows
from laco.errors import Cancelled, RecipeError
from laco.evaluations import WhatIf
from laco.layers import LayerStack
from laco.merging import apply_edit, merge_groups
from laco.models import LoadedModel
from laco.ranking import block_angles, layer_influence
from laco.recipe import Collapse, Merge
from laco.whatif import what_if
from tests import tiny


def windows_of(*lengths: int) -> Windows:
    tokens = tiny.tokens(len(lengths), max(lengths))
    sizes = torch.tensor(lengths)
    tokens[torch.arange(max(lengths))[None] >= sizes[:, None]] = 0  # right-padded
    return Windows(tokens=tokens, lengths=sizes, digest="test", source="test")


EVEN = windows_of(12, 12, 12)
UNEVEN = windows_of(12, 5, 9)


def collapsed(lm: LoadedModel, *spans: tuple[int, int], merge: Any = "drop") -> torch.nn.Module:
    model = copy.deepcopy(lm.model)
    apply_edit(LayerStack(model), Merge.model_validate({"spans": spans, "merge": merge}))
    return model


@torch.no_grad()
def plain_scores(original: Any, candidate: Any, windows: Windows) -> dict[str, float]:
    """The three objectives from whole passes, window by window, without padding."""
    cosines, kl, ours, theirs, tokens, predicted = [], 0.0, 0.0, 0.0, 0, 0
    for row, length in zip(windows.tokens, windows.lengths.tolist(), strict=True):
        ids = row[None, :length]
        states = [m(ids, output_hidden_states=True) for m in (candidate, original)]
        flat = [s.hidden_states[-1].flatten() for s in states]
        cosines.append(float(F.cosine_similarity(flat[0], flat[1], dim=0)))
        log_q, log_p = (s.logits[0].double().log_softmax(-1) for s in states)
        kl += float((log_p.exp() * (log_p - log_q)).sum())
        targets = ids[0, 1:, None]
        ours -= float(log_q[:-1].gather(1, targets).sum())
        theirs -= float(log_p[:-1].gather(1, targets).sum())
        tokens, predicted = tokens + length, predicted + length - 1
    return {
        "cosine": sum(cosines) / len(cosines),
        "kl": kl / tokens,
        "perplexity": float(torch.tensor((ours - theirs) / predicted).exp()),
    }


@pytest.mark.parametrize("family", tiny.ARCHITECTURES)
def test_a_candidates_scores_are_those_of_whole_passes(family: str) -> None:
    lm = tiny.loaded(family)
    trials = Trials(lm, UNEVEN, ("cosine", "kl", "perplexity"))
    trials.accept(4, 2, merge_groups(trials.groups[4:6], "drop", "all"))
    found = trials.score(1, 2, merge_groups(trials.groups[1:3], "drop", "all")).values
    expected = plain_scores(lm.model, collapsed(lm, (4, 6), (1, 3)), UNEVEN)
    assert found == pytest.approx(expected, rel=2e-4, abs=2e-5)


@pytest.mark.parametrize("merge", ["rdsc", "telescoped", "mean"])
def test_scores_hold_for_merged_weights_too(merge: Any) -> None:
    lm = tiny.loaded("redundant")
    trials = Trials(lm, EVEN, ("cosine", "kl"))
    merged = merge_groups(trials.groups[2:5], merge, "all")
    expected = plain_scores(lm.model, collapsed_all(lm, (2, 5), merge), EVEN)
    found = trials.score(2, 3, merged).values
    assert found["kl"] == pytest.approx(expected["kl"], rel=1e-3, abs=1e-5)
    assert found["cosine"] == pytest.approx(expected["cosine"], abs=1e-5)


def collapsed_all(lm: LoadedModel, span: tuple[int, int], merge: Any) -> torch.nn.Module:
    model = copy.deepcopy(lm.model)
    apply_edit(LayerStack(model), Merge(spans=(span,), merge=merge, parameters="all"))
    return model


def test_nothing_is_run_below_a_candidates_first_changed_layer() -> None:
    lm = tiny.loaded("llama")
    trials = Trials(lm, EVEN, ("cosine",))
    calls: list[int] = []
    for index, layer in enumerate(lm.layers):
        layer.register_forward_hook(lambda *_a, index=index: calls.append(index))
    trials.score(3, 2, merge_groups(trials.groups[3:5], "drop", "all"))
    assert calls == [3, 5]


def test_restart_takes_all_merges_back() -> None:
    lm = tiny.loaded("llama")
    trials = Trials(lm, EVEN, ("kl",))
    candidate = merge_groups(trials.groups[2:4], "drop", "all")
    before = trials.score(2, 2, candidate)
    trials.accept(0, 2, merge_groups(trials.groups[0:2], "drop", "all"))
    trials.accept(3, 2, merge_groups(trials.groups[3:5], "drop", "all"))
    trials.restart()
    assert trials.score(2, 2, candidate) == before


def plain_algorithm_one(
    lm: LoadedModel, span: int, interval: int, threshold: float, windows: Windows
) -> list[Candidate]:
    """Algorithm 1 on a list of original extents, with a whole model copied for each candidate."""
    extents = [(i, i + 1) for i in range(len(lm.layers))]
    spans: list[tuple[int, int]] = []
    tried: list[Candidate] = []
    index = len(lm.layers) - 1 - span
    while index >= 0:
        more = min(span - 1, len(extents) - 1 - index)
        new = (extents[index][0], extents[index + more][1])
        score = plain_scores(lm.model, collapsed(lm, *spans, new), windows)["cosine"]
        tried.append(Candidate(len(tried), *new, score, score > threshold))
        if score > threshold:
            spans.append(new)
            extents[index : index + more + 1] = [new]
            index -= interval
            index = min(index, len(extents) - 1 - span)
        else:
            index -= 1
    return tried


@pytest.mark.parametrize(("span", "interval"), [(2, 1), (2, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.8])
def test_top_down_makes_the_decisions_of_the_plain_algorithm(
    span: int, interval: int, threshold: float
) -> None:
    lm = tiny.loaded("redundant")
    step = Collapse(order="top_down", span=span, interval=interval, threshold=threshold)
    found = plan_collapse(lm, step, UNEVEN, Context())
    expected = plain_algorithm_one(lm, span, interval, threshold, UNEVEN)
    assert [(c.start, c.stop, c.accepted) for c in found.candidates] == [
        (c.start, c.stop, c.accepted) for c in expected
    ]
    assert [c.score for c in found.candidates] == pytest.approx(
        [c.score for c in expected], abs=1e-4
    )


def test_best_first_takes_the_least_kl_of_all_starts() -> None:
    lm = tiny.loaded("llama")
    found = plan_collapse(lm, Collapse(target_layers=4), EVEN, Context())
    spans: list[tuple[int, int]] = []
    extents = [(i, i + 1) for i in range(6)]
    for _ in range(2):
        scores = {
            (a[0], b[1]): plain_scores(lm.model, collapsed(lm, *spans, (a[0], b[1])), EVEN)["kl"]
            for a, b in itertools.pairwise(extents)
            if b[1] <= 5  # the last layer stays out of every window
        }
        best = min(scores, key=scores.__getitem__)
        spans.append(best)
        extents = [e for e in extents if not (best[0] <= e[0] and e[1] <= best[1])]
        extents = sorted([*extents, best])
    assert found.spans == spans


@pytest.mark.parametrize("merge", ["rdsc", "telescoped", "mean", "drop"])
@pytest.mark.parametrize("objective", ["cosine", "kl"])
def test_near_copies_are_what_best_first_takes(merge: Any, objective: Any) -> None:
    lm = tiny.loaded("redundant")
    step = Collapse(target_layers=4, merge=merge, objective=objective, parameters="all")
    plan = plan_collapse(lm, step, EVEN, Context())
    if merge == "drop":
        assert set(apply_edit(lm.layers, plan.as_step(step))["removed"]) <= {2, 3, 4}
    else:
        assert all(start >= 2 and stop <= 5 for start, stop in plan.spans)


@pytest.mark.parametrize("order", ["best_first", "top_down", "influence", "angular"])
@pytest.mark.parametrize("target", [3, 4, 5])
def test_every_order_reaches_the_number_of_layers_asked_for(order: Any, target: int) -> None:
    lm = tiny.loaded("redundant")
    step = Collapse(order=order, span=2, interval=1, target_layers=target)
    plan = plan_collapse(lm, step, EVEN, Context())
    report = apply_edit(lm.layers, plan.as_step(step))
    assert report["layers_after"] == len(lm.layers) == target
    assert 5 in report["kept"]


@pytest.mark.parametrize("objective", ["kl", "cosine", "perplexity"])
def test_candidates_left_early_would_not_have_been_chosen(
    objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, windows = tiny.loaded("llama"), windows_of(*[12] * 8)
    step = Collapse(target_layers=3, objective=objective)
    whole = plan_collapse(lm, step, windows, Context())  # one batch: nothing to leave
    monkeypatch.setattr(candidates, "BATCH", 12)
    found = plan_collapse(lm, step, windows, Context())
    assert found.spans == whole.spans
    assert all(c.exact for c in whole.candidates)
    if objective == "kl":
        assert not all(c.exact for c in found.candidates)
    higher = objective == "cosine"
    for ours, theirs in zip(found.candidates, whole.candidates, strict=True):
        assert (ours.start, ours.stop, ours.accepted) == (
            theirs.start,
            theirs.stop,
            theirs.accepted,
        )
        if ours.exact:
            assert ours.score == pytest.approx(theirs.score, abs=1e-5)
        elif higher:
            assert ours.score > theirs.score - 1e-6
        else:
            assert ours.score < theirs.score + 1e-6


def test_a_search_leaves_the_model_as_it_was() -> None:
    lm = tiny.loaded("redundant")
    layers, weights = list(lm.layers), copy.deepcopy(lm.model.state_dict())
    plan_collapse(lm, Collapse(target_layers=3, merge="rdsc"), EVEN, Context())
    assert list(lm.layers) == layers
    assert all(torch.equal(weights[name], now) for name, now in lm.model.state_dict().items())


def test_one_look_orders_rank_as_plain_loops_do() -> None:
    lm = tiny.loaded("llama")
    states = lm.model(EVEN.tokens, output_hidden_states=True).hidden_states[:-1]
    influence = layer_influence(lm, EVEN, Context())
    for k in range(5):
        cosine = F.cosine_similarity(states[k], states[k + 1], dim=-1).mean()
        assert influence[k] == pytest.approx(1 - float(cosine), abs=1e-5)
    angles = block_angles(lm, EVEN, 2, Context())
    for k in range(4):
        ends = states[k][:, -1], states[k + 2][:, -1]
        angle = F.cosine_similarity(*ends, dim=-1).arccos().mean() / torch.pi
        assert angles[k] == pytest.approx(float(angle), abs=1e-5)


def test_what_if_maps_every_span_with_the_scores_of_whole_passes() -> None:
    lm = tiny.loaded("llama")
    document = what_if(lm, WhatIf(longest=3), EVEN, Context())
    assert (document["lengths"], document["starts"]) == ([2, 3], [0, 1, 2, 3, 4, 5])
    for row, length in enumerate(document["lengths"]):
        for start in document["starts"]:
            if start + length > 6:
                assert document["kl"][row][start] is None
                continue
            expected = plain_scores(lm.model, collapsed(lm, (start, start + length)), EVEN)
            assert document["kl"][row][start] == pytest.approx(expected["kl"], rel=1e-3)
            assert document["cosine"][row][start] == pytest.approx(expected["cosine"], abs=1e-5)


def test_the_papers_first_window_leaves_the_last_layer_out() -> None:
    assert first_window(32, 4) == (27, 31)  # 1-based in the paper: layers 28 to 31 of 32
    assert first_window(40, 6) == (33, 39)


def test_a_plan_is_a_step_that_needs_no_search() -> None:
    step = Collapse(merge="telescoped", target_layers=4)
    plan = CollapsePlan(spans=[(2, 4), (2, 5)])
    assert plan.as_step(step) == Merge(
        spans=((2, 4), (2, 5)), merge="telescoped", parameters="projections"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"order": "top_down", "span": 2, "threshold": 1.0}, "no candidate met the threshold"),
        ({"threshold": 0.0}, "no candidate met the threshold"),
        ({"target_layers": 6}, "ask for 5 or fewer"),
        ({"target_layers": 1}, "the fewest is 2"),
        ({"target_layers": 4, "highest": 9}, "past the end"),
        ({"target_layers": 4, "lowest": 5}, "no window of 2 layers fits"),
        ({"target_layers": 2, "lowest": 2}, "the fewest is 4"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(fields: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        plan_collapse(tiny.loaded("llama"), Collapse.model_validate(fields), EVEN, Context())


def test_a_search_stops_when_asked_to() -> None:
    with pytest.raises(Cancelled):
        plan_collapse(
            tiny.loaded("llama"),
            Collapse(target_layers=3),
            EVEN,
            Context(cancelled=lambda: True),
        )
