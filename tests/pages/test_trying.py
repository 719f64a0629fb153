"""The Try it page: what it asks for, texts as they grow, whose they are, and what can go wrong."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from laco import warm
from laco.access import Person
from laco.errors import AccessError
from laco.prompts import PROMPTS
from laco.recipe import ModelRef, Recipe
from laco.ui import person, session, trying
from tests.pages.test_pages import click, words

EVIL = "![x](http://evil.example/x.png) <img src=x> :red[$x$]"


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a process served, which says nothing by itself."""
    monkeypatch.setattr(warm, "_is_served", lambda _folder: True)


def asked() -> list[Path]:
    """The folders of what was asked so far, the oldest first."""
    return warm.pending(session.store().folder / "warm")


def say_tokens(folder: Path, model: int, *pieces: str, end: str = "") -> None:
    """Have a model write these pieces; each was likely by 0.6, after another by 0.3."""
    text = ""
    for piece in pieces:
        text += piece
        top = [[piece, 0.6], ["\n ", 0.3]]
        warm.say(folder, {"model": model, "text": text, "top": top, "end": ""})
    if end:
        warm.say(folder, {"model": model, "text": text, "top": [["</s>", 0.9]], "end": end})


def written(open_page, *texts: tuple[str, ...], over: bool = True) -> AppTest:
    """The page after Write, and these texts by the models that it takes unasked."""
    at = click(open_page("try_it"), "Write")
    (folder,) = asked()
    for model, pieces in enumerate(texts):
        say_tokens(folder, model, *pieces, end="length" if over else "")
    if over:
        warm.say(folder, {"ended": True, "error": ""})
    at.run()
    assert not at.exception
    return at


def shown(at: AppTest) -> list[str]:
    """The plain text on a page; Streamlit strips it at both ends."""
    return [element.value for element in at.text if element not in at.sidebar.text]


def test_original_and_the_newest_result_are_asked_unasked(open_page, keys):
    click(open_page("try_it"), "Write")
    (folder,) = asked()
    said = warm.said(session.store(), folder.name)
    assert said.ask.recipes[0].key == keys["original"]
    assert len(said.ask.recipes) == 2
    assert (said.ask.prompt, said.ask.tokens) == (PROMPTS[0], 48)


def test_ready_prompt_is_one_click_and_can_be_changed(open_page, keys):
    at = open_page("try_it")
    at.pills[0].set_value(PROMPTS[3]).run()
    assert at.text_area[0].value == PROMPTS[3]
    at.text_area[0].set_value("Mine").run()
    assert at.text_area[0].value == "Mine"
    click(at, "Write")
    assert warm.said(session.store(), asked()[0].name).ask.prompt == "Mine"


def test_address_names_models_prompt_and_length(open_page, keys):
    runs = [keys["original"][:11], keys["pruned"][:11], keys["dropped"][:11], keys["searched"][:11]]
    click(open_page("try_it", runs=runs, prompt="Once", tokens="16"), "Write")
    ask = warm.said(session.store(), asked()[0].name).ask
    assert [recipe.key[:11] for recipe in ask.recipes] == runs[:3]
    assert (ask.prompt, ask.tokens) == ("Once", 16)


def test_command_does_the_same_from_a_terminal(open_page, keys):
    at = open_page("try_it", runs=[keys["original"], keys["pruned"]], prompt="It's")
    command = f"laco try {keys['original'][:11]} {keys['pruned'][:11]} --prompt"
    assert at.code[0].value == command + """ 'It'"'"'s' --tokens 48"""


def test_texts_are_shown_while_they_grow(open_page, keys):
    at = written(open_page, (" a", " b"), (" a",), over=False)
    assert shown(at) == [PROMPTS[0], "a b", "a"]
    assert "writing, 2 of 48 tokens" in words(at)
    assert "they differ" not in words(at)
    assert not next(button for button in at.button if button.label == "Stop").disabled


def test_mark_stands_in_each_text_where_they_first_differ(open_page, keys):
    at = written(open_page, (" to", " make", " it"), (" to", " mash", " it"))
    assert shown(at) == [PROMPTS[0], "to", "make it", "to", "mash it"]
    assert words(at).count("From here they differ") == 2


