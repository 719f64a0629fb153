"""Texts asked of the process that keeps models in memory: the process, what it holds, its ends."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from laco import devices, engine, locks, models, warm, warmed
from laco.access import Person
from laco.cli import app
from laco.cli.terminal import speak
from laco.context import Context
from laco.disk import read_json
from laco.errors import AccessError, JobError, RecipeError
from laco.evaluations import Request
from laco.queue import Queue
from laco.recipe import Drop, ModelRef, Recipe
from laco.store import RunStore
from laco.warmed import Shelf
from tests import tiny

PROMPT = "the inner ring"
PATIENCE = 120.0  # seconds that a loaded machine may take to import torch


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> tuple[RunStore, list[Recipe]]:
    """A store, and recipes of a model, of a result made of it, and of another model."""
    folder = tmp_path_factory.mktemp("warm")
    store = RunStore(folder / "store")
    recipes = []
    for name in ("llama", "qwen2"):
        place = tiny.save(tiny.ARCHITECTURES[name](), folder / name)
        recipes.append(Recipe(model=models.pin(ModelRef(path=str(place)), store.folder)))
    dropped = recipes[0].then(Drop(layers=(2, 3)))
    engine.run(Request(recipe=dropped), store, Context())
    return store, [recipes[0], dropped, recipes[1]]


@pytest.fixture
def recipes(filled) -> list[Recipe]:
    return filled[1]


@pytest.fixture
def shelf(filled, monkeypatch) -> Shelf:
    return Shelf(filled[0], "cpu")


def never() -> bool:
    return False


def answered(shelf: Shelf, recipes: list[Recipe], tokens: int = 4) -> list[dict]:
    """The lines that a shelf says to a prompt."""
    lines: list[dict] = []
    shelf.answer(warm.checked(recipes, PROMPT, tokens), lines.append, never)
    return lines


def writers(lines: list[dict]) -> list[int]:
    """Which model each token is of, in the order in which they came."""
    return [line["model"] for line in lines if "text" in line]


def errors(lines: list[dict]) -> dict[int, str]:
    return {line["model"]: line["error"] for line in lines if "error" in line}


# --- what is in memory ---------------------------------------------------------------------------


def test_two_models_write_turn_by_turn(shelf, recipes):
    assert writers(answered(shelf, recipes[:2])) == [0, 1] * 4


def test_models_stay_in_memory_for_the_next_prompt(shelf, recipes, monkeypatch):
    before = answered(shelf, recipes[:2])
    monkeypatch.setattr(models, "load_folder", None)
    again = answered(shelf, recipes[:2])
    assert [line for line in again if "text" in line] == [line for line in before if "text" in line]


def test_third_model_takes_the_place_of_the_one_not_used_for_longest(shelf, recipes):
    answered(shelf, recipes[:2])
    answered(shelf, recipes[:1])
    answered(shelf, recipes[2:])
    assert list(shelf.held) == [recipes[0].key, recipes[2].key]


def test_of_three_models_those_in_memory_write_first(shelf, recipes):
    answered(shelf, recipes[1:])
    assert writers(answered(shelf, recipes, 2)) == [1, 2, 1, 2, 0, 0]
    assert len(shelf.held) == 2


def test_stop_ends_all_texts(shelf, recipes):
    lines: list[dict] = []
    asked = warm.checked(recipes, PROMPT, 50)
    shelf.answer(asked, lines.append, lambda: len(writers(lines)) >= 4)
    assert len(writers(lines)) in (4, 5)


def test_model_that_is_gone_is_a_sentence_and_the_other_writes(shelf, recipes):
    gone = recipes[0].then(Drop(layers=(1,)))
    lines = answered(shelf, [gone, recipes[2]])
    assert "no longer on disk; run its recipe again" in errors(lines)[0]
    assert writers(lines) == [1] * 4


def test_result_that_was_removed_is_gone_though_it_was_in_memory(shelf, recipes, monkeypatch):
    answered(shelf, recipes[1:2])
    monkeypatch.setattr(shelf.store, "artifact", lambda _key: None)
    assert "no longer on disk" in errors(answered(shelf, recipes[1:2]))[0]


def test_two_models_that_do_not_fit_together_write_one_after_the_other(shelf, recipes, monkeypatch):
    monkeypatch.setattr(shelf, "_free", lambda: 0 if shelf.held else 1 << 40)
    lines = answered(shelf, recipes[:2], 2)
    assert writers(lines) == [0, 0, 1, 1]
    assert errors(lines) == {}


def test_model_that_does_not_fit_alone_is_a_sentence_with_the_numbers(shelf, recipes, monkeypatch):
    monkeypatch.setattr(shelf, "_free", lambda: 0)
    lines = answered(shelf, recipes[:2])
    assert set(errors(lines)) == {0, 1}
    assert "no memory for llama" in errors(lines)[0]
    assert "0.0 GB are free" in errors(lines)[0]


def test_memory_that_ends_while_loading_makes_room_and_then_is_a_sentence(
    shelf, recipes, monkeypatch
):
    answered(shelf, recipes[:2])
    held: list[int] = []

    def load(*_):
        held.append(len(shelf.held))
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(models, "load_folder", load)
    lines = answered(shelf, recipes[2:])
    assert held == [1, 0]
    assert "no memory for qwen2" in errors(lines)[0]


def test_memory_that_ends_inside_transformers_is_not_blamed_on_the_files(
    shelf, recipes, monkeypatch
):
    def load(*_, **__):
        raise MemoryError

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", load)
    assert "no memory for llama" in errors(answered(shelf, recipes[:1]))[0]


def test_memory_that_ends_while_writing_is_a_sentence_and_the_other_goes_on(
    shelf, recipes, monkeypatch
):
    write = shelf._write

    def failing(lm, prompt, most):
        yield next(write(lm, prompt, most))
        if len(lm.layers) == 4:
            raise MemoryError
        yield from write(lm, prompt, most)

    monkeypatch.setattr(shelf, "_write", failing)
    lines = answered(shelf, [recipes[1], recipes[2]])
    assert errors(lines)[0].startswith("Out of memory while writing; take fewer")
    assert writers(lines).count(1) > 1


def test_prompt_that_is_too_long_is_a_sentence(shelf, recipes):
    asked = warm.checked(recipes[:1], "no " * 600, 4)
    lines: list[dict] = []
    shelf.answer(asked, lines.append, never)
    assert "512 positions" in errors(lines)[0]


# --- from a terminal -----------------------------------------------------------------------------


def typed(filled, capsys, *arguments: str) -> tuple[int, str, str]:
    """The status, the answer and the notes of `laco try`."""
    status = speak(app, ["try", *arguments, "--store", str(filled[0].folder), "--device", "cpu"])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_command_prints_each_text_and_marks_where_they_part(filled, capsys):
    first, second = filled[1][0].model.path, filled[1][1].key[:11]
    arguments = (first, second, "--prompt", PROMPT, "--tokens", "4")
    status, out, _ = typed(filled, capsys, *arguments, "--json")
    found = json.loads(out)
    assert status == 0
    assert [len(model["next"]) for model in found["models"]] == [10, 10]
    one, other = (model["text"] for model in found["models"])
    place = found["first_difference"]
    assert one[:place] == other[:place]
    assert one[place : place + 1] != other[place : place + 1]
    _, out, _ = typed(filled, capsys, *arguments)
    assert out.startswith(PROMPT)
    assert out.count("▶") == 2


def test_command_with_a_model_that_fails_says_so_and_has_status_one(filled, capsys, monkeypatch):
    gone = filled[1][0].then(Drop(layers=(1,)))
    monkeypatch.setattr("laco.cli.arguments.read_model", lambda *_: gone)
    status, out, err = typed(filled, capsys, "k1-gone", "--prompt", PROMPT)
    assert status == 1
    assert "no longer on disk" in out
    assert "no longer on disk" in err


@pytest.mark.parametrize("tokens", ["0", "100000"])
def test_command_with_bad_numbers_is_one_sentence(tokens, filled, capsys):
    status, out, err = typed(filled, capsys, "org/model", "--tokens", tokens)
    assert (status, out) == (1, "")
    assert "tokens" in err
    assert err.count("\n") == 1


# --- asking --------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path) -> RunStore:
    return RunStore(tmp_path / "store")


@pytest.fixture
def unserved(monkeypatch) -> list[bool]:
    """No process is started; one entry for each that would have been."""
    started: list[bool] = []
    monkeypatch.setattr(warm, "_start", lambda *_: started.append(True))
    return started


@pytest.fixture
def served(unserved, monkeypatch) -> None:
    """As if a process served, which says nothing by itself."""
    monkeypatch.setattr(warm, "_is_served", lambda _folder: True)


UNTOUCHED = Recipe(model=ModelRef(path="org/model"))
WANTED = warm.checked([UNTOUCHED], PROMPT, 8)


@pytest.mark.parametrize(
    ("recipes", "prompt", "tokens", "words"),
    [
        ([UNTOUCHED], " \n", 8, "prompt is empty"),
        ([UNTOUCHED], "a\0b", 8, "prompt"),
        ([UNTOUCHED], "a" * 5000, 8, "prompt"),
        ([UNTOUCHED], PROMPT, 0, "tokens"),
        ([UNTOUCHED], PROMPT, 10_000, "tokens"),
        ([UNTOUCHED] * 4, PROMPT, 8, "recipes"),
        ([], PROMPT, 8, "recipes"),
    ],
)
def test_bad_prompt_is_refused_before_any_work(recipes, prompt, tokens, words):
    with pytest.raises(RecipeError, match=words):
        warm.checked(recipes, prompt, tokens)


def test_viewer_asks_for_nothing_and_stops_nothing(store, served):
    viewer = Person("vera@example.org", "viewer")
    with pytest.raises(AccessError):
        warm.ask(store, WANTED, viewer)
    assert not (store.folder / "warm").exists()
    name = warm.ask(store, WANTED)
    with pytest.raises(AccessError):
        warm.stop(store, name, viewer)


def test_only_the_owner_can_enter_the_folder(store, served):
    name = warm.ask(store, WANTED)
    for folder in (store.folder / "warm", store.folder / "warm" / name):
        assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["../../etc", "", "f" * 12, "f" * 100, "\0"])
def test_id_of_nothing_is_one_sentence(name, store, served):
    warm.ask(store, WANTED)
    with pytest.raises(JobError, match="no longer kept"):
        warm.said(store, name)
    warm.stop(store, name)


def test_prompt_waits_its_turn(store, served):
    first, second = warm.ask(store, WANTED), warm.ask(store, WANTED)
    folder = store.folder / "warm"
    assert [path.name for path in warm.pending(folder)] == [first, second]
    warm.say(folder / first, {"model": 0, "doing": "Loading"})
    assert [path.name for path in warm.pending(folder)] == [second]
    assert warm.said(store, second).waiting


def test_text_is_seen_as_it_grows_by_whoever_knows_its_id(store, served):
    name = warm.ask(store, WANTED)
    folder = store.folder / "warm" / name
    warm.say(folder, {"model": 0, "text": "a", "top": [["a", 0.5]], "end": ""})
    with (folder / warm.SAID).open("a") as file:
        file.write('{"model": 0, "text": "a b"')  # a line that is being written
    said = warm.said(RunStore(store.folder), name)
    assert (said.texts[0].text, said.ended, said.ask.prompt) == ("a", False, PROMPT)


def test_process_is_started_for_the_first_prompt_alone(store, unserved, monkeypatch):
    warm.ask(store, WANTED)
    assert unserved == [True]
    monkeypatch.setattr(warm, "_is_served", lambda _folder: True)
    warm.ask(store, WANTED)
    assert unserved == [True]


def test_death_of_the_process_is_one_sentence(store, unserved):
    name = warm.ask(store, WANTED)
    warm.say(store.folder / "warm" / name, {"model": 0, "doing": "Loading the model"})
    said = warm.said(store, name)
    assert said.ended
    where = "ended early at \u201cLoading the model\u201d"
    assert (
        said.error == f"The process that holds the models {where}; ask again, and it starts anew."
    )


def test_death_for_memory_says_so(store, unserved, monkeypatch):
    name = warm.ask(store, WANTED)
    monkeypatch.setattr("laco.causes.count_oom_kills", lambda: WANTED.oom_kills + 1)
    assert "was killed for memory" in warm.said(store, name).error


def test_whoever_asks_next_tells_the_others_of_a_death(store, unserved, monkeypatch):
    first = warm.ask(store, WANTED)
    warm.ask(store, WANTED)
    monkeypatch.setattr(warm, "_is_served", lambda _folder: True)
    assert "ended early" in warm.said(store, first).error


def test_old_texts_are_forgotten(store, served, monkeypatch):
    monkeypatch.setattr(warm, "KEPT", 2)
    names = [warm.ask(store, WANTED) for _ in range(4)]
    left = {path.name for path in (store.folder / "warm").iterdir() if path.is_dir()}
    assert left == set(names[1:])


# --- the process ---------------------------------------------------------------------------------


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def serving(store: RunStore, idle_seconds: float) -> threading.Thread:
    """The process's work, in a thread of this one."""
    folder = store.folder / "warm"
    folder.mkdir(exist_ok=True)
    assert locks.take(folder / warm.LOCK)
    thread = threading.Thread(target=warmed.serve, args=(store, folder, idle_seconds))
    thread.start()
    return thread


