"""Log-likelihoods of continuations, where what several of them begin with is computed once.

The choices of a question have one context; its keys and values are kept, and each choice goes on
from there. Only the positions that are asked about reach the head. It knows tokens only: what they
ask is in `questions.py`, how the harness asks it in `harness.py`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from laco.errors import ModelError
from laco.evaluate.greedy import cache_name
from laco.head import label_scores
from laco.walk import BATCH_TOKENS, BATCH_TOKENS_ELSEWHERE

if TYPE_CHECKING:
    from laco.layers import LayerStack

LEAST_SHARED = 4  # tokens; sharing fewer is not worth a group of its own
LEAST_TOKENS = 64  # no batch is halved below this, where memory ends


@dataclass(frozen=True)
class Request:
    """Tokens, the last `scored` of which are asked about; the others are their context."""

    tokens: tuple[int, ...]
    scored: int

    @property
    def fed(self) -> tuple[int, ...]:
        """What the model is fed: the last token is only asked about."""
        return self.tokens[:-1]

    @property
    def labels(self) -> tuple[int, ...]:
        """What is asked about."""
        return self.tokens[-self.scored :]


@dataclass
class Group:
    """Requests, by their places, whose fed tokens begin with the same `shared` ones."""

    places: list[int]
    shared: int


def shares(stack: LayerStack) -> bool:
    """Whether the model keeps keys and values that another sequence can go on from."""
    probe = torch.zeros(1, 2, dtype=torch.long, device=stack.model.device)
    with torch.no_grad():
        kept = getattr(stack.trunk(input_ids=probe, use_cache=True), cache_name(stack.trunk), None)
    layers = getattr(kept, "layers", None)
    return bool(layers) and all(isinstance(layer, DynamicLayer) for layer in layers or ())


@torch.no_grad()
def log_likelihoods(
    stack: LayerStack, requests: Sequence[Request], done: Callable[[int], None]
) -> list[tuple[float, bool]]:
    """For each request log p of what is asked about (nats), and whether all of it is likeliest.

    The model has to be one that `shares`. Groups of like length run together, so that little is
    padded; `done(n)` is called after some more, n in all so far. Log-likelihoods are in float32
    and summed in float64. Where memory runs out, half as many tokens run at a time; `ModelError`
    when that is too much for a single question.
    """
    found: dict[int, tuple[float, bool]] = {}
    groups = sorted(grouped(requests), key=lambda group: -group.shared)
    budget = BATCH_TOKENS.get(stack.model.device.type, BATCH_TOKENS_ELSEWHERE)
    while groups:
        most = max(1, budget // groups[0].shared)
        try:
            for places, answers in _answers(stack, requests, groups[:most], budget):
                found.update(zip(places, answers, strict=True))
                done(len(found))
        except torch.OutOfMemoryError as error:
            if budget < 2 * LEAST_TOKENS:
                raise ModelError(
                    f"Memory ran out on a question of {groups[0].shared} tokens; use another "
                    "device or a narrower number format."
                ) from error
            budget //= 2
            continue
        groups = groups[most:]
    return [found[place] for place in range(len(requests))]


def grouped(requests: Sequence[Request]) -> list[Group]:
    """Every request in one group. A request joins where fewer tokens are computed for it."""
    order = sorted(range(len(requests)), key=lambda place: requests[place].fed)
    groups: list[Group] = []
    for place in order:
        fed = requests[place].fed
        if groups:
            last = groups[-1]
            common = _common(requests[last.places[0]].fed[: last.shared], fed)
            members = len(last.places)
            if common >= LEAST_SHARED and members * common > (members - 1) * last.shared:
                last.places.append(place)
                last.shared = common
                continue
        groups.append(Group([place], len(fed)))
    return groups


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def _answers(
    stack: LayerStack, requests: Sequence[Request], batch: list[Group], budget: int
) -> Iterator[tuple[list[int], list[tuple[float, bool]]]]:
    """Places of requests and their answers, some of the batch at a time."""
    prefixes = [requests[group.places[0]].fed[: group.shared] for group in batch]
    tokens, mask = _padded(prefixes, left=True)
    before, cache = _run(stack, tokens, mask, None)  # [groups, longest, hidden]
    rest = {place: requests[place].fed[group.shared :] for group in batch for place in group.places}
    rows = [(row, place) for row, group in enumerate(batch) for place in group.places]
    rows.sort(key=lambda pair: -len(rest[pair[1]]))
    while rows:
        most = max(1, budget // max(1, len(rest[rows[0][1]])))
        some, rows = rows[:most], rows[most:]
        index = torch.tensor([row for row, _ in some])
        places = [place for _, place in some]
        after = before[:0]
        if rest[places[0]]:  # the longest
            more, more_mask = _padded([rest[place] for place in places], left=False)
            whole = torch.cat([mask[index], more_mask], 1)
            after, _ = _run(stack, more, whole, _branch(cache, index.to(before.device)))
        states: list[Tensor] = []
        for at, (row, place) in enumerate(some):
            own = before[row]  # ends with the last token that is shared
            if rest[place]:
                own = torch.cat([own, after[at, : len(rest[place])]])
            states.append(own[-requests[place].scored :])
        counts = [requests[place].scored for place in places]
        labels = [token for place in places for token in requests[place].labels]
        asked = torch.tensor(labels, device=before.device)
        losses, likeliest = label_scores(stack, torch.cat(states), asked)
        parts = zip(losses.double().cpu().split(counts), likeliest.cpu().split(counts), strict=True)
        yield places, [(-float(loss.sum()), bool(best.all())) for loss, best in parts]


def _padded(rows: Sequence[Sequence[int]], left: bool) -> tuple[Tensor, Tensor]:
    """Rows as [rows, longest] ids, zeros before or after, and the mask of what counts."""
    longest = max(map(len, rows))
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for index, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        tokens[index, place] = torch.tensor(row, dtype=torch.long)
        mask[index, place] = 1
    return tokens, mask


def _run(stack: LayerStack, tokens: Tensor, mask: Tensor, cache: Any) -> tuple[Tensor, Any]:
    """What the head is fed for `tokens` [rows, length], and the cache that goes on from them.

    `mask` is of what is in the cache and of `tokens`, [rows, all]; its ones are the positions.
    """
    device = stack.model.device
    options: dict[str, Any] = {cache_name(stack.trunk): cache} if cache is not None else {}
    if "position_ids" in inspect.signature(stack.trunk.forward).parameters:
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        options["position_ids"] = positions.to(device)
    found = stack.trunk(
        input_ids=tokens.to(device), attention_mask=mask.to(device), use_cache=True, **options
    )
    return found[0], getattr(found, cache_name(stack.trunk))


def _branch(cache: Any, rows: Tensor) -> Any:
    """A cache of some rows, each as often as it is named; the given one stays as it is."""
    branch = copy.copy(cache)
    branch.layers = [copy.copy(layer) for layer in cache.layers]
    branch.batch_select_indices(rows)
    return branch
