"""Speeds by a clock made of paper; the passes that are timed, against reading from scratch."""

import itertools
import statistics
from importlib import import_module

import pytest
import torch

from laco.context import Context
from laco.errors import ArchitectureError, Cancelled, RecipeError
from laco.evaluate import evaluate
from laco.evaluate.greedy import Reader, random_tokens
from laco.evaluations import Latency
from tests import tiny

SHORT = Latency(prompt=7, generate=3, batch=2, repeats=2)


@pytest.fixture
def clock(monkeypatch):
    """A clock that shows the next of some given times, each time that it is looked at."""

    def of(*seconds):
        times = itertools.chain(seconds, itertools.count(1000))
        module = import_module("laco.evaluate.latency")  # beside it lies a function of its name
        monkeypatch.setattr(module, "perf_counter", lambda: next(times))

    return of


def passes(lm):
    """The shapes of the token ids that the model is fed from now on."""
    shapes = []

    def hook(_model, _args, options):
        shapes.append(tuple(options["input_ids"].shape))

    lm.model.register_forward_pre_hook(hook, with_kwargs=True)
    return shapes


def test_speeds_are_tokens_over_the_seconds_of_each_run(clock):
    warm_up = (0, 100, 900)  # is not counted
    clock(*warm_up, 0, 2, 5, 10, 11, 17, *warm_up, 0, 4, 5, 5, 6, 9)
    found = evaluate(tiny.loaded("llama"), SHORT, Context()).metrics
    values = {metric.name: metric.details["values"] for metric in found}
    assert values == {
        "prefill[batch 1]": [7 / 2, 7 / 1],
        "decode[batch 1]": [3 / 3, 3 / 6],
        "prefill[batch 2]": [14 / 4, 14 / 1],
        "decode[batch 2]": [6 / 1, 6 / 3],
    }
    for metric in found:
        runs = metric.details["values"]
        assert metric.value == statistics.fmean(runs)
        assert metric.stderr == pytest.approx(statistics.stdev(runs) / 2**0.5)
        assert (metric.details["min"], metric.details["max"]) == (min(runs), max(runs))
        assert (metric.unit, metric.better) == ("tokens/s", "higher")


def test_each_run_reads_the_prompt_once_and_then_single_tokens():
    lm = tiny.loaded("llama")
    shapes = passes(lm)
    evaluate(lm, SHORT, Context())
    runs = SHORT.repeats + 1  # one to warm up
    one, two = ([(size, 7)] + [(size, 1)] * 3 for size in (1, 2))
    assert shapes == one * runs + two * runs


def test_details_say_what_a_speed_depends_on():
    first = evaluate(tiny.loaded("llama"), SHORT, Context()).metrics[0]
    expected = {
        "batch": 1,
        "prompt": 7,
        "generate": 3,
        "repeats": 2,
        "device": "cpu",
        "dtype": "float32",
        "threads": torch.get_num_threads(),
        "kv_cache": "DynamicCache",
        "logits": "last token",
    }
    assert expected.items() <= first.details.items()
    assert "CPU" in first.details["processor"]


def test_a_single_run_has_no_standard_error():
    (first, *_) = evaluate(
        tiny.loaded("llama"), SHORT.model_copy(update={"repeats": 1}), Context()
    ).metrics
    assert first.stderr is None


def test_a_batch_of_one_is_measured_once():
    spec = SHORT.model_copy(update={"batch": 1})
    names = [metric.name for metric in evaluate(tiny.loaded("llama"), spec, Context()).metrics]
    assert names == ["prefill[batch 1]", "decode[batch 1]"]


def test_prompts_are_the_same_each_time():
    lm = tiny.loaded("llama")
    assert torch.equal(random_tokens(lm.layers, 2, 50), random_tokens(lm.layers, 2, 50))
    assert random_tokens(lm.layers, 2, 500).unique().numel() > tiny.VOCABULARY / 2


def test_too_few_positions_are_told_before_any_work():
    lm = tiny.loaded("llama")
    shapes = passes(lm)
    with pytest.raises(RecipeError, match="500 tokens and 13 after it take more than the 512"):
        evaluate(lm, Latency(prompt=500, generate=13), Context())
    assert not shapes


def test_it_stops_between_runs_when_asked_to():
    lm = tiny.loaded("llama")
    shapes = passes(lm)
    with pytest.raises(Cancelled):
        evaluate(lm, SHORT, Context(cancelled=lambda: len(shapes) >= 4))
    assert len(shapes) == 4


@pytest.mark.parametrize("name", [*tiny.ARCHITECTURES, *tiny.PROBED])
def test_reading_on_with_the_cache_is_reading_all_from_scratch(name):
    from laco.layers import LayerStack

    model = {**tiny.ARCHITECTURES, **tiny.PROBED}[name]()
    tokens = tiny.tokens(2, 9)
    reader = Reader(LayerStack(model))
    scores = reader.feed(tokens)
    for _ in range(4):
        whole = model(input_ids=tokens, use_cache=False).logits[:, -1]
        torch.testing.assert_close(scores, whole, rtol=1e-3, atol=1e-3)
        token = scores.argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, token], dim=1)
        scores = reader.feed(token)


def test_a_model_without_cache_is_refused():
    lm = tiny.loaded("llama")
    lm.model.register_forward_hook(lambda _model, _args, output: setattr(output, "cache", None))
    with pytest.raises(ArchitectureError, match="This llama model keeps no KV cache"):
        evaluate(lm, SHORT, Context())
