"""Tasks of lm-evaluation-harness, their questions taken from the offline bundle, files or the hub.

Prompt, choices and metrics are the harness's own; only where rows are from is another matter here.
It does not know how questions are asked (`harness.py`) or which tasks there are (`tasks.py`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval
from datasets import Dataset, disable_progress_bars
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml  # the only way to a task's own file

from laco import hub, texts
from laco.errors import CalibrationError, LacoError, RecipeError
from laco.evaluate import owntask
from laco.evaluate.releases import RELEASES, Release, Rows, records
from laco.reading import short
from laco.tasks import BUNDLED, MMLU

if TYPE_CHECKING:
    from laco.evaluations import ZeroShot

HARNESS = Path(lm_eval.__file__).parent / "tasks"
FILES = {  # the harness's own file of a task, prompt and metrics
    "boolq": "super_glue/boolq/default.yaml",
    "piqa": "piqa/piqa.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "commonsense_qa": "commonsense_qa/default.yaml",
    "social_iqa": "siqa/siqa.yaml",
    "sciq": "sciq/sciq.yaml",
    "copa": "super_glue/copa/default.yaml",
    "rte": "glue/rte/default.yaml",
    "lambada_openai": "lambada/lambada_openai.yaml",
}
OFFLINE_TASKS = f"of the bundle there are {', '.join(BUNDLED)}"

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of every override, which all are
logging.getLogger("datasets").setLevel(logging.CRITICAL)  # what it logs it raises, too
disable_progress_bars()
owntask.sandbox()


@dataclass(frozen=True)
class Asked:
    """A task with its questions. `split` is theirs, `stock_split` what the harness would read."""

    name: str
    task: ConfigurableTask
    split: str
    stock_split: str

    def rows(self, split: str, limit: int | None) -> Iterator[dict[str, Any]]:
        """The first `limit` rows of a split, before the task makes questions of them."""
        return itertools.islice(iter(self.task.dataset[split]), limit)


def tasks_of(spec: ZeroShot) -> list[Asked]:
    """The tasks that `spec` stands for: one, or each of a group.

    Raises `RecipeError` for a name or file that is no task, `CalibrationError` where its questions
    cannot be had.
    """
    path = Path(spec.task).expanduser()
    if path.suffix in (".yaml", ".yml"):
        return [_own(path)]
    if spec.data == "hub":
        return _of_hub(spec.task)
    if spec.data == "bundled":
        return _bundled(spec.task, _needed(spec))
    folder = Path(spec.data.removeprefix("file:")).expanduser()
    return [_of_folder(spec.task, folder, _needed(spec))]


def _needed(spec: ZeroShot) -> int | None:
    """How many rows are enough; solved examples are drawn from all."""
    return None if spec.shots else spec.limit


def digest(spec: ZeroShot, asked: Sequence[Asked]) -> str:
    """A hash of everything that decides what is asked: questions, prompt, harness."""
    said = hashlib.blake2b(f"lm-eval {lm_eval.__version__}".encode(), digest_size=16)
    path = Path(spec.task).expanduser()
    if path.is_file():
        said.update(path.read_bytes())
    for one in asked:
        said.update(f"{one.name} {one.task.VERSION} {one.split}".encode())
        parts = {one.split: _needed(spec)}
        if spec.shots and one.task.config.fewshot_split:
            parts[one.task.config.fewshot_split] = None
        for split, limit in parts.items():
            for row in one.rows(split, limit):
                said.update(json.dumps(row, sort_keys=True, default=str).encode())
    return said.hexdigest()


def pinned(spec: ZeroShot) -> ZeroShot:
    """The spec with the digest of what it asks, so that a result is kept for just these questions.

    Raises what `tasks_of` raises, before any work.
    """
    return spec.model_copy(update={"pinned": digest(spec, tasks_of(spec))})


# --- the offline bundle ---------------------------------------------------------------------------


def _bundled(name: str, needed: int | None) -> list[Asked]:
    known = BUNDLED.get(name)
    if known is None:
        raise RecipeError(f"The bundle has no task {name!r}; {OFFLINE_TASKS}. Or take the hub's.")
    if name in MMLU:
        return [_subject(file) for file in _subjects(name)]
    rows = [_labelled(row) for row in texts.bundled_rows(f"{known.folder}/validation")[:needed]]
    return [_asked(name, HARNESS / FILES[name], {"validation": rows}, known.stock_split)]


def _labelled(row: dict[str, Any]) -> dict[str, Any]:
    """A row with BoolQ's answer as the hub has it; others as they are."""
    if isinstance(row.get("answer"), bool):
        return {**row, "label": int(row["answer"])}
    return row


