"""Files and folders that are whole or not there, and processes that are alive or not.

What is written here appears under its name in one move, after it has reached the disk. This
module does not know what is written. Next: `store.py`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from laco.errors import ExportError, NumericalError, StoreError

RECIPE = "recipe.json"  # in every artifact: what it is, and its files with their sizes

_numbers = itertools.count()
_PARTIAL = re.compile(r"^(?P<name>.+)\.partial-(?P<pid>\d+)-\d+$")


def write_json(path: Path, document: object, durable: bool = True) -> None:
    """Put a JSON document under `path`, replacing what was there in one move.

    Raises `NumericalError` for a number that JSON cannot hold and `StoreError` on a full disk.
    `durable=False` skips the wait for the disk: for what is written often and soon outdated.
    """
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise NumericalError(f"{path.name} would hold a number that is not finite.") from error
    partial = partial_path(path)
    with explained(path):
        try:
            with partial.open("w", encoding="utf-8") as file:
                file.write(text)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The document under `path`; None if there is none or it cannot be read as JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


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
    except OSError as error:
        if is_full(error):
            raise no_space(path) from error
        raise StoreError(
            f"{path} cannot be written ({error.strerror or error}); "
            "mend that or choose another --store."
        ) from error


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


def move_files(source: Path, target: Path) -> None:
    """Move all that lies in a folder into another on the same disk, and remove the folder."""
    for path in sorted(source.iterdir()):
        path.rename(target / path.name)
    source.rmdir()


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
    """Remove a file or folder; the bytes that became free."""
    freed = n_bytes(path)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return freed


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
            discard(broken)
            partial.rename(final)
