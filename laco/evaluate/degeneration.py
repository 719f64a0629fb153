"""Whether a model still writes text: eight prompts, gone on with greedily.

Perplexity rates a model on text that people wrote; one that scores passably there may, left to
itself, loop or stop. It does not judge whether what is written makes sense. Next: `greedy.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from laco.evaluate.greedy import Reader, check_positions
from laco.evaluations import Metric

if TYPE_CHECKING:
    from laco.context import Context
    from laco.evaluations import Degeneration
    from laco.models import LoadedModel

PROMPTS = (
    "The history of the town begins with a small harbour, where",
    "To bake a loaf of bread at home, you first",
    "When she opened the letter, she learned that her brother",
    "The heart pumps blood through the body, and the lungs",
    "Last night the council met to discuss the new bridge. The mayor said",
    "There are many reasons why people learn to play an instrument. One of them",
    "During the winter, birds that stay in the north",
    "The train was late again, so the two travellers",
)

GRAM = 4  # tokens; shorter runs come back in sound text too ("one of the")
# Of what SmolLM2-135M writes in 48 tokens, 0.13 of the four-grams are copies at most, and of a text
# caught in a loop nearly all. A half lies between: a text that goes round from its middle on.
MOST_REPETITION = 0.5


def degeneration(lm: LoadedModel, spec: Degeneration, context: Context) -> tuple[Metric, ...]:
    """The share of `PROMPTS` after which the model writes nothing, loops, or gives no number.

    The likeliest token follows, `spec.tokens` times or up to the EOS token. `empty`: there is
    nothing but white space. `repetition`: the share of four-grams of tokens that stood before in
    the same text; above a half it is a loop. `finite`: so were the logits at each step. Where they
    are not, the text ends there and counts; nothing is raised, and `details` names the prompt.
    Raises `RecipeError` before any work when the model has too few positions.
    """
    prompts = [lm.tokenizer(prompt, return_tensors="pt")["input_ids"] for prompt in PROMPTS]
    check_positions(lm.layers, max(ids.shape[1] for ids in prompts), spec.tokens)
    ends = end_tokens(lm)
    found: list[dict[str, Any]] = []
    for place, (prompt, ids) in enumerate(zip(PROMPTS, prompts, strict=True)):
        context.step(place / len(PROMPTS), f"Prompt {place + 1} of {len(PROMPTS)}")
        tokens, finite = written(lm, ids, spec.tokens, ends)
        text = lm.tokenizer.decode(tokens, skip_special_tokens=True)
        found.append({"prompt": prompt, "text": text, **judged(tokens, text, finite)})
    return (
        Metric(
            name="degenerate",
            value=sum(one["degenerate"] for one in found) / len(found),
            unit="share",
            better="lower",
            details={"tokens": spec.tokens, "most_repetition": MOST_REPETITION, "prompts": found},
        ),
    )


def judged(tokens: list[int], text: str, finite: bool) -> dict[str, Any]:
    """What is said of one text: is it degenerate, and by which of the three signs."""
    repeated = repetition(tokens)
    empty = finite and not text.strip()
    return {
        "tokens": len(tokens),
        "repetition": repeated,
        "empty": empty,
        "finite": finite,
        "degenerate": empty or not finite or repeated > MOST_REPETITION,
    }


def repetition(tokens: list[int]) -> float:
    """The share of `GRAM`-grams that stood before in the same tokens; 0 where there are none."""
    grams = [tuple(tokens[at : at + GRAM]) for at in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def written(
    lm: LoadedModel, prompt: torch.Tensor, most: int, ends: set[int]
) -> tuple[list[int], bool]:
    """The likeliest tokens after `prompt` [1, seq], up to one of `ends`; and if logits were finite.

    The token of `ends` is left out.
    """
    reader = Reader(lm.layers)
    tokens: list[int] = []
    following = prompt
    while len(tokens) < most:
        scores = reader.feed(following)[0]  # [vocabulary]
        if not bool(scores.isfinite().all()):
            return tokens, False
        token = int(scores.argmax())
        if token in ends:
            break
        tokens.append(token)
        following = torch.tensor([[token]])
    return tokens, True


def end_tokens(lm: LoadedModel) -> set[int]:
    """The tokens that end a text: the tokenizer's EOS, and what the model's own config adds."""
    configured = lm.model.generation_config
    more = None if configured is None else configured.eos_token_id
    every = [lm.tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])]
    return {token for token in every if token is not None}
