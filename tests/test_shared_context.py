"""Log-likelihoods with a shared context, against one request at a time through the whole model."""

import random

import pytest
import tiny
import torch

from laco.errors import LacoError, ModelError
from laco.evaluate import shared_context
from laco.evaluate.shared_context import Request, grouped, log_likelihoods, shares
from laco.layers import LayerStack

RECURRENT = {"lfm2", "mamba", "qwen3_next"}  # whose state cannot be split among choices


def question(context: int, choices: list[int], seed: int) -> list[Request]:
    """Choices of so many tokens each, after a context of so many."""
    draw = random.Random(seed)
    begin = [draw.randrange(tiny.VOCABULARY) for _ in range(context)]
    return [
        Request(tuple(begin + [draw.randrange(tiny.VOCABULARY) for _ in range(n)]), n)
        for n in choices
    ]


REQUESTS = [
    *question(9, [3, 5, 1, 4], seed=1),
    *question(2, [2, 2], seed=2),  # too little in common to be shared
    *question(12, [1, 1, 1, 1], seed=3),  # nothing goes on after the context
    Request(tuple(range(7, 20)), 4),
    *(Request((*range(40, 46), end, *range(60, 66)), 6) for end in (1, 2)),  # unlike contexts
]


def plainly(model: torch.nn.Module, request: Request) -> tuple[float, bool]:
    """The same of one request, as its definition says it."""
    logits = model(torch.tensor([request.tokens])).logits[0, :-1].double()
    scores = logits.log_softmax(-1)[-request.scored :]
    labels = torch.tensor(request.tokens[-request.scored :])
    chosen = scores.gather(1, labels[:, None]).sum()
    return float(chosen), bool((scores.argmax(-1) == labels).all())


@pytest.mark.parametrize("family", {**tiny.ARCHITECTURES, **tiny.PROBED})
def test_the_same_as_one_request_at_a_time(family):
    model = {**tiny.ARCHITECTURES, **tiny.PROBED}[family]()
    stack = LayerStack(model)
    if family in RECURRENT:
        assert not shares(stack)
        return
    assert shares(stack)
    told: list[int] = []
    found = log_likelihoods(stack, REQUESTS, told.append)
    with torch.no_grad():
        expected = [plainly(model, request) for request in REQUESTS]
    assert [score for score, _ in found] == pytest.approx([s for s, _ in expected], abs=1e-4)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert told[-1] == len(REQUESTS)


def test_what_is_likeliest_is_seen():
    lm = tiny.loaded("llama")
    context = list(range(5, 15))
    with torch.no_grad():
        best = int(lm.model(torch.tensor([context])).logits[0, -1].argmax())
    other = (best + 1) % tiny.VOCABULARY
    requests = [Request((*context, token), 1) for token in (best, other)]
    found = log_likelihoods(lm.layers, requests, lambda _done: None)
    assert [greedy for _, greedy in found] == [True, False]


def test_small_batches_give_the_same(monkeypatch):
    lm = tiny.loaded("llama")
    at_once = log_likelihoods(lm.layers, REQUESTS, lambda _done: None)
    monkeypatch.setitem(shared_context.BATCH_TOKENS, "cpu", 4)
    few = log_likelihoods(lm.layers, REQUESTS, lambda _done: None)
    assert [score for score, _ in few] == pytest.approx([score for score, _ in at_once], abs=1e-4)


def test_every_request_is_in_one_group_whose_tokens_begin_alike():
    groups = grouped(REQUESTS)
    assert sorted(place for group in groups for place in group.places) == list(range(len(REQUESTS)))
    for group in groups:
        beginnings = {REQUESTS[place].fed[: group.shared] for place in group.places}
        assert len(beginnings) == 1
        assert len(next(iter(beginnings))) == group.shared
    computed = sum(
        group.shared + sum(len(REQUESTS[place].fed) - group.shared for place in group.places)
        for group in groups
    )
    assert computed < 0.6 * sum(len(request.fed) for request in REQUESTS)


def test_cancelling_works_between_batches(monkeypatch):
    monkeypatch.setitem(shared_context.BATCH_TOKENS, "cpu", 4)

    def stop(done: int) -> None:
        raise LacoError(f"stopped after {done}")

    with pytest.raises(LacoError, match="stopped after"):
        log_likelihoods(tiny.loaded("llama").layers, REQUESTS, stop)


def test_batches_halve_where_memory_ends(monkeypatch):
    lm = tiny.loaded("llama")
    expected = log_likelihoods(lm.layers, REQUESTS, lambda _done: None)
    run, sizes = shared_context._run, []

    def small(stack, tokens, mask, cache):
        sizes.append(tokens.numel())
        if tokens.numel() > 30:
            raise torch.OutOfMemoryError
        return run(stack, tokens, mask, cache)

    monkeypatch.setattr(shared_context, "_run", small)
    monkeypatch.setattr(shared_context, "LEAST_TOKENS", 8)
    found = log_likelihoods(lm.layers, REQUESTS, lambda _done: None)
    assert max(sizes) > 30
    assert [score for score, _ in found] == pytest.approx([s for s, _ in expected], abs=1e-4)
    monkeypatch.setattr(shared_context, "LEAST_TOKENS", 64)
    with pytest.raises(ModelError, match="Memory ran out on a question of"):
        log_likelihoods(lm.layers, REQUESTS, lambda _done: None)
