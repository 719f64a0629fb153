"""Texts by two or three models, asked of a process that keeps models in memory between prompts.

A store has one such process (`warmed.py`) while someone tries models, and no port or socket: what
is asked and what is answered are files, in a folder that only its owner can enter.

    warm/lock             taken by the process for as long as it serves
    warm/process.json     its number and start, for the moment before it has the lock
    warm/log.txt          what it says
    warm/<id>/ask.json    the prompt and the recipes of the models
    warm/<id>/said.jsonl  a line for each token, appended as it comes; the last says that it is over
    warm/<id>/stop        there when someone asked for no more

So whoever knows the id sees the text grow: a second browser, or the same one after a restart of the
server. The process starts with the first prompt and ends by itself; whoever asks after a death
writes down for the others that nothing more will come. Imports no torch. Next: `warmed.py`.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field, ValidationError

from laco import access, causes, devices, locks
from laco.access import LOCAL, Person
from laco.continued import Text, difference, text_of
from laco.disk import discard, explained, read_json, write_json
from laco.errors import JobError, RecipeError
from laco.jobs import module_environment, python_module
from laco.queue import is_alive
from laco.recipe import Recipe, Spec, complaints
from laco.spec import Name
from laco.store import RunStore

MOST_MODELS = 3
MOST_TOKENS = 256
MOST_CHARACTERS = 4000
IDLE_SECONDS = 600.0
LOCK, PROCESS = "lock", "process.json"
ASK, SAID, STOP = "ask.json", "said.jsonl", "stop"
KEPT = 100  # texts; older ones go when someone asks for another
_ID = re.compile(r"[0-9a-f]{12}")
_SETTLING_SECONDS = 0.3  # in which a process that ends may find one prompt more


class Ask(Spec):
    """A prompt, and the models to go on with it, each a recipe that was carried out or no steps."""

    recipes: tuple[Recipe, ...] = Field(min_length=1, max_length=MOST_MODELS)
    prompt: Name = Field(min_length=1, max_length=MOST_CHARACTERS)
    tokens: int = Field(default=48, ge=1, le=MOST_TOKENS)
    oom_kills: int = 0  # that the kernel had counted by then


@dataclass(frozen=True)
class Said:
    """An answer as it stands: a text for each model, whether that is all, and what went wrong.

    `waiting` says for what, while nothing is said yet.
    """

    ask: Ask
    texts: tuple[Text, ...]
    ended: bool
    error: str = ""
    waiting: str = ""

    @property
    def difference(self) -> int | None:
        """The first character at which two of the texts differ; None if none does so far."""
        return difference(self.texts)


def checked(
    recipes: Sequence[Recipe], prompt: str, tokens: int, oom_kills: int | None = None
) -> Ask:
    """A prompt for these models. Raises `RecipeError` for one that cannot be gone on with."""
    if not prompt.strip():
        raise RecipeError("The prompt is empty; write how a text begins, or take a ready one.")
    fields: dict[str, Any] = {"recipes": tuple(recipes), "prompt": prompt, "tokens": tokens}
    try:
        return Ask(**fields, oom_kills=causes.count_oom_kills() if oom_kills is None else oom_kills)
    except ValidationError as error:
        raise RecipeError(f"The prompt cannot be taken: {complaints(error)}.") from None


def ask(
    store: RunStore, wanted: Ask, who: Person = LOCAL, idle_seconds: float = IDLE_SECONDS
) -> str:
    """Ask for texts; the id to look them up by. Returns at once.

    Starts the store's process where there is none; it ends after `idle_seconds` without a prompt.
    Raises `AccessError` for who may not run anything, `StoreError` where nothing can be written.
    """
    access.require_runner(who)
    folder = store.folder / "warm"
    with explained(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locks.alone(folder / "asking", lambda: None):
            if not _is_served(folder):
                _bury(folder)
            _forget(folder)
            name = secrets.token_hex(6)
            partial = folder / f"{name}.partial"
            partial.mkdir(mode=0o700)
            write_json(partial / ASK, wanted.model_dump(mode="json"), durable=False)
            partial.rename(folder / name)
            # Only now: a process that is about to end looks once more after it gave up the lock.
            if not _is_served(folder):
                _start(store.folder, folder, idle_seconds)
    return name


def said(store: RunStore, name: str) -> Said:
    """What there is of an answer by now. Raises `JobError` if nothing is kept under this id."""
    folder = store.folder / "warm" / name
    found = read_json(folder / ASK) if _ID.fullmatch(name) else None
    try:
        asked = Ask.model_validate(found)
    except ValidationError:
        raise JobError(f"The text {name[:12]} is no longer kept; ask for it again.") from None
    lines = _lines(folder)
    if not _is_over(lines) and not _is_served(folder.parent):
        time.sleep(_SETTLING_SECONDS)
        served = _is_served(folder.parent)
        lines = _lines(folder)
        if not served and not _is_over(lines):
            lines.append({"ended": True, "error": _epitaph(asked, lines)})
    texts = tuple(text_of(lines, index) for index in range(len(asked.recipes)))
    last = lines[-1] if _is_over(lines) else {}
    waiting = ""
    if not lines:
        busy = locks.is_taken(folder.parent / LOCK)
        waiting = "Waiting for its turn" if busy else "Starting the process"
    return Said(asked, texts, bool(last), str(last.get("error", "")), waiting)


def kept_texts(store: RunStore, prompts: Sequence[str]) -> dict[str, dict[str, str]]:
    """What was written after these prompts and is kept: by the key of the run, then the prompt."""
    found: dict[str, dict[str, str]] = {}
    for folder in sorted((store.folder / "warm").glob(f"*/{SAID}"), key=_age):
        try:
            asked = Ask.model_validate(read_json(folder.parent / ASK))
        except ValidationError:
            continue
        lines = _lines(folder.parent) if asked.prompt in prompts else []
        for index, recipe in enumerate(asked.recipes if _is_over(lines) else ()):
            if text := text_of(lines, index).text:
                found.setdefault(recipe.key, {})[asked.prompt] = text
    return found


def stop(store: RunStore, name: str, who: Person = LOCAL) -> None:
    """Ask for no more of a text; what there is of it stays."""
    access.require_runner(who)
    folder = store.folder / "warm" / name
    if _ID.fullmatch(name) and folder.is_dir():
        (folder / STOP).touch()


def log(store: RunStore, tail: int = 30) -> str:
    """The last lines that the process wrote, for who wants to know why it ended."""
    try:
        text = (store.folder / "warm" / "log.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-tail:])


def pending(folder: Path) -> list[Path]:
    """The folders of the prompts of which nothing is said yet, the oldest first."""
    found = [
        path for path in folder.iterdir() if _ID.fullmatch(path.name) and (path / ASK).exists()
    ]
    return sorted((path for path in found if not (path / SAID).exists()), key=_age)


def say(folder: Path, line: dict[str, Any]) -> None:
    """Append one line to an answer."""
    with explained(folder), (folder / SAID).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")


def _lines(folder: Path) -> list[dict[str, Any]]:
    """What is said; a line that is still being written is left for the next time."""
    try:
        text = (folder / SAID).read_text(encoding="utf-8")
    except OSError:
        return []
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def _is_over(lines: Sequence[dict[str, Any]]) -> bool:
    return bool(lines) and bool(lines[-1].get("ended"))


def _is_served(folder: Path) -> bool:
    """Whether a process takes prompts from this folder, or has been started to."""
    if locks.is_taken(folder / LOCK):
        return True
    started = read_json(folder / PROCESS)
    return isinstance(started, dict) and is_alive(started["pid"], started["created"])


def _bury(folder: Path) -> None:
    """Say of whatever is not over that it will not be: the process that had it is gone."""
    for path in folder.iterdir():
        if _ID.fullmatch(path.name) and not _is_over(lines := _lines(path)):
            asked = Ask.model_validate(read_json(path / ASK))
            say(path, {"ended": True, "error": _epitaph(asked, lines)})


def _forget(folder: Path) -> None:
    """Remove what is too old, and what was never asked in full."""
    for path in folder.glob("*.partial"):
        discard(path)
    names = sorted((p for p in folder.iterdir() if _ID.fullmatch(p.name)), key=_age, reverse=True)
    for path in names[KEPT:]:
        discard(path)


def _age(path: Path) -> float:
    return path.stat().st_mtime_ns


def _epitaph(asked: Ask, lines: Sequence[dict[str, Any]]) -> str:
    """What to say of a process that ended in the middle."""
    doing = next((str(line["doing"]) for line in reversed(lines) if "doing" in line), "")
    where = f" at \u201c{doing}\u201d" if doing else ""
    if causes.count_oom_kills() > asked.oom_kills:
        return (
            f"The process that holds the models was killed for memory{where}; take fewer or "
            "smaller models, or dtype bfloat16, and ask again."
        )
    return f"The process that holds the models ended early{where}; ask again, and it starts anew."


def _start(store: Path, folder: Path, idle_seconds: float) -> None:
    """Start the process, detached, on the first device that takes jobs."""
    device = devices.slots(store)[0]
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [*python_module("laco.warmed"), str(store), f"--idle={idle_seconds}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=store,
            env={**module_environment(), **devices.environment(device, devices.cores())},
            start_new_session=True,
        )
    started = {"pid": process.pid, "created": psutil.Process(process.pid).create_time()}
    write_json(folder / PROCESS, started, durable=False)
    # Someone has to take note of its end, or it stays in the process table.
    threading.Thread(target=process.wait, daemon=True).start()
