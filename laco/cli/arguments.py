"""What people type, as specs: a model, an evaluation, a recipe with changed fields.

The command line's words end here; everything behind it sees specs. It loads no model and knows
no method. Next: `cli/__init__.py`, which uses it, and `recipe.py`, which says what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from laco.checkpoint import BYTES
from laco.errors import RecipeError, StoreError
from laco.evaluations import (
    Degeneration,
    Divergence,
    Evaluation,
    Export,
    Footprint,
    Latency,
    Perplexity,
    ZeroShot,
)
from laco.presets import FOLDER, presets
from laco.reading import Malformed, is_there, json_of, parsed, short, whole_path
from laco.recipe import Recipe, complaints, parse_recipe
from laco.sweep import Sweep, parse_sweep, with_value
from laco.tasks import BUNDLED, expand

EVALUATIONS = {
    "perplexity": Perplexity,
    "kl": Divergence,
    "zero-shot": ZeroShot,
    "footprint": Footprint,
    "latency": Latency,
    "degeneration": Degeneration,
}
CHOICES = "perplexity:CORPUS, kl:CORPUS, zero-shot:TASK,TASK, footprint, latency, degeneration"
KEY = "k1-"  # how every key begins
KEY_FORM = re.compile(r"k1-[0-9a-f]{0,64}")


class Results(Protocol):
    """Where keys of results are looked up; `store.RunStore` is one."""

    def resolve(self, text: str) -> str | None: ...
    def artifact(self, key: str) -> Any: ...


def read_model(
    text: str, store: Results, dtype: str | None = None, trust_remote_code: bool = False
) -> Recipe:
    """The recipe that ends in the model `text` names: no steps, or those of an earlier result."""
    if text.startswith(KEY):
        found = store.artifact(find_key(text, store)).recipe
        if dtype not in (None, "auto", found.model.dtype):
            raise RecipeError(
                f"The result {text} is held in {found.model.dtype}; --dtype goes with the model "
                "that a recipe starts from."
            )
        return found
    path, _, revision = text.partition("@")
    if is_there(text):
        path, revision = whole_path(text), ""
    fields: dict[str, Any] = {"path": path, "trust_remote_code": trust_remote_code}
    if revision:
        fields["revision"] = revision
    if dtype is not None:
        fields["dtype"] = dtype
    return parse_recipe({"model": fields})


def read_export(folder: Path, dtype: str | None = None) -> Export:
    """Where to export to, seen from anywhere, and in which number format."""
    if dtype not in (None, "auto", *BYTES):
        raise RecipeError(f"--dtype {dtype}: choose auto, {', '.join(BYTES)}.")
    where = {"folder": str(folder.expanduser().resolve()), "dtype": dtype or "auto"}
    return Export.model_validate(where)


def find_key(text: str, store: Results) -> str:
    """The whole key of a result. Raises `StoreError` when there is no such result."""
    key = store.resolve(text) if KEY_FORM.fullmatch(text) else None
    if key is None or store.artifact(key) is None:
        raise StoreError(
            f"There is no result {short(text)} in this store; `laco runs` lists the results."
        )
    return key


def read_evaluations(text: str, limit: int | None = None) -> tuple[Evaluation, ...]:
    """Evaluations from `perplexity:CORPUS,window=512`, `zero-shot:TASK,TASK,shots=5`, `footprint`.

    Several tasks, or a set of them, are an evaluation each. `limit` is the number of windows or of
    questions, where an evaluation has such.
    """
    name, _, rest = text.partition(":")
    name, *own = name.split(",")  # settings of an evaluation that is of nothing
    if name not in EVALUATIONS:
        raise RecipeError(f"{name}: not an evaluation; choose {CHOICES}.")
    kind = EVALUATIONS[name]
    settings: dict[str, Any] = {}
    for setting in own:
        _set(settings, setting)
    subjects = [rest]
    if kind is ZeroShot:
        parts = rest.split(",")
        for part in parts:
            if "=" in part:
                _set(settings, part)
        subjects = expand(",".join(part for part in parts if "=" not in part))
        if not subjects:
            raise RecipeError("zero-shot names no task; give one, as in zero-shot:hellaswag.")
    else:
        while match := re.search(r",(\w+=[^,/]*)$", subjects[0]):
            _set(settings, match[1])
            subjects = [subjects[0][: match.start()]]
    for counted in ("windows", "limit"):
        if limit is not None and counted in kind.model_fields:
            settings[counted] = limit
    try:
        return tuple(kind.model_validate(_about(kind, said) | settings) for said in subjects)
    except ValidationError as error:
        raise RecipeError(f"The evaluation {name} cannot be read: {complaints(error)}.") from None


def _set(settings: dict[str, Any], text: str) -> None:
    """Put `name=value` among the settings; `all` is no limit."""
    name, _, value = text.partition("=")
    if value.startswith("file:"):
        settings[name] = read_source(value)
    else:
        settings[name] = None if value == "all" else _value(value)


def _about(kind: type, said: str) -> dict[str, Any]:
    """What an evaluation is of, as fields: a task and where its questions are from, or a text."""
    if kind is ZeroShot:
        there = said in BUNDLED or said.endswith((".yaml", ".yml"))
        return {"task": whole_path(said)} | ({} if there else {"data": "hub"})
    return {"source": read_source(said)} if said else {}


def read_source(text: str) -> str:
    """A text source; a `file:` with its whole path."""
    if not text.startswith("file:"):
        return text
    path, at, part = text.removeprefix("file:").rpartition("@")
    if part not in ("calibration", "heldout"):
        path, at, part = text.removeprefix("file:"), "", ""
    try:
        whole = Path(path).expanduser().resolve()
    except (OSError, ValueError, RuntimeError):  # of a link to itself, say: reading it says why
        return text
    return f"file:{whole}{at}{part}"


def read_recipe(
    source: str,
    store: Results,
    model: Recipe | None = None,
    changes: Sequence[str] = (),
) -> Recipe:
    """A recipe from a JSON file or a preset's name, on `model` where given, with fields changed.

    `changes` are `path=value` texts such as `steps.0.threshold=0.7`.
    """
    document = _read_document(source)
    if model is not None:
        document["model"] = model.model.model_dump(mode="json")
    for change in changes:
        document = override(document, change)
    if "model" not in document:
        raise RecipeError(f"{source} names no model; give one with --model.")
    if model is not None:
        before = [step.model_dump(mode="json") for step in model.steps]
        if isinstance(steps := document.get("steps", []), list):  # else the check below says so
            document["steps"] = [*before, *steps]
    recipe = parse_recipe(_with_whole_sources(document))
    where = whole_path(recipe.model.path)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": where})})
    if recipe.model.path.startswith(KEY):
        earlier = store.artifact(find_key(recipe.model.path, store)).recipe
        return earlier.then(*recipe.steps)
    return recipe


def read_sweep(
    source: str, store: Results, model: str | None = None, evaluations: Sequence[str] = ()
) -> Sweep:
    """A sweep from its JSON file, with a model and evaluations given besides.

    Its recipe may be a preset's name, or another file's. Places of fields are those of the recipe
    as it is written, also where it starts from a result.
    """
    document = _read_object(source, "The sweep's file")
    recipe = document.get("recipe")
    recipe = _read_document(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(recipe, dict):
        raise RecipeError(f"The sweep's file {short(source)} has no `recipe` with steps.")
    if model is not None:
        recipe["model"] = {"path": find_key(model, store) if model.startswith(KEY) else model}
    if "model" not in recipe:
        raise RecipeError(f"{short(source)} names no model; give one with --model.")
    place = recipe["model"]
    if isinstance(place, dict) and isinstance(path := place.get("path"), str):
        place["path"] = whole_path(path)
    if evaluations:
        document["evaluations"] = [one for text in evaluations for one in read_evaluations(text)]
    given: Any = document.get("vary")
    vary: dict[str, Any] = given if isinstance(given, dict) else {}
    for field, values in vary.items():
        if field.endswith(".source") and isinstance(values, list):
            vary[field] = [read_source(one) if isinstance(one, str) else one for one in values]
    return parse_sweep(_with_whole_sources({**document, "recipe": recipe}))


def override(document: Any, change: str) -> Any:
    """The document with one field changed, `path=value`; numbers in a path count list items."""
    path, sign, text = change.partition("=")
    if not sign or not path:
        raise RecipeError(
            f"--set {short(change)}: write path=value, such as steps.0.threshold=0.7."
        )
    try:
        return with_value(document, path, _value(text))
    except RecipeError as error:
        raise RecipeError(f"--set {error}") from None


def _with_whole_sources(value: Any) -> Any:
    """The document with every `source` as `read_source` gives it."""
    if isinstance(value, list):
        return [_with_whole_sources(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: read_source(item)
        if name == "source" and isinstance(item, str)
        else _with_whole_sources(item)
        for name, item in value.items()
    }


def _value(text: str) -> Any:
    try:
        return parsed(text)
    except Malformed:
        return text


def _read_document(source: str) -> dict[str, Any]:
    path, preset = Path(source), FOLDER / f"{source}.json"
    if not is_there(path) and preset.parent == FOLDER and is_there(preset):
        path = preset
    if not is_there(path) or path.is_dir():
        raise RecipeError(
            f"There is no recipe file {short(source)}, and no preset of that name; "
            f"the presets are {', '.join(presets())}."
        )
    found = _read_object(str(path), "The recipe file")
    if "model" not in found and {"name", "title", "note"} <= set(found):
        return {"steps": found.get("steps", [])}  # a preset's file
    return found


def _read_object(source: str, what: str) -> dict[str, Any]:
    if not is_there(source):
        raise RecipeError(f"{what} {short(source)} is not there.")
    try:
        found = json_of(Path(source))
    except Malformed as error:
        raise RecipeError(f"{what} {short(source)} cannot be read: it {error}.") from None
    if not isinstance(found, dict):
        raise RecipeError(f"{what} {short(source)} holds no JSON object.")
    return found
