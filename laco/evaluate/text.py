"""Running text cut into windows, and a model's predictions over them, a piece at a time.

Perplexity and divergence share this. It knows windows, strides and the BOS policy; it does not
know what is made of the predictions. Next: `perplexity.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from laco.corpora import stream
from laco.errors import CalibrationError, NumericalError, RecipeError
from laco.evaluate.greedy import positions
from laco.walk import BATCH_TOKENS, BATCH_TOKENS_ELSEWHERE, logits

if TYPE_CHECKING:
    from laco.layers import LayerStack
    from laco.models import LoadedModel

LOGIT_BYTES = {"cpu": 24 << 20}  # float32 logits at a time; malloc reuses blocks below 32 MB
LOGIT_BYTES_ELSEWHERE = 512 << 20
PIECE_BYTES = 2 << 20  # of them in one softmax: what stays in a CPU's cache


@dataclass(frozen=True)
class Text:
    """Windows of running text. In window w, tokens from position `scored_from[w]` on count."""

    tokens: Tensor  # [windows, window] int64; each row begins with BOS where `bos`
    scored_from: tuple[int, ...]
    digest: str
    bos: bool
    stride: int

    @property
    def scored(self) -> list[int]:
        """How many tokens count, by window."""
        return [self.tokens.shape[1] - start for start in self.scored_from]


def cut(
    lm: LoadedModel,
    source: str,
    window: int,
    windows: int | None,
    stride: int | None,
    bos: Literal["tokenizer", "always", "never"],
) -> Text:
    """The first `windows` windows of a source, as `lm` is to read them. Whole windows only.

    `window` counts BOS, so with BOS a window holds one token of text fewer, and all of these
    count; without it the first token of the text has nothing before it and doesn't count. Windows
    start `stride` tokens of text apart (unset: they lie end to end); where they overlap, each
    token counts once, in the first window that holds it.

    Raises `CalibrationError` when the text is shorter than one window, `RecipeError` when window,
    stride, model and BOS policy don't fit together.
    """
    prefix = _prefix(lm.tokenizer, bos)
    room = window - len(prefix)  # tokens of text in a window
    if stride is None:
        stride = room
    if stride > room:
        raise RecipeError(
            f"A stride of {stride} would pass over text, as a window holds {room} tokens of it; "
            f"use at most {room}."
        )
    longest = positions(lm.layers)
    if longest is not None and window > longest:
        raise RecipeError(
            f"A window of {window} tokens is longer than the {longest} positions of this model; "
            "use a shorter one."
        )
    limit = None if windows is None else room + (windows - 1) * stride
    ids, digest = stream(source, lm.tokenizer, limit)
    if len(ids) < room:
        raise CalibrationError(
            f"{source} has {len(ids)} tokens and one window takes {room}; "
            "choose a shorter window or a longer text."
        )
    rows = ids.unfold(0, room, stride)[:windows]  # [windows, room]
    begin = torch.tensor(prefix, dtype=ids.dtype).expand(len(rows), -1)
    first = max(len(prefix), 1)
    later = max(window - stride, first)
    return Text(
        tokens=torch.cat([begin, rows], dim=1),
        scored_from=(first, *[later] * (len(rows) - 1)),
        digest=digest,
        bos=bool(prefix),
        stride=stride,
    )


def batches(lm: LoadedModel, text: Text) -> Iterator[range]:
    """Windows that run together. It depends on device and window alone, so results repeat."""
    usual = BATCH_TOKENS.get(lm.model.device.type, BATCH_TOKENS_ELSEWHERE)
    size = lm.rows(usual, text.tokens.shape[1])
    for start in range(0, len(text.tokens), size):
        yield range(start, min(start + size, len(text.tokens)))


def final_states(stack: LayerStack, tokens: Tensor) -> Tensor:
    """What the head is fed for `tokens` [batch, seq]: [batch, seq, hidden]."""
    return stack.trunk(input_ids=tokens.to(stack.model.device), use_cache=False)[0]


def predictions(
    stack: LayerStack, final: Tensor, vocabulary: int
) -> Iterator[tuple[slice, Tensor]]:
    """The logits of `final` [tokens, hidden], a slice of tokens at a time: [slice, vocabulary].

    In float32, and small enough to stay in a CPU's cache; the whole is never held.
    """
    kind = final.device.type
    chunk = max(16, LOGIT_BYTES.get(kind, LOGIT_BYTES_ELSEWHERE) // (4 * vocabulary))
    piece = chunk if kind != "cpu" else max(1, PIECE_BYTES // (4 * vocabulary))
    for start in range(0, len(final), chunk):
        many = logits(stack, final[start : start + chunk].unsqueeze(0))[0]  # [chunk, vocabulary]
        for at in range(0, len(many), piece):
            few = many[at : at + piece]
            yield slice(start + at, start + at + len(few)), few.float()


def ratio(sums: Tensor, counts: list[int]) -> tuple[float, float | None]:
    """Σ sums / Σ counts, and its standard error over windows (None for one window)."""
    weights = torch.tensor(counts, dtype=torch.float64)
    mean = sums.sum() / weights.sum()
    if len(sums) < 2:
        return float(mean), None
    residuals = sums - mean * weights
    spread = (residuals.square().sum() * len(sums) / (len(sums) - 1)).sqrt()
    return float(mean), float(spread / weights.sum())


def not_finite(stack: LayerStack, tokens: Tensor, place: str) -> NumericalError:
    """The error for a window [1, seq] whose result is not finite; it names the layer to blame."""
    broken: list[int] = []

    def hook(index: int) -> Any:
        def check(_layer: Any, _args: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            if not bool(states.isfinite().all()):
                broken.append(index)

        return check

    handles = [layer.register_forward_hook(hook(index)) for index, layer in enumerate(stack)]
    try:
        final_states(stack, tokens)
    finally:
        for handle in handles:
            handle.remove()
    culprit = f"layer {broken[0]}" if broken else "the final norm or the head"
    return NumericalError(
        f"The result for {place} is not finite, first after {culprit}; the weights are broken, or "
        "too large for this number format: try bfloat16 or float32."
    )


def _prefix(tokenizer: Any, policy: str) -> list[int]:
    """The tokens before each window: BOS, or none."""
    bos: int | None = tokenizer.bos_token_id
    if policy == "always" and bos is None:
        raise RecipeError(
            "bos='always' needs a BOS token and this tokenizer has none; use 'tokenizer'."
        )
    if bos is None or policy == "never":
        return []
    by_itself = bos in tokenizer("")["input_ids"][:1]
    return [bos] if policy == "always" or by_itself else []
