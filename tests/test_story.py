"""What is told of a run: gathered from the store, and no prompt that people typed themselves."""

from __future__ import annotations

import json

import pytest

from laco import warm
from laco.disk import write_json
from laco.evaluations import Degeneration, Metric, Similarity
from laco.prompts import PROMPTS
from laco.recipe import Recipe
from laco.store import RunStore
from laco.story import stories
from tests.pages import prepared


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, dict[str, str]]:
    folder = tmp_path_factory.mktemp("story")
    keys = prepared.fill(folder / "store", prepared.model_folder(folder / "my-model"))
    return RunStore(folder / "store"), keys


def written(store: RunStore, name: str, recipe: Recipe, prompt: str, text: str, over: bool) -> None:
    """A text as the process that holds models leaves it."""
    folder = store.folder / "warm" / name
    folder.mkdir(parents=True)
    asked = warm.checked([recipe], prompt, 8, oom_kills=0)
    write_json(folder / warm.ASK, asked.model_dump(mode="json"))
    lines: list[dict] = [{"model": 0, "text": text, "top": [], "end": "its own"}]
    lines += [{"ended": True}] if over else []
    (folder / warm.SAID).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_steps_maps_and_walks_are_found(place):
    store, keys = place
    runs = [store.run(keys[name]) for name in ("original", "compensated", "searched")]
    found = stories(store, runs)
    original, compensated, searched = (found[run.key] for run in runs)
    assert original.similarity == store.analysis(keys["original"], Similarity())
    assert original.walk is None
    assert compensated.walk is not None
    assert len(compensated.walk) == prepared.LAYERS
    assert searched.steps[0]["report"]["removed"] == [13, 14, 21]
    assert compensated.similarity is None


def test_only_texts_after_the_ready_prompts_are_told(place):
    store, keys = place
    run = store.run(keys["pruned"])
    written(store, "0123456789ab", run.recipe, PROMPTS[0], " it was.", over=True)
    written(store, "1123456789ab", run.recipe, "My own secret", " is safe.", over=True)
    written(store, "2123456789ab", run.recipe, PROMPTS[1], " half a", over=False)
    (store.folder / "warm" / "3123456789ab").mkdir()
    (store.folder / "warm" / "3123456789ab" / warm.SAID).write_text("")
    found = stories(store, [run])[run.key]
    assert dict(found.texts) == {PROMPTS[0]: " it was."}


def test_texts_of_the_check_for_degenerate_text_are_told(place):
    store, keys = place
    details = {"prompts": [{"prompt": PROMPTS[2], "text": "had left."}]}
    metric = Metric("degenerate", 0.0, "share", "lower", details=details)
    store.add_metrics(keys["tuned"], Degeneration(), [metric])
    run = store.run(keys["tuned"])
    assert dict(stories(store, [run])[run.key].texts) == {PROMPTS[2]: "had left."}
