"""Which layers are alike where a config lists nothing: as the family's class has it."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from laco import card
from laco.capabilities import FAMILIES
from laco.depth import per_layer
from laco.lazy import LazyModel
from laco.recipe import ModelRef
from laco.rhythms import RULES, made_list
from tests import tiny
from tests.families import BUILDERS

LISTS = ("layer_types", "no_rope_layers", "moe_layers")
SHORT = [
    {},
    {"sliding_window_pattern": 3},
    {"no_rope_layer_interval": 2},
    {"full_attention_interval": 2},
    {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 4},
    {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 4},
    {"use_sliding_window": False, "max_window_layers": 4},
]


def apart(lists: Any, depth: int) -> list[int]:
    """Which layers differ from the one before them."""
    rows = list(zip(*lists.values(), strict=True)) or [()] * depth
    return [index for index, (one, other) in enumerate(pairwise(rows), 1) if one != other]


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("fields", SHORT, ids=str)
def test_the_rules_are_those_of_the_classes(family: str, fields: dict[str, Any]) -> None:
    if family in ("gemma3", "gpt2", "bloom"):  # nested, or of another name for the depth
        assert family == "gemma3" or family not in RULES
        return
    kind: Any = CONFIG_MAPPING[family]
    config = kind(num_hidden_layers=12, **fields)
    lists = {name: v for name, v in per_layer(config, 12).items() if name in LISTS[:2]}
    raw = {"model_type": family, "num_hidden_layers": 12, **fields}
    assert apart(made_list(raw, family, 12), 12) == apart(lists, 12)


def test_a_list_that_the_config_has_counts() -> None:
    assert made_list({"layer_types": ["x"]}, "gemma2", 6) == {}
    assert made_list({}, "llama", 6) == {}
    assert made_list({"no_rope_layers": []}, "llama4_text", 4) == {"no_rope_layers": [1, 1, 1, 0]}


OLD = [
    ("gemma3_text", {"sliding_window_pattern": 3}),
    ("gemma3", {"sliding_window_pattern": 4}),
    ("gemma2", {}),
    ("cohere2", {}),
    ("smollm3", {"no_rope_layer_interval": 2}),
    ("qwen2", {"max_window_layers": 2}),
    ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 4}),
    ("gpt_oss", {}),
    ("llama4_text", {"no_rope_layer_interval": 3, "interleave_moe_layer_step": 2}),
]


@pytest.mark.parametrize(("family", "fields"), OLD)
def test_the_card_of_an_old_config_promises_only_what_can_merge(
    family: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    folder = tiny.save(BUILDERS[family](), tmp_path / "old")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    text = config.get("text_config", config)
    for name in LISTS:
        text.pop(name, None)
    text.update(fields)
    file.write_text(json.dumps(config))
    ref = ModelRef(path=str(folder))
    stack = LazyModel(folder, ref, "cpu").stack
    can = {i for i in range(tiny.DEPTH - 1) if stack.mergeable((i, i + 2)) is None}
    told = card.inspect(ref, tmp_path)["capabilities"]["merge"]
    spans = re.findall(r"\[(\d+), (\d+)\)", told["reason"])
    promised = {i for start, stop in spans for i in range(int(start), int(stop) - 1)}
    if told["ok"] and not spans:
        promised = set(range(tiny.DEPTH - 1))
    assert promised == can
    assert told["ok"] is bool(can)


def test_what_only_a_class_knows_is_not_promised_of_an_unknown_family(tmp_path: Path) -> None:
    folder = tiny.save(BUILDERS["ernie4_5_moe"](), tmp_path / "new")
    told = card.inspect(ModelRef(path=str(folder)), tmp_path)["capabilities"]["merge"]["reason"]
    assert "only within layers [1, 6)" in told
    assert told.endswith("; those that only its class tells apart are refused")
