"""A layer's error is measured without changing it, and sparsity goes where it costs least."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from laco.errors import NumericalError, RecipeError
from laco.layers import LayerStack
from laco.prune import PRUNERS, prune_layer
from laco.prune.sensitivity import allocate, error_curve
from laco.recipe import Magnitude, SparseGPT, Wanda
from laco.steps.sparsity import Sparse
from laco.walk import record
from tests import tiny

LEVELS = [0.2, 0.4, 0.6, 0.8]


class Fed:
    """A layer of a tiny llama with two micro-batches of inputs."""

    def __init__(self, index: int = 2):
        self.stack = LayerStack(tiny.ARCHITECTURES["llama"]())
        self.layer, self.index = self.stack[index], index
        self.tapes = [record(self.stack, tiny.tokens(2, 16, seed)) for seed in range(2)]
        self.fed = 0

    def run_all(self) -> Iterator[Tensor]:
        for tape in self.tapes:
            yield tape.run(self.layer, self.index, tape.inputs)

    def feed(self) -> None:
        self.fed += 1
        for _ in self.run_all():
            pass


class TestErrorCurve:
    @pytest.mark.parametrize("method", PRUNERS)
    def test_is_the_error_of_the_layer_pruned_to_each_level(self, method: type[Sparse]) -> None:
        fed, expected = Fed(), []
        whole = list(fed.run_all())
        for level in LEVELS:
            other = Fed()
            prune_layer(other.layer, other.feed, method(), level, "layer 2")
            ratios = [
                float((a - b).norm() ** 2 / b.norm() ** 2)
                for batch, kept in zip(other.run_all(), whole, strict=True)
                for a, b in zip(batch.flatten(0, 1), kept.flatten(0, 1), strict=True)
            ]
            expected.append(sum(ratios) / len(ratios))
        curve = error_curve(fed.layer, fed.run_all, method(), fed.feed, LEVELS, "layer 2")
        assert curve == pytest.approx(expected, rel=1e-4)
        assert fed.fed == 1 or method is Magnitude

    @pytest.mark.parametrize("method", [Magnitude, SparseGPT])
    def test_leaves_the_layer_as_it_was(self, method: type[Sparse]) -> None:
        fed = Fed()
        before = {name: p.clone() for name, p in fed.layer.named_parameters()}
        curve = error_curve(fed.layer, fed.run_all, method(), fed.feed, LEVELS, "layer 2")
        assert curve[0] > 0
        for name, parameter in fed.layer.named_parameters():
            assert torch.equal(parameter, before[name])

    def test_leaves_the_layer_as_it_was_when_a_run_fails(self) -> None:
        fed = Fed()
        before = {name: p.clone() for name, p in fed.layer.named_parameters()}
        runs = 0

        def run_all() -> Iterator[Tensor]:
            nonlocal runs
            runs += 1
            if runs == 3:
                raise KeyError("stopped")
            yield from fed.run_all()

        with pytest.raises(KeyError):
            error_curve(fed.layer, run_all, Wanda(), fed.feed, LEVELS, "layer 2")
        for name, parameter in fed.layer.named_parameters():
            assert torch.equal(parameter, before[name])

    def test_is_zero_where_nothing_goes(self) -> None:
        fed = Fed()
        assert error_curve(fed.layer, fed.run_all, Wanda(), fed.feed, [0.0], "layer 2") == [0.0]

    def test_of_outputs_that_are_not_finite_is_refused(self) -> None:
        fed = Fed()

        def run_all() -> Iterator[Tensor]:
            for output in fed.run_all():
                yield output / 0

        with pytest.raises(NumericalError, match=r"layer 2 at sparsity 0\.2"):
            error_curve(fed.layer, run_all, Magnitude(), fed.feed, LEVELS, "layer 2")


def interpolated(curve: list[float], sparsity: float) -> float:
    for (x0, y0), (x1, y1) in itertools.pairwise(zip(LEVELS, curve, strict=True)):
        if sparsity <= x1 + 1e-12:
            return y0 + (y1 - y0) * (sparsity - x0) / (x1 - x0)
    raise AssertionError(sparsity)


def mean(sparsities: list[float], sizes: list[int]) -> float:
    return sum(s * n for s, n in zip(sparsities, sizes, strict=True)) / sum(sizes)


def least(curves: list[list[float]], sizes: list[int], sparsity: float) -> float:
    """The least sum of errors, over all ways with every layer but one at a level."""
    best = float("inf")
    for free in range(len(curves)):
        others = [i for i in range(len(curves)) if i != free]
        for at in itertools.product(LEVELS, repeat=len(others)):
            taken = sum(level * sizes[i] for level, i in zip(at, others, strict=True))
            rest = (sparsity * sum(sizes) - taken) / sizes[free]
            if LEVELS[0] - 1e-12 <= rest <= LEVELS[-1] + 1e-12:
                total = interpolated(curves[free], max(rest, LEVELS[0]))
                total += sum(interpolated(curves[i], x) for x, i in zip(at, others, strict=True))
                best = min(best, total)
    return best


def convex(draw: random.Random) -> list[float]:
    steps = sorted(draw.uniform(0, 1) for _ in LEVELS)
    return list(itertools.accumulate(steps))


class TestAllocate:
    @pytest.mark.parametrize("sparsity", [0.2, 0.35, 0.5, 0.71, 0.8])
    @pytest.mark.parametrize("seed", range(8))
    def test_reaches_the_least_error_there_is(self, seed: int, sparsity: float) -> None:
        draw = random.Random(seed)
        curves = [convex(draw) for _ in range(4)]
        sizes = [draw.randint(1, 9) * 100 for _ in curves]
        chosen = allocate(curves, LEVELS, sizes, sparsity)
        assert mean(chosen, sizes) == pytest.approx(sparsity, abs=1e-9)
        assert all(LEVELS[0] <= x <= LEVELS[-1] for x in chosen)
        total = sum(interpolated(c, x) for c, x in zip(curves, chosen, strict=True))
        assert total == pytest.approx(least(curves, sizes, sparsity), rel=1e-6)

    @pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.7])
    @pytest.mark.parametrize("seed", range(8))
    def test_of_uneven_curves_is_at_most_one_stretch_from_the_least(
        self, seed: int, sparsity: float
    ) -> None:
        draw = random.Random(seed)
        curves = [[draw.uniform(0, 1) for _ in LEVELS] for _ in range(4)]
        sizes = [draw.randint(1, 9) * 100 for _ in curves]
        chosen = allocate(curves, LEVELS, sizes, sparsity)
        assert mean(chosen, sizes) == pytest.approx(sparsity, abs=1e-9)
        between = [x for x in chosen if all(abs(x - level) > 1e-9 for level in LEVELS)]
        assert len(between) <= 1  # elsewhere the hull is the curve
        at_levels = [(c, x) for c, x in zip(curves, chosen, strict=True) if x not in between]
        total = sum(interpolated(c, x) for c, x in at_levels)
        assert total <= least(curves, sizes, sparsity) + 1e-9

    def test_gives_equal_layers_the_same(self) -> None:
        curve = [0.1, 0.2, 0.5, 2.0]
        assert allocate([curve] * 5, LEVELS, [100] * 5, 0.47) == pytest.approx([0.47] * 5)

    def test_spares_the_layer_that_suffers_more(self) -> None:
        weak, strong = [0.1, 0.4, 0.9, 1.6], [0.01, 0.04, 0.09, 0.16]
        spared, pruned = allocate([weak, strong], LEVELS, [100, 100], 0.5)
        assert spared == pytest.approx(0.2)
        assert pruned == pytest.approx(0.8)

    @pytest.mark.parametrize("sparsity", [0.1, 0.9])
    def test_refuses_a_sparsity_outside_the_levels(self, sparsity: float) -> None:
        with pytest.raises(RecipeError, match=r"between 0\.2 and 0\.8"):
            allocate([[0.0, 0.1, 0.2, 0.3]], LEVELS, [100], sparsity)
