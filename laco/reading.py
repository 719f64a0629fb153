"""What comes from outside, read within limits: small files, JSON documents, lines, paths.

Whoever reads says in its own error which file it was; here is only what is wrong with it, as the
rest of a sentence. Nothing here knows what is read. Next: `checkpoint.py`, `textfiles.py`.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

MB = 1_000_000
CONFIG_BYTES = 16 * MB  # recipes, configs, tasks: a hundred times what any has
TABLE_BYTES = 512 * MB  # tokenizers, indexes of shards: ten times what the largest have
LINE_CHARACTERS = 64 * MB  # more in one line, and there are most likely no lines


class Malformed(ValueError):  # noqa: N818 - caught by whoever knows the file's name, never shown
    """What is wrong, as it goes on after the file's name: `is no plain file`."""


def is_there(text: str | Path) -> bool:
    """Whether there is a file or folder of that name; False for what no name can be."""
    try:
        return os.path.exists(os.path.expanduser(text))  # noqa: PTH110, PTH111 - "~x" may be no one
    except (OSError, ValueError):
        return False


def whole_path(text: str) -> str:
    """The whole path of a file or folder that is there; else the text as it is."""
    return str(Path(text).expanduser().resolve()) if is_there(text) else text


def size_of(file: Path, limit: int) -> int:
    """The size in bytes of a plain file that is no larger than `limit`; `Malformed` otherwise.

    A pipe or a device is no plain file: it may have no end, or nobody who writes.
    """
    try:
        found = file.stat()
    except (OSError, ValueError) as error:
        raise Malformed(f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not stat.S_ISREG(found.st_mode):
        raise Malformed("is no plain file")
    if found.st_size > limit:
        raise Malformed(f"is larger than the {limit // MB} MB that such a file may have")
    return found.st_size


def text_of(file: Path, limit: int = CONFIG_BYTES) -> str:
    """The text of a small file. `Malformed` for what is no plain file, too large, or no UTF-8."""
    size_of(file, limit)
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Malformed("is not UTF-8 text") from None
    except OSError as error:
        raise Malformed(f"cannot be read ({error.strerror or error})") from None


def json_of(file: Path, limit: int = CONFIG_BYTES) -> Any:
    """The JSON document in a small file; `Malformed` as `text_of` and `parsed` raise it."""
    return parsed(text_of(file, limit))


def parsed(text: str | bytes) -> Any:
    """A JSON document, as the standard has it.

    `Malformed` for what is no JSON, for NaN and the infinities, for lists or objects too deep in
    one another, for an object that names a field twice (only one of them could count), and for
    halves of characters.
    """
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        if "\\u" in (text if isinstance(text, str) else text.decode()):
            json.dumps(found, ensure_ascii=False).encode()
    except Malformed:
        raise
    except RecursionError:
        raise Malformed("is not valid JSON (it is nested too deep)") from None
    except UnicodeEncodeError:
        raise Malformed("is not valid JSON (it holds half of a character)") from None
    except ValueError as error:
        raise Malformed(f"is not valid JSON ({_first(str(error))})") from None
    return found


def lines(stream: IO[str], longest: int = LINE_CHARACTERS) -> Iterator[str]:
    """The lines of a text, each with its end; `Malformed` for one that does not seem to end."""
    while line := stream.readline(longest):
        if len(line) == longest and not line.endswith("\n"):
            raise Malformed(f"has a line of more than {longest // MB} million characters")
        yield line


def short(text: str, longest: int = 80) -> str:
    """A text as it may stand in a sentence: not longer than this, and in one line."""
    shown = "".join(letter if letter.isprintable() else "�" for letter in text[: longest + 1])
    return shown if len(text) <= longest else f"{shown[:longest]}…"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise Malformed(f"names the field {short(twice)!r} twice")
    return found


def _no_constant(name: str) -> Any:
    raise Malformed(f"is not valid JSON ({name} is no number there)")


def _first(text: str) -> str:
    return short(text.splitlines()[0] if text else "no reason is given", 120)
