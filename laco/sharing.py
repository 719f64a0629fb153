"""Results between a store and a share; and what the engine does with a share while it works.

The engine takes what is there, gives what is new, and works on without it: `LACO_SHARE` names the
address, and trouble with it is told in the report and ends nothing, unless what the work starts
from lies there alone. How bytes travel is in `share.py`. Next: `engine.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from laco import reference
from laco.context import Context
from laco.disk import (
    RECIPE,
    discard,
    list_files,
    partial_path,
    put_in_place,
    read_json,
    read_whole,
    sync_folder,
)
from laco.errors import RecipeError, StoreError
from laco.evaluations import Analysis, Evaluation, Metric
from laco.reading import is_there
from laco.recipe import Recipe, chained_key, parse_recipe
from laco.share import Share
from laco.store import RunStore

ADDRESS = "LACO_SHARE"  # in the environment
RESULTS, MODELS, METRICS, ANALYSES = "artifacts", "models", "metrics", "analyses"
_SPECS: dict[str, TypeAdapter[Any]] = {
    METRICS: TypeAdapter(Evaluation),
    ANALYSES: TypeAdapter(Analysis),
}


class Shared:
    """A store's side of the share, for one job; without an address it does nothing.

    After the first trouble it is left alone, so that a network that is away costs one wait.
    """

    def __init__(self, store: RunStore) -> None:
        self.address = os.environ.get(ADDRESS, "")
        self.taken: list[str] = []
        self.given: list[str] = []
        self.problem = ""
        self._store = store
        self._share: Share | None = None
        if self.address:
            try:
                self._share = Share(self.address)
            except StoreError as error:
                self.problem = str(error)

    def report(self) -> dict[str, Any]:
        """What was taken and given, and what went wrong, as a part of the job's report."""
        if not self.address:
            return {}
        told = {"address": self.address, "taken": self.taken, "given": self.given}
        return {"share": {**told, "problem": self.problem or None}}

    def inputs(self, recipe: Recipe) -> Recipe:
        """The recipe with what it starts from brought here, where only the share may have it.

        That is a result that is not in the store, or the folder of a pinned model that is not on
        this machine. Raises `StoreError` when the share cannot be asked.
        """
        path, revision = recipe.model.path, recipe.model.revision
        if not self.address or is_there(path):
            return recipe
        is_result = path.startswith("k1-") and self._store.resolve(path) is None
        if not is_result and not revision.startswith("content:"):
            return recipe
        if self._share is None:
            raise StoreError(self.problem)
        if is_result:
            if take_result(self._share, self._store, path):
                self.taken.append(path)
            return recipe
        folder = take_model(self._share, self._store, revision)
        if folder is None:
            return recipe
        self.taken.append(revision)
        ref = recipe.model.model_copy(update={"path": str(folder)})
        return recipe.model_copy(update={"model": ref})

    def take(
        self, keys: Sequence[str], specs: Sequence[Evaluation | Analysis], context: Context
    ) -> None:
        """Take the longest prefix of a recipe that is there and not here, and its measurements."""
        done = self._store.longest_prefix(keys)
        for index in range(len(keys) - 1, done, -1):
            if self._share is not None:
                context.step(0.0, "looking for results in the share")
            if self._tried(partial(take_result, store=self._store, key=keys[index]), keys[index]):
                break
        if self._store.artifact(keys[-1]) is not None:
            for spec in specs:
                work = partial(take_measured, store=self._store, key=keys[-1], spec=spec)
                self._tried(work, chained_key(keys[-1], spec))

    def give(self, key: str, context: Context) -> None:
        """Upload a result of the store, unless it is there."""
        if self._share is not None:
            context.step(1.0, "uploading to the share")
        if self._tried(partial(give_result, store=self._store, key=key)):
            self.given.append(key)

    def give_measured(self, key: str, specs: Sequence[Evaluation | Analysis]) -> None:
        """Upload what was measured of a result, and the result, unless they are there."""
        if self._tried(partial(give_result, store=self._store, key=key)):
            self.given.append(key)
        for name in [chained_key(key, spec) for spec in specs]:
            if self._tried(partial(give_measured, store=self._store, name=name)):
                self.given.append(name)

    def _tried(self, work: Callable[[Share], bool], name: str = "") -> bool:
        """What the work gives; False after any trouble, which is noted. A name counts as taken."""
        if self._share is None or self.problem:
            return False
        try:
            found = work(self._share)
        except StoreError as error:
            self.problem = str(error)
            return False
        if found and name:
            self.taken.append(name)
        return found


