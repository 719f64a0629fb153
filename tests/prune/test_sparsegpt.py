"""SparseGPT gives what optimal brain surgeon gives column by column, and errs less than Wanda."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laco.errors import NumericalError
from laco.layers import LayerStack
from laco.prune import prunable, prune_measured
from laco.prune.magnitude import magnitude_mask
from laco.prune.masks import Ratio
from laco.prune.sparsegpt import gram, inverse_factor, sparsegpt
from laco.prune.wanda import square_sums, wanda_mask
from laco.recipe import SparseGPT
from tests import tiny

OUT, IN, TOKENS = 12, 24, 90


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def correlated(seed: int = 1) -> Tensor:
    """Inputs [tokens, in] of unlike channels that go together."""
    return drawn(TOKENS, IN, seed=seed) @ drawn(IN, IN, seed=seed + 100) * drawn(IN, seed=2).exp()


def pruned(
    weight: Tensor,
    inputs: Tensor,
    sparsity: float = 0.5,
    ratio: Ratio | None = None,
    block: int = 128,
    damping: float = 0.01,
) -> Tensor:
    hessian = gram(inputs)
    factor, _ = inverse_factor(hessian, damping)
    return sparsegpt(weight, factor, hessian.diagonal() == 0, sparsity, ratio, block)


def error(weight: Tensor, other: Tensor, inputs: Tensor) -> float:
    return float((inputs @ (weight - other).T).pow(2).sum())


def slow(
    weight: Tensor, inputs: Tensor, quotas: list[int], ratio: Ratio | None, block: int
) -> Tensor:
    """Optimal brain surgeon, a column at a time: each inverse anew, each change made at once."""
    work, damped = weight.double(), inputs.double().T @ inputs.double()
    damped = damped + 0.01 * damped.diagonal().mean() * torch.eye(IN, dtype=torch.float64)
    inverses = [torch.linalg.inv(damped[j:, j:]) for j in range(IN)]  # over what is not passed
    marked = torch.zeros(OUT, IN, dtype=torch.bool)

    def cost(row: int, column: int) -> float:
        return float(work[row, column] ** 2 / inverses[column][0, 0])

    for j in range(IN):
        if ratio is None and j % block == 0:
            cells = [(r, c) for r in range(OUT) for c in range(j, min(j + block, IN))]
            for r, c in sorted(cells, key=lambda cell: cost(*cell))[: quotas[j // block]]:
                marked[r, c] = True
        if ratio is not None and j % ratio[1] == 0:
            for r in range(OUT):
                group = sorted(range(j, j + ratio[1]), key=lambda c, r=r: cost(r, c))
                for c in group[: ratio[1] - ratio[0]]:
                    marked[r, c] = True
        for r in range(OUT):
            if marked[r, j]:
                work[r, j:] -= work[r, j] / inverses[j][0, 0] * inverses[j][0]
                work[r, j] = 0
    return work.float()


@pytest.mark.parametrize(
    ("block", "quotas"),
    [(1, [6] * 24), (5, [30, 30, 30, 30, 24]), (8, [48] * 3), (24, [144]), (128, [144])],
)
def test_half_of_the_weights_as_the_slow_way(block: int, quotas: list[int]) -> None:
    weight, inputs = drawn(OUT, IN), correlated()
    torch.testing.assert_close(
        pruned(weight, inputs, block=block),
        slow(weight, inputs, quotas, None, block),
        rtol=1e-3,
        atol=1e-3,
    )


@pytest.mark.parametrize("block", [1, 6, 8, 10, 128])  # whole groups are taken of any
@pytest.mark.parametrize("ratio", [(2, 4), (4, 8), (1, 3)])
def test_groups_as_the_slow_way(ratio: Ratio, block: int) -> None:
    weight, inputs = drawn(OUT, IN), correlated()
    torch.testing.assert_close(
        pruned(weight, inputs, ratio=ratio, block=block),
        slow(weight, inputs, [], ratio, block),
        rtol=1e-3,
        atol=1e-3,
    )


@pytest.mark.parametrize("sparsity", [0.013, 0.3, 0.5, 0.77])
@pytest.mark.parametrize("block", [5, 24])
def test_as_many_go_as_asked(sparsity: float, block: int) -> None:
    result = pruned(drawn(OUT, IN), correlated(), sparsity, block=block)
    assert int((result == 0).sum()) == round(sparsity * OUT * IN)


@pytest.mark.parametrize("ratio", [None, (2, 4)])
@pytest.mark.parametrize("seed", range(5))
def test_it_errs_less_than_wanda_on_correlated_inputs(seed: int, ratio: Ratio | None) -> None:
    weight, inputs = drawn(OUT, IN, seed=seed), correlated(seed + 10)
    mask = wanda_mask(weight, square_sums(inputs), 0.5, ratio)
    wanda = weight.masked_fill(mask, 0)
    assert error(pruned(weight, inputs, ratio=ratio), weight, inputs) < error(wanda, weight, inputs)


def test_the_weights_that_stay_make_up_for_those_that_go() -> None:
    weight, inputs = drawn(OUT, IN), correlated()
    result = pruned(weight, inputs)
    same_mask = weight.masked_fill(result == 0, 0)
    assert error(result, weight, inputs) < 0.8 * error(same_mask, weight, inputs)


def test_with_unrelated_inputs_it_picks_as_magnitude_does_and_changes_nothing_else() -> None:
    weight = drawn(OUT, IN)
    factor, _ = inverse_factor(torch.eye(IN), 0.01)
    result = sparsegpt(weight, factor, torch.zeros(IN, dtype=torch.bool), 0.5, None, 128)
    torch.testing.assert_close(result, weight.masked_fill(magnitude_mask(weight, 0.5, None), 0))


def test_the_weight_given_is_not_changed() -> None:
    weight = drawn(OUT, IN)
    pruned(weight, correlated())
    assert torch.equal(weight, drawn(OUT, IN))


@pytest.mark.parametrize("ratio", [None, (2, 4)])
def test_weights_that_were_zero_stay_zero(ratio: Ratio | None) -> None:
    weight = drawn(OUT, IN).masked_fill(drawn(OUT, IN, seed=5) < -1, 0)
    result = pruned(weight, correlated(), ratio=ratio, block=8)
    assert bool((result[weight == 0] == 0).all())
    if ratio is None:
        assert int((result == 0).sum()) == OUT * IN // 2


class TestDeadChannels:
    def test_go_first(self) -> None:
        weight, inputs = drawn(OUT, IN), correlated()
        inputs[:, [3, 17]] = 0
        result = pruned(weight, inputs, sparsity=0.2)
        assert bool((result[:, [3, 17]] == 0).all())
        assert int((result == 0).sum()) == round(0.2 * OUT * IN)

    def test_that_stay_are_not_changed(self) -> None:
        weight, inputs = drawn(OUT, IN), correlated()
        inputs[:, [3, 17]] = 0
        result = pruned(weight, inputs, sparsity=0.05)  # fewer than the dead channels have
        kept = result[:, 3] != 0
        assert bool(kept.any())
        assert torch.equal(result[kept, 3], weight[kept, 3])

    def test_may_be_all_of_them(self) -> None:
        result = pruned(drawn(OUT, IN), torch.zeros(TOKENS, IN))
        assert int((result == 0).sum()) == OUT * IN // 2
        assert bool(result.isfinite().all())


class TestFactor:
    def test_is_that_of_the_damped_inverse(self) -> None:
        hessian = gram(correlated())
        factor, damping = inverse_factor(hessian, 0.05)
        damped = hessian.double() + 0.05 * hessian.double().diagonal().mean() * torch.eye(IN)
        expected = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True).float()
        assert damping == 0.05
        torch.testing.assert_close(factor, expected, rtol=1e-4, atol=1e-7)

    def test_takes_more_damping_where_it_must(self) -> None:
        hessian = torch.tensor([[1.0, 1.05], [1.05, 1.0]])  # eigenvalues 2.05 and -0.05
        factor, damping = inverse_factor(hessian, 0.01)
        assert damping == pytest.approx(0.1)
        expected = torch.linalg.inv(hessian + 0.1 * torch.eye(2))
        torch.testing.assert_close(factor.T @ factor, expected)

    def test_is_refused_after_five_raises(self) -> None:
        hessian = torch.tensor([[1.0, 2e3], [2e3, 1.0]])  # 0.01 * 10**5 = 1000 is not enough
        with pytest.raises(NumericalError, match="damping of 1000"):
            inverse_factor(hessian, 0.01)

    def test_of_numbers_that_are_not_finite_is_refused(self) -> None:
        with pytest.raises(NumericalError):
            inverse_factor(torch.full((2, 2), torch.nan), 0.01)


class TestInALayer:
    """What the factor meets is said with layer and linear."""

    def seen(self, broken: float) -> tuple[torch.nn.Module, dict[str, Tensor]]:
        layer = LayerStack(tiny.ARCHITECTURES["llama"]())[0]
        seen = {name: torch.eye(weight.shape[1]) for name, weight in prunable(layer)}
        hessian = seen["mlp.up_proj"]
        hessian[0, 1] = hessian[1, 0] = broken
        return layer, seen

    def test_a_raised_damping_is_a_note(self) -> None:
        layer, seen = self.seen(1.05)
        report = prune_measured(layer, seen, SparseGPT(), 0.5, "layer 7")
        (note,) = report["notes"]
        assert note.startswith("mlp.up_proj: ")
        assert "damping of 0.01; 0.1 was taken" in note

    def test_a_hopeless_hessian_is_an_error(self) -> None:
        layer, seen = self.seen(1e6)
        with pytest.raises(NumericalError, match=r"In mlp\.up_proj of layer 7: .*damping of 1000"):
            prune_measured(layer, seen, SparseGPT(), 0.5, "layer 7")
