"""Wanda weighs a weight by its input's norm, and compares within a row."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from laco.prune.wanda import square_sums, wanda_mask


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_scores(weight: Tensor, inputs: Tensor) -> list[list[float]]:
    columns = inputs.T.tolist()
    norms = [math.sqrt(math.fsum(value * value for value in column)) for column in columns]
    return [[abs(w) * norm for w, norm in zip(row, norms, strict=True)] for row in weight.tolist()]


@pytest.mark.parametrize("sparsity", [0.25, 0.5, 0.75])
def test_the_lowest_products_of_each_row_go(sparsity: float) -> None:
    weight, inputs = drawn(9, 24), drawn(50, 24, seed=1) * drawn(24, seed=2).exp()
    mask = wanda_mask(weight, square_sums(inputs), sparsity, None)
    for row, marked in zip(slow_scores(weight, inputs), mask.tolist(), strict=True):
        limit = sorted(row)[round(sparsity * 24)]
        assert marked == [score < limit for score in row]


def test_the_lowest_products_of_each_group_go() -> None:
    weight, inputs = drawn(9, 24), drawn(50, 24, seed=1) * drawn(24, seed=2).exp()
    mask = wanda_mask(weight, square_sums(inputs), 0.5, (2, 4))
    for row, marked in zip(slow_scores(weight, inputs), mask.tolist(), strict=True):
        for start in range(0, 24, 4):
            limit = sorted(row[start : start + 4])[2]
            assert marked[start : start + 4] == [score < limit for score in row[start : start + 4]]


def test_the_sum_over_batches_is_that_over_all_tokens() -> None:
    inputs = drawn(40, 6)
    torch.testing.assert_close(
        square_sums(inputs[:15]) + square_sums(inputs[15:]), square_sums(inputs)
    )


def test_the_scale_of_a_row_or_of_the_inputs_changes_nothing() -> None:
    weight, squares = drawn(9, 24), square_sums(drawn(50, 24, seed=1))
    mask = wanda_mask(weight, squares, 0.4, None)
    scales = torch.tensor([0.25, 1.0, 4.0] * 3)[:, None]  # powers of two: no rounding
    assert torch.equal(wanda_mask(weight * scales, squares * 16, 0.4, None), mask)


def test_with_inputs_of_equal_norm_the_smallest_weights_of_a_row_go() -> None:
    weight = drawn(5, 10)
    mask = wanda_mask(weight, torch.ones(10), 0.5, None)
    assert torch.equal(mask, weight.abs() < weight.abs().sort(dim=1).values[:, 5:6])


def test_zeros_go_before_the_weights_of_a_channel_without_input() -> None:
    weight = torch.tensor([[1.0, 2.0, 0.0, 0.0]])
    mask = wanda_mask(weight, torch.tensor([0.0, 1.0, 1.0, 1.0]), 0.5, None)
    assert mask.tolist() == [[False, False, True, True]]
