"""Experts in one tensor are pruned as each would be, were its matrix a linear of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laco.compensate import Task, compensate
from laco.context import Context
from laco.errors import ArchitectureError, RecipeError
from laco.experts import IN_FIRST, stored_experts, watched
from laco.layers import LayerStack
from laco.prune import measured, prunable, prune_layer
from laco.recipe import Compensate, Magnitude, SparseGPT, Wanda
from laco.steps.sparsity import Sparse
from laco.walk import record
from tests import tiny

FAMILIES = {**tiny.PROBED, **tiny.RHYTHMIC}
STORED = [  # one tensor for all experts, in four ways
    *("qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3", "ernie4_5_moe"),
    *("qwen3_next", "jamba", "gpt_oss", "llama4_text"),
]
LAST = tiny.DEPTH - 1
METHODS: list[type[Sparse]] = [Magnitude, Wanda, SparseGPT]


class Fed:
    """The last layer of a tiny model, and how to run it."""

    def __init__(self, family: str):
        self.stack = LayerStack(FAMILIES[family]())
        self.layer = self.stack[LAST]
        self.tape = record(self.stack, tiny.tokens(8, 20))

    def feed(self) -> None:
        self.run(self.layer, self.tape.inputs)

    def run(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        return self.tape.call(layer, LAST, hidden)

    def module(self) -> Any:
        name = next(stored_experts(self.layer)).name
        return self.layer.get_submodule(name.rpartition(".")[0])


def fed_to_experts(fed: Fed) -> dict[tuple[str, int], Tensor]:
    """What each expert's matrices are fed, worked out from how its module is called."""
    module, calls = fed.module(), []
    handle = module.register_forward_pre_hook(lambda _m, args: calls.append(args))
    fed.feed()
    handle.remove()
    ((hidden, *routed),) = calls
    found: dict[tuple[str, int], Tensor] = {}
    for expert in range(module.num_experts):
        up, turned = module.gate_up_proj[expert], getattr(module, "is_transposed", True)
        if routed:
            rows = hidden[(routed[0] == expert).any(-1)]
        else:  # Llama 4: a block of rows for each expert, zero where a token goes elsewhere
            rows = hidden.view(module.num_experts, -1, hidden.shape[-1])[expert]
            rows = rows[rows.any(-1)]
        wide = rows @ (up if turned else up.T)
        if getattr(module, "has_bias", False):
            wide = wide + module.gate_up_proj_bias[expert]
        if hasattr(module, "_apply_gate"):
            inner = module._apply_gate(wide)
        else:
            gate, value = wide.chunk(2, -1)
            inner = value * module.act_fn(gate)
        found["gate_up_proj", expert] = rows
        found["down_proj", expert] = inner
    return found


