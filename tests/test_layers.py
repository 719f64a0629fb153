"""What every family promises when its stack of layers is edited."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.pytorch_utils import Conv1D

from laco.depth import FIELDS, per_layer
from laco.errors import ArchitectureError
from laco.layers import LayerStack, linears, weight_of
from laco.layouts import LAYOUTS
from tests import tiny

FAMILIES = {**tiny.ARCHITECTURES, **tiny.PROBED}
KEPT = [0, 2, 3, 5]  # no prefix, and no regular pattern of the attention types survives


def keep(stack: LayerStack, origins: Sequence[int]) -> None:
    stack.keep([stack[i] for i in origins], origins)


def logits(model: PreTrainedModel, **options: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=tiny.tokens(), use_cache=False, **options).logits


def state(stack: LayerStack) -> dict[str, Any]:
    """Everything an edit may touch."""
    return {
        "config": copy.deepcopy(stack.model.config.to_dict()),
        "fields": copy.deepcopy(list(vars(stack.config).items())),
        "list": id(stack.module_list),
        "layers": [id(layer) for layer in stack],
        "indices": [vars(m).get("layer_idx") for layer in stack for m in layer.modules()],
        "weights": [(name, p.data_ptr()) for name, p in stack.model.named_parameters()],
    }


@pytest.fixture(params=FAMILIES)
def stack(request: pytest.FixtureRequest) -> LayerStack:
    return LayerStack(FAMILIES[request.param]())


class TestEveryFamily:
    def test_its_layers_are_found(self, stack: LayerStack) -> None:
        assert len(stack) == tiny.DEPTH
        assert stack.recognised == (stack.family in LAYOUTS)

    def test_trial_puts_the_layers_back(self, stack: LayerStack) -> None:
        before, answer = state(stack), logits(stack.model)
        with stack.trial([stack[i] for i in KEPT], KEPT):
            assert len(stack) == len(KEPT)
            assert not torch.equal(logits(stack.model), answer)
        assert state(stack) == before
        assert torch.equal(logits(stack.model), answer)

    def test_trial_puts_the_layers_back_after_an_error(self, stack: LayerStack) -> None:
        before, answer = state(stack), logits(stack.model)
        with pytest.raises(KeyError), stack.trial([stack[i] for i in KEPT], KEPT):
            raise KeyError
        assert state(stack) == before
        assert torch.equal(logits(stack.model), answer)

    def test_trial_answers_as_the_kept_layers_do(self, stack: LayerStack) -> None:
        with stack.trial([stack[i] for i in KEPT], KEPT):
            tried = logits(stack.model)
        keep(stack, KEPT)
        assert torch.equal(logits(stack.model), tried)

    def test_the_kept_layers_generate_alike_with_and_without_a_cache(
        self, stack: LayerStack
    ) -> None:
        keep(stack, KEPT)
        made = [
            stack.model.generate(  # type: ignore[operator]
                tiny.tokens(),
                max_new_tokens=6,
                min_new_tokens=6,
                do_sample=False,
                use_cache=use_cache,
                output_logits=True,
                return_dict_in_generate=True,
                attention_mask=torch.ones_like(tiny.tokens()),
            )
            for use_cache in (True, False)
        ]
        assert torch.equal(made[0].sequences, made[1].sequences)
        for cached, uncached in zip(made[0].logits, made[1].logits, strict=True):
            torch.testing.assert_close(cached, uncached, atol=1e-4, rtol=1e-4)

    def test_the_kept_layers_reload_with_equal_logits(
        self, stack: LayerStack, tmp_path: Path
    ) -> None:
        keep(stack, KEPT)
        stack.model.save_pretrained(tmp_path)
        reload: Any = type(stack.model).from_pretrained
        model, info = reload(tmp_path, output_loading_info=True)
        assert not any(info.values()), info
        assert torch.equal(logits(model), logits(stack.model))
        assert len(LayerStack(model)) == len(KEPT)

    def test_every_list_with_an_entry_per_layer_is_sliced(self, stack: LayerStack) -> None:
        lists = dict(per_layer(stack.config, tiny.DEPTH))
        keep(stack, KEPT)
        assert stack.config.num_hidden_layers == len(KEPT)
        for name, values in lists.items():
            assert list(getattr(stack.config, name)) == [values[i] for i in KEPT], name

    def test_no_list_of_the_old_length_stays(self, stack: LayerStack) -> None:
        keep(stack, KEPT)
        saved = stack.model.config.get_text_config(decoder=True).to_dict()
        assert not [n for n, v in saved.items() if isinstance(v, list) and len(v) == tiny.DEPTH]

    def test_keeping_every_layer_changes_nothing(self, stack: LayerStack) -> None:
        config, answer = stack.model.config.to_dict(), logits(stack.model)
        keep(stack, range(tiny.DEPTH))
        assert stack.model.config.to_dict() == config
        assert torch.equal(logits(stack.model), answer)

    def test_a_layer_cannot_stand_in_the_stack_twice(self, stack: LayerStack) -> None:
        before = state(stack)
        with pytest.raises(ArchitectureError, match="twice"):
            stack.keep([stack[0], stack[1], stack[1]], [0, 1, 1])
        assert state(stack) == before

    def test_weights_are_out_by_in(self, stack: LayerStack) -> None:
        found = [linear for layer in stack for _, linear in linears(layer)]
        assert len(found) >= 2 * tiny.DEPTH
        for linear in found:
            shape = (
                (linear.nf, linear.nx)
                if isinstance(linear, Conv1D)
                else (linear.out_features, linear.in_features)
            )
            assert weight_of(linear).shape == shape
            assert weight_of(linear).data_ptr() == linear.weight.data_ptr()  # type: ignore[operator]


@pytest.mark.parametrize("name", ["gemma3_text", "gemma2", "qwen2", "qwen3", "gemma3"])
def test_attention_types_follow_the_layers_and_are_not_cut_off(name: str) -> None:
    stack = LayerStack(FAMILIES[name]())
    types = list(stack.config.layer_types)
    keep(stack, [1, 2, 3, 5])
    assert stack.config.layer_types == [types[i] for i in (1, 2, 3, 5)] != types[:4]
    built = [
        getattr(m, "layer_type", None)
        for layer in stack
        for m in layer.modules()
        if hasattr(m, "layer_type")
    ]
    assert built == stack.config.layer_types


def test_attention_types_are_written_out(tmp_path: Path) -> None:
    stack = LayerStack(FAMILIES["qwen2"]())
    keep(stack, [1, 3, 5])
    stack.model.save_pretrained(tmp_path)
    config = hf.AutoConfig.from_pretrained(tmp_path)
    assert config.layer_types == ["full_attention", "sliding_attention", "sliding_attention"]
    assert config.max_window_layers == 1


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("smollm3", {"no_rope_layers": [1, 1, 0, 1]}),
        ("qwen2_moe", {"decoder_sparse_step": 1, "mlp_only_layers": [0, 1]}),
        ("deepseek_v3", {"first_k_dense_replace": 1}),
        ("ernie4_5_moe", {"moe_layer_start_index": 1, "moe_layer_end_index": 3}),
        ("llama4_text", {"moe_layers": [2, 3], "no_rope_layers": [1, 1, 0, 1]}),
        ("minicpm3", {"scale_depth": 1.4 * (4 / 6) ** 0.5}),
        ("gpt_neo", {"attention_layers": ["global", "global", "local", "local"]}),
        ("gpt_neo", {"attention_types": [[["global"], 1]] * 2 + [[["local"], 1]] * 2}),
        ("gpt2", {"n_layer": 4}),
        ("bloom", {"n_layer": 4}),
    ],
)
def test_fields_that_hold_indices_are_translated(name: str, fields: dict[str, Any]) -> None:
    stack = LayerStack(FAMILIES[name]())
    keep(stack, KEPT)
    assert {field: getattr(stack.config, field) for field in fields} == fields


def test_a_scale_that_depends_on_the_index_allows_only_the_first_layers() -> None:
    config = hf.GPT2Config(
        **tiny.COMMON, n_layer=4, n_embd=32, n_head=4, scale_attn_by_inverse_layer_idx=True
    )
    stack = LayerStack(hf.GPT2LMHeadModel(config).eval())
    before = state(stack)
    for edit in (stack.keep, lambda *new: stack.trial(*new).__enter__()):
        with pytest.raises(ArchitectureError, match="scale_attn_by_inverse_layer_idx"):
            edit([stack[0], stack[2]], [0, 2])
    assert state(stack) == before
    keep(stack, [0, 1])
    assert len(stack) == 2


def test_special_layers_at_the_start_must_stay_there() -> None:
    stack = LayerStack(FAMILIES["deepseek_v3"]())
    with pytest.raises(ArchitectureError, match="first_k_dense_replace"):
        keep(stack, [2, 0, 3])


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("qwen2_moe", "decoder_sparse_step"),
        ("minicpm3", "scale_depth"),
        ("ernie4_5_moe", "moe_layer_interval"),
    ],
)
def test_a_field_that_no_rule_knows_is_noticed(
    name: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(FIELDS, field)
    stack = LayerStack(FAMILIES[name]())
    before = state(stack)
    with pytest.raises(ArchitectureError, match="built from the config"):
        keep(stack, [1, 3, 4])
    stack.recognised = False  # as if nobody had listed its fields
    with pytest.raises(ArchitectureError, match="built from the config"):
        stack.trial([stack[1], stack[3], stack[4]], [1, 3, 4]).__enter__()
    assert state(stack) == before


@pytest.mark.parametrize(
    ("origins", "reason"), [([], "at least one"), ([0, 6], "outside"), ([-1, 0], "outside")]
)
def test_an_impossible_stack_is_refused(origins: list[int], reason: str) -> None:
    stack = LayerStack(FAMILIES["llama"]())
    with pytest.raises(ArchitectureError, match=reason):
        stack.keep([stack[i % 6] for i in origins], origins)


def test_each_layer_needs_an_origin() -> None:
    stack = LayerStack(FAMILIES["llama"]())
    with pytest.raises(ArchitectureError, match="origins"):
        stack.keep([stack[0], stack[1]], [0])


def test_a_copied_layer_joins_the_model(tmp_path: Path) -> None:
    stack = LayerStack(FAMILIES["llama"]())
    stack.keep([stack[0], copy.deepcopy(stack[0]), stack[5]], [0, 0, 5])
    configs = [vars(m)["config"] for m in stack[1].modules() if "config" in vars(m)]
    assert configs
    assert all(config is stack.model.config for config in configs)
    stack.model.save_pretrained(tmp_path)
    reloaded = hf.LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(reloaded), logits(stack.model))


def test_layers_of_one_kind_merge_and_others_say_why() -> None:
    assert LayerStack(FAMILIES["llama"]()).mergeable((0, 6)) is None
    gemma = LayerStack(FAMILIES["gemma3_text"]())  # sliding, sliding, full, ...
    assert gemma.mergeable((0, 2)) is None
    assert "layer_types" in (gemma.mergeable((1, 3)) or "")
    assert "no_rope_layers" in (LayerStack(FAMILIES["smollm3"]()).mergeable((2, 4)) or "")
    assert "names or shapes" in (LayerStack(FAMILIES["deepseek_v3"]()).mergeable((1, 3)) or "")
    assert "within the 6 layers" in (gemma.mergeable((4, 8)) or "")


def test_an_encoder_decoder_is_refused() -> None:
    config = hf.T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=2, vocab_size=320)
    with pytest.raises(ArchitectureError, match="encoder-decoder"):
        LayerStack(hf.T5ForConditionalGeneration(config))


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="no language-model head"):
        LayerStack(hf.LlamaModel(FAMILIES["llama"]().config))  # type: ignore[arg-type]


class ToyConfig(hf.PretrainedConfig):
    model_type = "toy"
    num_hidden_layers: int = 3
    towers: int = 1
    skips: bool = False


class Toy(PreTrainedModel):
    """As many towers of layers as its config says, one after the other."""

    config_class = ToyConfig

    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.embed = nn.Embedding(tiny.VOCABULARY, 8)
        self.towers = nn.ModuleList(
            nn.ModuleList(nn.Linear(8, 8) for _ in range(config.num_hidden_layers))
            for _ in range(config.towers)
        )
        self.lm_head = nn.Linear(8, tiny.VOCABULARY)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> CausalLMOutput:
        hidden = self.embed(input_ids)
        for tower in self.towers:
            for layer in tower:  # type: ignore[union-attr]
                hidden = hidden + layer(hidden) if self.config.skips else layer(hidden)
        return CausalLMOutput(logits=self.lm_head(hidden))


def test_an_unknown_family_is_probed_and_named() -> None:
    stack = LayerStack(Toy(ToyConfig()))
    assert (stack.family, stack.recognised, len(stack)) == ("toy", False, 3)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (ToyConfig(towers=2), "several"),
        (ToyConfig(skips=True), "no list of 3 layers"),
        (ToyConfig(num_hidden_layers=0), "its config has none of"),
    ],
)
def test_an_unknown_family_without_one_stack_is_refused(config: ToyConfig, reason: str) -> None:
    with pytest.raises(ArchitectureError, match=f"'toy'.*{reason}"):
        LayerStack(Toy(config))