def give_result(share: Share, store: RunStore, key: str) -> bool:
    """Upload a result of the store; False if it is there already. Raises `StoreError`."""
    folder = store.artifacts / key
    document = read_whole(folder)
    if document is None:
        raise StoreError(f"There is no whole result {key} in {store.folder} to upload.")
    files = {str(file.relative_to(folder)): file for file in list_files(folder)}
    digests: dict[str, str] = document.get("digests", {})
    return share.put(RESULTS, key, {**files, RECIPE: folder / RECIPE}, digests)


def take_result(share: Share, store: RunStore, key: str) -> bool:
    """Download a result into the store, whole or not at all; False if the share lacks it."""
    final = store.artifacts / key
    if read_whole(final) is not None:
        return False
    place = partial_path(final)
    try:
        place.mkdir()
        if not share.get(RESULTS, key, place):
            return False
        document = read_whole(place)
        try:
            is_it = document is not None and parse_recipe(document["recipe"]).key == key
        except RecipeError:
            is_it = False
        if not is_it:
            raise StoreError(f"What the share {share.address} has as {key} is another result.")
        sync_folder(place)
        with store.index.transaction():
            put_in_place(place, final)
    finally:
        discard(place)
    store.resolve(key)  # takes note of it
    return True


def give_model(share: Share, folder: Path) -> bool:
    """Upload an original model's folder under what it holds; False if it is there already."""
    revision = reference.content_revision(folder)
    found = {file for pattern in reference.IDENTITY for file in folder.glob(pattern)}
    files = {file.name: file for file in sorted(found) if file.is_file()}
    return share.put(MODELS, revision.removeprefix("content:"), files)


def take_model(share: Share, store: RunStore, revision: str) -> Path | None:
    """The folder of an original model, downloaded unless it is here; None if the share lacks it."""
    name = revision.removeprefix("content:")
    final = store.folder / "models" / f"shared-{name}"
    if final.is_dir() and reference.content_revision(final) == revision:
        return final
    final.parent.mkdir(exist_ok=True)
    discard(final)
    place = partial_path(final)
    try:
        place.mkdir()
        if not share.get(MODELS, name, place):
            return None
        if reference.content_revision(place) != revision:
            raise StoreError(f"What the share {share.address} has as {revision} is another model.")
        place.rename(final)
    finally:
        discard(place)
    return final


def give_measured(share: Share, store: RunStore, name: str) -> bool:
    """Upload what one evaluation or analysis gave; False if it is there, or there is nothing."""
    for kind, folder in ((METRICS, store.metric_files), (ANALYSES, store.analysis_files)):
        document = read_json(folder / f"{name}.json")
        if isinstance(document, dict) and share.document(kind, name) is None:
            document.pop("seal", None)  # the share's own will be on it
            share.put_document(kind, name, document)
            return True
    return False


def take_measured(share: Share, store: RunStore, key: str, spec: Evaluation | Analysis) -> bool:
    """Download what an evaluation or analysis of a result gave; False if there is nothing new."""
    name = chained_key(key, spec)
    here = (folder / f"{name}.json" for folder in (store.metric_files, store.analysis_files))
    if any(path.exists() for path in here):
        return False
    return any(_keep(store, kind, share.document(kind, name), name) for kind in _SPECS)


def give_all_measured(share: Share, store: RunStore, keys: Sequence[str]) -> int:
    """Upload everything that was measured of these results and is not there; how much."""
    count = 0
    for folder in (store.metric_files, store.analysis_files):
        for path in folder.glob("*.json"):
            document = read_json(path)
            if isinstance(document, dict) and document.get("key") in keys:
                count += give_measured(share, store, path.stem)
    return count


def take_all_measured(share: Share, store: RunStore, keys: Sequence[str]) -> int:
    """Download everything that was measured of these results and is not here; how much."""
    count = 0
    for kind, folder in ((METRICS, store.metric_files), (ANALYSES, store.analysis_files)):
        for name in share.names(kind):
            if not (folder / f"{name}.json").exists():
                document = share.document(kind, name)
                if document is not None and document.get("key") in keys:
                    count += _keep(store, kind, document, name)
    return count


def _keep(store: RunStore, kind: str, document: dict[str, Any] | None, name: str) -> bool:
    if document is None:
        return False
    try:
        key, said = document["key"], document["evaluation" if kind == METRICS else "analysis"]
        spec = _SPECS[kind].validate_python(said)
        if chained_key(key, spec) != name:
            return False
        if kind == METRICS:
            metrics = [Metric(**metric) for metric in document["metrics"]]
            store.add_metrics(key, spec, metrics, document["answers"])
        else:
            store.add_analysis(key, spec, document["document"])
    except (ValidationError, KeyError, TypeError):  # of another version of laco
        return False
    return True
