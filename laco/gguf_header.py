"""The header of a GGUF file: what it says of the model, and its tensors, in a fraction of a second.

The `gguf` package reads the same, but builds an array for every token of the vocabulary first,
which takes seconds; it is left to the conversion. Next: `checkpoint.py`.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from laco.checkpoint import Header
from laco.errors import ModelError

FAMILIES = {"gptneox": "gpt_neox", "gemma3": "gemma3_text"}  # where transformers says otherwise
FIELDS = {  # our config's names for the header's
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
}
_NUMBERS = dict(enumerate(["B", "b", "H", "h", "I", "i", "f", "?"])) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_FIELDS, _MOST_TENSORS, _MOST_VALUES = 100_000, 1_000_000, 100_000_000
_MOST_DIMENSIONS = 8
_DEEPEST = 4  # lists in lists


class _Reader:
    """Values one after the other, little-endian, as the format writes them."""

    def __init__(self, data: mmap.mmap):
        self.data, self.position = data, 0

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value

    def text(self) -> str:
        length = self.number("Q")
        start, self.position = self.position, self.position + length
        if self.position > len(self.data):
            raise ValueError("a text goes past the end of the file")
        return self.data[start : self.position].decode()

    def count(self, most: int, code: str = "Q") -> int:
        """A number of things that follow; in a file of zeros nothing else would end them."""
        count = self.number(code)
        if count > most:
            raise ValueError(f"{count} of something of which {most} are many")
        return count

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        inner, count = self.number("I"), self.count(_MOST_VALUES)
        if depth > _DEEPEST:
            raise ValueError("lists in lists in lists")
        if inner in (_STRING, _ARRAY):
            return [self.value(inner, depth + 1) for _ in range(count)]
        code = f"{count}{_NUMBERS[inner]}"
        values = list(struct.unpack_from(f"<{code}", self.data, self.position))
        self.position += struct.calcsize(f"<{code}")
        return values


def read(file: Path) -> tuple[dict[str, Any], dict[str, Header]]:
    """A GGUF file's config, in transformers' words, and its tensors. Raises `ModelError`."""
    fields, headers = _opened(file)
    family = fields["general.architecture"]
    config: dict[str, Any] = {"model_type": FAMILIES.get(family, family)}
    for key, name in FIELDS.items():
        value = fields.get(f"{family}.{key}")
        if value is not None:
            config[name] = max(value) if isinstance(value, list) else value
    if embedding := headers.get("token_embd.weight"):
        config["vocab_size"] = embedding.shape[0]
    return config, headers


def licence(file: Path) -> str | None:
    """The name of the licence that a GGUF file gives, if it does. Raises `ModelError`."""
    return _opened(file)[0].get("general.license")


def _opened(file: Path) -> tuple[dict[str, Any], dict[str, Header]]:
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as m:
            fields, headers = _read(_Reader(m))
        if not isinstance(fields.get("general.architecture"), str):
            raise ValueError("it names no architecture")
        _check_numbers(fields)
    except (ValueError, KeyError, OSError, struct.error, UnicodeDecodeError, MemoryError):
        raise ModelError(
            f"{file} is not a whole GGUF file of version 2 or 3; fetch it again."
        ) from None
    return fields, headers


def _check_numbers(fields: dict[str, Any]) -> None:
    """ValueError when a size that the config needs is no positive whole number, nor such a list."""
    for key in FIELDS:
        value = fields.get(f"{fields['general.architecture']}.{key}")
        values = value if isinstance(value, list) else [value]
        if value is not None and (not values or not all(_is_size(one) for one in values)):
            raise ValueError(f"{key} is no number")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _read(reader: _Reader) -> tuple[dict[str, Any], dict[str, Header]]:
    if reader.data[:4] != b"GGUF":
        raise ValueError("no GGUF file")
    reader.position = 4
    if reader.number("I") not in (2, 3):
        raise ValueError("another version of the format, or of another byte order")
    tensors, count = reader.count(_MOST_TENSORS), reader.count(_MOST_FIELDS)
    fields: dict[str, Any] = {}
    for _ in range(count):
        name = reader.text()
        fields[name] = reader.value(reader.number("I"))
    headers: dict[str, Header] = {}
    last = 0
    for _ in range(tensors):
        name = reader.text()
        shape = [reader.number("Q") for _ in range(reader.count(_MOST_DIMENSIONS, "I"))]
        headers[name] = Header(str(reader.number("I")), tuple(reversed(shape)))
        last = max(last, reader.number("Q"))
    if headers and reader.position + last >= len(reader.data):
        raise ValueError("tensors lie past the end of the file")
    return fields, headers
