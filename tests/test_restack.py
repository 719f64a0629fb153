"""What is dropped or merged from file to file is, bit for bit, what it is made of in memory.

Of every family: `test_families.py`, whose checks `drop` and `merge` write either way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from laco import layerfiles, models
from laco.context import Context
from laco.errors import ArchitectureError, Cancelled, ModelError, RecipeError, StoreError
from laco.lazy import LazyModel
from laco.merging import apply_edit
from laco.recipe import Drop, Merge, ModelRef
from laco.restack import restack
from tests import tiny
from tests.families import same_folders, stock, tensors_of

SPANS = ((3, 5), (2, 5), (0, 2))  # of which the second contains the first


def lazy_of(folder: Path, dtype: Any = "auto") -> LazyModel:
    return LazyModel(folder, ModelRef(path=str(folder), dtype=dtype), "cpu")


def both(lazy: LazyModel, step: Drop | Merge, room: Path) -> Path:
    """The folder that was written from file to file, seen to be as the one from memory."""
    ours = restack(lazy, step, room / "streamed", Context())
    lm = models.load_folder(lazy.folder, lazy.ref, "cpu")
    theirs = apply_edit(lm.layers, step)
    models.save_folder(lm, room / "whole")
    assert ours == theirs
    same_folders(room / "streamed", room / "whole")
    return room / "streamed"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = {n: t.clone() for n, t in load_file(folder / "model.safetensors").items()}
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LazyModel:
    folder = tiny.save(tiny.ARCHITECTURES["llama"](), tmp_path_factory.mktemp("llama"))
    return lazy_of(folder)


@pytest.mark.parametrize("merge", ["rdsc", "telescoped", "mean", "drop"])
def test_spans_within_spans_merge_in_every_way(
    llama: LazyModel, merge: Any, tmp_path: Path
) -> None:
    folder = both(llama, Merge.model_validate({"spans": SPANS, "merge": merge}), tmp_path)
    assert stock(folder).config.num_hidden_layers == 3


def test_norms_and_biases_stay_where_projections_merge(tmp_path: Path) -> None:
    lazy = lazy_of(tiny.save(tiny.ARCHITECTURES["gpt2"](), tmp_path / "gpt2"))
    folder = both(lazy, Merge(spans=SPANS, merge="rdsc", parameters="projections"), tmp_path)
    before, after = tensors_of(lazy.folder), tensors_of(folder)
    for name, moved in (
        ("ln_1.weight", True),
        ("attn.c_attn.bias", True),
        ("mlp.c_fc.weight", False),
    ):
        kept = torch.equal(before[f"transformer.h.2.{name}"], after[f"transformer.h.1.{name}"])
        assert kept is moved, name


@pytest.mark.parametrize("family", ["deepseek_v3", "gpt_oss", "qwen3_moe"])
def test_experts_merge_or_stay_as_projections_do(family: str, tmp_path: Path) -> None:
    lazy = lazy_of(tiny.save(tiny.PROBED[family](), tmp_path / family))
    span = (3, 5)
    if family == "gpt_oss":  # its neighbours differ in attention
        both(lazy, Drop(layers=span), tmp_path)
        return
    both(lazy, Merge(spans=(span,), merge="telescoped"), tmp_path)


def test_a_number_format_is_cast_before_it_is_summed(llama: LazyModel, tmp_path: Path) -> None:
    short = lazy_of(llama.folder, "bfloat16")
    folder = both(short, Merge(spans=((1, 4),), merge="mean"), tmp_path)
    assert {tensor.dtype for tensor in tensors_of(folder).values()} == {torch.bfloat16}


def test_shards_and_files_without_the_trunk_s_prefix_are_read(tmp_path: Path) -> None:
    def strip(weights: dict[str, Tensor]) -> None:  # as gpt2 lies on the hub
        for name in list(weights):
            weights[name.removeprefix("transformer.")] = weights.pop(name)
        for index in range(tiny.DEPTH):
            weights[f"h.{index}.attn.bias"] = torch.ones(1, 1, 8, 8)

    folder = tiny.save(tiny.ARCHITECTURES["gpt2"](), tmp_path / "gpt2")
    rewrite(folder, strip)
    both(lazy_of(folder), Merge(spans=((1, 4),), merge="rdsc"), tmp_path / "old")
    model = tiny.ARCHITECTURES["qwen3"]()
    model.save_pretrained(tmp_path / "qwen3", max_shard_size="40KB")
    tiny.tokenizer().save_pretrained(tmp_path / "qwen3")
    assert len(list((tmp_path / "qwen3").glob("*.safetensors"))) > 2
    both(lazy_of(tmp_path / "qwen3"), Merge(spans=((2, 6),), merge="mean"), tmp_path / "shards")


def test_a_head_unlike_the_embedding_it_should_be_tied_to_is_refused_as_in_memory(
    tmp_path: Path,
) -> None:
    folder = tiny.save(tiny.ARCHITECTURES["gemma2"](), tmp_path / "gemma2")
    rewrite(folder, lambda w: w.update({"lm_head.weight": 2 * w["model.embed_tokens.weight"]}))
    lm = models.load_folder(folder, lazy_of(folder).ref, "cpu")
    with pytest.raises(ArchitectureError) as in_memory:
        apply_edit(lm.layers, Drop(layers=(1,)))
    with pytest.raises(ArchitectureError) as streamed:
        restack(lazy_of(folder), Drop(layers=(1,)), tmp_path / "new", Context())
    assert str(streamed.value) == str(in_memory.value)
    assert not (tmp_path / "new").exists()


def test_generation_config_and_chat_template_come_along(llama: LazyModel, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in llama.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    text = json.dumps({"temperature": 0.6, "do_sample": True})
    (folder / "generation_config.json").write_text(text)
    restack(lazy_of(folder), Drop(layers=(1,)), tmp_path / "new", Context())
    assert (tmp_path / "new" / "generation_config.json").read_text() == text
    assert (tmp_path / "new" / "chat_template.jinja").read_text() == "{{ messages }}"


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        (Drop(layers=(9,)), RecipeError, "past the end"),
        (Drop(layers=tuple(range(6))), RecipeError, "at least one must stay"),
        (Merge(spans=((4, 9),)), RecipeError, "past the end"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    llama: LazyModel, step: Any, error: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        restack(llama, step, tmp_path / "new", Context())
    assert not (tmp_path / "new").exists()


def test_unlike_neighbours_do_not_merge(tmp_path: Path) -> None:
    lazy = lazy_of(tiny.save(tiny.ARCHITECTURES["gemma2"](), tmp_path / "gemma2"))
    with pytest.raises(RecipeError, match="cannot merge by rdsc: layers 0 and 1 differ in layer_t"):
        restack(lazy, Merge(spans=((0, 2),), merge="rdsc"), tmp_path / "new", Context())


def test_what_was_stopped_goes_on_where_it_was(llama: LazyModel, tmp_path: Path) -> None:
    step = Merge(spans=((1, 3),), merge="mean")
    asked = iter(range(100))
    with pytest.raises(Cancelled):
        restack(llama, step, tmp_path / "new", Context(cancelled=lambda: next(asked) > 2))
    left = sorted((tmp_path / "new").glob("*.safetensors"))
    times = [file.stat().st_mtime_ns for file in left]
    assert 0 < len(left) < 5
    restack(llama, step, tmp_path / "new", Context())
    assert [file.stat().st_mtime_ns for file in left] == times
    restack(llama, step, tmp_path / "whole", Context())
    same_folders(tmp_path / "new", tmp_path / "whole")


def test_a_full_disk_is_said_and_no_half_file_stays(
    llama: LazyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_tensors: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise layerfiles.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(layerfiles, "save_file", full)
    with pytest.raises(StoreError, match="No space left"):
        restack(llama, Drop(layers=(1,)), tmp_path / "new", Context())
    assert not list((tmp_path / "new").iterdir())


def test_layers_that_are_named_by_no_number_are_refused(
    llama: LazyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = [("first.mlp.weight", "model.layers.0.mlp.down_proj.weight")]
    monkeypatch.setattr(llama.weights, "names", lambda inside: odd)
    with pytest.raises(ModelError, match=r"first\.mlp\.weight belongs to layer 0"):
        restack(llama, Drop(layers=(1,)), tmp_path / "new", Context())


def test_a_family_that_is_not_known_says_that_it_was_loaded_whole(tmp_path: Path) -> None:
    lazy = lazy_of(tiny.save(tiny.PROBED["gpt_neo"](), tmp_path / "neo"))
    report = restack(lazy, Drop(layers=(1,)), tmp_path / "new", Context())
    assert "gpt_neo is no known family" in report["notes"][0]


def test_a_tensor_that_only_moves_stays_in_its_file(llama: LazyModel) -> None:
    """It is mapped, so no memory is taken for it: its storage is no larger, and shared."""
    name = "model.layers.1.mlp.up_proj.weight"
    (saved,) = llama.weights.named_as_saved(name, tensor := llama.weights.tensor(name)).values()
    assert saved.data_ptr() == tensor.data_ptr()
