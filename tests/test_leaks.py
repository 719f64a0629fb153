"""The leak guard against plain search for one list of words inside another."""

import random
import re
import tracemalloc

import pytest

from laco import leaks
from laco.errors import RecipeError
from laco.leaks import leaked


def words(text: str) -> list[str]:
    return re.sub(r"[\W_]+", " ", text.lower()).split()


def has(text: list[str], run: list[str]) -> bool:
    return any(text[at : at + len(run)] == run for at in range(len(text) - len(run) + 1))


def plain(calibration: list[str], items: list[str], n: int) -> list[bool]:
    """Every run of every item, looked for in every text."""
    found = []
    for item in map(words, items):
        length = min(len(item), n)
        runs = [item[at : at + length] for at in range(len(item) - length + 1)]
        long_enough = len(item) >= min(5, n)
        found.append(long_enough and any(has(words(text), r) for text in calibration for r in runs))
    return found


def babble(generator: random.Random, length: int, vocabulary: int) -> str:
    marks = ["", ",", ".", " -", "_", "\n"]
    return " ".join(
        generator.choice(["w{}", "W{}"]).format(generator.randrange(vocabulary))
        + generator.choice(marks)
        for _ in range(length)
    )


@pytest.mark.parametrize("n", [1, 3, 5, 6, 13])
@pytest.mark.parametrize("chunk", [7, 64, leaks.CHUNK])
def test_leaks_are_those_that_plain_search_finds(n, chunk, monkeypatch):
    monkeypatch.setattr(leaks, "CHUNK", chunk)
    generator = random.Random(n)
    vocabulary = {1: 5000, 3: 12, 5: 4, 6: 3, 13: 2}[n]  # so that some items leak and some do not
    calibration = [babble(generator, generator.randrange(0, 99), vocabulary) for _ in range(12)]
    items = [babble(generator, generator.randrange(0, 24), vocabulary + 1) for _ in range(120)]
    for index in range(0, len(items), 4):  # and some hold a piece of the text
        source = words(generator.choice(calibration))
        at = generator.randrange(0, max(1, len(source)))
        items[index] = f"Zebra {' '.join(source[at : at + generator.randrange(3, 40)])}, yes!"
    expected = plain(calibration, items, n)
    assert leaked(calibration, items, n) == expected
    assert 10 < sum(expected) < 110


SENTENCE = "The quick brown fox jumps over the lazy dog while seven old cats look on in silence"


def test_case_and_punctuation_do_not_hide_a_run():
    item = "Say: THE QUICK, brown fox -- jumps over the 'lazy' dog while seven_old\ncats look on!"
    assert leaked([f"Before. {SENTENCE}. After."], [item]) == [True]


def test_a_run_of_twelve_words_is_not_enough_in_a_longer_item():
    twelve = " ".join(SENTENCE.split()[:12])
    assert leaked([SENTENCE], [f"{twelve} and then it rained"]) == [False]


def test_a_short_item_leaks_as_a_whole():
    assert leaked([SENTENCE], ["Fox jumps over the lazy?", "the fox jumps over the"]) == [
        True,
        False,
    ]


def test_an_item_of_four_words_never_leaks():
    assert leaked([SENTENCE], ["fox jumps over the", ""]) == [False, False]


def test_a_run_does_not_go_on_in_the_next_text():
    half = len(SENTENCE) // 2
    cut = SENTENCE.index(" ", half)
    assert leaked([SENTENCE[:cut], SENTENCE[cut:]], [SENTENCE]) == [False]


def test_a_run_of_two_items_makes_both_leak():
    assert leaked([SENTENCE], ["nothing", f"a {SENTENCE}", f"b {SENTENCE}"]) == [False, True, True]


def test_without_items_no_text_is_read():
    def text():
        raise AssertionError("the text was read for nothing")
        yield ""

    assert leaked(text(), []) == []
    assert leaked(text(), ["too short"]) == [False]


def test_a_long_text_is_never_held_whole(monkeypatch):
    monkeypatch.setattr(leaks, "CHUNK", 1 << 10)
    texts = (f"{'some other words and ' * 250} {number}" for number in range(200))  # 1 MB
    tracemalloc.start()
    try:
        assert leaked(texts, [SENTENCE]) == [False]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 250_000


def test_a_run_of_no_words_is_refused():
    with pytest.raises(RecipeError, match="A run of 0 words is none"):
        leaked(["text"], ["item"], n=0)
