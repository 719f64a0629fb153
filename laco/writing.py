"""What a model writes after a prompt, token by token, with what else it might have written.

The likeliest token follows each time: what two models write unlike is then the models' doing, not
that of dice. It does not know who reads, or where models are kept. Next: `warmed.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from laco.errors import RecipeError
from laco.evaluate.greedy import check_positions, end_tokens, greedily

if TYPE_CHECKING:
    from torch import Tensor

    from laco.models import LoadedModel

TOP = 10  # tokens shown of each distribution


@dataclass(frozen=True)
class Piece:
    """One token further: the whole text so far, without the prompt, and how this token was chosen.

    `top` has the likeliest tokens as text, each with its probability (0 to 1), the likeliest first;
    empty where logits were not finite. `end` is empty, or says why nothing follows: the model ended
    its text (`its own`), there are as many tokens as asked for (`length`), or `not finite`.
    """

    text: str
    top: tuple[tuple[str, float], ...]
    end: str


def write(lm: LoadedModel, prompt: str, most: int) -> Iterator[Piece]:
    """The pieces of at most `most` tokens after `prompt`, as they are computed.

    Raises `RecipeError` for a prompt that is no token, or too long for the model's positions.
    """
    ids = lm.tokenizer(prompt, return_tensors="pt")["input_ids"]
    if ids.shape[1] == 0:
        raise RecipeError("The tokenizer makes no token of this prompt; write some words.")
    check_positions(lm.layers, ids.shape[1], most)
    ends = end_tokens(lm)
    tokens: list[int] = []
    text = ""
    for count, (scores, token) in enumerate(greedily(lm, ids, most, ends), 1):
        if token is None:
            yield Piece(text, (), "not finite")
            return
        end = "its own" if token in ends else "length" if count == most else ""
        if token not in ends:
            tokens.append(token)
            text = _after(lm.tokenizer, ids[0].tolist(), tokens)
        # Half a character shows as U+FFFD; the token that completes it comes next, or never.
        shown = text if end else text.rstrip("\ufffd")
        yield Piece(shown, likeliest(scores, lm.tokenizer), end)


def likeliest(scores: Tensor, tokenizer: Any) -> tuple[tuple[str, float], ...]:
    """The `TOP` likeliest tokens by logits [vocabulary], as text, with their probabilities."""
    found = scores.float().softmax(-1).topk(min(TOP, len(scores)))
    pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
    return tuple((_shown(tokenizer, token), probability) for token, probability in pairs)


def _after(tokenizer: Any, prompt: list[int], tokens: list[int]) -> str:
    """The text of `tokens`, with the space that a tokenizer drops at the start of a text."""
    before, whole, alone = (
        tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for ids in (prompt, prompt + tokens, tokens)
    )
    return whole[len(before) :] if whole.startswith(before) else alone


def _shown(tokenizer: Any, token: int) -> str:
    """A token as text; as the vocabulary spells it where it is a part of a character."""
    text = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    if text and "\ufffd" not in text:
        return text
    return str(tokenizer.convert_ids_to_tokens(token))
