"""The masked least squares, against each row solved by itself in float64."""

import pytest
import torch
from torch import Tensor

from laco.ridge import masked_ridge


def problem(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [tokens, in], residuals [tokens, out], support [out, in]."""
    make = torch.Generator().manual_seed(seed)
    mixing = torch.randn(12, 12, generator=make)
    inputs = torch.randn(40, 12, generator=make) @ mixing  # correlated, as real ones are
    support = torch.rand(7, 12, generator=make) < 0.5
    return inputs, torch.randn(40, 7, generator=make), support


def row_by_row(inputs: Tensor, residuals: Tensor, support: Tensor, damping: float) -> Tensor:
    """The plain way: every row's free columns, solved exactly."""
    change = torch.zeros(support.shape, dtype=torch.float64)
    x, r = inputs.double(), residuals.double()
    for row, free in enumerate(support):
        few = x[:, free]
        gram = few.T @ few + damping * torch.eye(few.shape[1], dtype=torch.float64)
        change[row, free] = torch.linalg.solve(gram, few.T @ r[:, row])
    return change


@pytest.mark.parametrize("damping", [0.1, 10.0, 1000.0])
def test_it_finds_what_solving_each_row_finds(damping: float):
    inputs, residuals, support = problem()
    gram, cross = inputs.T @ inputs, residuals.T @ inputs
    change = masked_ridge(gram, cross, support, damping, 60, None)
    expected = row_by_row(inputs, residuals, support, damping)
    torch.testing.assert_close(change.double(), expected, rtol=1e-3, atol=1e-4)


def test_nothing_outside_of_the_support_changes():
    inputs, residuals, support = problem()
    change = masked_ridge(inputs.T @ inputs, residuals.T @ inputs, support, 1.0, 9, None)
    assert not change[~support].any()
    assert change[support].any()


def test_more_damping_changes_less():
    inputs, residuals, support = problem()
    gram, cross = inputs.T @ inputs, residuals.T @ inputs
    sizes = [
        float(masked_ridge(gram, cross, support, damping, 60, None).norm())
        for damping in (0.1, 10.0, 1000.0, 1e9)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 1e-4


def test_a_first_guess_needs_fewer_steps():
    inputs, residuals, support = problem()
    gram, cross = inputs.T @ inputs, residuals.T @ inputs
    exact = masked_ridge(gram, cross, support, 1.0, 100, None)
    near = masked_ridge(gram, cross, support, 1.5, 100, None)
    cold = masked_ridge(gram, cross, support, 1.0, 2, None)
    warm = masked_ridge(gram, cross, support, 1.0, 2, near)
    assert (warm - exact).norm() < (cold - exact).norm()


def test_a_row_without_weights_and_a_channel_without_input_stay_as_they_are():
    inputs, residuals, support = problem()
    support[3] = False
    inputs[:, 5] = 0
    change = masked_ridge(inputs.T @ inputs, residuals.T @ inputs, support, 1.0, 30, None)
    assert change.isfinite().all()
    assert not change[3].any()
    assert not change[:, 5].any()
