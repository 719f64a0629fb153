"""What people say of a run: its name, a note, tags, whether it is put away; and its exports.

Kept beside the runs, a small JSON file for each that has any: `annotations/<key>.json`. Nothing of
it is part of a key or of the index, so a rebuilt index loses none of it. It does not know what a
run is made of. Next: `lineage.py`, which shows runs by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from laco import access
from laco.access import LOCAL, Person
from laco.disk import RECIPE, discard, explained, read_json, write_json
from laco.errors import StoreError
from laco.spec import Name, complaints

if TYPE_CHECKING:
    from laco.store import RunStore

MOST_TAGS = 12
FOLDER = "annotations"


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


Line = Annotated[Name, AfterValidator(_in_one_line)]
Tag = Annotated[Line, Field(min_length=1, max_length=40)]


class Exported(BaseModel):
    """An export of a run: where it was put, in which number format, and when."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    folder: Name
    dtype: str = "auto"
    created: float


class Annotation(BaseModel):
    """All that is said of one run. A field that is empty says nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    name: Annotated[Line, Field(max_length=120)] = ""
    note: Annotated[Name, Field(max_length=4000)] = ""
    tags: Annotated[tuple[Tag, ...], Field(max_length=MOST_TAGS)] = ()
    archived: bool = False
    exports: tuple[Exported, ...] = ()


NOTHING = Annotation()


def read(store: RunStore, key: str) -> Annotation:
    """What is said of the run under `key`; nothing, where the file is lost or was spoilt."""
    try:
        return Annotation.model_validate(read_json(store.annotation_files / f"{key}.json"))
    except ValidationError:
        return NOTHING


def read_all(store: RunStore) -> dict[str, Annotation]:
    """What is said of every run of which anything is, by key."""
    with explained(store.annotation_files), os.scandir(store.annotation_files) as entries:
        names = [entry.name for entry in entries]
    keys = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return {key: said for key in keys if (said := read(store, key)) != NOTHING}


def annotate(store: RunStore, key: str, who: Person = LOCAL, **fields: object) -> Annotation:
    """Replace some of what is said of a run: `name`, `note`, `tags`, `archived`; all that is now.

    Raises `StoreError` for what cannot be kept or a run that is not there, and `AccessError` for
    whoever may not.
    """
    require_owned(store, key, who)
    return _keep(store, key, lambda _before: fields)


def add_export(store: RunStore, key: str, exported: Exported) -> None:
    """Note that a run was exported, instead of what lay in that folder before."""

    def added(before: Annotation) -> dict[str, object]:
        others = [one for one in before.exports if one.folder != exported.folder]
        return {"exports": (*others, exported)}

    _keep(store, key, added)


def owner_of(store: RunStore, key: str) -> str:
    """Who had a run made, where people sign in."""
    document = read_json(store.artifacts / key / RECIPE)
    return str(document.get("owner", "")) if isinstance(document, dict) else ""


def require_owned(store: RunStore, key: str, who: Person) -> None:
    """Make sure that there is such a run, whole or not, and that it is theirs to change."""
    folder = store.artifacts / key
    known = folder.parent == store.artifacts and key.startswith("k1-") and folder.is_dir()
    if not known and not store.index.rows("SELECT 1 FROM runs WHERE key = ?", key):
        raise StoreError(f"There is no run {key} in {store.folder}; `laco runs` lists them.")
    access.require_owner(who, owner_of(store, key), "result")


def _keep(
    store: RunStore, key: str, change: Callable[[Annotation], dict[str, object]]
) -> Annotation:
    """Put other fields instead of those before; of two at once, neither is lost."""
    path = store.annotation_files / f"{key}.json"
    with store.index.transaction():
        before = read(store, key)
        said = _changed(before, change(before))
        if said == NOTHING:
            discard(path)
        else:
            write_json(path, said.model_dump(mode="json"))
    return said


def _changed(before: Annotation, fields: dict[str, object]) -> Annotation:
    if isinstance(tags := fields.get("tags"), list | tuple):
        fields = {**fields, "tags": tuple(dict.fromkeys(_in_one_line(str(tag)) for tag in tags))}
    if isinstance(note := fields.get("note"), str):
        fields = {**fields, "note": note.strip()}
    try:
        return Annotation.model_validate({**before.model_dump(), **fields})
    except ValidationError as error:
        raise StoreError(f"That cannot be kept of a result: {complaints(error)}.") from None
