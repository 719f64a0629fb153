"""Layer by layer from disk, a model answers as it does whole, and goes back to disk as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from laco import layerfiles, models
from laco.errors import ArchitectureError, ModelError, StoreError
from laco.lazy import LayerWriter, LazyModel
from laco.recipe import ModelRef
from laco.walk import Call, final_hidden, logits, record
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
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True
    )
    model, info = loaded
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


def copied(layer: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in layer.state_dict().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def written(
    lazy: LazyModel,
    target: Path,
    edit: Callable[[int, nn.Module], None] = lambda *_: None,
    dtype: torch.dtype | None = None,
    **fields: Any,
) -> Path:
    writer = LayerWriter(lazy, target)
    for index in range(len(lazy.stack)):
        layer = lazy.read(index, dtype)
        edit(index, layer)
        writer.put(index, layer)
        lazy.release(index)
    writer.finish(fields)
    return target


def tensors_of(calls: tuple[Call, ...]) -> list[Tensor]:
    def inside(value: Any) -> list[Tensor]:
        if isinstance(value, Tensor):
            return [value]
        values = value.values() if isinstance(value, dict) else value
        is_nested = isinstance(value, dict | tuple | list)
        return [tensor for item in values for tensor in inside(item)] if is_nested else []

    return [tensor for call in calls for tensor in inside((call.args, call.kwargs))]


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def complaint(folder: Path, dtype: Any = "auto") -> str:
    with pytest.raises(ModelError) as caught:
        lazy_of(folder, dtype)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


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

    def test_what_was_put_is_read_back(self, folder: Path, tmp_path: Path) -> None:
        lazy = lazy_of(folder)
        writer = LayerWriter(lazy, tmp_path / "new")
        for index in (2, 3):
            layer = lazy.read(index)
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.mul_(1.5)
            writer.put(index, layer)
            edited = copied(layer)
            lazy.read(index)
            assert equal(writer.read_back(index), edited)
            assert not equal(copied(layer), edited)  # the source's own are left in place

    def test_a_tape_without_layers_is_the_model_s_on_any_tokens(self, folder: Path) -> None:
        lm = models.load_folder(folder, ref_of(folder), "cpu")
        mine, models_own = lazy_of(folder).tape(*TOKENS.shape), record(lm.layers, TOKENS)
        assert mine.extras == models_own.extras
        ours, theirs = tensors_of(mine.calls), tensors_of(models_own.calls)
        assert len(ours) == len(theirs)
        assert all(map(torch.equal, ours, theirs))
        assert [c.kwargs.keys() for c in mine.calls] == [c.kwargs.keys() for c in models_own.calls]


# --- reading --------------------------------------------------------------------------------------


def test_an_edit_in_place_does_not_reach_the_files(llama: Path) -> None:
    lazy = lazy_of(llama)
    before = copied(lazy.read(1))
    with torch.no_grad():
        for parameter in lazy.stack[1].parameters():
            parameter.zero_()
    assert equal(copied(lazy.read(1)), before)
    assert torch.equal(walked(lazy_of(llama)), whole(llama))


def test_a_layer_is_the_same_module_each_time(llama: Path) -> None:
    lazy = lazy_of(llama)
    layer = lazy.read(1)
    lazy.release(1)
    assert lazy.read(1) is layer is lazy.stack[1]


def test_a_float32_layer_of_a_bfloat16_model_gets_gradients(llama: Path) -> None:
    lazy = lazy_of(llama, "bfloat16")
    hidden, tape = lazy.inputs(TOKENS), lazy.tape(*TOKENS.shape)
    assert hidden.dtype == torch.bfloat16
    layer = lazy.read(0, torch.float32).requires_grad_(True)
    tape.call(layer, 0, hidden.float()).sum().backward()
    assert all(p.dtype == torch.float32 and p.grad is not None for p in layer.parameters())
    assert not tape.run(layer, 0, hidden.float()).requires_grad


def test_a_float32_layer_of_a_bfloat16_model_has_the_model_s_values(llama: Path) -> None:
    lazy = lazy_of(llama, "bfloat16")
    rounded = copied(lazy.read(2))
    exact = copied(lazy.read(2, torch.float32))
    assert equal({name: tensor.float() for name, tensor in rounded.items()}, exact)
    lazy.release(2)
    assert equal(copied(lazy.read(2)), rounded)


def test_taking_a_tape_leaves_a_layer_as_it_is_held(llama: Path) -> None:
    lazy = lazy_of(llama)
    layer = lazy.read(0, torch.float64)
    held = dict(layer.named_parameters())
    lazy.tape(2, 9)
    assert all(held[name] is parameter for name, parameter in layer.named_parameters())


def test_a_tape_is_kept(llama: Path) -> None:
    lazy = lazy_of(llama)
    assert lazy.tape(2, 9) is lazy.tape(2, 9)
    assert lazy.tape(1, 9).inputs.shape == (1, 9, 32)


def test_inputs_are_those_of_more_windows_than_go_at_a_time(llama: Path) -> None:
    lazy, tokens = lazy_of(llama), tiny.tokens(batch=19)
    embedding = load_file(llama / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(lazy.inputs(tokens), embedding[tokens])
    assert not real(lazy.model)


def test_inputs_inside_outside_leave_the_embedding_there(llama: Path) -> None:
    lazy = lazy_of(llama)
    with lazy.outside():
        there = real(lazy.model)
        lazy.inputs(TOKENS)
        assert real(lazy.model) == there
        assert there == {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert not real(lazy.model)


def test_a_large_head_is_not_read_for_the_inputs(llama: Path) -> None:
    lazy = lazy_of(llama)
    with lazy._embedding():
        assert real(lazy.model) == {"model.embed_tokens.weight", "model.norm.weight"}


def test_arguments_made_of_tokens_are_refused(llama: Path) -> None:
    def add(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "memory": args[0].sum()}

    lazy = lazy_of(llama)
    lazy.stack[3].register_forward_pre_hook(add, with_kwargs=True)
    with pytest.raises(ArchitectureError, match=r"Layer 3 .* cannot be run one by one"):
        lazy.tape(2, 9)


def test_shards_are_read(tmp_path: Path) -> None:
    model = FAMILIES["qwen3"]()
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    tiny.tokenizer().save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.equal(walked(lazy_of(tmp_path)), whole(tmp_path))


def test_files_without_the_trunk_s_prefix_and_with_old_masks_are_read(tmp_path: Path) -> None:
    def strip(weights: dict[str, Tensor]) -> None:  # as gpt2 lies on the hub
        for name in list(weights):
            weights[name.removeprefix("transformer.")] = weights.pop(name)
        weights["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)

    folder = tiny.save(FAMILIES["gpt2"](), tmp_path / "gpt2")
    expected = whole(folder)
    edit_weights(folder, strip)
    lazy = lazy_of(folder)
    assert torch.equal(walked(lazy), expected)
    new = written(lazy, tmp_path / "new")
    assert torch.equal(walked(lazy_of(new)), expected)
    index = json.loads((new / "model.safetensors.index.json").read_text())
    assert all(name.startswith("transformer.") for name in index["weight_map"])


def test_a_head_that_stands_for_the_embedding_is_read(tmp_path: Path) -> None:
    def rename(weights: dict[str, Tensor]) -> None:
        weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")

    folder = tiny.save(FAMILIES["gemma2"](), tmp_path / "gemma2")
    expected = whole(folder)
    edit_weights(folder, rename)
    assert torch.equal(walked(lazy_of(folder)), expected)
    assert torch.equal(walked(lazy_of(written(lazy_of(folder), tmp_path / "new"))), expected)


def test_a_head_unlike_the_embedding_that_it_should_be_tied_to_is_read(tmp_path: Path) -> None:
    folder = tiny.save(FAMILIES["gemma2"](), tmp_path / "gemma2")
    edit_weights(folder, lambda w: w.update({"lm_head.weight": 2 * w["model.embed_tokens.weight"]}))
    expected = whole(folder)
    assert torch.equal(walked(lazy_of(folder)), expected)
    assert torch.equal(whole(written(lazy_of(folder), tmp_path / "new")), expected)


# --- refusing -------------------------------------------------------------------------------------


def test_a_missing_tensor_is_named(llama: Path) -> None:
    edit_weights(llama, lambda weights: weights.pop("model.layers.3.mlp.up_proj.weight"))
    assert "lacks model.layers.3.mlp.up_proj.weight" in complaint(llama)


def test_a_tensor_that_the_config_does_not_know_is_named(llama: Path) -> None:
    edit_weights(llama, lambda weights: weights.update({"model.layers.9.x": torch.ones(2)}))
    assert "unknown to its config, model.layers.9.x" in complaint(llama)


def test_a_tensor_of_another_shape_is_named(llama: Path) -> None:
    names = [f"model.layers.{index}.mlp.up_proj.weight" for index in range(tiny.DEPTH)]
    edit_weights(llama, lambda w: w.update({name: torch.ones(2, 2) for name in names}))
    assert "has in another shape than its config says model.layers.0.mlp.up" in complaint(llama)


@pytest.mark.parametrize("name", ["qwen2_moe", "deepseek_v3"])
def test_a_missing_expert_is_noticed(name: str, tmp_path: Path) -> None:
    folder = tiny.save(FAMILIES[name](), tmp_path / name)
    edit_weights(folder, lambda w: w.pop("model.layers.3.mlp.experts.2.down_proj.weight"))
    assert "model.layers.3.mlp.experts.down_proj" in complaint(folder)


def test_what_is_no_model_folder_is_refused(llama: Path, tmp_path: Path) -> None:
    assert "has no config.json" in complaint(tmp_path / "absent")
    assert "float16 on a CPU" in complaint(llama, "float16")
    edit_config(llama, is_encoder_decoder=True)
    assert "encoder-decoder" in complaint(llama)
    edit_config(llama, is_encoder_decoder=False, model_type="vit")
    assert "vit is not a causal language model" in complaint(llama)
    edit_config(llama, model_type="nothing_known")
    assert "(nothing_known) cannot be loaded" in complaint(llama)
    (llama / "tokenizer.json").unlink()
    assert "has no tokenizer" in complaint(llama)
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert "is broken" in complaint(llama)


# --- writing --------------------------------------------------------------------------------------


def test_an_edited_layer_comes_back_edited(llama: Path, tmp_path: Path) -> None:
    def edit(index: int, layer: nn.Module) -> None:
        if index == 4:
            with torch.no_grad():
                layer.get_parameter("mlp.down_proj.weight").zero_()

    new = written(lazy_of(llama), tmp_path / "new", edit)
    lm = models.load_folder(llama, ref_of(llama), "cpu")
    edit(4, lm.layers[4])
    with torch.no_grad():
        expected = lm.model(input_ids=TOKENS, use_cache=False).logits
    assert torch.equal(whole(new), expected)
    assert not torch.equal(expected, whole(llama))


def test_bfloat16_stays_bfloat16(tmp_path: Path) -> None:
    model: Any = FAMILIES["llama"]()
    source = tiny.save(model.to(torch.bfloat16), tmp_path / "source")
    new = written(lazy_of(source), tmp_path / "new", dtype=torch.float32)
    assert {t.dtype for f in new.glob("*.safetensors") for t in load_file(f).values()} == {
        torch.bfloat16
    }
    assert json.loads((new / "config.json").read_text())["dtype"] == "bfloat16"
    assert torch.equal(whole(new), whole(source))


def test_float32_files_that_are_run_in_bfloat16_are_written_so(llama: Path, tmp_path: Path) -> None:
    new = written(lazy_of(llama, "bfloat16"), tmp_path / "new")
    assert stock(new).dtype == torch.bfloat16
    assert torch.equal(whole(new), whole(llama, "bfloat16"))


def test_narrower_layers_are_read_back_and_loaded(llama: Path, tmp_path: Path) -> None:
    def narrow(_index: int, layer: Any) -> None:
        for linear in (layer.mlp.gate_proj, layer.mlp.up_proj):
            linear.weight = nn.Parameter(linear.weight[:40].clone(), requires_grad=False)
        down = layer.mlp.down_proj
        down.weight = nn.Parameter(down.weight[:, :40].clone(), requires_grad=False)

    lazy = lazy_of(llama)
    new = written(lazy, tmp_path / "new", narrow, intermediate_size=40)
    assert stock(new).model.layers[5].mlp.down_proj.weight.shape == (32, 40)
    back = LayerWriter(lazy, new).read_back(5)
    assert back["mlp.down_proj.weight"].shape == (32, 40)
    up = lazy.read(5).get_parameter("mlp.up_proj.weight")
    assert torch.equal(back["mlp.up_proj.weight"], up[:40])


def test_layers_that_the_config_does_not_describe_are_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="another shape than its config says"):
        written(lazy_of(llama), tmp_path / "new", intermediate_size=40)


def test_a_resumed_writer_knows_what_it_has(llama: Path, tmp_path: Path) -> None:
    lazy, new = lazy_of(llama), tmp_path / "new"
    first = LayerWriter(lazy, new)
    for index in (0, 1, 4):
        first.put(index, lazy.read(index))
    leftover = layerfiles.partial_path(new / "model-00003-of-00007.safetensors")
    leftover.write_bytes(b"half")
    second = LayerWriter(lazy_of(llama), new)
    assert [second.has(index) for index in range(6)] == [True, True, False, False, True, False]
    for index in (2, 3, 5):
        second.put(index, lazy.read(index))
    second.finish()
    assert torch.equal(whole(new), whole(llama))
    assert not leftover.exists()


def test_a_half_written_file_is_never_seen(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_tensors: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise layerfiles.SafetensorError("I/O error: No space left on device (os error 28)")

    lazy = lazy_of(llama)
    writer = LayerWriter(lazy, tmp_path / "new")
    layer = lazy.read(0)
    monkeypatch.setattr(layerfiles, "save_file", fail)
    with pytest.raises(StoreError, match="No space left"):
        writer.put(0, layer)
    assert not writer.has(0)
    assert not list((tmp_path / "new").iterdir())


def test_what_lies_beside_the_weights_comes_along(llama: Path, tmp_path: Path) -> None:
    (llama / "chat_template.jinja").write_text("{{ messages }}")
    (llama / "generation_config.json").write_text('{"temperature": 0.6, "do_sample": true}')
    new = written(lazy_of(llama), tmp_path / "new")
    assert (new / "chat_template.jinja").read_text() == "{{ messages }}"
    assert stock(new).generation_config.temperature == 0.6
    lm = models.load_folder(new, ref_of(new), "cpu")
    assert lm.tokenizer("the cat").input_ids == tiny.tokenizer()("the cat").input_ids


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused(
    llama: Path, tmp_path: Path
) -> None:
    lazy = lazy_of(llama)
    lazy.tokenizer.add_tokens([f"<extra-{index}>" for index in range(100)])
    with pytest.raises(ModelError, match=r"knows \d+ tokens and its embedding has 320 rows"):
        LayerWriter(lazy, tmp_path / "new")
    assert not (tmp_path / "new").exists()
