"""A layer of any family is pruned to the sparsity asked, or left alone with a reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from laco.errors import CalibrationError, NumericalError, RecipeError
from laco.layers import LayerStack, linears, weight_of
from laco.prune import PRUNERS, check_pattern, measured, prunable, prune_layer
from laco.recipe import Magnitude, SparseGPT, Wanda
from laco.steps.sparsity import Sparse
from laco.walk import Tape, record
from tests import tiny

FAMILIES = {**tiny.ARCHITECTURES, **tiny.PROBED}
METHODS: list[type[Sparse]] = [Magnitude, Wanda, SparseGPT]


class Fed:
    """A layer of a tiny model, and its calibration inputs in two micro-batches."""

    def __init__(self, family: str, index: int = 0):
        self.stack = LayerStack(FAMILIES[family]())
        self.index, self.layer = index, self.stack[index]
        self.tapes: list[Tape] = [
            record(self.stack, tiny.tokens(3, 20)),
            record(self.stack, tiny.tokens(2, 9, seed=1)),
        ]
        self.times = 0

    def feed(self) -> None:
        self.times += 1
        for tape in self.tapes:
            tape.run(self.layer, self.index, tape.inputs)


def inputs_of(fed: Fed) -> dict[str, torch.Tensor]:
    """All inputs of each linear, by a hook of its own: [tokens, in]."""
    seen: dict[str, list[torch.Tensor]] = {}

    def before(name: str, _linear: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        seen.setdefault(name, []).append(args[0].flatten(0, -2))

    handles = [
        linear.register_forward_pre_hook(partial(before, name))
        for name, linear in linears(fed.layer)
    ]
    fed.feed()
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in seen.items()}


def hooks(layer: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in layer.modules())


def zero_masks(layer: nn.Module) -> dict[str, Tensor]:
    """Where the weights of each linear are zero, by name, shaped as the module stores it."""
    return {name: linear.get_parameter("weight").data == 0 for name, linear in linears(layer)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
class TestEveryFamily:
    def test_half_of_each_linear_goes(self, family: str, method: type[Sparse]) -> None:
        fed = Fed(family, index=tiny.DEPTH - 1)  # the last layer has experts where there are any
        report = prune_layer(fed.layer, fed.feed, method(sparsity=0.5), 0.5, "layer 5")
        masks, parameters = zero_masks(fed.layer), dict(fed.layer.named_parameters())
        assert len(report["linears"]) >= 3
        for name, counts in report["linears"].items():
            weight = parameters.get(f"{name}.weight", parameters.get(name))
            assert weight is not None
            assert counts["weights"] == weight.numel()
            assert counts["zeros"] == round(weight.numel() / 2)
            assert int((weight == 0).sum()) == counts["zeros"]
            assert torch.equal(masks.get(name, weight == 0), weight == 0)
            assert bool(weight.isfinite().all())

    def test_two_of_four_go_along_the_inputs(self, family: str, method: type[Sparse]) -> None:
        fed = Fed(family)
        report = prune_layer(fed.layer, fed.feed, method(pattern="2:4"), 0.5, "layer 0")
        assert report["linears"]
        for name, weight in prunable(fed.layer):  # [out, in]
            groups = (weight == 0).reshape(len(weight), -1, 4).sum(-1)
            assert bool((groups == 2).all()), name


@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3", "llama4_text"])
class TestStatistics:
    """They are those of what each linear is fed, over all micro-batches."""

    def test_of_wanda_are_square_sums(self, family: str) -> None:
        fed = Fed(family, index=5)
        inputs = inputs_of(fed)
        seen = measured(fed.layer, fed.feed, Wanda(), "layer 5")
        linears_seen = {name: seen[name] for name in inputs if name in seen}
        assert len(linears_seen) >= 4
        for name, squares in linears_seen.items():
            torch.testing.assert_close(squares, inputs[name].pow(2).sum(0), rtol=1e-4, atol=1e-4)

    def test_of_sparsegpt_are_gram_matrices(self, family: str) -> None:
        fed = Fed(family, index=5)
        inputs = inputs_of(fed)
        seen = measured(fed.layer, fed.feed, SparseGPT(), "layer 5")
        linears_seen = {name: seen[name] for name in inputs if name in seen}
        assert len(linears_seen) >= 4
        for name, gram in linears_seen.items():
            expected = inputs[name].T @ inputs[name]
            torch.testing.assert_close(gram, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("method", [Wanda, SparseGPT])
def test_statistics_are_not_rounded_under_autocast(method: type[Sparse]) -> None:
    fed = Fed("llama")

    def feed() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fed.feed()

    plain = measured(fed.layer, fed.feed, method(), "layer 0")
    mixed = measured(fed.layer, feed, method(), "layer 0")
    name = "self_attn.q_proj"  # the norm before it works in float32 either way
    assert torch.equal(mixed[name], plain[name])


@pytest.mark.parametrize("method", METHODS)
def test_text_is_fed_once_and_only_to_methods_that_look_at_it(method: type[Sparse]) -> None:
    fed = Fed("llama")
    prune_layer(fed.layer, fed.feed, method(), 0.5, "layer 0")
    assert fed.times == (0 if method is Magnitude else 1)


@pytest.mark.parametrize("method", METHODS)
def test_the_sparsity_given_counts_and_not_the_methods(method: type[Sparse]) -> None:
    fed = Fed("llama")
    report = prune_layer(fed.layer, fed.feed, method(sparsity=0.5), 0.3, "layer 0")
    for counts in report["linears"].values():
        assert counts["zeros"] == round(0.3 * counts["weights"])


@pytest.mark.parametrize("method", METHODS)
def test_a_second_pruning_keeps_the_zeros_and_ends_where_asked(method: type[Sparse]) -> None:
    fed = Fed("gpt2")
    prune_layer(fed.layer, fed.feed, Magnitude(), 0.4, "layer 0")
    before = zero_masks(fed.layer)
    report = prune_layer(fed.layer, fed.feed, method(), 0.6, "layer 0")
    after = zero_masks(fed.layer)
    for name, counts in report["linears"].items():
        assert counts["zeros"] == round(0.6 * counts["weights"])
        assert bool(after[name][before[name]].all())


def test_routers_and_what_is_no_linear_stay_and_are_named() -> None:
    fed = Fed("llama4_text", index=5)
    router = fed.layer.get_submodule("feed_forward.router").get_parameter("weight").clone()
    report = prune_layer(fed.layer, fed.feed, Wanda(), 0.5, "layer 5")
    assert "feed_forward.router" not in report["linears"]
    assert torch.equal(
        fed.layer.get_submodule("feed_forward.router").get_parameter("weight"), router
    )
    (note,) = report["notes"]
    assert note == "not pruned, being routers or no linears: feed_forward.router"


def test_hooks_are_taken_off_even_when_feeding_fails() -> None:
    fed = Fed("llama")

    def feed() -> None:
        assert hooks(fed.layer) > 0
        raise KeyError("text")

    with pytest.raises(KeyError):
        measured(fed.layer, feed, Wanda(), "layer 0")
    assert hooks(fed.layer) == 0


class TestBadInput:
    """It is refused with its place, before any weight changes."""

    @pytest.fixture
    def fed(self) -> Fed:
        return Fed("llama", index=3)

    def refused(
        self, fed: Fed, error: type[Exception], match: str, method: Sparse, feed: Callable[[], None]
    ) -> None:
        before = {name: p.clone() for name, p in fed.layer.named_parameters()}
        with pytest.raises(error, match=match):
            prune_layer(fed.layer, feed, method, method.sparsity, "layer 3")
        for name, parameter in fed.layer.named_parameters():
            assert torch.equal(parameter.nan_to_num(), before[name].nan_to_num())

    @pytest.mark.parametrize("method", METHODS)
    def test_a_weight_that_is_not_finite(self, fed: Fed, method: type[Sparse]) -> None:
        fed.layer.get_submodule("mlp.up_proj").get_parameter("weight").data[3, 4] = torch.nan
        match = r"mlp\.up_proj of layer 3"
        self.refused(fed, NumericalError, match, method(), fed.feed)

    @pytest.mark.parametrize("method", [Wanda, SparseGPT])
    def test_inputs_that_are_not_finite(self, fed: Fed, method: type[Sparse]) -> None:
        fed.tapes[1].inputs[0, 4] = torch.inf
        match = r"inputs of self_attn\.q_proj of layer 3"
        self.refused(fed, NumericalError, match, method(), fed.feed)

    @pytest.mark.parametrize("method", [Wanda, SparseGPT])
    def test_a_linear_without_tokens(self, fed: Fed, method: type[Sparse]) -> None:
        match = r"reached self_attn\.q_proj of layer 3"
        self.refused(fed, CalibrationError, match, method(), lambda: None)

    @pytest.mark.parametrize("method", METHODS)
    def test_rows_that_do_not_divide(self, fed: Fed, method: type[Sparse]) -> None:
        match = r"self_attn\.q_proj of layer 3 have 32 weights.* groups of 5"
        self.refused(fed, RecipeError, match, method(pattern="2:5"), fed.feed)
        assert fed.times == 0

    def test_an_expert_without_tokens_goes_by_size_and_is_named(self) -> None:
        class Experts(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.experts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

            def forward(self, hidden: torch.Tensor) -> torch.Tensor:
                return self.experts[0](hidden) + self.experts[1](hidden[:0]).sum()

        layer = Experts()
        lone = weight_of(layer.experts[1])
        lowest = lone.abs().argsort(dim=1)[:, :2]
        report = prune_layer(layer, lambda: layer(torch.ones(3, 4)), Wanda(), 0.5, "layer 2")
        assert bool((lone.gather(1, lowest) == 0).all())
        assert int((lone == 0).sum()) == 8
        (note,) = report["notes"]
        assert note.startswith("no calibration token reached experts.1, so")


class TestPatterns:
    def test_are_checked_from_shapes_alone(self) -> None:
        with torch.device("meta"):
            layers = [
                nn.Sequential(nn.Linear(8, 8)),
                nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8)),
            ]
        check_pattern(layers, "unstructured")
        check_pattern(layers, "1:2")
        with pytest.raises(RecipeError, match="rows of 1 of layer 1 have 6 weights"):
            check_pattern(layers, "2:4")

    def test_pass_a_whole_stack(self) -> None:
        stack = LayerStack(FAMILIES["gpt2"]())
        check_pattern(stack, "4:8")
        with pytest.raises(RecipeError, match=r"attn\.c_attn of layer 0 have 32 weights"):
            check_pattern(stack, "2:5")


def test_every_method_that_zeroes_weights_is_in_the_table() -> None:
    assert set(PRUNERS) == set(Sparse.__subclasses__())
