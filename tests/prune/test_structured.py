"""Any family is made narrower so that stock classes load it, or refused before any work."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from laco.context import Context
from laco.errors import ArchitectureError, CalibrationError, NumericalError, RecipeError
from laco.layers import LayerStack, weight_of
from laco.lazy import LayerWriter, LazyModel
from laco.prune.structured import Narrowing
from laco.prune.widths import check_structured
from laco.recipe import ModelRef, Structured
from laco.steps.sparsity import units_left
from laco.walk import Tape, final_hidden, logits, record
from tests import tiny

TOKENS = tiny.tokens(batch=3)
KEPT = 32

# Weights that go with one channel, biases included, and with one group of heads.
GATED, BIASED = 3 * 32, 2 * 32 + 1
FAMILIES = {**tiny.ARCHITECTURES, **tiny.PROBED}
CHANNEL = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"), GATED),
    **dict.fromkeys(("phi3", "olmo2", "smollm3", "granite", "stablelm"), GATED),
    **dict.fromkeys(("cohere", "cohere2", "glm4", "minicpm3", "gemma3"), GATED),
    **dict.fromkeys(("gpt2", "opt", "gpt_neox"), BIASED),
    "falcon": 2 * 32,
}
TWO_QUERIES = (2 + 1 + 1 + 2) * 32  # times the size of a head: rows of q, k, v; columns of o
GROUP = {
    **dict.fromkeys(("llama", "mistral", "gemma2", "gemma3_text"), 8 * TWO_QUERIES),
    **dict.fromkeys(("phi3", "smollm3", "granite"), 8 * TWO_QUERIES),
    **dict.fromkeys(("cohere", "cohere2", "gemma3"), 8 * TWO_QUERIES),
    **dict.fromkeys(("mixtral", "llama4_text"), 8 * TWO_QUERIES),
    **dict.fromkeys(("qwen2", "glm4", "qwen2_moe"), 8 * TWO_QUERIES + 8 * 4),  # biases of q, k, v
    **dict.fromkeys(("qwen3", "qwen3_moe"), 16 * TWO_QUERIES),
    "olmo2": 8 * TWO_QUERIES + 8 * 3,  # norms over all of q, and of k
}
WIDTHS = {"gpt2": 128, "falcon": 128}  # the others have 48
IMPORTANCES = ("flap", "taylor", "magnitude")


def narrow(importance: Any = "magnitude", **fields: Any) -> Structured:
    given = {"channels": 0.0, "groups": 0.0, "multiple": 8, **fields}
    return Structured(importance=importance, **given)


def to_kept(family: str) -> float:
    return 1 - KEPT / WIDTHS.get(family, 48)


def method_for(family: str, importance: str = "magnitude") -> Structured:
    """As much as the family can take: channels down to KEPT, one of two groups."""
    groups = 0.5 if family in GROUP else 0.0
    return narrow(importance, channels=to_kept(family), groups=groups)


class Fed:
    """Layer 0 of a tiny model, and its calibration inputs in two micro-batches."""

    def __init__(self, family: str):
        self.stack = LayerStack(FAMILIES[family]())
        self.layer = self.stack[0]
        self.tapes: list[Tape] = [
            record(self.stack, tiny.tokens(3, 20)),
            record(self.stack, tiny.tokens(2, 9, seed=1)),
        ]
        self.times = 0

    def feed(self) -> None:
        self.times += 1
        self.run(self.layer)

    def run(self, layer: nn.Module) -> list[Tensor]:
        return [tape.run(layer, 0, tape.inputs) for tape in self.tapes]

    def pruned(self, method: Structured) -> tuple[nn.Module, dict[str, Any]]:
        return Narrowing(self.stack, method).prune(0, self.layer, self.feed, "layer 0")


def lazy_of(family: str, folder: Path) -> LazyModel:
    tiny.save(FAMILIES[family](), folder)
    return LazyModel(folder, ModelRef(path=str(folder), dtype="float32"), "cpu")


def feeding(lazy: LazyModel, index: int, layer: nn.Module, hidden: Tensor) -> None:
    lazy.tape(len(hidden), hidden.shape[1]).run(layer, index, hidden)


def walked(lazy: LazyModel, method: Structured, target: Path) -> tuple[Tensor, list[Any]]:
    """The narrow model's logits as its layers give them here; it is written to `target`."""
    narrowing, writer = Narrowing(lazy.stack, method), LayerWriter(lazy, target)
    narrowing.study(lazy, TOKENS, 2, Context())
    hidden = lazy.inputs(TOKENS)
    rows: list[Any] = []
    for index in range(len(lazy.stack)):
        layer = lazy.read(index, torch.float32)
        feed = partial(feeding, lazy, index, layer, hidden)
        thin, row = narrowing.prune(index, layer, feed, f"layer {index}")
        lazy.release(index)
        writer.put(index, thin)
        hidden = lazy.tape(*TOKENS.shape).run(thin, index, hidden)
        rows.append(row)
    writer.finish(narrowing.fields)
    with lazy.outside():
        tape = lazy.tape(*TOKENS.shape)
        tape = Tape(TOKENS, tape.inputs, tape.calls, tape.extras)
        return logits(lazy.stack, final_hidden(lazy.stack, tape, hidden)), rows


