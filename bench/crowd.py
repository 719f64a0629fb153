"""Two servers and four command lines on one store at once for a minute: what is lost by it.

The servers are started as `laco app` does; on each, three sessions go from page to page, watch, and
press Retry on the Jobs page (`tests/visitor.py` speaks for their browsers). The command lines
submit jobs, cancel some, and list, verify, prune and rebuild; each is a real `laco` process, one
after the other. Beside them the workers of the jobs write results (`tests/stand_in.py`).

Afterwards every job that was promised is looked for, with its result, and how often it was carried
out; the store is verified. Last line: `crowd LOST` (0 is asked for), everything that is missing,
doubled or complained of.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.start import free_port, served  # noqa: E402
from laco.evaluations import Footprint  # noqa: E402
from laco.queue import Queue  # noqa: E402
from laco.recipe import Drop, ModelRef, Recipe  # noqa: E402
from laco.store import RunStore  # noqa: E402
from tests.crowding import unfinished  # noqa: E402
from tests.visitor import Visitor  # noqa: E402

MODEL = Recipe(model=ModelRef(path="org/Tiny", revision="content:1", dtype="float32"))
PAGES = ("", "model", "collapse", "sparsify", "compensate", "evaluate", "compare", "jobs")


class Crowd:
    """Everybody on the store in `folder` until `until`, and what each of them did."""

    def __init__(self, folder: Path, book: Path, until: float) -> None:
        self.folder, self.book, self.until = folder, book, until
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.numbers = itertools.count()
        self.cancelled: list[str] = []

    def laco(self, *words: str) -> dict:
        """What a command answers."""
        command = [sys.executable, "-m", "laco", *words, "--json", "--store", str(self.folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        self.done[f"laco {' '.join(words[:2] if words[0] == 'store' else words[:1])}"] += 1
        if done.returncode:
            self.wrong.append(f"laco {words[0]}: {(done.stdout + done.stderr).strip()}")
            return {}
        return json.loads(done.stdout)

    def submit(self) -> str:
        """A job of its own through the command line."""
        number = next(self.numbers)
        place = self.folder.parent / f"recipe-{number}.json"
        place.write_text(MODEL.then(Drop(layers=(number,))).model_dump_json())
        job = self.laco("submit", str(place)).get("id", "")
        self.note(job)
        return job

    def note(self, job: str) -> None:
        """Write down that a job was promised."""
        if job:
            with self.book.open("a") as book:
                print("job", job, file=book)

    def submits(self) -> None:
        self.submit()

    def cancels(self) -> None:
        job = self.submit()
        if job:
            self.laco("cancel", job)
            self.cancelled.append(job)

    def looks(self) -> None:
        self.laco("runs")
        self.laco("store", "prune")
        self.laco("jobs")

    def tidies(self) -> None:
        self.laco("store", "rebuild")
        self.laco("store", "verify")
        self.submit()

    def browses(self, port: int) -> None:
        """One session: page after page, a while on each; jobs that were cancelled tried again."""
        visitor = Visitor(port)
        for page in itertools.cycle(PAGES):
            if time.monotonic() > self.until:
                break
            visitor.open(page)
            self.done["pages"] += 1
            self.done["polls"] += len(visitor.polls(min(self.until, time.monotonic() + 1)))
            if page == "jobs" and self.cancelled:
                visitor.open(page, job=self.cancelled.pop())
                if "Retry" in visitor.buttons:
                    visitor.press("Retry")
                    self.done["retries"] += 1
        visitor.close()

    def repeat(self, act: Callable[[], None]) -> None:
        """Do it again and again; what goes wrong is told at the end."""
        try:
            while time.monotonic() < self.until:
                act()
        except Exception as error:
            self.wrong.append(f"{act}: {type(error).__name__}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="15 seconds instead of a minute")
    seconds = 15.0 if parser.parse_args().quick else 60.0
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder, book = Path(place) / "store", Path(place) / "book"
        book.touch()
        os.environ |= {"LACO_ENGINE": "tests.stand_in", "LACO_SLOTS": "2"}
        store = RunStore(folder)
        stack.callback(store.close)
        store.add_model(MODEL.key, MODEL)
        ports = [free_port(), free_port()]
        for port in ports:
            served(stack, port, str(folder))
        crowd = Crowd(folder, book, time.monotonic() + seconds)
        acts = [crowd.submits, crowd.cancels, crowd.looks, crowd.tidies]
        acts += [lambda port=port: crowd.browses(port) for port in ports for _ in range(3)]
        threads = [threading.Thread(target=crowd.repeat, args=(act,)) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lost = crowd.wrong + unfinished(store, [book], 120) + unkept(store) + store.verify()
        jobs = Counter(row["state"] for row in Queue(store).rows())
    print(", ".join(f"{count} {what}" for what, count in sorted(crowd.done.items())))
    print("jobs:", ", ".join(f"{count} {state}" for state, count in sorted(jobs.items())))
    for words in lost[:20]:
        print(words)
    print(f"crowd {len(lost)}")


def unkept(store: RunStore) -> list[str]:
    """The jobs that are done and whose artifact or metric is not there."""
    wrong = []
    for row in Queue(store).rows():
        recipe = Recipe.model_validate(json.loads(row["request"])["recipe"])
        there = store.artifact(recipe.key) is not None and store.metrics(recipe.key, Footprint())
        if row["state"] == "done" and not there:
            wrong.append(f"what job {row['id']} made is not there")
    return wrong


if __name__ == "__main__":
    main()