def test_process_ends_when_nobody_asks(store):
    thread = serving(store, 0.2)
    thread.join(5)
    assert not thread.is_alive()
    locks.give_back(store.folder / "warm" / warm.LOCK)


def test_process_ends_when_the_store_is_gone(store):
    thread = serving(store, 60)
    locks.give_back(store.folder / "warm" / warm.LOCK)
    thread.join(5)
    assert not thread.is_alive()


def test_process_gives_way_to_a_job_that_waits_for_memory(filled, monkeypatch):
    store, recipes = filled
    monkeypatch.setattr(warmed, "_LOOK_SECONDS", 0.1)
    thread = serving(store, 60)
    name = warm.ask(store, warm.checked(recipes[:1], PROMPT, 2))
    until(lambda: warm.said(store, name).ended)
    queue = Queue(store)
    job = queue.add(Request(recipe=recipes[0]), "a job", 1 << 40)
    time.sleep(0.5)
    assert thread.is_alive(), "a job that waits for something else is no reason"
    assert queue.claim(1, lambda *_: "Waits for memory: 1 TB are needed") is None
    thread.join(5)
    assert not thread.is_alive()
    queue.ask_to_cancel(job)
    locks.give_back(store.folder / "warm" / warm.LOCK)


def test_prompt_that_cannot_be_answered_does_not_end_the_process(filled, monkeypatch):
    store, recipes = filled
    thread = serving(store, 1)
    monkeypatch.setattr(Shelf, "answer", lambda *_: 1 / 0)
    name = warm.ask(store, warm.checked(recipes[:1], PROMPT, 2))
    until(lambda: warm.said(store, name).ended)
    assert "ZeroDivisionError" in warm.said(store, name).error
    assert thread.is_alive()
    thread.join(5)
    locks.give_back(store.folder / "warm" / warm.LOCK)