def stock(folder: Path) -> Any:
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True
    )
    model, info = loaded
    assert not any(info.values()), info
    return model.eval()


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class TestEveryFamily:
    @pytest.mark.parametrize("importance", IMPORTANCES)
    @pytest.mark.parametrize("family", CHANNEL)
    def test_what_is_written_loads_anywhere_and_answers_the_same(
        self, family: str, importance: str, tmp_path: Path
    ) -> None:
        lazy = lazy_of(family, tmp_path / "wide")
        here, rows = walked(lazy, method_for(family, importance), tmp_path / "narrow")
        model = stock(tmp_path / "narrow")
        with torch.no_grad():
            there = model(input_ids=TOKENS, use_cache=False).logits
            cached = model.generate(TOKENS, max_new_tokens=3, do_sample=False, use_cache=True)
            plain = model.generate(TOKENS, max_new_tokens=3, do_sample=False, use_cache=False)
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)
        assert torch.equal(cached, plain)
        width = WIDTHS.get(family, 48)
        gone = (width - KEPT) * CHANNEL[family] + GROUP.get(family, 0)
        assert size(FAMILIES[family]()) - size(model) == tiny.DEPTH * gone
        for row in rows:
            assert (row["channels"]["of"], row["channels"]["kept"]) == (width, KEPT)
            assert row["parameters"]["before"] - row["parameters"]["after"] == gone
            if family in GROUP:
                assert (row["groups"]["of"], row["groups"]["kept"]) == (2, 1)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_what_a_class_cannot_load_is_refused_with_one_sentence(self, family: str) -> None:
        stack = LayerStack(FAMILIES[family]())
        for what, able, shares in (
            ("channels", CHANNEL, (to_kept(family), 0.999)),
            ("groups", GROUP, (0.5, 0.25)),  # of which the second would leave all of two
        ):
            if family in able:
                check_structured(stack, narrow(**{what: shares[0]}))
                continue
            for share in shares:
                with pytest.raises(ArchitectureError, match=f"set {what} to 0") as caught:
                    check_structured(stack, narrow(**{what: share}))
                assert "\n" not in str(caught.value)
                assert str(caught.value).endswith(".")

    @pytest.mark.parametrize("family", CHANNEL)
    def test_it_is_decided_without_weights_and_leaves_the_model_alone(self, family: str) -> None:
        model: Any = FAMILIES[family]()
        stack = LayerStack(model.to("meta"))
        before = stack.model.config.to_dict()
        shapes = {name: tensor.shape for name, tensor in stack.model.state_dict().items()}
        check_structured(stack, method_for(family))
        assert stack.model.config.to_dict() == before
        assert {n: t.shape for n, t in stack.model.state_dict().items()} == shapes

    @pytest.mark.parametrize("family", CHANNEL)
    def test_a_narrow_layer_is_the_wide_one_whose_other_units_say_nothing(
        self, family: str
    ) -> None:
        fed = Fed(family)
        method = method_for(family) if family != "olmo2" else narrow(channels=to_kept(family))
        thin, _ = fed.pruned(method)  # olmo2's norms run over all heads, so heads feel each other
        outputs = fed.run(thin)
        layout = fed.stack.layout
        assert layout.mlp is not None
        assert (family in GROUP) <= (layout.attention is not None)
        for part in filter(None, (layout.mlp, layout.attention)):
            name = part.output
            wide = weight_of(fed.layer.get_submodule(name))
            kept = weight_of(thin.get_submodule(name))
            same = (wide.T[:, None] == kept.T[None]).all(-1)  # [wide, kept]
            assert same.sum() == kept.shape[1]
            wide[:, ~same.any(1)] = 0
        for one, other in zip(outputs, fed.run(fed.layer), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class TestWhatGoes:
    def test_the_units_that_matter_least(self) -> None:
        fed = Fed("llama")
        weights = {n: p.clone() for n, p in fed.layer.named_parameters()}
        thin, row = fed.pruned(narrow(channels=1 / 3, groups=0.5))
        sums = weights["mlp.down_proj.weight"].square().sum(0)
        for name in ("gate", "up"):
            sums = sums + weights[f"mlp.{name}_proj.weight"].square().sum(1)
        stay = sums.argsort(descending=True)[:32].sort().values
        for name in ("gate", "up"):
            expected = weights[f"mlp.{name}_proj.weight"][stay]
            assert torch.equal(thin.get_parameter(f"mlp.{name}_proj.weight"), expected)
        expected = weights["mlp.down_proj.weight"][:, stay]
        assert torch.equal(thin.get_parameter("mlp.down_proj.weight"), expected)
        total = sums.sqrt().sum()
        assert row["channels"]["lost"] == pytest.approx(float(1 - sums[stay].sqrt().sum() / total))

    def test_olmo2_keeps_the_norms_of_the_heads_that_stay(self) -> None:
        fed = Fed("olmo2")
        thin, _ = fed.pruned(narrow(groups=0.5))
        wide = dict(fed.layer.named_parameters())
        first = torch.equal(
            thin.get_parameter("self_attn.q_proj.weight"), wide["self_attn.q_proj.weight"][:16]
        )
        for name, rows in (("q_proj", 16), ("k_proj", 8), ("q_norm", 16), ("k_norm", 8)):
            whole = wide[f"self_attn.{name}.weight"]
            expected = whole[:rows] if first else whole[rows:]
            assert torch.equal(thin.get_parameter(f"self_attn.{name}.weight"), expected)

    def test_flap_adds_the_mean_of_what_goes_to_the_bias_where_there_is_one(self) -> None:
        fed = Fed("opt")
        seen: list[Tensor] = []
        handle = fed.layer.get_submodule("fc2").register_forward_pre_hook(
            lambda _, args: seen.append(args[0].reshape(-1, 48))
        )
        fed.run(fed.layer)
        handle.remove()
        rows = torch.cat(seen)
        fc2 = fed.layer.get_submodule("fc2")
        weight, bias = fc2.get_parameter("weight"), fc2.get_parameter("bias")
        scores = rows.var(0) * weight.square().sum(0)
        go = scores.argsort(descending=True)[KEPT:]
        thin, row = fed.pruned(narrow("flap", channels=1 / 3))
        expected = bias + weight[:, go] @ rows.mean(0)[go]
        torch.testing.assert_close(thin.get_parameter("fc2.bias"), expected)
        assert not row["notes"]
        assert fed.times == 1
        assert not any(m._forward_pre_hooks for m in fed.layer.modules())

    def test_flap_says_where_there_is_no_bias_for_it(self) -> None:
        _, row = Fed("llama").pruned(narrow("flap", channels=1 / 3))
        assert row["notes"] == [
            "mlp.down_proj has no bias in this family, so FLAP's compensation is left out"
        ]

    def test_magnitude_looks_at_no_text(self) -> None:
        fed = Fed("llama")
        fed.pruned(narrow(channels=1 / 3))
        assert not fed.times

    def test_a_channel_that_never_varies_goes_first_by_flap(self) -> None:
        fed = Fed("gpt2")
        fc = fed.layer.get_submodule("mlp.c_fc")
        weight_of(fc)[5] = 0  # so its activation is the same for all tokens
        weight_of(fed.layer.get_submodule("mlp.c_proj"))[:, 5] *= 100
        thin, _ = fed.pruned(narrow("flap", channels=1 / 128, multiple=1))
        stay = [n for n in range(128) if n != 5]
        assert torch.equal(weight_of(thin.get_submodule("mlp.c_fc")), weight_of(fc)[stay])

    def test_layers_read_back_from_the_folder_go_on_as_they_were(self, tmp_path: Path) -> None:
        lazy = lazy_of("phi3", tmp_path / "wide")
        method = method_for("phi3")
        walked(lazy, method, tmp_path / "narrow")
        narrowing = Narrowing(lazy.stack, method)  # as a walk that was stopped begins again
        hidden = lazy.inputs(TOKENS)
        held = LayerWriter(lazy, tmp_path / "narrow").read_back(0)
        again = narrowing.layer(0, held)
        first, _ = narrowing.prune(0, lazy.read(0, torch.float32), lambda: None, "layer 0")
        tape = lazy.tape(*TOKENS.shape)
        assert torch.equal(tape.run(again, 0, hidden), tape.run(first, 0, hidden))

    def test_the_narrow_files_are_smaller(self, tmp_path: Path) -> None:
        lazy = lazy_of("llama", tmp_path / "wide")
        walked(lazy, method_for("llama"), tmp_path / "narrow")
        held = load_file(tmp_path / "narrow" / f"model-00001-of-{tiny.DEPTH + 1:05d}.safetensors")
        assert held["model.layers.0.mlp.down_proj.weight"].shape == (32, KEPT)
        assert held["model.layers.0.self_attn.k_proj.weight"].shape == (8, 32)


class TestWidths:
    @pytest.mark.parametrize(
        ("count", "share", "multiple", "left"),
        [
            (1536, 0.2, 32, 1216),  # 1228.8
            (1536, 0.2, 1, 1229),
            (48, 0.1, 32, 32),  # 43.2; 64 is nearer to none of them
            (48, 0.1, 16, 48),
            (40, 0.3, 16, 32),
            (10, 0.3, 1, 7),
            (48, 0.9, 32, 0),  # 4.8
            (8, 0.25, 1, 6),
        ],
    )
    def test_the_nearest_multiple_is_left(
        self, count: int, share: float, multiple: int, left: int
    ) -> None:
        assert units_left(count, share, multiple) == left

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"channels": 0.9, "multiple": 16}, r"channels=0\.6667, which leaves 16"),
            ({"channels": 0.01, "multiple": 16}, r"channels=0\.3333, which leaves 32"),
            ({"channels": 0.5, "multiple": 48}, "choose a multiple below 48"),
            ({"groups": 0.2}, r"groups=0\.5, which leaves 1"),
            ({"groups": 0.8}, r"groups=0\.5, which leaves 1"),
        ],
    )
    def test_a_share_that_leaves_all_or_nothing_is_told_the_nearest_that_works(
        self, fields: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(RecipeError, match=message):
            check_structured(LayerStack(tiny.ARCHITECTURES["llama"]()), narrow(**fields))

    @pytest.mark.parametrize("share", [0.6667, 0.3333])
    def test_the_share_that_is_named_works(self, share: float) -> None:
        stack = LayerStack(tiny.ARCHITECTURES["llama"]())
        check_structured(stack, narrow(channels=share, multiple=16))

    def test_a_number_of_heads_that_the_class_refuses_is_told_the_nearest(self) -> None:
        import transformers as hf

        sizes = {**tiny.SIZES, "num_attention_heads": 8, "num_key_value_heads": 8}
        stack = LayerStack(hf.LlamaForCausalLM(hf.LlamaConfig(**tiny.COMMON, **sizes)))
        with pytest.raises(RecipeError, match=r"groups=0\.5, which leaves 4") as caught:
            check_structured(stack, narrow(groups=0.375))  # five heads do not divide 32
        assert "\n" not in str(caught.value)
        check_structured(stack, narrow(groups=0.5))

    def test_the_config_says_what_is_left(self) -> None:
        for family, expected in (
            ("llama", {"intermediate_size": KEPT, "head_dim": 8}),
            ("qwen3", {"intermediate_size": KEPT, "head_dim": 16}),
        ):
            stack = LayerStack(FAMILIES[family]())
            assert Narrowing(stack, method_for(family)).fields == {
                **expected,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
            }
        stack = LayerStack(tiny.ARCHITECTURES["gpt2"]())
        assert Narrowing(stack, method_for("gpt2")).fields == {"n_inner": KEPT}


class TestBadInput:
    def test_no_text_is_reported_with_its_place(self) -> None:
        fed = Fed("llama")
        narrowing = Narrowing(fed.stack, narrow("flap", channels=1 / 3))
        with pytest.raises(CalibrationError, match=r"mlp\.down_proj of layer 7"):
            narrowing.prune(0, fed.layer, lambda: None, "layer 7")

    @pytest.mark.parametrize("importance", ["flap", "magnitude"])
    def test_a_weight_that_is_not_finite_is_reported_with_its_place(self, importance: str) -> None:
        fed = Fed("llama")
        fed.layer.get_parameter("mlp.up_proj.weight")[0, 0] = torch.nan
        with pytest.raises(NumericalError, match="channels of layer 0 is not finite"):
            fed.pruned(narrow(importance, channels=1 / 3))
