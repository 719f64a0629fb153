"""What a model writes token by token, and where the texts of several first differ."""

import itertools

import pytest
import torch

from laco import writing
from laco.continued import Text, Token, difference, start_of, text_of, token_at
from laco.errors import RecipeError
from laco.writing import TOP, write
from tests import tiny

PROMPT = "the inner ring"


@pytest.fixture(scope="module")
def lm():
    return tiny.loaded("llama")


def generated(lm, most: int) -> list[int]:
    """What transformers itself writes, without the prompt."""
    ids = lm.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    found = lm.model.generate(ids, max_new_tokens=most, do_sample=False, pad_token_id=1)
    return found[0, ids.shape[1] :].tolist()


def test_text_is_what_transformers_writes(lm):
    *_, last = write(lm, PROMPT, 12)
    assert last.text == lm.tokenizer.decode(generated(lm, 12))
    assert last.end == "length"


def test_text_comes_in_pieces_that_grow(lm):
    texts = [piece.text for piece in write(lm, PROMPT, 12)]
    assert len(texts) == 12
    assert all(later.startswith(text) for text, later in itertools.pairwise(texts))


def test_probabilities_are_those_of_the_whole_model(lm):
    ids = lm.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    for piece, token in zip(write(lm, PROMPT, 3), generated(lm, 3), strict=True):
        shares = lm.model(ids).logits[0, -1].softmax(-1)
        assert len(piece.top) == TOP
        assert [share for _, share in piece.top] == pytest.approx(
            shares.sort(descending=True).values[:TOP].tolist(), rel=1e-4
        )
        assert piece.top[0][1] == pytest.approx(float(shares[token]), rel=1e-4)
        ids = torch.cat([ids, torch.tensor([[token]])], dim=1)


def test_text_ends_where_the_model_ends_it():
    lm = tiny.loaded("llama")
    first, second = generated(lm, 2)
    assert first != second
    lm.model.generation_config.eos_token_id = [second]
    *_, last = write(lm, PROMPT, 12)
    assert last.text == lm.tokenizer.decode([first])
    assert last.end == "its own"


def test_logits_that_are_not_finite_end_a_text():
    lm = tiny.loaded("llama")
    lm.model.get_parameter("lm_head.weight")[7] = float("nan")
    (piece,) = write(lm, PROMPT, 12)
    assert (piece.text, piece.top, piece.end) == ("", (), "not finite")


def test_half_a_character_waits_for_its_rest(lm, monkeypatch):
    scores = torch.zeros(tiny.VOCABULARY)
    halves = lm.tokenizer("né")["input_ids"]
    monkeypatch.setattr(writing, "greedily", lambda *_: iter([(scores, token) for token in halves]))
    assert [piece.text for piece in write(lm, PROMPT, 12)] == ["n", "n", "né"]


def test_space_that_a_tokenizer_drops_at_the_start_is_kept(lm):
    class Dropping:
        def decode(self, ids, **options):
            return lm.tokenizer.decode(ids, **options).removeprefix(" ")

    prompt, more = lm.tokenizer("the")["input_ids"], lm.tokenizer(" the")["input_ids"]
    assert writing._after(Dropping(), prompt, more) == " the"


def test_prompt_without_a_token_is_refused(lm):
    with pytest.raises(RecipeError, match="no token"):
        next(write(lm, "", 12))


def test_prompt_past_the_positions_is_refused(lm):
    with pytest.raises(RecipeError, match="512 positions"):
        next(write(lm, "no " * 500, 12))


# --- where texts differ --------------------------------------------------------------------------


def text(*pieces: str, end: str = "", error: str = "") -> Text:
    """A text that grew by these pieces."""
    whole = ["".join(pieces[: count + 1]) for count in range(len(pieces))]
    tokens = [Token(so_far, (("x", 1.0),), "") for so_far in whole]
    if end:
        tokens.append(Token(whole[-1] if whole else "", (("<end>", 1.0),), end))
    return Text(tuple(tokens), "", error)


@pytest.mark.parametrize(
    ("texts", "place"),
    [
        ([text("a", "b"), text("a", "c")], 1),
        ([text("a", "b"), text("a", "b")], None),
        ([text("a", "b"), text("a")], None),  # the second may yet go on as the first
        ([text("a", "b"), text("a", end="its own")], 1),
        ([text("a", "b"), text("a", end="length")], None),
        ([text(end="its own"), text("a")], 0),
        ([text("a"), Text()], None),
        ([text("a"), text("b", error="out of memory")], None),
        ([text("a", "b", "c"), text("a", "b", "d"), text("a", "x")], 1),
        ([text("a", "b", "c"), text("a"), text("a", "b", "d")], 2),
        ([text("a")], None),
    ],
)
def test_place_where_texts_first_differ(texts, place):
    assert difference(texts) == place


def test_place_is_told_by_the_token_that_brought_it():
    made, mashed = text(" to", " make", " it"), text(" to", " mash", end="its own")
    place = difference([made, mashed])
    assert place is not None
    assert place == len(" to ma")
    assert start_of(made, place) == start_of(mashed, place) == len(" to")
    assert token_at(made, place) == made.tokens[1]
    assert token_at(made, None) == made.tokens[0]


def test_end_of_a_text_is_a_token_too():
    long, short = text("a", "b"), text("a", end="its own")
    assert start_of(short, 1) == 1
    assert token_at(short, 1) == short.tokens[-1]
    assert start_of(text("a"), 1) is None
    assert token_at(text("a"), 1) is None
    assert token_at(Text(), None) is None
    assert start_of(long, 1) == 1


def test_text_is_read_from_the_lines_of_its_model():
    lines = [
        {"model": 0, "doing": "Loading"},
        {"model": 1, "text": "x", "top": [["x", 0.5]], "end": ""},
        {"model": 0, "text": "y", "top": [], "end": "not finite"},
        {"model": 1, "error": "gone"},
        {"ended": True, "error": ""},
    ]
    assert text_of(lines, 0) == Text((Token("y", (), "not finite"),), "Loading", "")
    assert text_of(lines, 1) == Text((Token("x", (("x", 0.5),), ""),), "", "gone")