class Plain(nn.Module):
    """One linear that is given its inputs."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.linear.weight.data = weight.clone(memory_format=torch.contiguous_format)
        self.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", STORED)
@pytest.mark.parametrize("pattern", ["unstructured", "2:4"])
def test_each_expert_is_pruned_as_a_plain_linear(
    family: str, method: type[Sparse], pattern: str
) -> None:
    fed = Fed(family)
    inputs = fed_to_experts(fed)
    matrices = {n: w for stored in stored_experts(fed.layer) for n, w in stored.matrices()}
    assert len(matrices) == 8
    expected: dict[str, Tensor] = {}
    for name, weight in matrices.items():
        _, leaf, index = name.rsplit(".", 2)
        given = inputs[leaf, int(index)]
        plain = Plain(weight)
        if len(given):
            feed: Callable[[], Any] = lambda plain=plain, given=given: plain(given)  # noqa: E731
            prune_layer(plain, feed, method(pattern=pattern), 0.5, "it")
            expected[name] = weight_of_plain(plain)
    assert len(expected) >= 4
    prune_layer(fed.layer, fed.feed, method(pattern=pattern), 0.5, "layer 5")
    after = dict(prunable(fed.layer))
    for name, weight in expected.items():
        assert int((after[name] == 0).sum()) == weight.numel() // 2
        torch.testing.assert_close(after[name], weight, rtol=1e-3, atol=1e-4)


def weight_of_plain(plain: Plain) -> Tensor:
    return plain.linear.weight.data


@pytest.mark.parametrize("family", STORED)
def test_experts_are_seen_whichever_way_they_run(family: str) -> None:
    """And the way is put back."""
    fed = Fed(family)
    for implementation in ("grouped_mm", "batched_mm", "eager"):
        fed.stack.model.config._experts_implementation = implementation
        sums: defaultdict[str, int] = defaultdict(int)

        def see(name: str, rows: Tensor, sums: defaultdict[str, int] = sums) -> None:
            sums[name] += len(rows)

        with watched(fed.layer, see):
            fed.feed()
        inputs = fed_to_experts(fed)
        for (leaf, index), rows in inputs.items():
            (name,) = [n for n in sums if n.endswith(f"{leaf}.{index}")] or [""]
            assert sums[name] == len(rows)
        assert fed.stack.model.config._experts_implementation == implementation


def test_a_report_counts_a_tensor_of_experts_as_one() -> None:
    fed = Fed("mixtral")
    report = prune_layer(fed.layer, fed.feed, Wanda(), 0.25, "layer 5")
    weights = fed.layer.get_parameter("mlp.experts.down_proj")
    counts = report["linears"]["mlp.experts.down_proj"]
    assert counts == {"weights": weights.numel(), "zeros": int((weights == 0).sum())}
    assert counts["zeros"] == weights.numel() // 4
    assert report["notes"] == ["not pruned, being routers or no linears: mlp.gate"]


def test_an_expert_without_tokens_goes_by_the_size_of_its_weights() -> None:
    fed = Fed("qwen3_moe")
    fed.layer.get_parameter("mlp.gate.weight").data[2] = 0  # the others outvote it, or tie
    hidden = fed.tape.inputs[:1, :1]
    fed.tape = record(fed.stack, tiny.tokens(1, 1))
    before = {name: weight.clone() for name, weight in prunable(fed.layer)}

    def feed() -> None:
        fed.run(fed.layer, hidden)

    seen = measured(fed.layer, feed, Wanda(), "layer 5")
    unseen = sorted(before.keys() - seen.keys())
    assert len(unseen) == 4  # one token goes to two of four experts
    report = prune_layer(fed.layer, feed, Wanda(), 0.5, "layer 5")
    after = dict(prunable(fed.layer))
    for name in unseen:
        lowest = before[name].abs().argsort(dim=1)[:, : before[name].shape[1] // 2]
        assert bool((after[name].gather(1, lowest) == 0).all())
        assert name in report["notes"][0]


def test_a_class_whose_products_are_not_seen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 4, 4))

        def forward(self, hidden: Tensor) -> Tensor:
            return torch.einsum("ti,eoi->to", hidden, self.weight)

    monkeypatch.setitem(IN_FIRST, "Odd", False)
    layer = nn.Sequential(Odd()).requires_grad_(False)
    with pytest.raises(ArchitectureError, match=r"0\.weight of layer 3.*choose magnitude"):
        prune_layer(layer, lambda: layer(torch.ones(3, 4)), Wanda(), 0.5, "layer 3")
    prune_layer(layer, lambda: None, Magnitude(), 0.5, "layer 3")
    assert int((layer[0].get_parameter("weight") == 0).sum()) == 16


def test_rows_of_experts_have_to_divide_by_the_pattern() -> None:
    fed = Fed("gpt_oss")  # [in, out]: 32 and 48 in
    with pytest.raises(RecipeError, match=r"down_proj\.0 of layer 5 have 48 weights"):
        prune_layer(fed.layer, fed.feed, Wanda(pattern="16:32"), 0.5, "layer 5")


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "llama4_text"])
def test_compensation_keeps_the_zeros_of_experts(family: str) -> None:
    fed = Fed(family)
    target = fed.run(fed.layer, fed.tape.inputs)
    prune_layer(fed.layer, fed.feed, Wanda(), 0.5, "layer 5")
    before = {stored.name: stored.tensor.clone() for stored in stored_experts(fed.layer)}
    spec = Compensate(epochs=4, batch_tokens=40)
    task = Task(
        fed.layer,
        run=lambda layer, hidden: record_run(fed, layer, hidden),
        inputs=fed.tape.inputs,
        targets=target,
        training=8,
        batch=2,
    )
    fit = compensate(task, spec, 0, "layer 5", Context())
    assert fit.adam is not None
    assert fit.error < fit.pruned
    for stored in stored_experts(fed.layer):
        assert torch.equal(stored.tensor == 0, before[stored.name] == 0)
        assert not torch.equal(stored.tensor, before[stored.name])


def record_run(fed: Fed, layer: nn.Module, hidden: Tensor) -> Tensor:
    """The layer on some of the windows, called as the model calls it on so many."""
    tape = record(fed.stack, tiny.tokens(len(hidden), hidden.shape[1]), shallow=True)
    return tape.call(layer, LAST, hidden)
