"""Where runs, their models and their metrics are kept.

A `RunStore` is a folder. What counts lies in files there, each whole or absent; `runs.sqlite` is
an index over them that `rebuild` makes anew. The store does not know how a model is made or
measured; `engine.py` does. Checking is in `audit.py`, tidying in `upkeep.py`.

    runs.sqlite            the index, and the queue of jobs
    artifacts/<key>/       a run: recipe.json, and the model's files unless it is an untouched one
    metrics/<key>.json     what one evaluation gave, under the evaluation's key
    analyses/<key>.json    what one analysis gave, under the analysis' key
    annotations/<key>.json what people say of a run, and its exports
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from laco import __version__, annotations, audit, listing, removal, upkeep
from laco.access import LOCAL, Person
from laco.disk import (
    RECIPE,
    digest_of,
    discard,
    explained,
    list_files,
    partial_path,
    put_in_place,
    read_json,
    read_whole,
    sealed,
    sync_folder,
    write_json,
)
from laco.errors import ModelError, StoreError
from laco.evaluations import Analysis, Evaluation, Metric
from laco.index import Index
from laco.listing import Measurements, Run
from laco.recipe import Recipe, chained_key, parse_recipe

INDEX = "runs.sqlite"
_KEY = re.compile(r"k1-[0-9a-f]+")
_ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)


@dataclass(frozen=True)
class Artifact:
    """A run as it lies on disk. `path` is None for an untouched model.

    `steps` holds a report for each step of the whole chain.
    """

    key: str
    recipe: Recipe
    path: Path | None
    steps: tuple[dict[str, Any], ...]
    created: float
    n_bytes: int


class RunStore:
    """The runs in a folder. Safe across threads and across processes of one machine.

    Opening makes the folder, brings its index to the newest shape, and makes a lost one anew from
    the files. Raises `StoreError` when the folder cannot be used. What is saved through it belongs
    to `owner`. Machines that share the folder do not share the index, since SQLite's WAL needs
    shared memory: on all but one, `index` is a folder of their own for theirs.
    """

    def __init__(
        self, folder: str | Path = "cache", owner: str = "", index: Path | None = None
    ) -> None:
        self.folder = Path(folder).resolve()
        self.owner = owner
        self.artifacts = self.folder / "artifacts"
        self.metric_files = self.folder / "metrics"
        self.analysis_files = self.folder / "analyses"
        self.annotation_files = self.folder / annotations.FOLDER
        places = (self.artifacts, self.metric_files, self.analysis_files, self.annotation_files)
        with explained(self.folder):
            for place in places:
                place.mkdir(parents=True, exist_ok=True)
            self.index = Index((index or self.folder) / INDEX)
        upkeep.rebuild_if_lost(self)

    def artifact(self, key: str) -> Artifact | None:
        """The run under `key`; None if there is none, or its folder is not whole."""
        document = read_whole(self.artifacts / key)
        if document is None:
            return None
        recipe = parse_recipe(document["recipe"])
        files: dict[str, int] = document["files"]
        return Artifact(
            key=key,
            recipe=recipe,
            path=self.artifacts / key if recipe.steps else None,
            steps=tuple(document["steps"]),
            created=float(document["created"]),
            n_bytes=sum(files.values()),
        )

    def longest_prefix(self, keys: Sequence[str]) -> int:
        """The index of the last of `keys` whose artifact is whole on disk; 0 if none is.

        `keys[0]` names the model itself, which needs no artifact.
        """
        for index in range(len(keys) - 1, 0, -1):
            if read_whole(self.artifacts / keys[index]) is not None:
                return index
        return 0

    def save(
        self,
        key: str,
        recipe: Recipe,
        steps: Sequence[Mapping[str, Any]],
        write: Callable[[Path], None],
    ) -> Artifact:
        """Keep what `write` puts into the folder it is given, under `key`.

        The folder gets its name last, so that one that is there is whole. If another process was
        faster, its artifact stays. If `write` fails, nothing is left; a disk that is full or fails
        raises `StoreError`.
        """
        if recipe.key != key:
            raise StoreError(f"{key} is not the key of this recipe, which is {recipe.key}.")
        final = self.artifacts / key
        partial = partial_path(final)
        try:
            with explained(final):
                partial.mkdir()
                write(partial)
                files = list_files(partial)
                names = [str(file.relative_to(partial)) for file in files]
                document = {
                    "key": key,
                    "recipe": recipe.model_dump(mode="json"),
                    "steps": [dict(step) for step in steps],
                    "created": time.time(),
                    "laco": __version__,
                    **({"owner": self.owner} if self.owner else {}),
                    "files": {n: f.stat().st_size for n, f in zip(names, files, strict=True)},
                    "digests": {n: digest_of(f) for n, f in zip(names, files, strict=True)},
                }
                write_json(partial / RECIPE, sealed(document))
                sync_folder(partial)
            with self.index.transaction() as index, explained(final):
                put_in_place(partial, final)
                self._index(index, key)
        finally:
            discard(partial)  # after an error or an interrupt, or when another was faster
        return self._adopted(key)

    def unfinished(self, key: str) -> Path:
        """Where what becomes `key` is written until it is whole; it outlives the process."""
        return self.folder / "unfinished" / key

    def add_model(self, key: str, recipe: Recipe) -> None:
        """Note an untouched model as a run, so that it can have metrics. Twice does no harm."""
        if recipe.steps:
            raise StoreError(f"{key} has steps, so it is no untouched model; save it instead.")
        if read_whole(self.artifacts / key) is None:
            self.save(key, recipe, (), lambda _folder: None)
        else:
            self._adopted(key)

    def add_metrics(
        self,
        key: str,
        evaluation: Evaluation,
        metrics: Sequence[Metric],
        answers: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Keep what an evaluation of the run under `key` gave, instead of what it gave before.

        Given `answers`, the details of each metric name where they are: `answers(that)` has them.
        Raises `NumericalError`, and keeps nothing, when a value is not finite.
        """
        if not metrics:
            raise StoreError(f"The evaluation {evaluation.kind} of {key} gave nothing to keep.")
        for metric in metrics:
            upkeep.check_finite(metric)
        self._require(key)
        evaluation_key = chained_key(key, evaluation)
        documents = [metric.document() for metric in metrics]
        for document in documents if answers else ():
            document["details"]["answers"] = evaluation_key
        kept = {
            "key": key,
            "evaluation": evaluation.model_dump(mode="json"),
            "created": time.time(),
            "metrics": documents,
            "answers": [dict(answer) for answer in answers],
        }
        with self.index.transaction() as index:
            upkeep.index_metrics(index, key, evaluation_key, documents)
            write_json(self.metric_files / f"{evaluation_key}.json", sealed(kept))

    def answers(self, evaluation_key: str) -> list[dict[str, Any]] | None:
        """What was answered to each question of an evaluation; None if nothing of it is kept."""
        if not _KEY.fullmatch(evaluation_key):
            return None
        found: dict[str, Any] = read_json(self.metric_files / f"{evaluation_key}.json") or {}
        return found.get("answers") or None

    def metrics(self, key: str, evaluation: Evaluation | None = None) -> tuple[Metric, ...] | None:
        """All metrics of a run, or those of one evaluation: then None if it was not done yet."""
        if evaluation is None:
            found = self.index.rows(
                "SELECT document FROM metrics WHERE key = ? ORDER BY rowid", key
            )
            return tuple(upkeep.metric_from(row["document"]) for row in found)
        found = self.index.rows(
            "SELECT document FROM metrics WHERE evaluation_key = ? ORDER BY position",
            chained_key(key, evaluation),
        )
        return tuple(upkeep.metric_from(row["document"]) for row in found) or None

    def add_analysis(self, key: str, analysis: Analysis, document: Mapping[str, Any]) -> None:
        """Keep the document that an analysis of the run under `key` gave."""
        if not document:
            raise StoreError(f"The analysis {analysis.kind} of {key} gave nothing to keep.")
        self._require(key)
        analysis_key = chained_key(key, analysis)
        created = time.time()
        kept = {
            "key": key,
            "analysis": analysis.model_dump(mode="json"),
            "created": created,
            "document": dict(document),
        }
        with self.index.transaction() as index:
            said = analysis.model_dump_json()
            upkeep.index_analysis(index, key, analysis_key, said, created)
            write_json(self.analysis_files / f"{analysis_key}.json", sealed(kept))

    def analysis(self, key: str, analysis: Analysis) -> dict[str, Any] | None:
        """The document of one analysis; None if it was not done yet."""
        found = read_json(self.analysis_files / f"{chained_key(key, analysis)}.json")
        return None if found is None else found["document"]

    def analyses(self, key: str) -> list[tuple[Analysis, float]]:
        """The analyses that were done of a run and when, newest first."""
        found = self.index.rows(
            "SELECT analysis, created FROM analyses WHERE key = ? ORDER BY created DESC", key
        )
        return [(_ANALYSIS.validate_json(row["analysis"]), row["created"]) for row in found]

    def runs(self, metrics: bool = True) -> list[Run]:
        """All runs, newest first; without their metrics where those take too long to read.

        One that this version of laco cannot read is left out here, and named by `verify`.
        """
        found = listing.list_runs(self.index, self.artifacts)
        return self.with_metrics(found) if metrics else found

    def run(self, key: str) -> Run | None:
        """The run under `key`, with its metrics; None if there is none that can be read."""
        found = listing.find_run(self.index, self.artifacts, key)
        return None if found is None else self.with_metrics([found])[0]

    def with_metrics(self, runs: Sequence[Run]) -> list[Run]:
        """The same runs with all that was measured of them."""
        return listing.with_metrics(self.index, runs)

    def measurements(self, keys: Sequence[str]) -> dict[str, Measurements]:
        """What each evaluation of these runs gave, by the run's key and the evaluation's."""
        return listing.measurements(self.index, keys)

    def resolve(self, text: str) -> str | None:
        """The full key for a key, or for the beginning of one; None if no run is meant.

        Raises `StoreError` when the beginning is that of several keys.
        """
        if not _KEY.fullmatch(text):
            return None
        found = listing.keys_from(self.index, text)
        if not found and read_whole(self.artifacts / text) is not None:
            return self._adopted(text).key
        return found[0] if found else None

    def whole(self, recipe: Recipe) -> Recipe:
        """The recipe from its first model on: one that starts from a result continues its own."""
        key = self.resolve(recipe.model.path)
        if key is None:
            return recipe
        earlier = self.artifact(key)
        if earlier is None:
            raise ModelError(f"Result {key} is no longer in the store; run its recipe again.")
        return self.whole(earlier.recipe.then(*recipe.steps))

    def remove(self, *keys: str, who: Person = LOCAL) -> None:
        """Remove runs with their models, metrics and analyses, all or none; others keep theirs.

        Raises `StoreError` when there is no such run, or something still needs one, `AccessError`
        for who may not.
        """
        for key in keys:
            annotations.require_owned(self, key, who)
        with explained(self.folder):
            removal.remove(self, keys)

    def verify(self) -> list[str]:
        """A sentence for everything that is broken, half written or in the wrong place."""
        return audit.verify(self)

    def rebuild(self) -> int:
        """Make the index of runs, metrics and analyses anew from the files; how many runs."""
        return upkeep.rebuild(self)

    def prune(self) -> int:
        """Remove what nothing refers to and nobody is writing; how many bytes became free."""
        return upkeep.prune(self)

    def close(self) -> None:
        """Close the index. The store cannot be used any more."""
        self.index.close()

    def _require(self, key: str) -> None:
        """Make sure that there is such a run, also when only its folder is there so far."""
        if self.index.rows("SELECT 1 FROM runs WHERE key = ?", key):
            return
        if read_whole(self.artifacts / key) is None:
            raise StoreError(f"There is no run {key} in {self.folder}; save it first.")
        self._adopted(key)

    def _adopted(self, key: str) -> Artifact:
        """The artifact that lies under `key`, made sure that the index has it."""
        artifact = self.artifact(key)
        if artifact is None:
            raise StoreError(f"{self.artifacts / key} is not whole; remove it and run again.")
        if not self.index.rows("SELECT 1 FROM runs WHERE key = ?", key):
            with self.index.transaction() as index:
                self._index(index, key)
        return artifact

    def _index(self, index: sqlite3.Connection, key: str) -> None:
        artifact = self.artifact(key)
        if artifact is not None:
            said = artifact.recipe.model_dump_json()
            upkeep.index_run(index, key, said, artifact.created)
