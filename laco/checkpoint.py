"""What a checkpoint on disk says about itself: config, tensors, tokenizer; read, never loaded.

There is no torch here, so that pages and the command line may ask too. Next: `shards.py`, which
reads the files of weights; `models.py`, which loads; `card.py`, which describes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laco.errors import ModelError
from laco.reading import TABLE_BYTES, Malformed, json_of, short, size_of
from laco.shards import Header, check_inside, read_headers, weight_files

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # safetensors' names for ours
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
    "*.tiktoken",
)
ENCODERS = frozenset(
    {
        *("albert", "bert", "camembert", "convbert", "deberta", "deberta-v2", "distilbert"),
        *("electra", "ernie", "esm", "longformer", "modernbert", "mpnet", "roberta", "xlm-roberta"),
    }
)
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
COUNTS = (
    *DEPTHS,
    *("vocab_size", "hidden_size", "n_embd", "intermediate_size", "num_attention_heads"),
    *("n_head", "num_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
)
_SLACK = 4  # a weight may be larger than all that is there by this, where a family shares
_HARMLESS = 1 << 26  # elements that may be asked for whatever the files hold
_INDEX = re.compile(r"(?:^|\.)(\d+)\.")  # of a layer, in a tensor's name


def checkpoint_dtype(folder: Path) -> str:
    """The number format that a folder's weights are in: "float32", "bfloat16" or "float16"."""
    config = read_config(folder)
    text = config.get("text_config") or {}
    said = config.get("dtype") or config.get("torch_dtype") or text.get("dtype")
    said = said or text.get("torch_dtype")
    if said is None and weight_files(folder, missing_ok=True):
        sizes: Counter[str] = Counter()
        for header in read_headers(folder).values():
            sizes[header.dtype] += header.size
        most = sizes.most_common(1)[0][0]
        said = DTYPES.get(most, most)
    said = str(said or "float32").removeprefix("torch.")
    if said not in BYTES:
        raise ModelError(
            f"The weights of {folder} are in {said}, which laco does not compute in; choose "
            "dtype float32 or bfloat16."
        )
    return said


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the language model: itself, save for multimodal ones."""
    return config.get("text_config") or config


def depth_of(config: dict[str, Any]) -> int | None:
    """How many layers a config says, under whichever name."""
    text = text_config(config)
    for key in DEPTHS:
        if isinstance(text.get(key), int):
            return text[key]
    return None


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json. Raises `ModelError` when it is missing or broken."""
    file = folder / "config.json"
    if not file.is_file() and not file.is_symlink():
        raise ModelError(
            f"{folder} has no config.json, so it is not a model folder; give the folder that "
            "`save_pretrained` wrote."
        )
    check_inside(folder, file)
    try:
        config = json_of(file)
    except Malformed as error:
        raise ModelError(f"{file} {error}; fetch it anew.") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelError(f"{file} names no `model_type`; fetch the config of a transformers model.")
    if reason := _wrong_type(config):
        raise ModelError(f"{file} says that {reason}; fetch it anew.")
    return config


def _wrong_type(config: dict[str, Any]) -> str | None:
    """Which field that every config has is of the wrong type, in words; None if none is."""
    if not isinstance(config["model_type"], str):
        return f"model_type is {short(repr(config['model_type']))}, which is no text"
    if not isinstance(config.get("text_config") or {}, dict):
        return f"text_config is {short(repr(config['text_config']))}, which is no object"
    text = text_config(config)
    for name in COUNTS:
        value = text.get(name)
        if value is None or isinstance(value, list):  # one for each layer, in some families
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return f"{name} is {short(repr(value))}, which is no positive whole number"
    for name in ("vocab_size", "hidden_size", *DEPTHS):
        if isinstance(text.get(name), list):
            return f"{name} is {short(repr(text[name]))}, which is no positive whole number"
    for place in (config, text):
        for name in ("dtype", "torch_dtype"):
            if not isinstance(place.get(name), str | None):
                return f"{name} is {short(repr(place[name]))}, which is no number format"
    return None


