"""Importance is what the papers say, by plain loops; gradients are those of the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laco import models
from laco.context import Context
from laco.errors import Cancelled, NumericalError
from laco.layers import LayerStack
from laco.lazy import LazyModel
from laco.prune.gradients import layer_gradients
from laco.prune.importance import fluctuation, joined, magnitude, moments, taylor
from laco.prune.widths import Cut, by_unit, rows_of
from laco.recipe import ModelRef
from tests import tiny

FAMILIES = {**tiny.ARCHITECTURES, **tiny.PROBED}
TOKENS = tiny.tokens(batch=5)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class TestMoments:
    def test_batches_joined_are_all_tokens_at_once(self) -> None:
        rows = random(50, 7) * 3 + 2
        seen = joined(joined(moments(rows[:9]), moments(rows[9:10])), moments(rows[10:]))
        assert seen.tokens == 50
        torch.testing.assert_close(seen.mean, rows.mean(0))
        torch.testing.assert_close(seen.squares / 50, rows.var(0, correction=0))

    def test_a_small_variance_about_a_large_mean_is_not_lost(self) -> None:
        rows = 1000 + 0.01 * random(400, 2).double()
        seen = joined(moments(rows[:100].float()), moments(rows[100:].float()))
        exact = rows.float().double().var(0, correction=0)
        torch.testing.assert_close((seen.squares / 400).double(), exact, rtol=0.01, atol=0)


class TestUnits:
    def test_rows_are_found_part_by_part(self) -> None:
        # two units; of each, two rows in the first part, then one, then one
        assert rows_of(torch.tensor([0]), 2, (2, 1, 1)).tolist() == [0, 1, 4, 6]
        assert rows_of(torch.tensor([0, 1]), 2, (2, 1, 1)).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
        assert rows_of(torch.tensor([1, 2]), 4, (3,)).tolist() == [3, 4, 5, 6, 7, 8]

    def test_sums_by_unit_are_sums_over_those_rows(self) -> None:
        values = random(5 * (3 + 1 + 2))
        sums = by_unit(values, 5, (3, 1, 2))
        for unit in range(5):
            rows = rows_of(torch.tensor([unit]), 5, (3, 1, 2))
            torch.testing.assert_close(sums[unit], values[rows].sum())


GROUPS = Cut(
    "groups",
    2,
    1,
    {"self_attn.q_proj": (16,), "self_attn.k_proj": (8,), "self_attn.v_proj": (8,)},
    "self_attn.o_proj",
    16,
)
CHANNELS = Cut("channels", 48, 8, {"mlp.gate_proj": (1,), "mlp.up_proj": (1,)}, "mlp.down_proj", 1)


def coupled_values(layer: nn.Module, cut: Cut, unit: int, gradient: bool) -> list[float]:
    """Every weight of a unit (times its gradient), collected one by one."""
    found: list[float] = []
    names = [(name, parts[0], True) for name, parts in cut.inputs.items()]
    for name, size, as_rows in [*names, (cut.output, cut.size, False)]:
        weight = layer.get_submodule(name).get_parameter("weight")
        for place in range(unit * size, (unit + 1) * size):
            line = weight[place] if as_rows else weight[:, place]
            if gradient:
                assert weight.grad is not None
                line = line * (weight.grad[place] if as_rows else weight.grad[:, place])
            found += line.tolist()
    return found


class TestScores:
    @pytest.mark.parametrize("cut", [CHANNELS, GROUPS], ids=["channels", "groups"])
    def test_fluctuation_is_variance_times_squared_norm_of_the_columns(self, cut: Cut) -> None:
        weight, rows = random(32, cut.count * cut.size), random(40, cut.count * cut.size, seed=1)
        scores = fluctuation(moments(rows), weight, cut)
        for unit in range(cut.count):
            expected = 0.0
            for column in range(unit * cut.size, (unit + 1) * cut.size):
                mean = sum(rows[:, column].tolist()) / 40
                variance = sum((x - mean) ** 2 for x in rows[:, column].tolist()) / 40
                expected += variance * sum(w * w for w in weight[:, column].tolist())
            assert float(scores[unit]) == pytest.approx(expected, rel=1e-4)

    @pytest.mark.parametrize("cut", [CHANNELS, GROUPS], ids=["channels", "groups"])
    def test_magnitude_is_the_norm_of_all_weights_of_a_unit(self, cut: Cut) -> None:
        layer = LayerStack(FAMILIES["llama"]())[0]
        scores = magnitude(layer, cut)
        for unit in range(cut.count):
            values = coupled_values(layer, cut, unit, gradient=False)
            assert float(scores[unit]) == pytest.approx(sum(v * v for v in values) ** 0.5, rel=1e-4)

    @pytest.mark.parametrize("cut", [CHANNELS, GROUPS], ids=["channels", "groups"])
    def test_taylor_is_the_sum_of_weight_times_gradient_of_a_unit(self, cut: Cut) -> None:
        layer = LayerStack(FAMILIES["llama"]())[0]
        for seed, parameter in enumerate(layer.parameters()):
            parameter.grad = random(*parameter.shape, seed=seed)
        scores = taylor(layer, cut)
        for unit in range(cut.count):
            values = coupled_values(layer, cut, unit, gradient=True)
            assert float(scores[unit]) == pytest.approx(sum(map(abs, values)), rel=1e-4)

    def test_a_square_weight_that_lies_transposed_is_met_by_its_own_gradient(self) -> None:
        layer = LayerStack(FAMILIES["gpt2"]())[0]
        cut = Cut("groups", 4, 2, {"attn.c_attn": (8, 8, 8)}, "attn.c_proj", 8)
        for seed, parameter in enumerate(layer.parameters()):
            parameter.grad = random(*parameter.shape, seed=seed)
        fused, out = (layer.get_submodule(name).weight for name in ("attn.c_attn", "attn.c_proj"))
        salience, output = (fused * fused.grad).abs(), (out * out.grad).abs()  # type: ignore
        for unit, score in enumerate(taylor(layer, cut)):
            inside = slice(8 * unit, 8 * unit + 8)
            expected = output[inside].sum()
            expected = expected + sum(s[:, inside].sum() for s in salience.split(32, dim=1))
            torch.testing.assert_close(score, expected)


def lazy_of(folder: Path, dtype: str = "float32") -> LazyModel:
    return LazyModel(folder, ModelRef(path=str(folder), dtype=dtype), "cpu")  # type: ignore


class TestLayerGradients:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_they_are_those_of_a_backward_pass_through_the_whole_model(
        self, family: str, tmp_path: Path
    ) -> None:
        folder = tiny.save(FAMILIES[family](), tmp_path)
        ref = ModelRef(path=str(folder), dtype="float32")
        whole = models.load_folder(folder, ref, "cpu")
        whole.model.requires_grad_(True)
        logits = whole.model(input_ids=TOKENS, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
        loss.backward()
        expected_loss = float(loss.detach())
        lazy = lazy_of(folder)
        visited: list[int] = []

        def visit(index: int, layer: nn.Module) -> None:
            visited.append(index)
            expected = dict(whole.layers[index].named_parameters())
            for name, parameter in layer.named_parameters():
                grad, other = parameter.grad, expected[name].grad
                if other is None:  # experts that no token was sent to
                    assert grad is None or not grad.any()
                    continue
                assert grad is not None
                torch.testing.assert_close(
                    grad, other, rtol=1e-3, atol=1e-6 + 1e-4 * float(other.std())
                )

        found = layer_gradients(lazy, TOKENS, 2, visit, Context())
        assert found == pytest.approx(expected_loss, rel=1e-5)
        assert visited == list(reversed(range(tiny.DEPTH)))

    def test_one_layer_at_a_time_has_weights(self, tmp_path: Path) -> None:
        lazy = lazy_of(tiny.save(FAMILIES["llama"](), tmp_path))

        def real() -> int:
            return sum(p.device.type != "meta" for p in lazy.model.parameters())

        def visit(_index: int, layer: nn.Module) -> None:
            assert real() == len(list(layer.parameters()))

        layer_gradients(lazy, TOKENS, 3, visit, Context())
        assert not real()
        assert not any(p.requires_grad for p in lazy.model.parameters())

    def test_micro_batches_change_nothing(self, tmp_path: Path) -> None:
        lazy = lazy_of(tiny.save(FAMILIES["llama"](), tmp_path))
        seen: dict[int, list[Tensor]] = {}

        def visit(index: int, layer: nn.Module) -> None:
            gradient = layer.get_submodule("mlp.up_proj").get_parameter("weight").grad
            assert gradient is not None
            seen.setdefault(index, []).append(gradient.clone())

        for batch in (1, 5):
            layer_gradients(lazy, TOKENS, batch, visit, Context())
        for one, other in seen.values():
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)

    def test_a_weight_that_is_not_finite_is_reported(self, tmp_path: Path) -> None:
        model = FAMILIES["llama"]()
        model.get_submodule("model.layers.3.mlp.up_proj").get_parameter("weight")[0] = torch.inf
        lazy = lazy_of(tiny.save(model, tmp_path))
        with pytest.raises(NumericalError, match="not finite"):
            layer_gradients(lazy, TOKENS, 2, lambda *_: None, Context())

    def test_it_can_be_stopped(self, tmp_path: Path) -> None:
        lazy = lazy_of(tiny.save(FAMILIES["llama"](), tmp_path))
        with pytest.raises(Cancelled):
            layer_gradients(lazy, TOKENS, 2, lambda *_: None, Context(cancelled=lambda: True))

    def test_a_model_in_bfloat16_has_nearly_the_same(self, tmp_path: Path) -> None:
        model: Any = FAMILIES["llama"]()
        folder = tiny.save(model.to(torch.bfloat16), tmp_path)
        seen: dict[str, list[Tensor]] = {}
        for dtype in ("bfloat16", "float32"):

            def visit(index: int, layer: nn.Module, into: str = dtype) -> None:
                gradient = layer.get_submodule("mlp.up_proj").get_parameter("weight").grad
                assert gradient is not None
                assert gradient.dtype == torch.float32
                seen.setdefault(into, []).append(gradient.clone())

            layer_gradients(lazy_of(folder, dtype), TOKENS, 2, visit, Context())
        for one, other in zip(*seen.values(), strict=True):
            assert float((one - other).norm() / other.norm()) < 0.1
