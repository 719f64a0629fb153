"""How alike the layers of a model are: by what they compute, and by their weights.

`layer_similarity` shows the model some text and compares the hidden states between all depths in
one pass that keeps no hidden states; `parameter_similarity` compares the weights of the same
linear between layers. Both give a JSON document. They do not know where text comes from
(`corpora.py`), nor what is done about it (`collapse.py`). Next: `layers.py`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from laco.errors import ArchitectureError, CalibrationError, NumericalError
from laco.layers import LayerStack, linears, weight_of
from laco.measures import PAIRWISE, Sums, between, linear_cka, rank_uncertain, rounded, weight_gram
from laco.memory import free_memory
from laco.streamed import require_whole

if TYPE_CHECKING:
    from laco.context import Context
    from laco.corpora import Windows
    from laco.evaluations import Similarity
    from laco.models import LoadedModel

CKA_TOKENS = 256  # tokens in the sample that CKA is computed on
BATCH_TOKENS = 8192  # tokens at a time on an accelerator; a CPU takes one window
BATCH_BYTES = 1 << 30  # and at most so many bytes of their hidden states
Matrix = list[list[float | None]]


@torch.no_grad()
def layer_similarity(
    lm: LoadedModel, tokens: Windows, spec: Similarity, context: Context
) -> dict[str, Any]:
    """A document with the similarity of hidden states between depths, as `[depths, depths]` maps.

    Depth 0 is what the first layer is fed, depth k what layer k−1 gives, all before the final
    norm. With h_i, h_j a token's states at two depths (row i, column j), averaged over tokens:

    - `cosine`: cos(h_i, h_j); `angular`: arccos(cos)/π, in [0, 1] (Gromov et al., 2024);
    - `relative_l2`: ‖h_j − h_i‖ / ‖h_i‖, the one map that is not symmetric;
    - `influence` of layer k: 1 − mean cos(h_k, h_{k+1}) (ShortGPT's Block Influence);
    - `cka`: linear CKA over a seeded sample of at most 256 tokens, with the unbiased estimate of
      HSIC (Song et al., 2012), since the plain one is near 1 when dimensions outnumber tokens.
      Absent, with a warning, when there are fewer than four tokens.

    Windows are dealt in turn to `shards`; `spread` is the standard deviation between shards
    (None for one shard, or for a CKA of fewer than four tokens a shard). `rank_uncertain` marks a
    layer whose neighbour in the ranking by influence lies within their pooled standard errors.
    Tokens count as `spec.tokens` says; padding never counts.

    States are compared in float64, so near copies keep their distance (in float32 on devices
    without float64: then cosines are good to 1e-7, and a relative distance below 1e-3 to 10 %).
    Only one micro-batch of states exists at a time. Raises `NumericalError` naming the layer
    whose states are not finite or all zero, `CalibrationError` when no token counts.
    """
    began = time.perf_counter()
    shards = min(spec.shards, len(tokens.tokens))
    parts = [_counted(int(length), spec.tokens) for length in tokens.lengths]
    if all(part.stop <= part.start for part in parts):
        raise CalibrationError(
            f"No token of {tokens.source} counts with tokens={spec.tokens!r}: each window has one "
            "token; take longer windows or tokens='all'."
        )
    size = _windows_at_once(lm, tokens.tokens.shape[1])
    sums, sample, left_out = _pass(lm.layers, tokens.tokens, size, parts, shards, spec, context)
    return {
        **_document(sums, sample, spec, left_out),
        "source": tokens.source,
        "digest": tokens.digest,
        "tokens_counted": spec.tokens,
        "seconds": time.perf_counter() - began,
    }


@torch.no_grad()
def parameter_similarity(lm: LoadedModel, context: Context) -> dict[str, Any]:
    """A document with the similarity of weights between layers, a `[layers, layers]` map a linear.

    `cosine` and `relative_l2` (‖W_j − W_i‖ / ‖W_i‖, row i, column j) of the flattened weights, as
    in LaCo's motivation. A layer that has no such linear, or one of another shape than most, is
    named under `lacking`, and its row and column are null. Raises `NumericalError` naming the
    weight that is not finite.
    """
    require_whole(lm, "A comparison of weights", "compare hidden states instead")
    began = time.perf_counter()
    found: dict[str, dict[int, Tensor]] = {}  # linear -> layer -> [out, in]
    for index, layer in enumerate(lm.layers):
        for name, linear in linears(layer):
            found.setdefault(name, {})[index] = weight_of(linear)
    if not found:
        raise ArchitectureError(
            "The layers of this model hold no linear weights to compare; "
            "compare their hidden states instead."
        )
    cosine: dict[str, Matrix] = {}
    distance: dict[str, Matrix] = {}
    lacking: dict[str, list[int]] = {}
    for done, (name, weights) in enumerate(found.items()):
        shape = Counter(weight.shape for weight in weights.values()).most_common(1)[0][0]
        present = [index for index, weight in weights.items() if weight.shape == shape]
        gram = weight_gram([weights[index] for index in present])
        broken = (~gram.diagonal().isfinite()).nonzero().flatten().tolist()
        if broken:
            raise NumericalError(
                f"The weight {name} of layer {present[broken[0]]} is not finite; "
                "load the checkpoint again or in another dtype."
            )
        absent = sorted(set(range(len(lm.layers))) - set(present))
        if absent:
            lacking[name] = absent
        maps = between(gram)
        cosine[name] = _spread_out(maps["cosine"], present, len(lm.layers))
        distance[name] = _spread_out(maps["relative_l2"], present, len(lm.layers))
        context.step((done + 1) / len(found), f"{name} compared")
    return {
        "linears": list(found),
        "cosine": cosine,
        "relative_l2": distance,
        "lacking": lacking,
        "layers": len(lm.layers),
        "seconds": time.perf_counter() - began,
    }


def _pass(
    stack: LayerStack,
    tokens: Tensor,
    size: int,
    parts: list[slice],
    shards: int,
    spec: Similarity,
    context: Context,
) -> tuple[Sums, list[Tensor], int]:
    """Show the model every window, `size` at a time.

    Sums, CKA's sample by shard, tokens that had to stay out.
    """
    picked = _sample(parts, shards, spec.calibration.seed)
    sizes = [sum(map(len, picked[shard::shards])) for shard in range(shards)]
    sums, left_out = Sums(shards, len(stack) + 1), 0
    sample: list[Tensor] = []  # [tokens, depths, hidden] of each shard
    filled = [0] * shards
    with _recorder(stack) as record:
        for first in range(0, len(tokens), size):
            batch = tokens[first : first + size]
            states = record(batch)  # [batch, seq, depths, hidden]
            sample = sample or [torch.empty(size, *states.shape[2:]) for size in sizes]
            for row in range(len(batch)):
                window, shard = first + row, (first + row) % shards
                squares, skipped = sums.add(shard, states[row, parts[window]])
                left_out += skipped
                if parts[window].stop > parts[window].start:
                    _check(squares)
                for position in picked[window]:
                    sample[shard][filled[shard]].copy_(states[row, position])
                    filled[shard] += 1
                fraction = (window + 1) / len(parts)
                context.step(fraction, f"Window {window + 1} of {len(parts)} compared")
    return sums, sample, left_out


class _Recorded(Exception):  # noqa: N818 - a signal, not an error
    """Ends a forward pass after the last layer."""


@contextmanager
def _recorder(stack: LayerStack) -> Iterator[Any]:
    """A function from tokens [batch, seq] to states [batch, seq, depths, hidden], in float32.

    One buffer serves all calls, so what was returned is overwritten by the next call.
    """
    buffer = torch.empty(0)
    depth = 0

    def put(states: Tensor) -> None:
        nonlocal buffer, depth
        if depth == 0:
            shape = (*states.shape[:2], len(stack) + 1, states.shape[2])
            if buffer.shape != shape:
                buffer = torch.empty(shape, dtype=torch.float32, device=states.device)
        buffer[:, :, depth].copy_(states)
        depth += 1

    def before_first(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if depth == 0:
            put(args[0] if args else kwargs["hidden_states"])

    def after(_layer: nn.Module, _args: Any, output: Any) -> None:
        put(output[0] if isinstance(output, tuple) else output)
        if depth == len(stack) + 1:
            raise _Recorded

    def record(tokens: Tensor) -> Tensor:
        nonlocal depth
        depth = 0
        with suppress(_Recorded):
            stack.model(input_ids=tokens.to(stack.model.device), use_cache=False)
        return buffer

    handles = [stack[0].register_forward_pre_hook(before_first, with_kwargs=True)]
    handles += [layer.register_forward_hook(after) for layer in stack]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def _check(squares: Tensor) -> None:
    """Raise `NumericalError` naming the first layer whose square norms [depths] cannot be right."""
    for depth, square in enumerate(squares.tolist()):
        place = f"layer {depth - 1}" if depth else "the embedding"
        if not math.isfinite(square):
            raise NumericalError(
                f"The hidden states after {place} are not finite; load the model in float32."
            )
        if square == 0:
            raise NumericalError(
                f"The hidden states after {place} are all zero, which happens when a model is "
                "split badly over devices; load it on one device."
            )


def _document(sums: Sums, sample: list[Tensor], spec: Similarity, left_out: int) -> dict[str, Any]:
    """Everything that follows from the sums and the sample."""
    shards = [shard for shard in range(len(sums.counts)) if sums.counts[shard] > 0]
    if not shards:
        raise NumericalError(
            "Every token has a hidden state of norm zero at some depth; "
            "the model or the way it is split over devices is broken."
        )
    warnings: list[str] = []
    if len(shards) < spec.shards:
        warnings.append(f"There is text for {len(shards)} of {spec.shards} shards.")
    if len(shards) == 1:
        warnings.append("With one shard nothing is known about the spread.")
    if left_out:
        warnings.append(f"{left_out} tokens with a state of norm zero were left out.")
    means: dict[str, Tensor] = dict(zip(PAIRWISE, sums.mean(), strict=True))
    each = {
        name: [sums.mean(shard)[index] for shard in shards] for index, name in enumerate(PAIRWISE)
    }
    cka = linear_cka(sample)
    if cka is None:
        warnings.append("CKA is left out: it needs at least four tokens with different states.")
    else:
        means["cka"] = cka
        parts = [linear_cka([sample[shard]]) for shard in shards]
        each["cka"] = [part for part in parts if part is not None]
    influences = torch.stack([1 - one.diagonal(1) for one in each["cosine"]])  # [shards, layers]
    influence = 1 - means["cosine"].diagonal(1)
    return {
        "measures": {name: rounded(value) for name, value in means.items()},
        "spread": {
            name: rounded(torch.stack(values).std(0), 3) if len(values) == len(shards) > 1 else None
            for name, values in each.items()
        },
        "influence": rounded(influence),
        "influence_spread": rounded(influences.std(0), 3) if len(shards) > 1 else None,
        "influence_shards": rounded(influences),
        "rank_uncertain": rank_uncertain(influence, influences),
        "shards": len(shards),
        "depths": len(influence) + 1,
        "layers": len(influence),
        "tokens": int(sums.counts.sum()),
        "warnings": warnings,
    }


def _counted(length: int, which: str) -> slice:
    """The positions that count in a window of `length` tokens before its padding."""
    return slice({"all": 0, "skip_first": 1, "last": max(length - 1, 0)}[which], length)


def _sample(parts: list[slice], shards: int, seed: int) -> list[list[int]]:
    """For each window, the positions that CKA looks at; shards get equal shares."""
    generator = torch.Generator().manual_seed(seed)
    chosen: list[list[int]] = [[] for _ in parts]
    for shard in range(shards):
        places = [
            (window, position)
            for window in range(shard, len(parts), shards)
            for position in range(parts[window].start, parts[window].stop)
        ]
        order = torch.randperm(len(places), generator=generator)[: CKA_TOKENS // shards]
        for index in sorted(order.tolist()):
            window, position = places[index]
            chosen[window].append(position)
    return chosen


def _windows_at_once(lm: LoadedModel, length: int) -> int:
    """How many windows run together: one on a CPU, unless each pass reads the model anew.

    Then on an accelerator as many as a quarter of what is free holds, since reading is slower; on a
    CPU computing is, and half a gigabyte of states is enough.
    """
    device, room = lm.model.device, BATCH_BYTES
    if device.type == "cpu" and lm.pass_tokens is None:
        return 1
    if lm.pass_tokens is not None:
        room = room // 2 if device.type == "cpu" else max(room, free_memory(str(device)) // 4)
    state_bytes = 4 * length * (len(lm.layers) + 1) * lm.layers.config.hidden_size
    return max(1, min(lm.rows(BATCH_TOKENS, length), room // state_bytes))


def _spread_out(values: Tensor, present: list[int], size: int) -> Matrix:
    """`values` of the layers in `present` as a map of all layers, null where there is none."""
    whole: Matrix = [[None] * size for _ in range(size)]
    for i, row in zip(present, rounded(values), strict=True):
        for j, value in zip(present, row, strict=True):
            whole[i][j] = value
    return whole
