"""A result as a folder that stock transformers loads, checked before it is put in place.

Written beside its place under a name of its own, checked there by a fresh process without laco, and
renamed last: a folder that is there has passed every check. Whether others can read it is noted in
`readiness.py`; what is written is in `files.py`. Next: `fresh.py`, the checks.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig

from laco import __version__, checkpoint, gguf_header, models, reference
from laco.context import Context
from laco.disk import (
    discard,
    free_place,
    is_abandoned,
    is_full,
    is_partial,
    partial_path,
    sync_folder,
    write_json,
)
from laco.errors import ExportError
from laco.evaluations import Export, Metric
from laco.export import files, modelcard, readiness, verify
from laco.memory import free_memory, give_back
from laco.recipe import ModelRef, Recipe
from laco.wording import format_value

ROOM = 1 << 29  # bytes that the fresh process takes besides the weights
SMALL_FILES = 1 << 26  # bytes of tokenizer, code and the like, at most as a rule


class Results(Protocol):
    """Where results are looked up; `store.RunStore` is one."""

    @property
    def folder(self) -> Path: ...
    def artifact(self, key: str) -> Any: ...
    def metrics(self, key: str) -> Sequence[Metric] | None: ...


@dataclass(frozen=True)
class Made:
    """What is exported: a finished run, where its files lie, and what is known of its layers."""

    recipe: Recipe
    source: Path  # weights and config
    original: Path  # of the untouched model: tokenizer, code, licence
    dtype: str
    origins: list[int]  # the original's layer that each layer began as
    lists: dict[str, list[Any]]  # of the config, those that go by layers, as they should be


def export(recipe: Recipe, store: Results, spec: Export, context: Context) -> dict[str, Any]:
    """Export the finished run of a pinned recipe; `{"path", "verified", "checks", "notes"}`.

    ExportError, and nothing under the name that was asked for, when there is no room or a check
    fails: the checks are then on the error, and were published before. What an export that was
    killed left behind is removed by the next one to the same place.
    """
    target = free_place(spec.folder)
    made = find(recipe, store, spec.dtype)
    _check_room(made, target, context.device)
    with _placed(target) as partial, tempfile.TemporaryDirectory() as place:
        order, n_bytes = prepare(made, partial, Path(place), context.part(0, 0.4))
        checks = verify.verify(order, n_bytes, context.part(0.4, 1))
        answer: dict[str, Any] = {"path": None, "verified": False, "checks": checks, "notes": []}
        if wrong := verify.failed(checks):
            context.publish({"export": answer})
            raise ExportError(
                f"The export failed its check {wrong['name']!r}: {wrong['detail']}; nothing was "
                f"put into {target}.",
                checks,
            )
        notes = _describe(made, store, checks, partial)
    return {"path": str(target), "verified": True, "checks": checks, "notes": notes}


def find(recipe: Recipe, store: Results, dtype: str = "auto") -> Made:
    """What there is to export of a finished run, in a number format; "auto" is its own."""
    artifact = store.artifact(recipe.key)
    original = models.folder_of(recipe.model, store.folder)
    source = original if artifact is None or artifact.path is None else artifact.path
    with models.quiet():
        options: dict[str, Any] = {"trust_remote_code": recipe.model.trust_remote_code}
        config = AutoConfig.from_pretrained(original, **options).get_text_config(decoder=True)
    depth = checkpoint.depth_of(checkpoint.read_config(original)) or config.num_hidden_layers
    origins = list(range(depth))
    for step in artifact.steps if artifact is not None else ():
        if "kept" in step["report"]:
            origins = [origins[index] for index in step["report"]["kept"]]
    lists = verify.expected_lists(config, origins, depth)
    dtype = recipe.model.dtype if dtype == "auto" else dtype
    return Made(recipe, source, original, dtype, origins, lists)


def prepare(made: Made, folder: Path, place: Path, context: Context) -> tuple[Path, int]:
    """Write the export's files into `folder`; the order to check it, in `place`, and the bytes."""
    ref = made.recipe.model
    written = files.write(made.source, made.original, ref, made.dtype, folder, context.part(0, 0.7))
    context.step(0.7, "reading what the result says to a text")
    expected = verify.expected_of(made.source, ref, made.dtype, context.device)
    give_back()  # the fresh process takes as much
    order = verify.order(
        folder,
        written,
        expected,
        made.lists,
        len(made.origins),
        ref.trust_remote_code,
        place,
    )
    return order, written.n_bytes