def _subjects(group: str) -> list[Path]:
    """The harness's files of an MMLU group's subjects."""
    files = sorted((HARNESS / "mmlu/default").glob("mmlu_*.yaml"))
    return [file for file in files if f'"tag": "{group}_tasks"' in file.read_text("utf-8")]


def _subject(file: Path) -> Asked:
    subject = load_yaml(file, resolve_func=False)["dataset_name"]
    folder = f"{BUNDLED[MMLU[0]].folder}/{subject}"
    rows = {split: texts.bundled_rows(f"{folder}/{split}") for split in ("dev", "test")}
    return _asked(f"mmlu_{subject}", file, rows, "test", examples="dev")


# --- files ----------------------------------------------------------------------------------------


def _of_folder(name: str, folder: Path, needed: int | None) -> Asked:
    """A task whose questions lie in `folder`, as released, or as NAME.jsonl with hub columns."""
    if name not in FILES:
        raise RecipeError(
            f"Questions of {name!r} cannot be read from files; this is known of {', '.join(FILES)}."
        )
    stock = BUNDLED[name].stock_split if name in BUNDLED else "test"
    releases = (*RELEASES.get(name, ()), Release(f"{name}.jsonl", stock, records))
    for release in releases:
        file = folder / release.file
        if file.is_file():
            try:
                rows = release.rows(file)
            except (KeyError, TypeError, ValueError, OSError) as error:
                raise CalibrationError(
                    f"{file} is not {name} as it was released ({error!r}); give the original file, "
                    f"or {name}.jsonl with the hub's columns."
                ) from None
            return _asked(name, HARNESS / FILES[name], {release.split: rows[:needed]}, stock)
    raise CalibrationError(
        f"{folder} has no questions of {name}; expected is one of "
        f"{', '.join(release.file for release in releases)}."
    )


# --- the hub, and a task of one's own -------------------------------------------------------------


def _of_hub(name: str) -> list[Asked]:
    """A task or group of the harness by name, its data from the hub or the copies here."""
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not hub.answers():  # offline, what lies here is all
        raise CalibrationError(f"The hub cannot be asked for {name}; {OFFLINE_TASKS}.")
    if name in FILES:
        config = _plain(load_yaml(HARNESS / FILES[name], resolve_func=True))
        return [_ready(_built(name, lambda: ConfigurableTask(config=config)))]
    manager = TaskManager()  # reads the whole harness, which takes seconds
    if name not in manager.all_tasks:
        raise RecipeError(f"lm-evaluation-harness has no task {name!r}; look the name up there.")
    return [_ready(one) for one in _built(name, lambda: manager.load([name]))["tasks"].values()]


def _own(file: Path) -> Asked:
    """The task of a YAML file, which is plain data (`owntask.py`)."""
    config = owntask.read(file)
    return _ready(_built(file.name, lambda: ConfigurableTask(config=_plain(config))))


def _built(name: str, build: Callable[[], Any]) -> Any:
    """What `build` makes; its errors, which are of many kinds, as one sentence."""
    try:
        return build()
    except LacoError:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise CalibrationError(
            f"The task {name} cannot be had ({short(hub.first_line(cause), 200)}); {OFFLINE_TASKS}."
        ) from error


def _ready(task: ConfigurableTask) -> Asked:
    split = task.config.test_split or task.config.validation_split or "train"
    return Asked(str(task.config.task), task, split, split)


def _asked(
    name: str,
    file: Path,
    rows: dict[str, Rows],
    stock_split: str,
    examples: str | None = None,
) -> Asked:
    """A stock task over these rows by split; solved examples are from `examples`, or the same."""
    split = next(split for split in (stock_split, *rows) if split in rows)
    if not rows[split]:
        raise CalibrationError(f"There is no question of {name} in its data.")
    config = _plain(load_yaml(file, resolve_func=True)) | {
        "dataset_path": "laco",
        "dataset_name": None,
        "custom_dataset": lambda **_: {part: Dataset.from_list(few) for part, few in rows.items()},
        "training_split": None,
        "validation_split": None if split == "test" else split,
        "test_split": split if split == "test" else None,
        "fewshot_split": examples or split,
    }
    return Asked(name, _built(name, lambda: ConfigurableTask(config=config)), split, stock_split)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """A task's config without what only the harness's index reads."""
    return {key: value for key, value in config.items() if key not in ("tag", "group", "include")}
