"""Estimates of memory and time: what they grow with, and the speed that they stand on."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from laco import expected as expecting
from laco import machine, speed
from laco.capabilities import CAPABILITIES
from laco.evaluations import Divergence, Perplexity, Similarity
from laco.expected import expected, loaded, usual
from laco.machine import ASSUMED, known_speed
from laco.recipe import (
    Calibration,
    Collapse,
    Compensate,
    Drop,
    Finetune,
    Magnitude,
    Merge,
    Prune,
    SparseGPT,
    Structured,
)

CARD: dict[str, Any] = {
    "layers": 20,
    "parameters": 22_000_000,
    "dtype": "float32",
    "layer_parameters": [1_000_000] * 20,
    "parts": {"mlp": 14_000_000},
    "hidden_size": 256,
    "intermediate_size": 768,
    "heads": 4,
    "head_dim": 64,
    "vocab_size": 8000,
    "active_share": 1.0,
}
TWICE_AS_DEEP: dict[str, Any] = {
    **CARD,
    "layers": 40,
    "layer_parameters": [1_000_000] * 40,
    "parameters": 42_000_000,
    "parts": {"mlp": 28_000_000},
}
TEXT = Calibration(windows=16, length=128)
WALKS = [Prune(calibration=TEXT), Compensate(calibration=TEXT), Merge(spans=((0, 2),))]
IN_MEMORY = [
    Similarity(calibration=TEXT),
    Collapse(target_layers=15, calibration=TEXT),
    Finetune(calibration=TEXT),
    Perplexity(),
]


def taken(work: Any, card: dict[str, Any] = CARD) -> tuple[int, float]:
    found = expected(card, work, ASSUMED)
    return found.memory_bytes, found.seconds


@pytest.mark.parametrize("work", WALKS, ids=lambda work: work.kind)
def test_memory_of_a_walk_does_not_grow_with_depth(work: Any):
    (memory, seconds), (deeper, longer) = taken(work), taken(work, TWICE_AS_DEEP)
    assert deeper == memory
    assert longer > seconds
    assert memory < loaded(CARD, ASSUMED)


@pytest.mark.parametrize("work", IN_MEMORY, ids=lambda work: work.kind)
def test_a_model_in_memory_takes_its_weights_and_more(work: Any):
    (memory, seconds), (deeper, longer) = taken(work), taken(work, TWICE_AS_DEEP)
    assert memory > loaded(CARD, ASSUMED) > 4 * 22_000_000 + ASSUMED.program
    assert deeper - memory >= 80_000_000
    assert longer > 1.5 * (seconds - expecting.TEXT_SECONDS)


@pytest.mark.parametrize("work", [*WALKS[:2], *IN_MEMORY[:3]], ids=lambda work: work.kind)
def test_twice_the_text_takes_about_twice_the_time(work: Any):
    more = work.model_copy(update={"calibration": TEXT.model_copy(update={"windows": 3200})})
    most = work.model_copy(update={"calibration": TEXT.model_copy(update={"windows": 6400})})
    assert taken(most)[1] / taken(more)[1] == pytest.approx(2, rel=0.05)


def test_a_choice_by_curvature_takes_longer_than_one_by_size():
    by_size, by_curvature = Prune(method=Magnitude()), Prune(method=SparseGPT())
    assert taken(by_curvature)[1] > taken(by_size)[1] > taken(Prune(method=Structured()))[1]


def test_targets_in_between_cost_another_pass_and_epochs_theirs():
    plain, mixed = Compensate(epochs=1), Compensate(epochs=1, alpha=0.5)
    assert taken(mixed)[1] > taken(plain)[1]
    assert taken(Compensate(epochs=3))[1] > 1.5 * taken(plain)[1]
    assert taken(Compensate(epochs=0))[0] < taken(plain)[0]  # no gradient, no states of Adam
    together = Prune(compensation=plain)
    assert taken(together)[1] < taken(Prune())[1] + taken(plain)[1]


def test_experts_that_a_token_passes_by_take_memory_and_no_time():
    sparse = {**CARD, "active_share": 0.25}
    work = IN_MEMORY[0]
    assert taken(work, sparse)[0] == taken(work)[0]
    share = (1_000_000 - 0.75 * 700_000) / 1_000_000
    shorter = taken(work, sparse)[1] - expecting.TEXT_SECONDS
    assert share < shorter / (taken(work)[1] - expecting.TEXT_SECONDS) < 1


def test_dropping_layers_is_estimated_as_merging_is():
    assert taken(Drop(layers=(1,))) == taken(Merge(spans=((0, 2),)))


def test_other_work_is_not_guessed_at():
    with pytest.raises(KeyError):
        taken(Divergence())


def test_every_capability_but_export_has_an_estimate():
    found = usual(CARD, ASSUMED)
    assert set(found) == set(CAPABILITIES) - {"export"}
    assert all(math.isfinite(work["seconds"]) and work["seconds"] > 0 for work in found.values())
    json.dumps(found)


def test_a_quicker_machine_takes_less_time_and_as_much_memory():
    quick = replace(ASSUMED, forward={w: 10 * rate for w, rate in ASSUMED.forward.items()})
    work = Similarity(calibration=TEXT.model_copy(update={"windows": 3200}))
    slow, fast = expected(CARD, work, ASSUMED), expected(CARD, work, quick)
    assert slow.seconds / fast.seconds > 5
    assert slow.memory_bytes == fast.memory_bytes


def test_speeds_between_two_widths_lie_on_a_line_of_logarithms():
    known = replace(ASSUMED, forward={"64": 1e9, "256": 4e9})
    assert known.at("forward", 64) == pytest.approx(1e9)
    assert known.at("forward", 128) == pytest.approx(2e9)
    assert known.at("forward", 256) == pytest.approx(4e9)
    assert [known.at("forward", width) for width in (8, 1024)] == [1e9, pytest.approx(4e9)]


def test_speed_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert known_speed(tmp_path) is None
    monkeypatch.setattr(speed, "WIDTHS", (64, 128))
    monkeypatch.setattr(speed, "MANY", 1 << 14)
    found = speed.speed(tmp_path)
    assert known_speed(tmp_path) == found
    assert set(found.forward) == {"64", "128"}
    for kind in ("forward", "inputs", "weights", "head"):
        assert all(rate > 0 for rate in getattr(found, kind).values())
    assert found.forward["128"] > found.inputs["128"] > 0
    monkeypatch.setattr(speed, "measured", lambda: pytest.fail("measured again"))
    assert speed.speed(tmp_path) == found


def test_speed_of_another_machine_is_not_this_ones(tmp_path: Path):
    held = asdict(replace(ASSUMED, machine="elsewhere, 64 threads"))
    (tmp_path / machine.FILE).write_text(json.dumps(held))
    assert known_speed(tmp_path) is None
    held["machine"] = machine.machine()
    (tmp_path / machine.FILE).write_text(json.dumps(held))
    assert known_speed(tmp_path) is not None
