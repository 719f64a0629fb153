"""Questions in the files that a task's authors released, read into the columns of the hub's copy.

It does not know what becomes of them. Next: `questions.py`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from laco.errors import CalibrationError
from laco.reading import Malformed, lines, parsed

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Release:
    """A file as a task's authors released it, and how it is read into the hub's columns."""

    file: str
    split: str
    rows: Callable[[Path], Rows]


def records(file: Path) -> Rows:
    """The records of a JSONL file."""
    rows: Rows = []
    for number, line in enumerate(_lines(file), 1):
        if line.strip():
            try:
                rows.append(dict(parsed(line)))
            except (ValueError, TypeError) as error:
                raise CalibrationError(
                    f"{file}, line {number} is not a JSON record ({error}); mend or remove it."
                ) from None
    return rows


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8") as stream:
            yield from lines(stream)
    except Malformed as error:
        raise CalibrationError(f"{file} {error}; give the original file.") from None


def _nested(stem: str, file: Path) -> Rows:
    """ARC and OpenBookQA as released: stem and choices lie inside `question`."""
    return [
        {
            "id": row["id"],
            stem: row["question"]["stem"],
            "choices": {
                name: [choice[name] for choice in row["question"]["choices"]]
                for name in ("text", "label")
            },
            "answerKey": row["answerKey"],
        }
        for row in records(file)
    ]


def _openbook_table(file: Path) -> Rows:
    """OpenBookQA's tab-separated table: choices are one cell, `(A) first (B) second`."""
    rows: Rows = []
    for line in itertools.islice(_lines(file), 1, None):
        name, stem, choices, _whole, key = line.rstrip("\r\n").split("\t")[:5]
        found = re.findall(r"\(([A-D])\) (.*?)(?= \([A-D]\) |$)", choices)
        labels, words = [label for label, _ in found], [text.strip() for _, text in found]
        rows.append(
            {
                "id": name,
                "question_stem": stem,
                "choices": {"text": words, "label": labels},
                "answerKey": key.strip(),
            }
        )
    return rows


def _with_labels(file: Path) -> Rows:
    """PIQA: the labels are a file of their own, a line each."""
    labels = file.with_name(f"{file.stem}-labels.lst").read_text("utf-8").split()
    rows = records(file)
    if len(labels) != len(rows):
        raise CalibrationError(f"{file} has {len(rows)} questions and {len(labels)} labels.")
    return [{**row, "label": int(label)} for row, label in zip(rows, labels, strict=True)]


def _boolq(file: Path) -> Rows:
    """BoolQ: the answer is true or false; in SuperGLUE's release it is called label."""
    return [
        {**row, "label": int(row["answer"] if "answer" in row else row["label"])}
        for row in records(file)
    ]


def _lambada(file: Path) -> Rows:
    """LAMBADA: the last word of a passage, as a field of its own or not."""
    return [
        {"text": row["text"] if "text" in row else f"{row['context']} {row['continuation']}"}
        for row in records(file)
    ]


_ARC, _OPEN = partial(_nested, "question"), partial(_nested, "question_stem")
RELEASES: dict[str, tuple[Release, ...]] = {  # the harness's own split first
    "arc_easy": (
        Release("ARC-Easy-Test.jsonl", "test", _ARC),
        Release("ARC-Easy-Dev.jsonl", "validation", _ARC),
    ),
    "arc_challenge": (
        Release("ARC-Challenge-Test.jsonl", "test", _ARC),
        Release("ARC-Challenge-Dev.jsonl", "validation", _ARC),
    ),
    "openbookqa": (
        Release("test.tsv", "test", _openbook_table),
        Release("test.jsonl", "test", _OPEN),
        Release("dev.tsv", "validation", _openbook_table),
        Release("dev.jsonl", "validation", _OPEN),
    ),
    "piqa": (Release("valid.jsonl", "validation", _with_labels),),
    "winogrande": (Release("dev.jsonl", "validation", records),),
    "boolq": (
        Release("dev.jsonl", "validation", _boolq),
        Release("val.jsonl", "validation", _boolq),
    ),
    "lambada_openai": (
        Release("lambada_openai.jsonl", "test", _lambada),
        Release("lambada_test.jsonl", "test", _lambada),
    ),
}
