"""Everything that is wrong with a store: its files against themselves, its index against them.

It reads and changes nothing. Each complaint is one sentence that says what to do. What a living
process is writing is named as such. `upkeep.py` mends what can be mended: read that next.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from laco.disk import (
    RECIPE,
    digest_of,
    is_abandoned,
    is_partial,
    is_sound,
    list_files,
    read_json,
    read_whole,
)
from laco.errors import RecipeError, StoreError
from laco.evaluations import Analysis, Evaluation, Request
from laco.recipe import Spec, chained_key, parse_recipe

if TYPE_CHECKING:
    from laco.store import RunStore

_EVALUATION: TypeAdapter[Evaluation] = TypeAdapter(Evaluation)
_ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)
_ADD = "`laco store rebuild` adds it"
_TAKE = "`laco store rebuild` takes what the file says"
_PRUNE = "`laco store prune` removes it"
_AGAIN = "run its recipe again"


def verify(store: RunStore) -> list[str]:
    """A sentence for everything that is broken, half written, missing or in the wrong place.

    Every byte of every artifact is read. Others may write meanwhile: what looks wrong is looked at
    once more while they wait.
    """
    damage = store.index.damage()
    if damage:
        return [f"runs.sqlite is damaged ({damage}); `laco store rebuild` makes it anew."]
    suspects = [place for place in _places(store) if complaint(store, place)]
    found: list[str] = []
    if suspects:
        with store.index.transaction():
            found += [words for place in suspects if (words := complaint(store, place))]
    for folder in sorted(store.artifacts.iterdir()):
        if not is_partial(folder) and (name := _changed_file(folder)):
            found.append(f"{_named(folder)}/{name} is not what was saved; {_AGAIN}.")
    return found


def complaint(store: RunStore, place: Path) -> str | None:
    """What is wrong with one file or folder of a store, or with what the index says of it."""
    if is_partial(place):
        if not place.exists():
            return None
        if is_abandoned(place):
            return f"{_named(place)} was left half written; {_PRUNE}."
        return f"{_named(place)} is being written."
    if place.parent == store.artifacts:
        return of_run(place) or _of_row(store, place)
    if place.parent == store.metric_files:
        return of_metrics(place) or _of_metric_rows(store, place)
    if place.parent == store.analysis_files:
        return of_analysis(place) or _of_analysis_row(store, place)
    return _of_job(store, place)


def of_run(folder: Path) -> str | None:
    """What is wrong with an artifact's folder, by names and sizes; None if nothing or it is gone.

    The contents of the model's files are not read.
    """
    if not folder.exists():
        return None
    place, document = _named(folder), read_json(folder / RECIPE)
    if document is None:
        return f"{place} has no readable {RECIPE}; {_AGAIN}."
    try:
        recipe = parse_recipe(document["recipe"])
    except RecipeError as error:
        return f"{place}: {error}"
    except (KeyError, TypeError):
        return f"{place}/{RECIPE} does not hold a recipe; {_AGAIN}."
    if recipe.key != folder.name:
        return f"{place} does not match its recipe, whose key is {recipe.key}; {_AGAIN}."
    if not is_sound(document):
        return f"{place}/{RECIPE} was changed after it was saved; {_AGAIN}."
    if read_whole(folder) is None:
        return f"{place} has files missing or cut short; {_AGAIN}."
    extra = [
        name
        for file in list_files(folder)
        if (name := str(file.relative_to(folder))) not in document["files"]
    ]
    if extra:
        return f"{place}/{extra[0]} is no file of this run; move it away."
    source = Path(recipe.model.path)
    if source.parent == folder.parent and not source.exists():
        return f"{place} stands on {_named(source)}, which is missing; bring it back, or {_AGAIN}."
    return None


def of_metrics(path: Path) -> str | None:
    """What is wrong with the file of an evaluation; None if nothing or it is gone."""
    return _of_result(path, "evaluation", _EVALUATION)


def of_analysis(path: Path) -> str | None:
    """What is wrong with the file of an analysis; None if nothing or it is gone."""
    return _of_result(path, "analysis", _ANALYSIS)


def _places(store: RunStore) -> Iterator[Path]:
    """All that could be wrong: what lies in the store, and what the index says should."""
    for folder, table, column, ending in (
        (store.artifacts, "runs", "key", ""),
        (store.metric_files, "metrics", "evaluation_key", ".json"),
        (store.analysis_files, "analyses", "analysis_key", ".json"),
        (store.folder / "jobs", "jobs", "id", ""),
    ):
        rows = {row[0] for row in store.index.rows(f"SELECT DISTINCT {column} FROM {table}")}
        there = {path.name for path in folder.glob("*")}
        yield from (folder / name for name in sorted(there | {row + ending for row in rows}))
    yield from half_written(store)


def half_written(store: RunStore) -> Iterator[Path]:
    """What was written halfway in the folders of jobs, unfinished walks, models and sweeps."""
    for pattern in ("jobs/*/*", "unfinished/*/*", "models/*", "sweeps/*"):
        yield from sorted(filter(is_partial, store.folder.glob(pattern)))


def _of_row(store: RunStore, folder: Path) -> str | None:
    rows = store.index.rows("SELECT recipe FROM runs WHERE key = ?", folder.name)
    if not folder.exists():
        return f"{_named(folder)} is missing, though the index has it; {_PRUNE}." if rows else None
    if not rows:
        return f"{_named(folder)} is not in the index; {_ADD}."
    try:
        same = parse_recipe(rows[0]["recipe"]).key == folder.name
    except RecipeError:
        same = False
    return None if same else f"The index has another recipe for {_named(folder)}; {_TAKE}."


def _of_result(path: Path, field: str, kind: TypeAdapter[Any]) -> str | None:
    if not path.exists():
        return None
    place, document = _named(path), read_json(path)
    try:
        spec: Spec = kind.validate_python(document[field])
        key: str = document["key"]
    except ValidationError:
        return f"{place} holds an {field} that this version of laco does not know."
    except (KeyError, TypeError):
        return f"{place} cannot be read; {_PRUNE}."
    if f"{chained_key(key, spec)}.json" != path.name:
        found = chained_key(key, spec)
        return f"{place} does not match its {field}, whose key is {found}; measure that again."
    if not is_sound(document):
        return f"{place} was changed after it was saved; measure that again."
    if not (path.parent.parent / "artifacts" / key).exists():
        return f"{place} belongs to {key}, which is not there; {_PRUNE}."
    return None


def _of_metric_rows(store: RunStore, path: Path) -> str | None:
    query = "SELECT document FROM metrics WHERE evaluation_key = ? ORDER BY position"
    rows = [json.loads(row[0]) for row in store.index.rows(query, path.stem)]
    document = read_json(path)
    if document is None:
        return _missing(path, rows)
    if not rows and document["metrics"]:
        return _unknown(store, path, document["key"])
    same = rows == document["metrics"]
    return None if same else f"{_named(path)} has other metrics than the index; {_TAKE}."


def _of_analysis_row(store: RunStore, path: Path) -> str | None:
    rows = store.index.rows("SELECT analysis FROM analyses WHERE analysis_key = ?", path.stem)
    document = read_json(path)
    if document is None:
        return _missing(path, rows)
    if not rows:
        return _unknown(store, path, document["key"])
    same = json.loads(rows[0]["analysis"]) == document["analysis"]
    return None if same else f"{_named(path)} is another analysis than the index says; {_TAKE}."


def _unknown(store: RunStore, path: Path, key: str) -> str | None:
    """A result that the index lacks; where it lacks the run, that is complaint enough."""
    if not store.index.rows("SELECT 1 FROM runs WHERE key = ?", key):
        return None
    return f"{_named(path)} is not in the index; {_ADD}."


def _missing(path: Path, rows: list[Any]) -> str | None:
    words = f"{_named(path)} is missing, though the index has it"
    return f"{words}; `laco store rebuild` forgets it." if rows else None


def _of_job(store: RunStore, folder: Path) -> str | None:
    rows = store.index.rows("SELECT * FROM jobs WHERE id = ?", folder.name)
    place = _named(folder)
    if not folder.exists():
        return f"{place} is missing, though the index has it; {_PRUNE}." if rows else None
    document = read_json(folder / "job.json")
    if not rows:
        if document is None:
            return f"{place} was left half made; {_PRUNE}."
        return f"{place} is not in the index; {_ADD}."
    row: sqlite3.Row = rows[0]
    if document is None or document != json.loads(row["request"]):
        return f"{place}/job.json is not what was queued; `laco retry {folder.name}` queues it."
    if row["state"] == "done" and read_json(folder / "result.json") is None:
        return f"{place}/result.json cannot be read; `laco retry {folder.name}` makes it anew."
    return None


def request_of(folder: Path) -> Request | None:
    """What a job's folder asks for; None if it cannot be read."""
    try:
        return Request.model_validate(read_json(folder / "job.json"))
    except ValidationError:
        return None


def _changed_file(folder: Path) -> str | None:
    """The first file of an artifact whose bytes are not those that were saved."""
    document = read_whole(folder)
    digests: dict[str, str] = (document or {}).get("digests") or {}
    for name, digest in digests.items():
        try:
            if digest_of(folder / name) != digest:
                return name
        except FileNotFoundError:  # removed meanwhile
            return None
        except OSError as error:
            raise StoreError(
                f"{folder / name} cannot be read ({error.strerror or error}); look after the disk."
            ) from error
    return None


def _named(path: Path) -> str:
    """The path inside the store: it is two or three names deep."""
    if path.parent.parent.name in ("jobs", "unfinished"):
        return f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
    return f"{path.parent.name}/{path.name}"
