"""The table of config fields: complete for the installed transformers, right field by field."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from laco.depth import FIELDS, edited_fields, per_layer
from laco.errors import ArchitectureError
from tests import config_fields

ROOT = Path(__file__).parent.parent
DEPTH = 6
SOME = [0, 2, 3, 5]  # no prefix
TYPES = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return config_fields.found()


def edited(origins: list[int], **fields: Any) -> dict[str, Any]:
    config = SimpleNamespace(model_type="toy", num_hidden_layers=DEPTH, **fields)
    made = edited_fields(config, origins, DEPTH, "num_hidden_layers")
    assert made.pop("num_hidden_layers") == len(origins)
    return made


def test_the_table_knows_every_field_that_speaks_of_layers(found: dict[str, str]) -> None:
    unknown = {name: where for name, where in found.items() if name not in FIELDS}
    assert not unknown, "say in laco/depth.py what a change of depth does to these"


def test_a_new_field_would_be_noticed(found: dict[str, str]) -> None:
    """Of each sign by which fields are found."""
    for name in (
        *("layer_types", "first_k_dense_replace", "decoder_sparse_step", "scale_depth"),
        *("no_rope_layers", "num_attention_heads_per_layer", "intermediate_size", "block_types"),
        *("sliding_window_pattern", "num_kv_shared_layers", "moe_layers", "max_window_layers"),
    ):
        assert name in found, name


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("x = config.kinds[layer_idx]", {"kinds"}),
        ("if layer_idx >= self.config.first: pass", {"first"}),
        ("y = (i + 1) % config.every == 0", {"every"}),
        ("y = getattr(config, 'special', ()).__contains__(3) or layer_idx in config.ids", {"ids"}),
        ("z = config.scale / config.num_hidden_layers**0.5", {"scale"}),
        ("z = getattr(config, 'start', 0) <= layer_idx", {"start"}),
        ("a = Attention(config, layer_idx); b = config.hidden // config.heads", set()),
        ("class VisionTower:\n  def f(self): return config.kinds[layer_idx]", set()),
    ],
)
def test_fields_are_found_beside_an_index(code: str, names: set[str]) -> None:
    assert {name for name, _ in config_fields.beside_an_index(code)} == names


def test_fields_are_found_by_their_names() -> None:
    code = (
        "class AConfig(B):\n    model_type = 'a'\n    odd_layers: int = 3\n    width: int = 4\n"
        "    def __post_init__(self, **kwargs):\n        kwargs.pop('moe_every', 2)\n"
        "class AVisionConfig(B):\n    image_layers: int = 3\n"
    )
    assert set(config_fields.named_so(code)) == {"odd_layers", "moe_every"}


@pytest.mark.parametrize("name", [n for n, change in FIELDS.items() if change.does == "slice"])
def test_lists_are_sliced_and_not_cut_off(name: str) -> None:
    assert edited(SOME, **{name: TYPES}) == {name: ["a", "c", "d", "f"]}
    longer = edited(SOME, **{name: [*TYPES, "of a layer that guesses tokens"]})
    assert longer == {name: ["a", "c", "d", "f"]}
    assert edited(SOME, **{name: tuple(TYPES)})[name] in (("a", "c", "d", "f"), list("acdf"))


def test_a_list_that_nobody_knows_is_sliced_when_it_is_as_long_as_the_stack() -> None:
    assert edited(SOME, unheard_of=TYPES, shorter=TYPES[1:]) == {"unheard_of": list("acdf")}


def test_a_list_that_says_nothing_of_layers_stays() -> None:
    assert edited(SOME, eos_token_id=[1, 2, 3, 4, 5, 6]) == {}
    config = SimpleNamespace(eos_token_id=[0] * DEPTH, layer_types=TYPES)
    assert set(per_layer(config, DEPTH)) == {"layer_types"}


@pytest.mark.parametrize(
    ("fields", "origins", "expected"),
    [
        ({"scale_depth": 1.4}, SOME, {"scale_depth": 1.4 * math.sqrt(4 / 6)}),
        ({"first_k_dense_replace": 3}, SOME, {"first_k_dense_replace": 2}),
        ({"num_dense_layers": 1}, [1, 2], {"num_dense_layers": 0}),
        ({"moe_layers": [1, 3, 5]}, SOME, {"moe_layers": [2, 3]}),
        ({"full_attn_idxs": [-1, 2]}, SOME, {"full_attn_idxs": [1, 3]}),
        ({"num_nextn_predict_layers": 1}, SOME, {"num_nextn_predict_layers": 0}),
        ({"moe_layer_freq": [0, 1, 1, 0, 1, 1]}, SOME, {"moe_layer_freq": [0, 1, 0, 1]}),
        ({"moe_layer_freq": 1}, SOME, {}),
        ({"block_types": ["r", "r", "a"]}, SOME, {"block_types": ["r", "a", "r", "a"]}),
        ({"sliding_window_pattern": 3, "layer_types": TYPES}, SOME, {"layer_types": list("acdf")}),
        ({"sliding_window_pattern": 3}, [0, 1, 2], {}),
        ({"interleave_moe_layer_step": 2, "moe_layers": [1, 3, 5]}, SOME, {"moe_layers": [2, 3]}),
        ({"num_mem_blocks": 1}, SOME, {}),
        ({"num_kv_shared_layers": 0}, SOME, {}),
        ({"attn_layer_period": 2, "attn_layer_offset": 1}, [2, 3], {}),
        ({"indexer_types": list("fssfss")}, [0, 2, 3, 4], {"indexer_types": list("fsfs")}),
        ({"kv_source_layers": [0, 1, 0, 1, 4, 4]}, [0, 2, 4], {"kv_source_layers": [0, 0, 2]}),
    ],
    ids=str,
)
def test_fields_are_said_anew(
    fields: dict[str, Any], origins: list[int], expected: dict[str, Any]
) -> None:
    if "indexer_types" in fields:
        words = {"f": "full", "s": "shared"}
        fields = {"indexer_types": [words[c] for c in fields["indexer_types"]]}
        expected = {"indexer_types": [words[c] for c in expected["indexer_types"]]}
    assert edited(origins, **fields) == expected


@pytest.mark.parametrize(
    ("fields", "origins", "reason"),
    [
        ({"num_kv_shared_layers": 2}, SOME, "the last layers read others' keys"),
        ({"hidden_size_per_layer_input": 8}, SOME, "an embedding has a part for each layer"),
        ({"attn_layer_period": 2, "attn_layer_offset": 1}, SOME, "which this edit breaks"),
        ({"n_layers_per_attn_res_block": 3}, SOME, "which this edit breaks"),
        ({"moe_layer_freq": 2}, SOME, "which this edit breaks"),
        ({"sliding_window_pattern": 3}, SOME, "no layer_types says how"),
        ({"num_mem_blocks": 2}, SOME, "share so many blocks"),
        ({"rescale_every": 6}, SOME, "scaled by a layer's index"),
        ({"scale_attn_by_inverse_layer_idx": True}, SOME, "no layer can move"),
        ({"indexer_types": ["full", "shared"] * 3}, [0, 3, 4, 5], "whose choice it shares"),
        ({"indexer_types": ["full", "shared"] * 3}, [1, 2], "whose choice it shares"),
        ({"kv_source_layers": [0, 1, 0, 1, 4, 4]}, [0, 3], "the one whose keys it reads"),
        ({"per_layer_config": {"3": {}}}, SOME, "settings of single layers"),
        ({"loop_layer_index_start": 2, "loop_layer_index_end": 4}, SOME, "run more than once"),
        ({"n_input_layers": 2}, SOME, "stand apart"),
    ],
    ids=str,
)
def test_what_cannot_be_said_is_refused(
    fields: dict[str, Any], origins: list[int], reason: str
) -> None:
    with pytest.raises(ArchitectureError, match=reason):
        edited(origins, **fields)
    whole = list(range(DEPTH))
    config = SimpleNamespace(model_type="toy", **fields)
    assert edited_fields(config, whole, DEPTH, "num_hidden_layers") == {}


def test_the_documentation_says_what_happens_to_each() -> None:
    text = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    missing = [n for n, change in FIELDS.items() if change.does != "leave" and f"`{n}`" not in text]
    assert not missing
