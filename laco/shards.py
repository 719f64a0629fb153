"""The safetensors files of a model's folder, and what their headers say; no weight is read.

The headers are checked before anyone relies on them: what the format allows, and that the files
lie in the folder. It does not know configs. Next: `checkpoint.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from laco.errors import ModelError
from laco.reading import TABLE_BYTES, Malformed, json_of, parsed, short, size_of

SUFFIX = ".safetensors"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
BITS = {  # of one element, by safetensors' names
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
_HEADER_BYTES = 100_000_000  # as the format's own library has it
_FILE_BYTES = 1 << 50
_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Header:
    """One tensor as its file's header describes it."""

    dtype: str  # "F32", "BF16", ... as safetensors says
    shape: tuple[int, ...]
    start: int = field(default=0, compare=False)  # the first of its bytes in the file

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes it takes in a file of safetensors."""
        return self.size * BITS[self.dtype] // 8


def check_inside(folder: Path, file: Path) -> None:
    """`ModelError` for a file that a link leads out of the model's folder.

    The hub's cache is laid out so (`snapshots/COMMIT/FILE` leads to `blobs/HASH` of the same
    model), and stays allowed. Anything else could lay a file of someone else's into a model, and
    from there into an export.
    """
    if not file.is_symlink():
        return
    home = folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    try:
        place = file.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a link in a circle"
        raise ModelError(f"{file} cannot be read ({reason}); fetch it anew.") from None
    if not any(place.is_relative_to(one) for one in allowed):
        raise ModelError(f"{file} is a link out of the model's folder; put the file itself there.")


def weight_files(folder: Path, *, missing_ok: bool = False) -> list[Path]:
    """The safetensors files of a folder, shards in order. Refuses pickled weights."""
    index = folder / "model.safetensors.index.json"
    whole = folder / "model.safetensors"
    if whole.is_file() or whole.is_symlink():
        check_inside(folder, whole)
        return [whole]
    if index.is_file():
        check_inside(folder, index)
        files = [folder / name for name in sorted(set(_weight_map(index).values()))]
        for file in files:
            if not file.is_file() and not missing_ok:
                raise ModelError(
                    f"{folder} lacks {file.name}, which its index lists; fetch that file again."
                )
            check_inside(folder, file)
        return [file for file in files if file.is_file()]
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


def _weight_map(index: Path) -> dict[str, str]:
    """Which file each tensor is in, as an index says; each a name and no path."""
    try:
        files: Any = json_of(index, TABLE_BYTES)["weight_map"]
        if not files or not all(isinstance(name, str) for name in files.values()):
            raise Malformed("maps no tensors to files")
    except (Malformed, KeyError, TypeError, AttributeError) as error:
        reason = error if isinstance(error, Malformed) else "has no `weight_map`"
        raise ModelError(f"{index} cannot be read: it {reason}; fetch it anew.") from None
    for name in files.values():
        if Path(name).name != name or not name.isprintable():
            raise ModelError(
                f"{index} names {short(name)!r}, which is a place outside of the model's folder; "
                "fetch the model anew, from where you trust it."
            )
        if not name.endswith(SUFFIX):
            raise ModelError(
                f"{index} names {short(name)!r}, which is pickled or unknown, not safetensors; "
                "convert it somewhere you trust it."
            )
    return files


def read_headers(folder: Path) -> dict[str, Header]:
    """Every tensor of a folder by name, from the files' headers alone."""
    found = {name: header for file in weight_files(folder) for name, header in _file_headers(file)}
    index = folder / "model.safetensors.index.json"
    if not (folder / "model.safetensors").is_file() and index.is_file():
        missing = sorted(set(_weight_map(index)) - set(found))
        if missing:
            raise ModelError(
                f"{index} lists {short(missing[0])!r}, which none of its files holds; fetch the "
                "model anew."
            )
    return found


def _file_headers(file: Path) -> Iterator[tuple[str, Header]]:
    try:
        size = size_of(file, _FILE_BYTES)
    except Malformed as error:
        raise ModelError(f"{file} {error}; fetch it again.") from None
    broken = f"{file} is broken"
    with file.open("rb") as stream:
        start = stream.read(8)
        if start + stream.read(len(_POINTER) - 8) == _POINTER:
            raise ModelError(
                f"{broken}: it is a pointer of Git LFS, not the weights; run `git lfs pull` there."
            )
        stream.seek(8)
        length = int.from_bytes(start, "little")
        if size < 8 or length > min(size - 8, _HEADER_BYTES):
            raise ModelError(f"{broken}: its header does not fit into the file; fetch it again.")
        try:
            header: Any = parsed(stream.read(length))
            entries = sorted(
                (_entry(name, item) for name, item in header.items() if name != "__metadata__"),
                key=lambda entry: entry[2],
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise ModelError(f"{broken}: its header is not readable; fetch it again.") from None
    end = 0
    for name, _, (first, last) in entries:
        if first != end:
            raise ModelError(
                f"{broken}: by its header {short(name)} begins at byte {first:,}, where {end:,} "
                "was next; fetch it again."
            )
        end = last
    if size != 8 + length + end or not entries:
        raise ModelError(
            f"{broken}: it has {size:,} bytes where its header promises {8 + length + end:,}; "
            "fetch it again."
        )
    for name, tensor, (first, _) in entries:
        yield name, replace(tensor, start=8 + length + first)


def _entry(name: str, item: dict[str, Any]) -> tuple[str, Header, tuple[int, int]]:
    """One tensor of a header: name, dtype and shape, first and last byte. Raises ValueError."""
    shape, (first, last) = item["shape"], item["data_offsets"]
    numbers = [*shape, first, last]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise ValueError(name)
    if 8 * (last - first) != math.prod(shape) * BITS[item["dtype"]]:
        raise ValueError(name)
    return name, Header(item["dtype"], tuple(shape)), (first, last)
