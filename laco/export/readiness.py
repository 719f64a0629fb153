"""Whether other programs can read an export: notes, each with the date of the facts behind it.

Information, not checks: the programs themselves are not run, and they change. Here too: the plan
of a recipe that only drops layers, as mergekit would be told it. No weights, no torch. Next:
`modelcard.py`.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from laco import checkpoint
from laco.checkpoint import Header
from laco.recipe import Collapse, Drop, Merge, Recipe

Note = dict[str, Any]  # {"name", "ready", "detail", "as_of"}

MERGEKIT = "mergekit a6e4028"
PARALLEL = (2, 4, 8)  # GPUs that vLLM is commonly asked to share a model among
GGUF = {  # `model_type`s that llama.cpp converts under another name
    "cohere": "command-r",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "gemma3_text": "gemma3",
    "glm4_moe": "glm4moe",
    "gpt_neox": "gptneox",
    "llama4_text": "llama4",
    "mistral": "llama",
    "mixtral": "llama",
    "phi": "phi2",
}
_LAYER = re.compile(r"(?:^|\.)(\d+)\.")


def notes(
    config: dict[str, Any],
    headers: Mapping[str, Header],
    files: Sequence[str],
    mergekit: str | None,
) -> list[Note]:
    """What vLLM, llama.cpp and mergekit need, and whether this export has it.

    `headers` are those of the tensors, `files` the names in the folder.
    """
    uneven = differing(headers)
    return [_vllm(config, uneven), _gguf(config, uneven, files), _mergekit(mergekit)]


def differing(headers: Mapping[str, Header]) -> str | None:
    """A weight that is of different shapes in different layers, in words; None if there is none.

    Also where the config says so: other programs know one shape for all layers.
    """
    seen: defaultdict[str, dict[tuple[int, ...], str]] = defaultdict(dict)
    for name, header in headers.items():
        if found := _LAYER.search(name):
            shapes = seen[f"{name[: found.start(1)]}*{name[found.end(1) :]}"]
            shapes.setdefault(header.shape, name)
            if len(shapes) > 1:
                told = (f"{name} is {' x '.join(map(str, s))}" for s, name in shapes.items())
                return ", ".join(told)
    return None


def mergekit_yaml(
    recipe: Recipe, model: str, origins: Sequence[int], dtype: str, lists: Sequence[str]
) -> str | None:
    """The recipe as mergekit's passthrough of slices; None unless all it does is drop layers.

    `origins` are the layers kept; `lists` names those of the config that go by layers.
    """
    if not recipe.steps or not all(map(_only_drops, recipe.steps)):
        return None
    lines = [
        "# The same layers for mergekit: `mergekit-yaml mergekit.yaml OUT`.",
        "# layer_range is [first, one past the last], counted from 0.",
    ]
    if lists:
        lines += [
            f"# This model's config has lists that go by layers ({', '.join(lists)}), which",
            f"# {MERGEKIT} leaves as they are, so that it stops before it is done.",
        ]
    lines.append("slices:")
    for start, stop in slices(origins):
        lines += [
            "  - sources:",
            f'      - model: "{model}"',
            f"        layer_range: [{start}, {stop}]",
        ]
    return "\n".join([*lines, "merge_method: passthrough", f"dtype: {dtype}", ""])


def slices(origins: Sequence[int]) -> list[tuple[int, int]]:
    """Layers in ascending order as ranges [start, stop) of neighbours."""
    ranges: list[tuple[int, int]] = []
    for layer in origins:
        if ranges and ranges[-1][1] == layer:
            ranges[-1] = (ranges[-1][0], layer + 1)
        else:
            ranges.append((layer, layer + 1))
    return ranges


def _only_drops(step: Any) -> bool:
    return isinstance(step, Drop) or (isinstance(step, Collapse | Merge) and step.merge == "drop")


def _vllm(config: dict[str, Any], uneven: str | None) -> Note:
    """What vLLM needs: heads that GPUs can share evenly; a key may be on several of them."""
    text = checkpoint.text_config(config)
    heads = _first(text, "num_attention_heads", "n_head") or 0
    keys = _first(text, "num_key_value_heads", "num_kv_heads") or heads
    sizes = [n for n in PARALLEL if heads and heads % n == 0 and (keys % n == 0 or n % keys == 0)]
    obstacles = []
    if uneven:
        obstacles.append(f"its layers are of different sizes ({uneven})")
    if metadata := [n for n in ("quantization_config", "sparsity_config") if n in config]:
        obstacles.append(f"its config has {metadata[0]}")
    shared = f"{heads} heads with {keys} keys share evenly among " + (
        f"{', '.join(map(str, sizes))} GPUs" if sizes else "no 2, 4 or 8 GPUs, so use one"
    )
    detail = f"not ready: {'; '.join(obstacles)}" if obstacles else "uniform shapes, no metadata"
    return {
        "name": "vLLM",
        "ready": not obstacles,
        "detail": (
            f"{detail}; {shared}. vLLM takes no layers of different sizes (vllm#31454 open) and "
            f"gains nothing from zeros (Sparse24 removed in PR #36799, 2026-03; still so in "
            f"v0.19.1). Whether it knows {_architecture(config)} was not tried."
        ),
        "as_of": "2026-05",
    }


def _gguf(config: Mapping[str, Any], uneven: str | None, files: Sequence[str]) -> Note:
    from gguf.constants import MODEL_ARCH_NAMES

    release = f"gguf {importlib.metadata.version('gguf')}"
    family = str(config["model_type"])
    names = {_plain(name): name for name in MODEL_ARCH_NAMES.values()}
    known = names.get(_plain(GGUF.get(family, family)))
    obstacles = []
    if known is None:
        obstacles.append(f"{release} has no architecture for {family}")
    if uneven:
        obstacles.append(f"its layers are of different sizes ({uneven})")
    kept = [n for n in files if n in ("tokenizer.json", "tokenizer.model", "vocab.json")]
    if not kept:
        obstacles.append("there is no tokenizer.json, tokenizer.model or vocab.json")
    detail = (
        "not ready: " + "; ".join(obstacles)
        if obstacles
        else (f"architecture {known}, uniform shapes, tokenizer in {', '.join(kept)}")
    )
    return {
        "name": "GGUF",
        "ready": not obstacles,
        "detail": f"{detail}. The conversion by llama.cpp itself was not tried.",
        "as_of": release,
    }


def _mergekit(text: str | None) -> Note:
    if text is None:
        detail = "no plan: mergekit can only be told recipes that do nothing but drop layers"
    else:
        detail = "mergekit.yaml makes the same model by passthrough"
        if "leaves as they are" in text:
            detail += ", once mergekit slices the config's lists, which it does not yet"
    return {"name": "mergekit", "ready": text is not None, "detail": detail, "as_of": MERGEKIT}


def _architecture(config: Mapping[str, Any]) -> str:
    return ", ".join(config.get("architectures") or [str(config["model_type"])])


def _plain(name: str) -> str:
    return re.sub(r"[-_]", "", name)


def _first(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)
