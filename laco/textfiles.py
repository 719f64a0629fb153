"""Files as text: plain, JSON lines or parquet, cut into documents.

Each complaint names the file, and the line where there is one. Next: `texts.py`.
"""

from __future__ import annotations

import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from laco import hub
from laco.errors import CalibrationError
from laco.reading import Malformed, is_there, lines, parsed, short

TEXT = (".txt", ".raw", ".utf8", ".text", ".md", ".tokens")
LINES = (".jsonl", ".json")

HEADING = re.compile(r" = [^=].* = ?$")  # the line that opens a WikiText article
_ROWS = 1024  # of a table, held at once
_LOOK = 1 << 16  # characters that decide how a plain file is cut into documents


def kind_of(file: Path) -> str:
    """How a file is read: "text", "lines" or "parquet". Raises for what cannot be a source."""
    if is_there(file) and file.is_dir():
        raise CalibrationError(f"{file} is a folder; give one file, {_accepted()}.")
    if not is_there(file) or not file.is_file():
        raise CalibrationError(
            f"There is no file {short(str(file))!r}; check the path after `file:`."
        )
    if file.stat().st_size == 0:
        raise CalibrationError(f"{file} is empty; give a file with text in it.")
    suffix = Path(file.name.removesuffix(".gz")).suffix.lower()
    if suffix in LINES:
        return "lines"
    if suffix == ".parquet":
        return "parquet"
    if suffix in TEXT or not suffix:
        return "text"
    raise CalibrationError(f"{file}: laco does not read {suffix} files; give {_accepted()}.")


def _accepted() -> str:
    return f"plain text ({', '.join(TEXT)}), .jsonl or .parquet with a `text` field"


def documents(file: Path) -> Iterator[str]:
    """A file's documents in order, none of them blank. Raises `CalibrationError`."""
    kind = kind_of(file)
    if kind == "lines":
        return json_lines(file)
    if kind == "parquet":
        return (text for text in parquet_rows(file) if text.strip())
    return _plain_documents(file)


def _open(file: Path) -> IO[str]:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig")
    return file.open(encoding="utf-8-sig")


def _decoded(file: Path, size: int | None = None) -> Iterator[str]:
    """A text file's lines, or its pieces of `size` characters; refuses what is not UTF-8 text."""
    try:
        with _open(file) as stream:
            parts = lines(stream) if size is None else iter(lambda: stream.read(size), "")
            for part in parts:
                if "\0" in part:
                    raise CalibrationError(f"{file} is binary, not text; give {_accepted()}.")
                yield part
    except UnicodeDecodeError as error:
        raise CalibrationError(
            f"{file} is not UTF-8 text (byte {error.object[error.start]:#04x} cannot be read); "
            "convert it to UTF-8 first."
        ) from None
    except Malformed as error:
        raise CalibrationError(f"{file} {error}; break it into lines.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise CalibrationError(f"{file} cannot be read ({hub.first_line(error)}).") from None


def verbatim(file: Path) -> Iterator[str]:
    """A plain text file as it stands, in pieces."""
    return _decoded(file, 1 << 20)


def _plain_documents(file: Path) -> Iterator[str]:
    """Documents of a plain text file; its first 64 Ki characters decide what one is.

    With ` = Title = ` lines: a WikiText article. With `<doc …>` lines: what stands between it and
    `</doc>`. With blank lines: a block between two. Else: a line.
    """
    start = next(_decoded(file, _LOOK), "").splitlines()
    lines = _decoded(file)
    if any(HEADING.match(line) for line in start):
        return blocks(lines, begins=lambda line: HEADING.match(line) is not None)
    if any(line.startswith("<doc ") for line in start):
        tags = ("<doc ", "</doc>")
        return blocks(lines, ends=lambda line: line.startswith(tags))
    if any(not line.strip() for line in start):
        return blocks(lines, ends=lambda line: not line.strip())
    return (line.strip() for line in lines if line.strip())


def blocks(
    lines: Iterator[str],
    begins: Callable[[str], bool] = lambda _: False,
    ends: Callable[[str], bool] = lambda _: False,
) -> Iterator[str]:
    """Lines put together: a new block where one begins, or where one ends (a line left out)."""
    block: list[str] = []
    for line in itertools.chain(lines, [None]):
        if line is None or begins(line) or ends(line):
            if text := "".join(block).strip():
                yield text
            block = []
        if line is not None and not ends(line):
            block.append(line)


def json_lines(file: Path) -> Iterator[str]:
    """The `text` of each record of a file with one JSON record a line."""
    for number, line in enumerate(_decoded(file), start=1):
        if not line.strip():
            continue
        try:
            record = parsed(line)
        except Malformed:
            raise CalibrationError(
                f"{file}, line {number} is not JSON; each line holds a record with a `text` field."
            ) from None
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise CalibrationError(
                f"{file}, line {number} has no `text` field; rename the one it has."
            )
        if text.strip():
            yield text


def parquet_rows(file: Path, column: str = "text") -> Iterator[str]:
    """One column of a parquet file, row by row, blank rows too."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            names = table.schema_arrow.names
            if column not in names:
                raise CalibrationError(
                    f"{file} has no column `{column}`, only {', '.join(names)}; rename "
                    "the one with the text."
                )
            kind = table.schema_arrow.field(column).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise CalibrationError(
                    f"{file} has {kind} in its column `{column}`, not text; choose another file."
                )
            for batch in table.iter_batches(columns=[column], batch_size=_ROWS):
                yield from (text or "" for text in batch.column(0).to_pylist())
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CalibrationError(
            f"{file} is not a readable parquet file ({hub.first_line(error)})."
        ) from None