def test_likely_tokens_are_told_after_the_prompt_and_at_the_difference(open_page, keys):
    at = written(open_page, (" to", " make"), (" to", " mash"))
    tables = [frame.value for frame in at.dataframe]
    assert [list(table["token"]) for table in tables] == [["␣to", "⏎␣"]] * 2
    assert list(tables[0]["probability"]) == pytest.approx([60.0, 30.0])
    at.segmented_control[0].set_value("Where they first differ").run()
    assert [frame.value["token"][0] for frame in at.dataframe] == ["␣make", "␣mash"]


def test_same_texts_are_said_to_be_the_same(open_page, keys):
    at = written(open_page, (" to",), (" to",))
    assert at.success[0].value == "The texts are the same."
    assert not at.segmented_control


def test_text_of_a_model_is_never_markup(open_page, keys):
    at = written(open_page, (EVIL, " a", EVIL), (EVIL, " b"))
    assert shown(at)[1:3] == [EVIL, f"a{EVIL}"]
    assert "evil" not in words(at)


def test_text_is_found_again_by_its_address(open_page, keys):
    name = written(open_page, (" a",), (" b",)).query_params["text"]
    assert "a" in shown(open_page("try_it", text=name))


def test_what_is_no_longer_kept_is_a_sentence(open_page, keys):
    assert "no longer kept" in open_page("try_it", text="f" * 12).info[0].value


def test_stop_asks_for_no_more(open_page, keys):
    at = written(open_page, (" a",), (" b",), over=False)
    click(at, "Stop")
    (folder,) = (session.store().folder / "warm").glob("*/stop")
    warm.say(folder.parent, {"ended": True, "error": ""})
    at.run()
    assert "stopped after 1 token" in words(at)


def test_another_prompt_stops_the_one_before(open_page, keys):
    click(click(open_page("try_it"), "Write"), "Write")
    first, second = asked()
    assert (first / warm.STOP).exists()
    assert not (second / warm.STOP).exists()


def test_model_that_failed_is_a_sentence_beside_the_others(open_page, keys):
    at = click(open_page("try_it"), "Write")
    (folder,) = asked()
    warm.say(folder, {"model": 0, "error": "There is no memory for it."})
    say_tokens(folder, 1, " a", end="length")
    warm.say(folder, {"ended": True, "error": ""})
    at.run()
    assert [error.value for error in at.error] == ["There is no memory for it."]
    assert "a" in shown(at)


def test_death_of_the_process_is_a_sentence_and_write_asks_again(
    open_page, keys, monkeypatch: pytest.MonkeyPatch
):
    at = click(open_page("try_it"), "Write")
    monkeypatch.setattr(warm, "_is_served", lambda _folder: False)
    monkeypatch.setattr(warm, "_start", lambda *_: None)
    at.run()
    assert "ended early; ask again" in at.error[0].value
    click(at, "Write")
    assert len(asked()) == 1


def test_empty_prompt_is_a_sentence(open_page, keys):
    at = open_page("try_it")
    at.text_area[0].set_value(" ").run()
    click(at, "Write")
    assert "prompt is empty" in at.error[0].value


def test_no_models_nothing_to_write(open_page, keys):
    at = open_page("try_it")
    at.multiselect[0].set_value([]).run()
    assert next(button for button in at.button if button.label == "Write").disabled


def test_models_outside_of_the_roots_are_refused(keys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trying, "person", lambda: Person("rudi@example.org", "runner"))
    with pytest.raises(AccessError, match="outside of the folders"):
        trying._ask([Recipe(model=ModelRef(path="/etc"))], "Once", 8)


def test_viewer_reads_what_others_asked_and_stops_nothing(
    open_page, keys, monkeypatch: pytest.MonkeyPatch
):
    name = written(open_page, (" a",), (" b",), over=False).query_params["text"]
    viewer = Person("vera@example.org", "viewer")
    for place in (person, session, trying):
        monkeypatch.setattr(place, "person", lambda: viewer)
    at = open_page("try_it", text=name)
    assert "a" in shown(at)
    assert all(b.disabled for b in at.button if b.label in ("Write", "Stop"))
