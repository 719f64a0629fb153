"""Two processes that share the windows come to the numbers of one."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from laco import engine, parallel
from laco.context import Context
from laco.errors import JobError, RecipeError
from laco.evaluate import evaluate
from laco.evaluations import Divergence, Perplexity, Request
from laco.ranks import ALONE, Ranks, together
from laco.recipe import (
    Calibration,
    Compensate,
    ModelRef,
    Prune,
    Recipe,
    Structured,
    Wanda,
)
from laco.store import RunStore
from tests import follower, tiny

TEXT = Calibration(windows=5, length=16)
REPAIR = Compensate(epochs=2, held_out=3, batch_tokens=48, calibration=TEXT)
TWO = ("cpu", "cpu")


def request(folder: Path, step: Prune | Compensate) -> Request:
    recipe = Recipe(model=ModelRef(path=str(folder)), steps=(step,))
    return Request(recipe=recipe, evaluations=(Perplexity(window=300, windows=9),))


def tensors(report: dict[str, Any]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in Path(report["path"]).glob("*.safetensors"):
        found |= load_file(file)
    return found


def test_two_processes_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    met: list[int] = []

    @contextmanager
    def counted(*arguments: Any) -> Iterator[Ranks]:
        with together(*arguments) as ranks:
            met.append(ranks.count)
            yield ranks

    monkeypatch.setattr(parallel, "together", counted)
    folder = tiny.save(tiny.redundant(depth=3, first=1, last=2), tmp_path / "tiny")
    step = Prune(method=Wanda(), calibration=TEXT, compensation=REPAIR)
    one = engine.run(request(folder, step), RunStore(tmp_path / "one"), Context())
    two = engine.run(request(folder, step), RunStore(tmp_path / "two"), Context(devices=TWO))
    assert met == [1, 1, 2, 2]
    assert two["key"] == one["key"]
    weights = tensors(one)
    assert any(
        not torch.equal(weights[n], tensor)
        for n, tensor in load_file(next(folder.glob("*.safetensors"))).items()
        if n in weights
    ), "something was learned"
    for name, tensor in tensors(two).items():
        torch.testing.assert_close(tensor, weights[name], atol=1e-5, rtol=1e-5)
        assert torch.equal(tensor == 0, weights[name] == 0)
    for ours, theirs in zip(two["metrics"], one["metrics"], strict=True):
        assert ours["value"] == pytest.approx(theirs["value"], rel=1e-5)
    rows = [report["steps"][0]["report"]["layers"] for report in (one, two)]
    for ours, theirs in zip(rows[1], rows[0], strict=True):
        assert ours["kept"] == theirs["kept"]
        told = {name: value for name, value in theirs.items() if isinstance(value, float)}
        assert {"error", "cka", "pruned", "adam"} <= told.keys()
        del told["seconds"]
        assert {name: ours[name] for name in told} == pytest.approx(told, rel=1e-4, abs=1e-6)


@dataclass(frozen=True)
class Apart(Ranks):
    """One of several processes that never meets the others, so sums are its own."""

    def add(self, *tensors: torch.Tensor) -> None:
        """Nothing is added."""


@pytest.mark.parametrize("spec", [Perplexity(window=300, windows=9), Divergence(window=16)])
def test_every_window_is_read_by_one_process(spec: Any):
    lm, other = tiny.loaded("llama"), tiny.loaded("mistral")

    def nats(ranks: Ranks) -> float:
        value = evaluate(lm, spec, Context(ranks=ranks), lambda: other).metrics[0].value
        return math.log(value) if spec.kind == "perplexity" else value

    whole = nats(ALONE)
    parts = [nats(Apart(rank, 3)) for rank in range(3)]
    assert sum(parts) == pytest.approx(whole, rel=1e-9)
    assert max(parts) < 0.9 * whole


def test_windows_are_dealt_in_turn_and_found_again():
    windows = torch.arange(7)
    one, two = Ranks(0, 2), Ranks(1, 2)
    assert one.share(windows).tolist() == [0, 2, 4, 6]
    assert two.share(windows).tolist() == [1, 3, 5]
    order = torch.tensor([5, 0, 3, 6])
    for ranks in (one, two):
        mine = ranks.share(windows)[ranks.own(order)]
        assert mine.tolist() == [n for n in order.tolist() if n % 2 == ranks.rank]
    assert ALONE.own(order).tolist() == order.tolist()


def test_a_process_that_ends_early_is_named_and_nobody_waits_for_it():
    lost = pytest.raises(JobError, match="The process on cpu ended")
    with lost as found, together(TWO, follower.dies) as ranks:
        ranks.add(torch.ones(3))
    assert "before it met" not in str(found.value.__cause__)


def test_a_process_that_ends_before_they_meet_is_named_too(monkeypatch: pytest.MonkeyPatch):
    nothing = shutil.which("false")
    assert nothing
    monkeypatch.setattr(sys, "executable", nothing)
    lost = pytest.raises(JobError, match="The process on cpu ended")
    with lost as found, together(TWO, follower.adds):
        raise AssertionError("there is nobody to meet")
    assert "before it met" in str(found.value.__cause__)


def test_processes_know_nothing_of_the_program_that_starts_them(monkeypatch: pytest.MonkeyPatch):
    """A script without a guard, or the app, would otherwise be run once more by each of them."""
    program = ModuleType("__main__")
    program.__file__ = "/nowhere/program.py"
    monkeypatch.setitem(sys.modules, "__main__", program)
    ones = torch.ones(3)
    with together(TWO, follower.adds) as ranks:
        ranks.add(ones)
    assert ones.tolist() == [2, 2, 2]


def test_what_does_not_go_round_is_refused_before_work(tmp_path: Path):
    folder = tiny.save(tiny.redundant(depth=3, first=1, last=2), tmp_path / "tiny")
    few = Compensate(epochs=0, held_out=1, calibration=TEXT)
    narrow = Prune(method=Structured(), calibration=TEXT)
    for step, words in (
        (few, "1 to judge by do not go round 2"),
        (narrow, "decided by one device"),
    ):
        with pytest.raises(RecipeError, match=words):
            engine.run(request(folder, step), RunStore(tmp_path / "s"), Context(devices=TWO))
