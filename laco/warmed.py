"""The process that keeps models in memory between prompts: `python -m laco.warmed STORE`.

`warm.py` starts it and says what lies where; read that first. It answers one prompt at a time, two
models turn by turn, so that their texts grow side by side. It holds the last two models; another
one takes the place of the one not used for longest. It ends when nobody asked for a while, when a
job waits for memory, or when the store is gone. Next: `writing.py`.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laco import card, causes, locks, warm
from laco.disk import read_json
from laco.errors import JobError, LacoError, ModelError
from laco.imports import imported
from laco.queue import Queue
from laco.recipe import ModelRef, Recipe
from laco.store import RunStore
from laco.wording import describe
from laco.worker import SURPLUS, offer_to_be_killed

if TYPE_CHECKING:
    from laco.models import LoadedModel
    from laco.writing import Piece

WARM = 2  # models in memory
_TICK_SECONDS = 0.1
_LOOK_SECONDS = 2.0  # between looks at the queue
_LOCK_TRIES, _LOCK_SECONDS = 20, 0.1  # whoever looks has the lock for a moment

Say = Callable[[dict[str, Any]], None]


class NoRoomError(JobError):
    """A model does not fit beside those in memory."""


class Shelf:
    """The models in memory, the one not used for longest first; imports torch when it is made."""

    def __init__(self, store: RunStore, device: str | None = None) -> None:
        self._models, self._memory, writing = imported("laco.models", "laco.memory", "laco.writing")
        self._write = writing.write
        self.store = store
        self.device = device or self._models.best_device()
        self.held: dict[str, LoadedModel] = {}

    def answer(self, asked: warm.Ask, say: Say, stopped: Callable[[], bool]) -> None:
        """Have each model go on with the prompt; `say` takes the lines of `said.jsonl` one by one.

        What goes wrong with one model is said of it, and the others go on.
        """
        keys = [recipe.key for recipe in asked.recipes]
        ahead = sorted(range(len(keys)), key=lambda index: keys[index] not in self.held)
        while ahead and not stopped():
            texts = self._begin(asked, ahead, say)
            while texts and not stopped():
                for index in list(texts):
                    if not self._go_on(texts[index], index, asked, say):
                        del texts[index]
            texts.clear()

    def _begin(self, asked: warm.Ask, ahead: list[int], say: Say) -> dict[int, Iterator[Piece]]:
        """The texts of the next models that are in memory together; those are `ahead` no more."""
        texts: dict[int, Iterator[Piece]] = {}
        busy: list[LoadedModel] = []
        for index in ahead[:WARM]:
            recipe = asked.recipes[index]
            name = describe(recipe)
            say({"model": index, "doing": "Loading the model"})
            try:
                lm = self.take(recipe, busy)
            except Exception as error:
                if texts and isinstance(error, NoRoomError):
                    say({"model": index, "doing": "Waiting for the memory of the other"})
                    break  # its turn comes when these are done
                say({"model": index, "error": _sentence(error, f"loading {name}")})
            else:
                busy.append(lm)
                texts[index] = self._write(lm, asked.prompt, asked.tokens)
                say({"model": index, "doing": "Reading the prompt"})
            ahead.remove(index)
        return texts

    def _go_on(self, text: Iterator[Piece], index: int, asked: warm.Ask, say: Say) -> bool:
        """Say one token more; whether there may be another."""
        try:
            piece = next(text, None)
        except Exception as error:
            say({"model": index, "error": _sentence(error, "writing")})
            return False
        if piece is not None:
            top = [[word, round(share, 6)] for word, share in piece.top]
            say({"model": index, "text": piece.text, "top": top, "end": piece.end})
        return piece is not None and not piece.end

    def take(self, recipe: Recipe, busy: Sequence[LoadedModel]) -> LoadedModel:
        """The model that a recipe gives, from memory or loaded, and from now on the last used.

        Those of `busy` stay; of the others as many go as have to. Raises `ModelError` for one that
        is gone, `NoRoomError` where memory does not suffice.
        """
        ref, folder = self._place(recipe)
        key = recipe.model_copy(update={"model": ref}).key
        if key in self.held:
            self.held[key] = self.held.pop(key)
            return self.held[key]
        while len(self.held) >= WARM and self._drop_one(busy):
            pass
        needed = _bytes_of(folder, ref, self.store)
        while (free := self._free()) < needed:
            if not self._drop_one(busy):
                raise _no_room(describe(recipe), needed, free)
        while True:
            try:
                found = self._models.load_folder(folder, ref, self.device)
                break
            except Exception as error:
                if not causes.lacks_memory(error):
                    raise
            # Out of that block, so that the error no longer holds what was loaded of the model.
            if not self._drop_one(busy):
                self._memory.give_back()
                raise _no_room(describe(recipe), needed, self._free())
        self.held[key] = found
        return found

    def _place(self, recipe: Recipe) -> tuple[ModelRef, Path]:
        """A model's pinned reference and folder. Raises `ModelError` for a result that is gone."""
        if not recipe.steps:
            ref = self._models.pin(recipe.model, self.store.folder)
            return ref, self._models.folder_of(ref, self.store.folder)
        artifact = self.store.artifact(recipe.key)
        if artifact is None or artifact.path is None:
            raise ModelError(
                f"{describe(recipe)} is no longer on disk; run its recipe again, or take another."
            )
        return recipe.model, artifact.path

    def _drop_one(self, busy: Sequence[LoadedModel]) -> bool:
        """Let go of the model not used for longest; False if there is none but those of `busy`."""
        free = [key for key, lm in self.held.items() if not any(lm is one for one in busy)]
        if not free:
            return False
        del self.held[free[0]]
        self._memory.give_back()
        return True

    def _free(self) -> int:
        return self._memory.free_memory(self.device)


