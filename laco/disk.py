"""Files and folders that are whole or not there, and processes that are alive or not.

What is written here appears under its name in one move, after it has reached the disk. This
module does not know what is written. Next: `store.py`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from laco.errors import ExportError, NumericalError, StoreError

RECIPE = "recipe.json"  # in every artifact: what it is, and its files with their sizes

_SEAL = "seal"  # the field of a document that holds the hash of the others
_numbers = itertools.count()
_OF_DISK = re.compile(r"I/O error.*\(os error \d+\)")
_PARTIAL = re.compile(r"^(?P<name>.+)\.partial-(?P<pid>\d+)-\d+$")


def write_json(path: Path, document: object, durable: bool = True) -> None:
    """Put a JSON document under `path`, replacing what was there in one move.

    Raises `NumericalError` for a number that JSON cannot hold and `StoreError` on a full disk.
    `durable=False` skips the wait for the disk: for what is written often and soon outdated.
    """
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise _not_finite(path.name, document) from error
    partial = partial_path(path)
    with explained(path):
        try:
            with partial.open("w", encoding="utf-8") as file:
                file.write(text)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            partial.replace(path)
            if durable:
                _sync(path.parent)  # the name has to last as well
        finally:
            partial.unlink(missing_ok=True)


def _not_finite(name: str, document: Any) -> NumericalError:
    return NumericalError(
        f"{name} would hold a number that is not finite{_where_not_finite(document)}, so it was "
        "not kept; look for weights or logits that are not finite."
    )


def _where_not_finite(document: Any) -> str:
    """The way to the first number that is none, as `: measures.cosine.3.4`; empty without one."""
    if isinstance(document, float):
        return "" if math.isfinite(document) else ":"
    parts = document.items() if isinstance(document, Mapping) else ()
    if isinstance(document, list | tuple):
        parts = enumerate(document)
    for name, part in parts:
        if found := _where_not_finite(part):
            rest = found.removeprefix(": ")
            return f": {name}" if rest == ":" else f": {name}.{rest}"
    return ""


def read_json(path: Path) -> Any:
    """The document under `path`; None if there is none or it cannot be read as JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with a hash of all that it holds, so that `is_sound` sees a later change.

    Raises `NumericalError` for a number that JSON cannot hold.
    """
    return {**document, _SEAL: _seal(document)}


def is_sound(document: Mapping[str, Any]) -> bool:
    """Whether a document is as it was sealed; those of before there were seals count as sound."""
    if _SEAL not in document:
        return True
    try:
        return document[_SEAL] == _seal({k: v for k, v in document.items() if k != _SEAL})
    except NumericalError:
        return False


def _seal(document: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(document, allow_nan=False)
        # As it will be read: keys are text then, and in one order whoever wrote them.
        text = json.dumps(json.loads(text), sort_keys=True)
    except ValueError as error:
        raise _not_finite("A result", document) from error
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of(file: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def partial_path(path: Path) -> Path:
    """A name beside `path` for something half written; it tells whose it is."""
    return path.with_name(f"{path.name}.partial-{os.getpid()}-{next(_numbers)}")


def is_partial(path: Path) -> bool:
    """Whether this is the name of something half written."""
    return _PARTIAL.match(path.name) is not None


def is_abandoned(path: Path) -> bool:
    """Whether the process that was writing this partial file or folder is gone."""
    match = _PARTIAL.match(path.name)
    if match is None:
        return False
    try:
        written = path.stat().st_mtime
        # A process that began after the last write only inherited the number.
        return psutil.Process(int(match["pid"])).create_time() > written + 1
    except (OSError, psutil.Error):
        return True


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a `StoreError` that says what to do."""
    try:
        yield
    except Exception as error:
        if is_full(error):
            raise no_space(path) from error
        if not is_of_disk(error):
            raise
        raise StoreError(
            f"{path} cannot be written ({getattr(error, 'strerror', None) or error}); "
            "mend that or choose another --store."
        ) from error


def is_of_disk(error: BaseException) -> bool:
    """Whether this is an error of the disk; safetensors has its own kind and quotes the number."""
    return isinstance(error, OSError) or _OF_DISK.search(str(error)) is not None


def is_full(error: BaseException) -> bool:
    """Whether this error says that the disk is full (safetensors has its own kind of error)."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in str(error) or "disk is full" in str(error)


def no_space(path: Path) -> StoreError:
    """The error for a full disk: how much is free, and what to do."""
    free = "little that is"
    with contextlib.suppress(OSError):
        place = next(folder for folder in (path, *path.parents) if folder.exists())
        free = f"{shutil.disk_usage(place).free / 1e6:.1f} MB that are"
    return StoreError(
        f"No space left: {path} needs more than the {free} free, so nothing was saved; "
        "free some space or choose another --store."
    )


def link_files(source: Path, target: Path, leave: str) -> None:
    """Give all files of a folder a second name in another, but for the one called `leave`.

    So the first folder stays whole until the second is in its place. Copies, where a disk knows no
    second names.
    """
    for path in sorted(source.iterdir()):
        if path.name == leave:
            continue
        try:
            (target / path.name).hardlink_to(path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EMLINK):
                raise
            shutil.copy2(path, target / path.name)


def free_place(folder: str) -> Path:
    """The whole path of a folder to export to. ExportError when something lies there already."""
    target = Path(folder).expanduser().resolve()
    if target.is_dir() and not any(target.iterdir()):
        return target
    if target.exists():
        what = "is not empty" if target.is_dir() else "is a file"
        raise ExportError(f"{target} {what}, and nothing is overwritten; choose another folder.")
    return target


def sync_folder(folder: Path) -> None:
    """Wait until all that lies in `folder` has reached the disk."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def n_bytes(path: Path) -> int:
    """Bytes of a file, or of all files under a folder; 0 for what is not there."""
    total = 0
    for file in (path, *path.rglob("*")):
        with contextlib.suppress(OSError):  # another process may remove it meanwhile
            total += file.stat().st_size if file.is_file() else 0
    return total


def discard(path: Path) -> int:
    """Remove a file or folder; the bytes that became free. What cannot be removed stays."""
    before = n_bytes(path)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    return before - n_bytes(path)


def list_files(folder: Path) -> list[Path]:
    """The files of an artifact's folder besides its recipe.json, in the order of their names."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != RECIPE]


def read_whole(folder: Path) -> dict[str, Any] | None:
    """The recipe.json of an artifact's folder, if every file it lists is there at full size."""
    document = read_json(folder / RECIPE)
    try:
        files: dict[str, int] = document["files"]
        for name, size in files.items():
            if (folder / name).stat().st_size != size:
                return None
    except (OSError, KeyError, TypeError, AttributeError):
        return None
    return document


def put_in_place(partial: Path, final: Path) -> None:
    """Give a whole folder its name, unless a whole one has it; a broken one makes way."""
    try:
        partial.rename(final)
    except OSError:
        if not final.is_dir():
            raise
        if read_whole(final) is None:
            broken = partial_path(final)
            final.rename(broken)
            partial.rename(final)
            discard(broken)
    _sync(final.parent)
