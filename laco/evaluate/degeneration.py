"""Whether a model still writes text: eight prompts, gone on with greedily.

Perplexity rates a model on text that people wrote; one that scores passably there may, left to
itself, loop or stop. It does not judge whether what is written makes sense. Next: `greedy.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laco.evaluate.greedy import check_positions, end_tokens, greedily
from laco.evaluations import Metric
from laco.prompts import PROMPTS

if TYPE_CHECKING:
    import torch

    from laco.context import Context
    from laco.evaluations import Degeneration
    from laco.models import LoadedModel

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
    tokens: list[int] = []
    for _, token in greedily(lm, prompt, most, ends):
        if token is None:
            return tokens, False
        if token not in ends:
            tokens.append(token)
    return tokens, True