@pytest.fixture
def main(store, monkeypatch) -> Callable[[], int]:
    """The process's main function, which leaves this process as it is."""
    monkeypatch.setattr("faulthandler.enable", lambda: None)
    monkeypatch.setattr(warmed, "offer_to_be_killed", lambda: None)
    monkeypatch.setattr(warmed, "_LOCK_TRIES", 1)
    (store.folder / "warm").mkdir()
    return lambda: warmed.main([str(store.folder), "--idle=0.1"])


def test_prompt_in_the_last_moment_is_answered(store, main, unserved, monkeypatch):
    prompts: list[list[str]] = []

    def serve(_store, folder, _idle):
        waiting = warm.pending(folder)
        prompts.append([path.name for path in waiting])
        for path in waiting:
            warm.say(path, {"ended": True, "error": ""})
        if not waiting:
            warm.ask(store, WANTED)

    monkeypatch.setattr(warmed, "serve", serve)
    assert main() == 0
    assert [len(names) for names in prompts] == [0, 1]
    assert unserved == []


def test_second_process_leaves_the_store_to_the_first(store, main, monkeypatch):
    assert locks.take(store.folder / "warm" / warm.LOCK)
    monkeypatch.setattr(warmed, "serve", None)
    assert main() == 75
    locks.give_back(store.folder / "warm" / warm.LOCK)


