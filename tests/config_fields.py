"""Config fields of the installed transformers that may speak of layers by index, found by reading.

Three signs give a field away: it stands beside a layer's index, or beside the depth, in an
expression of a model's code; its name speaks of layers, rhythms or lists; the default config holds
a list as long as the stack. Only families that have a causal language model are read.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.configuration_auto import model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

MODELS = Path(transformers.__file__).parent / "models"
FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
INDICES = {
    *("block_idx", "i", "idx", "index", "layer", "layer_id", "layer_idx", "layer_index"),
    *("layer_num", "layer_number"),
}
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SPEAKS = re.compile(
    r"block|depth|every|freq|idx|indexes|indices|interval|layer|pattern|period|share|skip|step"
    r"|_ids$|_types?$"
)
NAMES_A_KIND = ("model_type", "problem_type")
OTHER_PARTS = re.compile(
    r"vision|audio|speech|image|encoder|vq|perceiver|qformer|codec|talker|tdnn"
)


def folders() -> list[Path]:
    """Where the families' classes are."""
    return sorted({MODELS / model_type_to_module_name(family) for family in FAMILIES})


def found() -> dict[str, str]:
    """Field -> where it was seen first, in words."""
    seen: dict[str, str] = {}
    for folder in folders():
        for file in sorted(folder.glob("modeling_*.py")):
            for name, code in beside_an_index(file.read_text(encoding="utf-8")):
                seen.setdefault(name, f"{file.name}: {code}")
        for file in sorted(folder.glob("configuration_*.py")):
            for name in named_so(file.read_text(encoding="utf-8")):
                seen.setdefault(name, f"{file.name} declares it")
    for name, family in as_long_as_the_stack():
        seen.setdefault(name, f"a list in the default config of {family}")
    return seen


def beside_an_index(source: str) -> Iterator[tuple[str, str]]:
    """Fields of a config that stand in one expression with a layer's index or with the depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and OTHER_PARTS.search(
            node.name.lower()
        ):
            for child in ast.walk(node):
                child.skipped = True  # type: ignore[attr-defined]
        if getattr(node, "skipped", False):
            continue
        if isinstance(node, ast.Compare | ast.BinOp | ast.Subscript):
            fields = set(_config_fields(node))
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)} - fields
            if names & INDICES or fields & set(DEPTHS):
                for name in fields - set(DEPTHS):
                    yield name, ast.unparse(node)[:80]


def named_so(source: str) -> Iterator[str]:
    """Fields of config classes, or of their keyword arguments, whose names speak of layers."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or OTHER_PARTS.search(node.name.lower()):
            continue
        for child in ast.walk(node):
            name = None
            if child in node.body and isinstance(child, ast.AnnAssign):
                name = ast.unparse(child.target)
            elif (
                isinstance(child, ast.Call)
                and ast.unparse(child.func) in ("kwargs.pop", "kwargs.get")
                and isinstance(child.args[0], ast.Constant)
            ):
                name = str(child.args[0].value)
            if name and SPEAKS.search(name) and name not in NAMES_A_KIND:
                yield name


def as_long_as_the_stack() -> Iterator[tuple[str, str]]:
    """(field, family) of lists in default configs with as many entries as there are layers."""
    for family in FAMILIES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                config = CONFIG_MAPPING[family]().get_text_config(decoder=True)
        except Exception:  # some have no default, and are read by the other two signs
            continue
        depth = next((n for k in DEPTHS if isinstance(n := getattr(config, k, None), int)), None)
        for name, value in vars(config).items():
            if isinstance(value, list | tuple) and depth and depth > 1 and len(value) == depth:
                yield name, family


def _config_fields(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and _is_config(child.value):
            yield child.attr
        elif (
            isinstance(child, ast.Call)
            and ast.unparse(child.func) == "getattr"
            and len(child.args) > 1
            and isinstance(child.args[1], ast.Constant)
            and _is_config(child.args[0])
        ):
            yield str(child.args[1].value)


def _is_config(node: ast.AST) -> bool:
    name = getattr(node, "id", getattr(node, "attr", ""))
    return name in ("config", "text_config", "decoder_config")
