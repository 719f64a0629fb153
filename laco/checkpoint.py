"""What a checkpoint on disk says about itself: config, tensors, tokenizer; read, never loaded.

There is no torch here, so that pages and the command line may ask too. Next: `models.py`, which
loads, and `card.py`, which describes.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laco.errors import ModelError

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # safetensors' names for ours
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
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
_INDEX = re.compile(r"(?:^|\.)(\d+)\.")  # of a layer, in a tensor's name


@dataclass(frozen=True)
class Header:
    """One tensor as its file's header describes it."""

    dtype: str  # "F32", "BF16", ... as safetensors says
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


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
    for key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
        if isinstance(text.get(key), int):
            return text[key]
    return None


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json. Raises `ModelError` when it is missing or broken."""
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(
            f"{folder} has no config.json, so it is not a model folder; give the folder that "
            "`save_pretrained` wrote."
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} is not valid JSON ({error}); fetch it anew.") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelError(f"{file} names no `model_type`; fetch the config of a transformers model.")
    return config


def weight_files(folder: Path, *, missing_ok: bool = False) -> list[Path]:
    """The safetensors files of a folder, shards in order. Refuses pickled weights."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if index.is_file():
        try:
            names = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{index} cannot be read ({error}); fetch it anew.") from None
        for name in names:
            if not (folder / name).is_file() and not missing_ok:
                raise ModelError(
                    f"{folder} lacks {name}, which its index lists; fetch that file again."
                )
        return [folder / name for name in names if (folder / name).is_file()]
    if missing_ok:
        return []
    pickled = sorted(file.name for pattern in PICKLED for file in folder.glob(pattern))
    if pickled:
        raise ModelError(
            f"{folder} holds pickled weights only ({pickled[0]}), which can run code when opened; "
            "convert them with `save_pretrained(..., safe_serialization=True)` somewhere you "
            "trust them."
        )
    raise ModelError(f"{folder} has no model.safetensors; give a folder with the model's weights.")


def read_headers(folder: Path) -> dict[str, Header]:
    """Every tensor of a folder by name, from the files' headers alone."""
    return {name: header for file in weight_files(folder) for name, header in _file_headers(file)}


def _file_headers(file: Path) -> Iterator[tuple[str, Header]]:
    size = file.stat().st_size
    broken = f"{file} is broken"
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise ModelError(f"{broken}: its header does not fit into the file; fetch it again.")
        try:
            header = json.loads(stream.read(length))
            entries = [
                (name, Header(item["dtype"], tuple(item["shape"])), item["data_offsets"][1])
                for name, item in header.items()
                if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise ModelError(f"{broken}: its header is not readable; fetch it again.") from None
    needed = 8 + length + max((end for *_, end in entries), default=0)
    if size != needed:
        raise ModelError(
            f"{broken}: it has {size:,} bytes where its header promises {needed:,}; fetch it again."
        )
    for name, tensor, _ in entries:
        yield name, tensor


def not_causal(config: dict[str, Any]) -> str | None:
    """Why this is no decoder-only language model that laco can take, or None if it may be."""
    kind = config["model_type"]
    if config.get("is_encoder_decoder"):
        return f"{kind} is an encoder-decoder; laco takes decoder-only causal language models"
    if kind in ENCODERS and not config.get("is_decoder"):
        return f"{kind} is an encoder; laco takes decoder-only causal language models"
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "an unknown method")
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


def has_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer's files lie in this folder."""
    return any(next(folder.glob(pattern), None) for pattern in TOKENIZERS)
