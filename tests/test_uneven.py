"""Models that other tools pruned layer by layer: shown, and refused with the reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from torch import nn
from transformers import PreTrainedModel

from laco import card, models
from laco.checkpoint import Header, read_config, read_headers, uneven
from laco.errors import ModelError
from laco.lazy import LazyModel
from laco.recipe import ModelRef
from tests import tiny

REASON = r"its layers are of different sizes \({} in layer 0 and {} in layer 2\)"


def narrower_mlp(model: PreTrainedModel) -> None:
    """FLAP and LLM-Pruner leave fewer channels in some layers, and the config as it was."""
    layers: Any = model.model.layers  # type: ignore[union-attr]
    for name, shape in {"gate_proj": (32, 32), "up_proj": (32, 32), "down_proj": (32, 32)}.items():
        setattr(layers[2].mlp, name, nn.Linear(*shape, bias=False))


def fewer_heads(model: PreTrainedModel) -> None:
    layers: Any = model.model.layers  # type: ignore[union-attr]
    layers[2].self_attn.q_proj = nn.Linear(32, 16, bias=False)
    layers[2].self_attn.o_proj = nn.Linear(16, 32, bias=False)


@pytest.mark.parametrize(
    ("change", "first", "other"),
    [
        (narrower_mlp, "mlp.down_proj.weight is 32 x 48", "32 x 32"),
        (fewer_heads, "self_attn.o_proj.weight is 32 x 32", "32 x 16"),
    ],
)
def test_layers_of_different_sizes_are_shown_and_not_loaded(
    change: Any, first: str, other: str, tmp_path: Path
) -> None:
    model = tiny.ARCHITECTURES["llama"]()
    change(model)
    folder = tiny.save(model, tmp_path / "pruned")
    reason = REASON.format(re.escape(first), other)
    ref = ModelRef(path=str(folder))
    with pytest.raises(ModelError, match=reason) as error:
        models.load_folder(folder, ref, "cpu")
    assert str(error.value).count(". ") == 0  # one sentence
    assert "fetch" not in str(error.value)
    with pytest.raises(ModelError, match=reason):
        LazyModel(folder, ref, "cpu")
    shown = card.inspect(ref, tmp_path / "cache")
    assert shown["layer_parameters"][2] < shown["layer_parameters"][0]
    for capability in shown["capabilities"].values():
        assert not capability["ok"]
        assert re.match(reason, capability["reason"])


def test_code_of_the_models_own_may_load_what_it_likes(tmp_path: Path) -> None:
    model = tiny.ARCHITECTURES["llama"]()
    narrower_mlp(model)
    model.config.auto_map = {"AutoModelForCausalLM": "modeling_tiny.TinyForCausalLM"}
    folder = tiny.save(model, tmp_path / "pruned")
    models.check_folder(folder, ModelRef(path=str(folder), trust_remote_code=True), "cpu")
    with pytest.raises(ModelError, match="different sizes"):
        models.check_folder(folder, ModelRef(path=str(folder)), "cpu")


@pytest.mark.parametrize("name", [*tiny.ARCHITECTURES, *tiny.PROBED])
def test_no_family_is_taken_for_one_that_was_pruned(name: str, tmp_path: Path) -> None:
    folder = tiny.save({**tiny.ARCHITECTURES, **tiny.PROBED}[name](), tmp_path / name)
    assert uneven(read_config(folder), read_headers(folder)) is None


def test_layers_that_the_config_tells_apart_may_differ() -> None:
    headers = {
        f"model.layers.{index}.mlp.up_proj.weight": Header("F32", (width, 8))
        for index, width in enumerate((8, 16, 8, 16))
    }
    config: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 4}
    assert uneven(config, headers)
    for told in (
        {"intermediate_size": [8, 16, 8, 16]},
        {"layer_types": ["full", "sliding"] * 2},
        {"per_layer_config": {"1": {"intermediate_size": 16}}},
    ):
        assert uneven({**config, **told}, headers) is None
    assert uneven({**config, "layer_types": ["full", "full", "sliding", "sliding"]}, headers)


def test_stock_transformers_has_one_width_for_a_llama() -> None:
    """If this fails, a release can say what `uneven` says that none can."""
    told: dict[str, Any] = {"per_layer_config": {1: {"intermediate_size": 16}}}
    config = hf.LlamaConfig(**tiny.GROUPED, vocab_size=64, **told)
    with pytest.raises(Exception, match="per-layer attribute"):
        hf.LlamaForCausalLM(config)