def test_process_on_its_own_dies_comes_back_and_ends(filled, monkeypatch):
    store, recipes = filled
    monkeypatch.setattr(devices, "slots", lambda _store: [devices.CPU])
    asked = warm.checked(recipes[:2], PROMPT, 6)
    name = warm.ask(store, asked)
    killed = read_json(store.folder / "warm" / warm.PROCESS)["pid"]
    until(lambda: warm.said(store, name).texts[0].doing)
    os.kill(killed, signal.SIGKILL)
    until(lambda: warm.said(store, name).ended)
    assert "ended early" in warm.said(store, name).error

    name = warm.ask(store, asked, idle_seconds=3)
    until(lambda: warm.said(store, name).ended)
    said = warm.said(store, name)
    assert said.error == ""
    assert [len(text.tokens) for text in said.texts] == [6, 6]
    assert all(text.end == "length" for text in said.texts)

    pid = read_json(store.folder / "warm" / warm.PROCESS)["pid"]
    assert pid != killed
    again = warm.ask(store, asked, idle_seconds=3)
    until(lambda: warm.said(store, again).ended)
    assert read_json(store.folder / "warm" / warm.PROCESS)["pid"] == pid
    assert warm.said(store, again).texts == said.texts

    until(lambda: not psutil.pid_exists(pid))
    assert not locks.is_taken(store.folder / "warm" / warm.LOCK)
    assert "nobody asked for 3 s" in warm.log(store)
