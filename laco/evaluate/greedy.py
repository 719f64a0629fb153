"""A model read and written token by token, as a program that generates text does it.

Latency, the degeneration check, the footprint and the Try it page share this. It knows neither
clocks nor what a text is worth. Next: `latency.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from laco.errors import ArchitectureError, RecipeError

if TYPE_CHECKING:
    from laco.layers import LayerStack
    from laco.models import LoadedModel


class Reader:
    """A model that remembers what it was fed, in its own KV cache."""

    def __init__(self, stack: LayerStack):
        self.stack = stack
        self.cache: Any = None
        self.fed = False
        self.cache_name = cache_name(stack.model)
        self.last_only = "logits_to_keep" in inspect.signature(stack.model.forward).parameters

    @torch.no_grad()
    def feed(self, tokens: Tensor) -> Tensor:
        """The logits after the last of `tokens` [batch, seq], which follow those fed before.

        [batch, vocabulary]. The head sees the last token alone, where the model's code can do
        that (`last_only`). Raises `ArchitectureError` for more tokens when the model kept no KV
        cache of the first.
        """
        if self.fed and self.cache is None:
            raise ArchitectureError(
                f"This {self.stack.family} model keeps no KV cache, so it cannot write token by "
                "token; leave out the evaluations that need that."
            )
        options: dict[str, Any] = {"logits_to_keep": 1} if self.last_only else {}
        if self.fed:
            options[self.cache_name] = self.cache
        device = self.stack.model.device
        output = self.stack.model(input_ids=tokens.to(device), use_cache=True, **options)
        self.cache = getattr(output, self.cache_name, None)
        self.fed = True
        return output.logits[:, -1]


def greedily(
    lm: LoadedModel, prompt: Tensor, most: int, ends: set[int]
) -> Iterator[tuple[Tensor, int | None]]:
    """The likeliest tokens after `prompt` [1, seq], each after the logits [vocabulary] that say so.

    At most `most`; a token of `ends` is the last. Where the logits are not finite there is no
    token but None, and it ends.
    """
    reader = Reader(lm.layers)
    following = prompt
    for _ in range(most):
        scores = reader.feed(following)[0]
        token = int(scores.argmax()) if bool(scores.isfinite().all()) else None
        yield scores, token
        if token is None or token in ends:
            return
        following = torch.tensor([[token]])


def end_tokens(lm: LoadedModel) -> set[int]:
    """The tokens that end a text: the tokenizer's EOS, and what the model's own config adds."""
    configured = lm.model.generation_config
    more = None if configured is None else configured.eos_token_id
    every = [lm.tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])]
    return {token for token in every if token is not None}


def cache_name(module: nn.Module) -> str:
    """What a model's code calls its KV cache, given and returned; transformers has renamed it.

    Code that comes with a model may still use the older name.
    """
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


def check_positions(stack: LayerStack, prompt: int, more: int) -> None:
    """`RecipeError` when the model has too few positions for a prompt and what follows it."""
    longest = positions(stack)
    if longest is not None and prompt + more > longest:
        raise RecipeError(
            f"A prompt of {prompt} tokens and {more} after it take more than the {longest} "
            "positions of this model; ask for fewer."
        )


def positions(stack: LayerStack) -> int | None:
    """How many tokens the model was made for; None where its config does not say."""
    return getattr(stack.config, "max_position_embeddings", None)


def random_tokens(stack: LayerStack, batch: int, length: int, seed: int = 0) -> Tensor:
    """Token ids [batch, length], drawn from the whole vocabulary, the same each time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(stack.config.vocab_size, (batch, length), generator=generator)