def _bytes_of(folder: Path, ref: ModelRef, store: RunStore) -> int:
    """Bytes of a model's weights in memory; 0 where its card cannot be made: loading says why."""
    try:
        at = ModelRef(path=str(folder), dtype=ref.dtype, trust_remote_code=ref.trust_remote_code)
        return int(card.inspect(at, store.folder)["bytes"])
    except LacoError:
        return 0


def _no_room(name: str, needed: int, free: int) -> NoRoomError:
    return NoRoomError(
        f"There is no memory for {name}: it takes about {needed / 1e9:.1f} GB and "
        f"{free / 1e9:.1f} GB are free; take a smaller model, dtype bfloat16, or wait for the jobs."
    )


def _sentence(error: Exception, doing: str) -> str:
    """What to say of an error; the trace goes to the log."""
    if causes.lacks_memory(error):
        return f"Out of memory while {doing}; take fewer or smaller models, or dtype bfloat16."
    if not isinstance(error, LacoError):
        traceback.print_exception(error)
    return causes.of_error(error, doing)


def serve(store: RunStore, folder: Path, idle_seconds: float) -> None:
    """Answer prompts until nobody asks for `idle_seconds`, or the memory is wanted elsewhere."""
    shelf: Shelf | None = None
    queue = Queue(store)
    asked_at = looked_at = time.monotonic()
    while (folder / warm.LOCK).exists():
        for path in warm.pending(folder)[:1]:
            if shelf is None:
                warm.say(path, {"model": 0, "doing": "Loading libraries"})
                shelf = Shelf(store)
            _answer(shelf, path)
            asked_at = time.monotonic()
        now = time.monotonic()
        if now - asked_at > idle_seconds:
            _log(f"nobody asked for {idle_seconds:.0f} s")
            return
        if now - looked_at > _LOOK_SECONDS:
            looked_at = now
            waiting = (row for row in queue.live() if row["state"] == "queued")
            if shelf and shelf.held and any("memory" in (row["message"] or "") for row in waiting):
                _log("a job waits for memory")
                return
        time.sleep(_TICK_SECONDS)


def _answer(shelf: Shelf, path: Path) -> None:
    error = ""
    try:
        asked = warm.Ask.model_validate(read_json(path / warm.ASK))
        shelf.answer(asked, lambda line: warm.say(path, line), (path / warm.STOP).exists)
    except Exception as problem:
        traceback.print_exc()
        error = causes.of_error(problem, "answering")
    warm.say(path, {"ended": True, "error": error})


def _log(words: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), words, flush=True)


def _take(lock: Path) -> bool:
    for _ in range(_LOCK_TRIES):
        if locks.take(lock):
            return True
        time.sleep(_LOCK_SECONDS)
    return False


def main(arguments: list[str] | None = None) -> int:
    """Serve the store that is named. 75 when another process does."""
    parser = argparse.ArgumentParser(prog="python -m laco.warmed", description=__doc__)
    parser.add_argument("store", type=Path, help="the store's folder")
    parser.add_argument("--idle", type=float, default=warm.IDLE_SECONDS, help="seconds to wait")
    given = parser.parse_args(arguments)
    faulthandler.enable()
    offer_to_be_killed()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    store = RunStore(given.store)
    folder = store.folder / "warm"
    while _take(folder / warm.LOCK):
        _log(f"process {os.getpid()} serves")
        try:
            serve(store, folder, given.idle)
        finally:
            (folder / warm.PROCESS).unlink(missing_ok=True)
            locks.give_back(folder / warm.LOCK)
        # Whoever asked while the lock was held relies on this process.
        if not folder.is_dir() or not warm.pending(folder):
            _log(f"process {os.getpid()} ends")
            return 0
    return SURPLUS


if __name__ == "__main__":
    sys.exit(main())
