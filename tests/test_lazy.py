"""Layer by layer from disk, a model answers as it does whole, and goes back to disk as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from laco import models
from laco.errors import LacoError, ModelError
from laco.lazy import LayerWriter, LazyModel
from laco.recipe import ModelRef
from laco.walk import final_hidden, logits
from tests import tiny

FAMILIES = {**tiny.ARCHITECTURES, **tiny.PROBED}
TOKENS = tiny.tokens(batch=3)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(FAMILIES[request.param](), tmp_path_factory.mktemp(request.param))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny.save(FAMILIES["llama"](), tmp_path / "llama")


def ref_of(folder: Path, dtype: Any = "auto") -> ModelRef:
    return ModelRef(path=str(folder), dtype=dtype)


def lazy_of(folder: Path, dtype: Any = "auto") -> LazyModel:
    return LazyModel(folder, ref_of(folder, dtype), "cpu")


@torch.no_grad()
def whole(folder: Path, dtype: Any = "auto") -> Tensor:
    model = models.load_folder(folder, ref_of(folder, dtype), "cpu").model
    return model(input_ids=TOKENS, use_cache=False).logits


def stock(folder: Path) -> Any:
    """What from_pretrained alone makes of a folder; no key may be left over or lack."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True
    )
    assert not any(info.values()), info
    return model.eval()


def real(module: nn.Module) -> set[str]:
    return {name for name, tensor in module.named_parameters() if tensor.device.type != "meta"}


def walked(lazy: LazyModel) -> Tensor:
    """The model's logits on TOKENS, one layer in memory at a time."""
    hidden = lazy.inputs(TOKENS)
    tape = lazy.tape(*TOKENS.shape)
    for index in range(len(lazy.stack)):
        layer = lazy.read(index)
        hidden = tape.run(layer, index, hidden)
        assert len(real(lazy.model)) == len(list(layer.parameters()))
        lazy.release(index)
        assert not real(lazy.model)
    with lazy.outside():
        return logits(lazy.stack, final_hidden(lazy.stack, tape, hidden))


def written(lazy: LazyModel, target: Path) -> Path:
    writer = LayerWriter(lazy, target)
    for index in range(len(lazy.stack)):
        writer.put(index, lazy.read(index))
        lazy.release(index)
    writer.finish()
    return target


class TestEveryFamily:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_layer_by_layer_from_disk_equals_the_model(self, folder: Path, dtype: str) -> None:
        lazy = lazy_of(folder, dtype)
        assert torch.equal(walked(lazy), whole(folder, dtype))
        assert not real(lazy.model)

    def test_what_was_written_is_loaded_by_transformers(self, folder: Path, tmp_path: Path) -> None:
        model = stock(written(lazy_of(folder), tmp_path / "new"))
        with torch.no_grad():
            assert torch.equal(model(input_ids=TOKENS, use_cache=False).logits, whole(folder))
