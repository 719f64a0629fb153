"""Masks mark exactly as many weights as asked, the lowest first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laco.prune.masks import group_mask, matrix_mask, row_mask, spread, zeros_of

SHAPES = [(1, 8), (7, 12), (16, 20), (33, 60)]
SPARSITIES = [0.0, 0.013, 0.2, 0.5, 0.7, 0.999]


def scores(rows: int, columns: int, seed: int = 0, levels: int = 0) -> Tensor:
    """Random scores; with `levels`, so few distinct ones that most are ties."""
    generator = torch.Generator().manual_seed(seed)
    if levels:
        return torch.randint(1, levels + 1, (rows, columns), generator=generator).float()
    return torch.rand(rows, columns, generator=generator) + 0.01


def none_gone(score: Tensor) -> Tensor:
    return torch.zeros_like(score, dtype=torch.bool)


def lowest(values: list[float], count: int) -> list[bool]:
    """The slow way: of the lowest value again and again, the first that stands there."""
    marked = [False] * len(values)
    for _ in range(count):
        best = None
        for i, value in enumerate(values):
            if not marked[i] and (best is None or value < values[best]):
                best = i
        assert best is not None
        marked[best] = True
    return marked


@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("shape", SHAPES)
class TestAgainstTheSlowWay:
    def test_a_matrix_loses_its_lowest(
        self, shape: tuple[int, int], sparsity: float, levels: int
    ) -> None:
        score = scores(*shape, levels=levels)
        zeros = round(sparsity * score.numel())
        expected = torch.tensor(lowest(score.flatten().tolist(), zeros)).reshape(shape)
        assert torch.equal(matrix_mask(score, none_gone(score), zeros), expected)

    def test_rows_lose_their_lowest_each(
        self, shape: tuple[int, int], sparsity: float, levels: int
    ) -> None:
        score = scores(*shape, levels=levels)
        zeros = round(sparsity * score.numel())
        mask = row_mask(score, none_gone(score), zeros)
        counts = mask.sum(1).tolist()
        assert sum(counts) == zeros
        assert max(counts) - min(counts) <= 1
        for row, count, marked in zip(score.tolist(), counts, mask.tolist(), strict=True):
            assert marked == lowest(row, count)


@pytest.mark.parametrize("levels", [0, 2])
@pytest.mark.parametrize("ratio", [(2, 4), (1, 4), (3, 4), (1, 2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_groups_lose_their_lowest_each(
    shape: tuple[int, int], ratio: tuple[int, int], levels: int
) -> None:
    score, (kept, of) = scores(*shape, levels=levels), ratio
    mask = group_mask(score, none_gone(score), ratio)
    for row, marked in zip(score.tolist(), mask.tolist(), strict=True):
        for start in range(0, len(row), of):
            expected = lowest(row[start : start + of], of - kept)
            assert marked[start : start + of] == expected


@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.7])
class TestASecondPruning:
    """Weights that are zero already count, whatever their score says."""

    def test_of_a_matrix_is_exact(self, sparsity: float) -> None:
        score, gone = scores(20, 40), scores(20, 40, seed=1) < 0.26
        mask = matrix_mask(score, gone, zeros_of(800, sparsity))
        assert int(mask.sum()) == round(sparsity * 800)
        assert bool(mask[gone].all())

    def test_of_rows_is_exact(self, sparsity: float) -> None:
        score, gone = scores(20, 40), scores(20, 40, seed=1) < 0.26
        mask = row_mask(score, gone, zeros_of(800, sparsity))
        assert int(mask.sum()) == round(sparsity * 800)
        assert bool(mask[gone].all())

    def test_of_rows_that_were_pruned_alike_leaves_them_alike(self, sparsity: float) -> None:
        score = scores(20, 40)
        gone = row_mask(scores(20, 40, seed=1), none_gone(score), 160)
        counts = row_mask(score, gone, zeros_of(800, sparsity)).sum(1)
        assert int(counts.max() - counts.min()) <= 1


def test_more_zeros_than_asked_stay() -> None:
    score, gone = scores(6, 8), scores(6, 8, seed=1) < 0.8
    assert int(gone.sum()) > 24
    assert torch.equal(matrix_mask(score, gone, 24), gone)
    assert torch.equal(row_mask(score, gone, 24), gone)


def test_a_group_takes_its_zeros_first_and_keeps_more_than_asked() -> None:
    score = torch.tensor([[4.0, 3.0, 2.0, 1.0, 4.0, 3.0, 2.0, 1.0]])
    gone = torch.tensor([[True, False, False, False, True, True, True, False]])
    mask = group_mask(score, gone, (2, 4))
    assert mask.tolist() == [[True, False, False, True, True, True, True, False]]


def test_parts_of_unlike_sizes_share_by_what_they_have_left() -> None:
    gone, sizes = torch.tensor([0, 30, 10]), torch.tensor([100, 100, 20])
    counts = spread(130, gone, sizes)
    assert counts.tolist() == [50, 65, 15]  # half of what each has left


def test_a_transposed_matrix_is_masked_like_its_copy() -> None:
    stored = scores(12, 8)
    score = stored.T  # as a Conv1D gives it
    assert torch.equal(
        matrix_mask(score, none_gone(score), 40),
        matrix_mask(score.contiguous(), none_gone(score.contiguous()), 40),
    )
    assert torch.equal(
        group_mask(score, none_gone(score), (2, 4)),
        group_mask(score.contiguous(), none_gone(score.contiguous()), (2, 4)),
    )