def not_causal(config: dict[str, Any]) -> str | None:
    """Why this is no decoder-only language model that laco can take, or None if it may be."""
    kind = config["model_type"]
    if config.get("is_encoder_decoder"):
        return f"{kind} is an encoder-decoder; laco takes decoder-only causal language models"
    if kind in ENCODERS and not config.get("is_decoder"):
        return f"{kind} is an encoder; laco takes decoder-only causal language models"
    if quantised := config.get("quantization_config"):
        told = quantised if isinstance(quantised, dict) else {}
        method = short(str(told.get("quant_method", "an unknown method")))
        return (
            f"the weights are quantised ({method}) and cannot be edited; take the checkpoint "
            "before quantisation, or a GGUF file"
        )
    return None


def uneven(config: dict[str, Any], headers: Mapping[str, Header]) -> str | None:
    """Why no class of transformers loads layers of these sizes, or None if that is not known.

    Tools that prune each layer by a measure of its own (LLM-Pruner, FLAP) leave layers that have
    the same tensors in different shapes, and a config with one number for all of them. Layers that
    the config itself tells apart, by a list with an entry for each or by `per_layer_config`, may
    differ.
    """
    text, depth = text_config(config), depth_of(config) or 0
    if any(text.get(name) for name in ("per_layer_config", "block_configs")):
        return None
    told = [v for v in text.values() if isinstance(v, list) and len(v) == depth]
    layers: defaultdict[tuple[str, int], dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name, header in headers.items():
        if found := _INDEX.search(name):
            layers[name[: found.start(1)], int(found[1])][name[found.end(1) :]] = header.shape
    first: dict[object, tuple[int, dict[str, tuple[int, ...]]]] = {}
    for (prefix, index), shapes in sorted(layers.items()):
        said = repr([values[index] for values in told]) if index < depth else ""
        alike, other = first.setdefault((prefix, said, frozenset(shapes)), (index, shapes))
        name = next((name for name in sorted(shapes) if shapes[name] != other[name]), None)
        if name is not None:
            one, two = (" x ".join(map(str, found[name])) for found in (other, shapes))
            return (
                f"its layers are of different sizes ({name.strip('.')} is {one} in layer {alike} "
                f"and {two} in layer {index}), as tools leave them that prune each layer by "
                f"itself; the class of {config['model_type']} has one size for all, so laco shows "
                "such a model and cannot run it"
            )
    return None


def misfit(config: dict[str, Any], headers: Mapping[str, Header]) -> str | None:
    """Why the files cannot hold what the config says, or None if they may.

    Asked before anything of the config's sizes is made: a wrong number there could take hours, or
    all of the memory.
    """
    text, depth = text_config(config), depth_of(config) or 0
    found = [int(place[1]) + 1 for name in headers if (place := _INDEX.search(name))]
    if depth > max(found, default=0):
        return f"its config says {depth:,} layers, and its files hold {max(found, default=0):,}"
    there = sum(header.size for header in headers.values())
    hidden = text.get("hidden_size") or text.get("n_embd") or 1
    heads = (text.get("num_attention_heads") or text.get("n_head") or 1, text.get("head_dim") or 1)
    for name, size in (
        ("vocab_size", text.get("vocab_size")),
        ("intermediate_size", text.get("intermediate_size")),
        ("hidden_size", hidden),
        ("head_dim", heads[0] * heads[1]),
    ):
        largest = max(size) if isinstance(size, list) and size else size
        if isinstance(largest, int) and largest * hidden > max(_SLACK * there, _HARMLESS):
            return (
                f"its config says {name} {text.get(name):,}, and its files hold {there:,} "
                "elements in all"
            )
    return None


def has_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer's files lie in this folder. `ModelError` for one too large to be one."""
    found = [file for pattern in TOKENIZERS for file in sorted(folder.glob(pattern))]
    for file in [*found, *sorted(folder.glob("*token*.json")), *sorted(folder.glob("*.jinja"))]:
        check_inside(folder, file)
        try:
            size_of(file, TABLE_BYTES)
        except Malformed as error:
            raise ModelError(f"{file} {error}; fetch it anew.") from None
    return bool(found)


def check_tokenizer(folder: Path) -> None:
    """`ModelError` where a tokenizer's JSON files are none, or hold something else than objects."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        if not file.is_file():
            continue
        try:
            found = json_of(file, TABLE_BYTES)
            if not isinstance(found, dict):
                raise Malformed("holds no JSON object")
            if name == "tokenizer.json" and not isinstance(found.get("model"), dict):
                raise Malformed("describes no tokenizer")
        except Malformed as error:
            raise ModelError(f"{file} {error}; fetch it anew.") from None