def _check_room(made: Made, target: Path, device: str) -> None:
    """ExportError, with the numbers, when disk or memory cannot hold what will be."""
    place = next(folder for folder in target.parents if folder.exists())
    needed = files.expected_bytes(made.source, made.dtype) + SMALL_FILES
    free = shutil.disk_usage(place).free
    if needed > free:
        raise ExportError(
            f"{target} needs {format_value(needed, 'bytes')} and {place} has "
            f"{format_value(free, 'bytes')} free; free some space or choose another folder."
        )
    run = verify.run_format(made.dtype, device)
    needed, free = files.expected_bytes(made.source, run) + ROOM, free_memory(device)
    if needed > free:
        raise ExportError(
            f"Checking the export takes {format_value(needed, 'bytes')} of memory on {device} and "
            f"{format_value(free, 'bytes')} are free; end other programs, choose another device, "
            "or export in bfloat16."
        )


@contextlib.contextmanager
def _placed(target: Path) -> Iterator[Path]:
    """A folder beside `target` to write into, which gets its name when the body ends well."""
    partial = partial_path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f"{target.name}.partial-*"):
            if is_partial(left) and is_abandoned(left):
                discard(left)
        partial.mkdir()
        yield partial
        sync_folder(partial)
        partial.rename(target)  # over an empty folder too, and over no other
    except (OSError, SafetensorError) as error:
        if is_full(error):
            there = next(folder for folder in target.parents if folder.exists())
            free = format_value(shutil.disk_usage(there).free, "bytes")
            raise ExportError(
                f"No space left: {target} needs more than the {free} that are free; free some "
                "space or choose another folder."
            ) from error
        if not isinstance(error, OSError):
            raise
        raise ExportError(
            f"{target} cannot be written ({error.strerror or error}); choose another folder."
        ) from error
    finally:
        discard(partial)


def _describe(
    made: Made, store: Results, checks: list[verify.Check], folder: Path
) -> list[readiness.Note]:
    """Write the model card, laco.json and, of a plan of drops, mergekit.yaml; the notes."""
    recipe = made.recipe
    hub = reference.kind_of(recipe.model.path) == "hub"
    name = f"{recipe.model.path}@{recipe.model.revision}" if hub else str(made.original)
    plan = readiness.mergekit_yaml(recipe, name, made.origins, made.dtype, list(made.lists))
    if plan is not None:
        (folder / "mergekit.yaml").write_text(plan, encoding="utf-8")
    notes = readiness.notes(
        checkpoint.read_config(folder),
        checkpoint.read_headers(folder),
        [file.name for file in folder.iterdir()],
        plan,
    )
    metrics = store.metrics(recipe.key) or ()
    before = store.metrics(recipe.keys()[0]) or () if recipe.steps else ()
    card = modelcard.model_card(
        recipe,
        recipe.key,
        metrics,
        before,
        checks,
        notes,
        made.original,
        _licence(recipe.model, made.original),
        hub,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    document = {
        "key": recipe.key,
        "recipe": recipe.model_dump(mode="json"),
        "layers": made.origins,
        "dtype": made.dtype,
        "created": time.time(),
        "versions": {
            "laco": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "metrics": [metric.document() for metric in metrics],
        "checks": checks,
        "notes": notes,
    }
    write_json(folder / "laco.json", document)
    return notes


def _licence(ref: ModelRef, original: Path) -> dict[str, str]:
    """What the source says of its licence, as fields of a model card."""
    kind = reference.kind_of(ref.path)
    if kind not in ("bundled", "gguf"):
        return modelcard.read_licence(original)
    file = Path(ref.path) if kind == "gguf" else reference.bundle_gguf(ref.revision)
    name = gguf_header.licence(file)
    return {"license": name} if name else {}
