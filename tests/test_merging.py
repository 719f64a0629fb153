"""The four merges against plain loops, and the steps that name their spans."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from laco import merging
from laco.errors import RecipeError
from laco.layers import LayerStack, linears
from laco.merging import apply_edit, merge_layers, merge_tensors
from laco.recipe import Drop, Merge
from tests import tiny


@pytest.fixture
def stack() -> LayerStack:
    return LayerStack(tiny.ARCHITECTURES["llama"]())


def published_loop(layers: list[nn.Module]) -> dict[str, torch.Tensor]:
    """What LaCo's notebook does: the base it subtracts is the one it has just changed."""
    base = copy.deepcopy(layers[0])
    for other in layers[1:]:
        for name, linear in linears(base):
            theirs = other.get_submodule(name).get_parameter("weight")
            weight = linear.get_parameter("weight")
            weight.add_(theirs - weight)
    return dict(base.named_parameters())


def equation_one(tensors: list[torch.Tensor]) -> torch.Tensor:
    total = tensors[0].double()
    for tensor in tensors[1:]:
        total = total + (tensor.double() - tensors[0].double())
    return total.float()


def parameters(layer: nn.Module) -> dict[str, torch.Tensor]:
    return dict(layer.named_parameters())


def test_rdsc_is_the_papers_equation(stack: LayerStack) -> None:
    merged = parameters(merge_layers(stack[1:5], "rdsc", "all"))
    for name in merged:
        expected = equation_one([layer.get_parameter(name) for layer in stack[1:5]])
        torch.testing.assert_close(merged[name].data, expected, rtol=0, atol=1e-6)


def test_telescoped_is_what_the_published_loop_computes(stack: LayerStack) -> None:
    merged = parameters(merge_layers(stack[1:5], "telescoped", "projections"))
    expected = published_loop(stack[1:5])
    for name in merged:
        torch.testing.assert_close(merged[name].data, expected[name].data, rtol=0, atol=1e-6)


def test_telescoped_takes_projections_of_the_last_and_the_rest_of_the_first(
    stack: LayerStack,
) -> None:
    merged = merge_layers(stack[0:3], "telescoped", "projections")
    names = {f"{name}.weight" for name, _ in linears(merged)}
    for name, value in merged.named_parameters():
        assert torch.equal(value, stack[2 if name in names else 0].get_parameter(name)), name


@pytest.mark.parametrize("family", tiny.ARCHITECTURES)
def test_two_layers_under_rdsc_give_the_second_bit_for_bit(family: str) -> None:
    stack = LayerStack(tiny.ARCHITECTURES[family]())
    rdsc = parameters(merge_layers(stack[0:2], "rdsc", "projections"))
    telescoped = parameters(merge_layers(stack[0:2], "telescoped", "projections"))
    assert all(torch.equal(rdsc[name], telescoped[name]) for name in rdsc)


@pytest.mark.parametrize("merge", ["rdsc", "telescoped", "mean", "drop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merging_equal_layers_changes_nothing(merge: Any, dtype: torch.dtype) -> None:
    tensor = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    merged = merge_tensors([tensor, tensor.clone(), tensor.clone(), tensor.clone()], merge)
    assert merged.dtype == dtype
    assert torch.equal(merged, tensor)


def test_mean_is_the_mean_in_double_precision() -> None:
    tensors = [torch.randn(4, 4, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    expected = (sum(t.double() for t in tensors) / 3).float()  # type: ignore[union-attr]
    assert torch.equal(merge_tensors(tensors, "mean"), expected)


@pytest.mark.parametrize("merge", ["rdsc", "telescoped", "mean"])
def test_a_merge_leaves_the_given_layers_as_they_are(stack: LayerStack, merge: Any) -> None:
    before = copy.deepcopy(stack.model.state_dict())
    merged = merge_layers(stack[1:4], merge, "all")
    assert all(torch.equal(before[name], now) for name, now in stack.model.state_dict().items())
    assert all(merged is not layer for layer in stack)


def test_what_does_not_merge_is_shared_and_not_copied(stack: LayerStack) -> None:
    merged = merge_layers(stack[1:4], "telescoped", "projections")
    pointers = {p.data_ptr() for layer in stack[1:4] for p in layer.parameters()}
    assert {p.data_ptr() for p in merged.parameters()} <= pointers
    config = merged.get_submodule("self_attn").config
    assert config is stack[1].get_submodule("self_attn").config


def test_a_later_span_merges_what_an_earlier_one_made(stack: LayerStack) -> None:
    inner = merge_layers(stack[3:5], "rdsc", "all")
    expected = parameters(merge_layers([stack[2], inner], "rdsc", "all"))
    report = apply_edit(stack, Merge(spans=((3, 5), (2, 5)), merge="rdsc"))
    assert report["kept"] == [0, 1, 2, 5]
    assert report["removed"] == [3, 4]
    assert all(torch.equal(expected[name], stack[2].get_parameter(name)) for name in expected)


def test_spans_side_by_side_are_in_the_indices_before_the_step(stack: LayerStack) -> None:
    first, third = stack[0], stack[3]
    report = apply_edit(stack, Merge(spans=((0, 3), (3, 5))))
    assert (report["layers_before"], report["layers_after"]) == (6, 3)
    assert stack[0] is first
    assert stack[1] is third


def test_drop_keeps_the_others_in_order(stack: LayerStack) -> None:
    kept = [stack[i] for i in (0, 2, 3, 5)]
    report = apply_edit(stack, Drop(layers=(4, 1)))
    assert list(stack) == kept
    assert report["removed"] == [1, 4]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Merge(spans=((4, 8),)), "reaches past the end"),
        (Drop(layers=(6,)), "layers 0 to 5"),
        (Drop(layers=(0, 1, 2, 3, 4, 5)), "at least one must stay"),
    ],
)
def test_a_step_past_the_end_is_refused_and_changes_nothing(
    stack: LayerStack, step: Any, words: str
) -> None:
    before = list(stack)
    with pytest.raises(RecipeError, match=words):
        apply_edit(stack, step)
    assert list(stack) == before


def test_weights_of_unlike_attention_do_not_mix_but_may_drop() -> None:
    stack = LayerStack(tiny.ARCHITECTURES["gemma3_text"]())
    with pytest.raises(RecipeError, match=r"cannot merge by rdsc.*merge=drop"):
        apply_edit(stack, Merge(spans=((1, 3),), merge="rdsc"))
    assert apply_edit(stack, Merge(spans=((1, 3),)))["kept"] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("merge", ["rdsc", "mean"])
def test_what_is_summed_in_parts_is_what_is_summed_at_once(
    merge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(5, 9).bfloat16().T for _ in range(3)]  # not contiguous
    whole = merge_tensors(tensors, merge)
    monkeypatch.setattr(merging, "CHUNK", 7)
    assert torch.equal(merge_tensors(tensors, merge), whole)
    exact = torch.stack([tensor.double() for tensor in tensors])
    expected = exact.mean(0) if merge == "mean" else exact[1] + exact[2] - exact[0]
    assert torch.equal(whole, expected.bfloat16())
