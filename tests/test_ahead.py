"""Layers that guess further tokens: named on the card, left out of all that is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from laco import ahead, card, models
from laco.context import Context
from laco.errors import ModelError
from laco.export import files
from laco.lazy import LayerWriter, LazyModel
from laco.recipe import Drop, Merge, ModelRef
from laco.restack import restack
from tests import tiny
from tests.families import stock, tensors_of

# family -> where such layers lie, the field that counts them, and the tensors that are like a layer
MORE: dict[str, tuple[str, str]] = {
    "deepseek_v3": ("model.layers.6", "num_nextn_predict_layers"),
    "qwen3_next": ("mtp", "mtp_num_hidden_layers"),
    "ernie4_5_moe": ("model.mtp_block.0", "num_nextn_predict_layers"),
}


def with_more(family: str, folder: Path) -> ModelRef:
    """A tiny model whose files hold, as on the hub, a copy of its last layer and more beside it."""
    place, counts = MORE[family]
    tiny.save(tiny.PROBED[family](), folder)
    weights = {n: t.clone() for n, t in load_file(folder / "model.safetensors").items()}
    last = "model.layers.5."
    for name in [name for name in weights if name.startswith(last)]:
        weights[f"{place}.{name.removeprefix(last)}"] = weights[name].clone()
    weights[f"{place}.eh_proj.weight"] = torch.ones(32, 64)
    weights[f"{place}.enorm.weight"] = torch.ones(32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {counts: 1}))
    return ModelRef(path=str(folder))


@pytest.mark.parametrize("family", MORE)
class TestEveryNaming:
    def test_the_card_names_them_and_counts_none_of_them(self, family: str, tmp_path: Path) -> None:
        place = MORE[family][0].removesuffix(".0")
        found = card.inspect(with_more(family, tmp_path / family), tmp_path)
        plain = card.inspect(
            ModelRef(path=str(tiny.save(tiny.PROBED[family](), tmp_path / "plain"))), tmp_path
        )
        assert place in found["left_out"]
        assert "not loaded, and dropped" in found["left_out"]
        assert plain["left_out"] is None
        for name in ("collapse", "merge", "export"):
            told, usual = (c["capabilities"][name]["reason"] for c in (found, plain))
            assert told.startswith(usual)
            assert told.endswith("for guessing further tokens, is dropped")
        assert found["parameters"] == plain["parameters"]
        assert found["layer_parameters"] == plain["layer_parameters"]

    def test_a_collapse_drops_them_and_says_so_in_the_config(
        self, family: str, tmp_path: Path
    ) -> None:
        place, counts = MORE[family]
        ref = with_more(family, tmp_path / family)
        restack(
            LazyModel(tmp_path / family, ref, "cpu"), Drop(layers=(4,)), tmp_path / "n", Context()
        )
        assert stock(tmp_path / "n").config.num_hidden_layers == 5
        assert not ahead.left_out(
            {"model_type": family, "num_hidden_layers": 5}, tensors_of(tmp_path / "n")
        )
        assert not any(name.startswith(f"{place}.") for name in tensors_of(tmp_path / "n"))
        assert not json.loads((tmp_path / "n" / "config.json").read_text()).get(counts)

    def test_whatever_is_saved_of_it_counts_none(self, family: str, tmp_path: Path) -> None:
        place, counts = MORE[family]
        ref, folder = with_more(family, tmp_path / family), tmp_path / family
        models.save_folder(models.load_folder(folder, ref, "cpu"), tmp_path / "whole")
        lazy = LazyModel(folder, ref, "cpu")
        writer = LayerWriter(lazy, tmp_path / "walked")
        for index in range(tiny.DEPTH):
            writer.put(index, lazy.read(index))
            lazy.release(index)
        writer.finish()
        (tmp_path / "exported").mkdir()
        files.write(folder, folder, ref, "float32", tmp_path / "exported", Context())
        for made in ("whole", "walked", "exported"):
            assert not any(name.startswith(f"{place}.") for name in tensors_of(tmp_path / made))
            assert not json.loads((tmp_path / made / "config.json").read_text()).get(counts), made


def test_a_layer_past_the_last_that_is_none_of_them_is_refused(tmp_path: Path) -> None:
    folder = tiny.save(tiny.ARCHITECTURES["llama"](), tmp_path / "llama")
    weights = {n: t.clone() for n, t in load_file(folder / "model.safetensors").items()}
    weights["model.layers.6.mlp.up_proj.weight"] = torch.ones(48, 32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ref = ModelRef(path=str(folder))
    for opened in (LazyModel, models.load_folder):
        with pytest.raises(ModelError, match=r"unknown to its config, model\.layers\.6\.mlp"):
            opened(folder, ref, "cpu")


@pytest.mark.parametrize(
    ("config", "name", "place"),
    [
        ({}, "mtp.layers.0.mlp.up_proj.weight", "mtp"),
        ({}, "model.mtp_layers.0.input_layernorm.weight", "model.mtp_layers"),
        ({}, "model.layers.6.shared_head.norm.weight", "model.layers.6"),
        ({"num_mtp_layers": 2}, "model.layers.7.mlp.up_proj.weight", "model.layers.7"),
        ({"num_mtp_layers": 1}, "model.layers.7.mlp.up_proj.weight", None),
        ({"num_mtp_layers": None}, "model.layers.6.mlp.up_proj.weight", None),
        ({"num_mtp_layers": 9}, "vision_tower.layers.7.mlp.fc1.weight", None),
        ({"num_mtp_layers": 1}, "model.layers.5.mlp.up_proj.weight", None),
        ({}, "model.smtp.weight", None),
    ],
)
def test_which_tensors_are_meant(config: dict[str, Any], name: str, place: str | None) -> None:
    found = ahead.left_out({"model_type": "toy", "num_hidden_layers": 6, **config}, [name])
    assert found == ({place: [name]} if place else {})


def test_layers_of_the_stack_still_merge_by_their_kinds(tmp_path: Path) -> None:
    """The card tells kinds of layers by the whole list, which such a layer makes longer."""
    ref = with_more("deepseek_v3", tmp_path / "m")
    reason = card.inspect(ref, tmp_path)["capabilities"]["merge"]["reason"]
    assert "only within layers [0, 2), [2, 6)" in reason
    step = Merge(spans=((2, 4),), merge="mean")
    restack(LazyModel(tmp_path / "m", ref, "cpu"), step, tmp_path / "new", Context())
    assert len(stock(tmp_path / "new").model.layers) == 5
