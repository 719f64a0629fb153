"""Writes the files of an export: weights in shards, config, tokenizer, code, licence.

Everything goes into a folder that nobody knows yet; that it becomes the export, and under which
name, is decided in `__init__.py`. Next: `verify.py`.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig

from laco import ahead, checkpoint, models
from laco.checkpoint import BYTES, DTYPES
from laco.context import Context
from laco.disk import write_json
from laco.layerfiles import Weights, skeleton
from laco.recipe import ModelRef

SHARD = 5_000_000_000  # bytes; transformers 5 writes up to 50 GB, but what is cast lies in memory
TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.model", "*.tiktoken", "tekken.json", "chat_template*", "additional_chat_templates/*"),
    "*processor_config.json",
)
GENERATION = "generation_config.json"
LICENCE = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")
CODE = "*.py"
FORMATS = {dtype: name for name, dtype in DTYPES.items()}  # safetensors' names by ours


@dataclass
class Written:
    """What was written: each tensor's format and shape; the SHA-256 of what was copied, by name."""

    tensors: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    tokenizer: dict[str, str] = field(default_factory=dict)
    copied: dict[str, str] = field(default_factory=dict)
    n_bytes: int = 0  # of all tensors


def expected_bytes(source: Path, dtype: str) -> int:
    """How many bytes the weights of a folder take in a number format; no weight is read."""
    return sum(
        header.size * (BYTES[dtype] if header.dtype in DTYPES else 8)
        for header in checkpoint.read_headers(source).values()
    )


def write(
    source: Path, original: Path, ref: ModelRef, dtype: str, folder: Path, context: Context
) -> Written:
    """Write the model in `source` into `folder`, in `dtype`; the rest from the `original`'s folder.

    Weights are read tensor by tensor; in memory are those of one shard, where their format changes.
    """
    written = Written()
    target: torch.dtype = getattr(torch, dtype)
    weights = Weights(skeleton(source, ref.trust_remote_code, target), source, target)
    total = expected_bytes(source, dtype)
    shards: list[Path] = []
    shard: dict[str, Tensor] = {}

    def flush() -> None:
        shards.append(folder / f"shard-{len(shards)}")
        save_file(shard, shards[-1], metadata={"format": "pt"})
        shard.clear()

    waiting = 0
    for name, tensor in _tensors(weights, source):
        if shard and waiting + tensor.nbytes > SHARD:
            flush()
            waiting = 0
        shard[name] = tensor
        waiting += tensor.nbytes
        written.n_bytes += tensor.nbytes
        written.tensors[name] = (_format(tensor), list(tensor.shape))
        context.step(written.n_bytes / max(1, total), "writing the weights")
    flush()
    write_config(source, type(weights.model).__name__, ref, dtype, folder)
    _name(shards, written, folder)
    for file in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", file)  # safetensors lets no one else read
    _copy_files(source, original, ref, folder, written)
    return written


def _tensors(weights: Weights, source: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor as it is to be saved; of a tied pair that the files hold twice, one."""
    tied: dict[str, str] = weights.model.all_tied_weights_keys
    for name, tensor in weights.copies("\0"):  # no name begins so
        if (twin := tied.get(name)) and _is_same(source, twin, tensor):
            continue
        yield name, tensor


def _is_same(source: Path, name: str, tensor: Tensor) -> bool:
    """Whether the folder's files hold this tensor under that name too."""
    for file in checkpoint.weight_files(source):
        with safe_open(file, framework="pt") as opened:
            if name in set(opened.keys()):
                return torch.equal(opened.get_tensor(name).to(tensor.dtype), tensor)
    return False


def _format(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    others = {"float64": "F64", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}
    return FORMATS.get(name) or others.get(name, name)


def _name(shards: list[Path], written: Written, folder: Path) -> None:
    """Give the shards the names that transformers looks for, with an index if there are several."""
    if len(shards) == 1:
        shards[0].rename(folder / "model.safetensors")
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = folder / f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        shard.rename(file)
        with safe_open(file, framework="pt") as opened:
            places |= dict.fromkeys(opened.keys(), file.name)
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": written.n_bytes}, "weight_map": places},
    )


def write_config(source: Path, architecture: str, ref: ModelRef, dtype: str, folder: Path) -> None:
    """The config as its class saves it, so that lists which were left to a default are written."""
    with models.quiet():
        options: dict[str, Any] = {"trust_remote_code": ref.trust_remote_code}
        config = AutoConfig.from_pretrained(source, **options)
        for part in (config, config.get_text_config(decoder=True)):
            part.dtype = dtype
            for name in ("quantization_config", "sparsity_config"):  # of weights that are neither
                vars(part).pop(name, None)
            vars(part).update(ahead.none_counted(vars(part)))
        config.architectures = config.architectures or [architecture]
        config.save_pretrained(folder)


def _copy_files(
    source: Path, original: Path, ref: ModelRef, folder: Path, written: Written
) -> None:
    """Copy what no step changes from the original, byte by byte, and note what it was."""
    written.tokenizer = _copied(original, TOKENIZER, folder)
    generation = original if (original / GENERATION).is_file() else source
    written.copied = _copied(generation, (GENERATION,), folder)
    written.copied |= _copied(original, LICENCE, folder)
    if ref.trust_remote_code:
        written.copied |= _copied(original, (CODE,), folder)


def _copied(place: Path, patterns: tuple[str, ...], folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted({file for pattern in patterns for file in place.glob(pattern)}):
        if not file.is_file():
            continue
        name = str(file.relative_to(place))
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, folder / name)
        with file.open("rb") as stream:
            found[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found
