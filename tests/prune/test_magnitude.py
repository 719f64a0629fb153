"""Magnitude takes the smallest weights of a matrix."""

from __future__ import annotations

import torch

from laco.prune.magnitude import magnitude_mask


def weights(rows: int = 10, columns: int = 16) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def test_the_smallest_of_the_whole_matrix_go() -> None:
    weight = weights()
    mask = magnitude_mask(weight, 0.3, None)
    sizes = sorted(abs(value) for value in weight.flatten().tolist())
    expected = [[abs(value) < sizes[48] for value in row] for row in weight.tolist()]
    assert mask.tolist() == expected


def test_the_smallest_of_each_group_go() -> None:
    weight = weights()
    mask = magnitude_mask(weight, 0.5, (2, 4))
    for row, marked in zip(weight.tolist(), mask.tolist(), strict=True):
        for start in range(0, len(row), 4):
            sizes = sorted(abs(value) for value in row[start : start + 4])
            assert marked[start : start + 4] == [
                abs(value) < sizes[2] for value in row[start : start + 4]
            ]


def test_a_second_pruning_ends_at_the_sparsity_asked() -> None:
    weight = weights()
    half = weight.masked_fill(magnitude_mask(weight, 0.5, None), 0)
    again = magnitude_mask(half, 0.7, None)
    assert torch.equal(again, magnitude_mask(weight, 0.7, None))
