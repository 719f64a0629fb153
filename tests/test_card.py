"""The card says before loading what is true of the loaded model."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from laco import capabilities, card, hub, models, reference
from laco.errors import ArchitectureError, ModelError, RecipeError
from laco.layers import LayerStack
from laco.layouts import LAYOUTS
from laco.prune.widths import check_structured
from laco.recipe import ModelRef, Structured
from tests import tiny

CACHE = Path(__file__).parent.parent / "cache"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BUILDERS = tiny.ARCHITECTURES | tiny.PROBED

bundle = pytest.mark.skipif(
    not reference.is_bundle_installed(), reason="the offline bundle is not installed"
)


def inspect(place, **fields):
    return card.inspect(ModelRef(path=str(place), **fields), CACHE)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def llama(tmp_path):
    return tiny.save(tiny.ARCHITECTURES["llama"](), tmp_path / "llama")


def test_known_families_are_those_with_a_layout():
    assert set(LAYOUTS) == capabilities.FAMILIES


@pytest.mark.parametrize("family", BUILDERS)
def test_card_counts_what_the_model_holds(family, tmp_path):
    model = BUILDERS[family]()
    about = inspect(tiny.save(model, tmp_path / family))
    assert about["parameters"] == count(model) == sum(about["parts"].values())
    assert about["bytes"] == 4 * about["parameters"]
    assert about["model_type"] == model.config.model_type
    text = model.config.get_text_config()
    assert about["vocab_size"] == text.vocab_size
    assert about["heads"] == getattr(text, "num_attention_heads", 1)  # Mamba has none
    assert about["layers"] == tiny.DEPTH
    assert reasons(about, ok=False) <= {"width", "merge"}


@pytest.mark.parametrize("family", BUILDERS)
def test_width_is_offered_where_pruning_can_do_it(family, tmp_path):
    """Deciding that needs the class; the card has it written down."""
    model = BUILDERS[family]()
    can = True
    try:
        check_structured(LayerStack(model), Structured(channels=0.5, multiple=1))
    except ArchitectureError:
        can = False
    about = inspect(tiny.save(model, tmp_path / family))
    assert about["capabilities"]["width"]["ok"] is can


@pytest.mark.parametrize("family", BUILDERS)
def test_card_counts_each_layer(family, tmp_path):
    model = BUILDERS[family]()
    about = inspect(tiny.save(model, tmp_path / family))
    nested = family == "gemma3"  # its layers cannot be edited, but they can be counted
    layers = model.model.language_model.layers if nested else LayerStack(model)
    assert about["layer_parameters"] == [count(layer) for layer in layers]


@pytest.mark.parametrize("family", tiny.ARCHITECTURES)
def test_card_tells_embedding_head_and_the_rest_apart(family, tmp_path):
    model = tiny.ARCHITECTURES[family]()
    about = inspect(tiny.save(model, tmp_path / family))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert head is not None
    assert about["tied"] == (embedding.weight is head.weight)
    assert about["parts"]["head"] == (0 if about["tied"] else count(head))
    tables = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    assert about["parts"]["embedding"] == sum(count(table) for table in tables)
    assert (about["parts"]["other"] > 0) == (family == "opt")  # it projects into narrower tables
    assert min(about["parts"][part] for part in ("attention", "mlp", "norms")) > 0


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "bloom"])
def test_cache_bytes_are_those_of_the_real_cache(family, tmp_path):
    model = tiny.ARCHITECTURES[family]()
    about = inspect(tiny.save(model, tmp_path / family))
    with torch.no_grad():
        cache = model(input_ids=tiny.tokens(1, 3), use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    before = card.consequences(about, ())["before"]
    assert before["kv_bytes_per_token"] * 3 == held


def test_consequences_are_those_of_the_real_edit(llama, tmp_path):
    lm = models.load(ModelRef(path=str(llama)), tmp_path, "cpu")
    told = card.consequences(inspect(llama), [1, 4])
    lm.layers.keep([lm.layers[index] for index in (0, 2, 3, 5)], (0, 2, 3, 5))
    models.save_folder(lm, tmp_path / "smaller")
    smaller = inspect(tmp_path / "smaller")
    for field in ("layers", "parameters", "bytes"):
        assert told["after"][field] == smaller[field] < told["before"][field]
    again = card.consequences(smaller, ())["before"]
    assert told["after"]["kv_bytes_per_token"] == again["kv_bytes_per_token"]


def test_speed_is_the_share_of_bytes_that_a_token_reads():
    about = {
        "layers": 4,
        "parameters": 1000,
        "layer_parameters": [100, 100, 100, 200],
        "dtype": "bfloat16",
        "kv_heads": 2,
        "head_dim": 8,
        "tied": True,
        "parts": {"embedding": 250},
    }
    assert card.consequences(about, [3])["after"] == {
        "layers": 3,
        "parameters": 800,
        "bytes": 1600,
        "kv_bytes_per_token": 3 * 2 * 2 * 8 * 2,
        "speed": 1000 / 800,
    }
    untied = card.consequences(about | {"tied": False}, [3, 3])
    assert untied["after"]["speed"] == 750 / 550
    assert untied["before"]["speed"] == 1


@pytest.mark.parametrize(
    ("removed", "part"),
    [([6], "Layer 6 is not there: the model's layers are 0 to 5"), ([-1], "-1"), (range(6), "All")],
)
def test_consequences_refuse_layers_that_are_not_there(llama, removed, part):
    with pytest.raises(RecipeError, match=part):
        card.consequences(inspect(llama), removed)


def test_bytes_follow_the_number_format_asked_for(llama):
    assert inspect(llama, dtype="bfloat16")["bytes"] * 2 == inspect(llama)["bytes"]
    about = inspect(llama)
    assert about["file_bytes"] == (llama / "model.safetensors").stat().st_size
    assert about["expected"]["memory_bytes"] > about["bytes"]
    assert about["expected"]["work"]["similarity"]["seconds"] > 0
    assert about["expected"]["measured"] is False


def test_stored_twin_of_a_tied_head_counts_once(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tiny.save(tiny.ARCHITECTURES["gemma2"](), tmp_path / "gemma2")
    before = inspect(folder)["parameters"]
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    edit_config(folder, tie_word_embeddings=True)
    about = inspect(folder)
    assert (about["parameters"], about["tied"]) == (before, True)


def test_old_buffers_are_no_parameters(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tiny.save(tiny.ARCHITECTURES["gpt2"](), tmp_path / "gpt2")
    before = inspect(folder)["parameters"]
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    weights["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert inspect(folder)["parameters"] == before


# --- what can be done -----------------------------------------------------------------------------


def reasons(about, ok):
    return {name for name, answer in about["capabilities"].items() if answer["ok"] is ok}


def test_unknown_family_is_found_by_probing(tmp_path):
    about = inspect(tiny.save(tiny.PROBED["gpt_neo"](), tmp_path / "gpt_neo"))
    assert "probing when it is loaded" in about["capabilities"]["collapse"]["reason"]


@pytest.mark.parametrize(
    ("family", "ok", "reason"),
    [
        ("deepseek_v3", True, "only within layers [0, 2), [2, 6), whose neighbours are alike"),
        ("gemma3_text", True, "only within layers [0, 2), [3, 5), whose neighbours are alike"),
        ("gemma2", False, "no two neighbours can merge: layers 0 and 1 differ in layer_types"),
        ("llama", True, "llama is a known family"),
    ],
)
def test_merging_is_offered_where_neighbours_are_alike(family, ok, reason, tmp_path):
    about = inspect(tiny.save(BUILDERS[family](), tmp_path / family))
    answer = about["capabilities"]["merge"]
    assert answer["ok"] is ok
    assert answer["reason"].startswith(reason)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "roberta"}, "roberta is an encoder"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised (awq)"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}, "trust_remote_code"),
    ],
    ids=["encoder-decoder", "encoder", "quantised", "remote code"],
)
def test_model_that_laco_cannot_take_says_why(llama, changes, part):
    edit_config(llama, **changes)
    about = inspect(llama)
    assert reasons(about, ok=False) == set(capabilities.CAPABILITIES)
    assert all(part in answer["reason"] for answer in about["capabilities"].values())


def test_trusted_code_is_allowed_and_its_export_says_what_it_needs(llama):
    edit_config(llama, model_type="own", auto_map={"AutoConfig": "own.C"})
    about = inspect(llama, trust_remote_code=True)
    assert reasons(about, ok=False) == {"width"}
    assert "own Python code" in about["capabilities"]["export"]["reason"]


def test_model_without_tokenizer_can_be_merged_but_not_measured(llama):
    for file in llama.glob("*token*"):
        file.unlink()
    about = inspect(llama)
    assert reasons(about, ok=True) == {"merge", "export"}


def test_model_of_one_layer_cannot_collapse(tmp_path):
    folder = tiny.save(tiny.redundant(depth=1, first=0, last=0), tmp_path / "one")
    assert reasons(inspect(folder), ok=False) == {"collapse", "merge"}


def test_config_without_depth_says_so(llama):
    config = json.loads((llama / "config.json").read_text())
    del config["num_hidden_layers"]
    (llama / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="does not say how many layers"):
        inspect(llama)


def test_broken_weights_are_one_sentence(llama):
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors is broken: it has [\d,]+ bytes"):
        inspect(llama)


# --- the bundle, GGUF files and the hub -----------------------------------------------------------


@bundle
def test_bundle_reads_the_same_before_and_after_conversion(tmp_path):
    before = card.inspect(ModelRef(path=reference.BUNDLED), tmp_path)
    models.folder_of(models.pin(ModelRef(path=reference.BUNDLED), CACHE), CACHE)
    after = inspect(reference.BUNDLED)
    assert before.pop("file_bytes") < after.pop("file_bytes")
    assert before == after
    assert (after["layers"], after["parameters"]) == (30, 134_515_008)
    assert (after["kv_heads"], after["head_dim"], after["tied"]) == (3, 64, True)


@bundle
@pytest.mark.parametrize("keep", [3, 100, 1_000_000, 90_000_000])
def test_truncated_gguf_is_one_sentence(tmp_path, keep):
    file = tmp_path / "short.gguf"
    with reference.bundle_gguf(reference.bundle_version()).open("rb") as whole:
        file.write_bytes(whole.read(keep))
    with pytest.raises(ModelError, match=r"short\.gguf is not a whole GGUF file"):
        inspect(file)


def test_cached_hub_model_is_read_from_its_folder(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--org--tiny" / "snapshots" / COMMIT
    tiny.save(tiny.ARCHITECTURES["qwen3"](), place)
    about = inspect(f"org/tiny@{COMMIT}")
    assert about["parameters"] == count(tiny.ARCHITECTURES["qwen3"]())
    assert about["source"] == {"kind": "hub", "path": "org/tiny", "revision": COMMIT}


def test_hub_model_is_read_by_its_headers_alone(tmp_path, monkeypatch):
    from huggingface_hub import constants

    model = tiny.ARCHITECTURES["qwen3"]()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--org--tiny" / "snapshots" / COMMIT
    place.mkdir(parents=True)
    model.config.save_pretrained(place)
    edit_config(place, dtype="float32")
    tensors = {
        name: SimpleNamespace(dtype="F32", shape=list(t.shape), data_offsets=(0, t.nbytes))
        for name, t in model.state_dict().items()
    }
    found = SimpleNamespace(files_metadata={"one": SimpleNamespace(tensors=tensors)})
    monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", lambda *_, **__: found)
    monkeypatch.setattr(hub, "_fetch", lambda _name, _commit, fetch: fetch())
    about = inspect(f"org/tiny@{COMMIT}")
    assert about["parameters"] == count(model)
    assert about["file_bytes"] == sum(t.nbytes for t in model.state_dict().values())


def test_card_needs_neither_torch_nor_transformers(llama):
    code = (
        "import sys; from pathlib import Path; from laco import card; from laco.recipe import "
        f"ModelRef; card.inspect(ModelRef(path={str(llama)!r}), Path('cache')); "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
