"""The degeneration check against generation by transformers, and models that are made to fail."""

import math
from typing import Any

import pytest
import torch

from laco.context import Context
from laco.errors import RecipeError
from laco.evaluate import evaluate
from laco.evaluate.degeneration import PROMPTS, repetition
from laco.evaluations import Degeneration
from tests import tiny

END = 1


def check(lm, tokens=12):
    (metric,) = evaluate(lm, Degeneration(tokens=tokens), Context()).metrics
    return metric


def saying(token_after):
    """A model whose likeliest token is what `token_after(tokens so far)` says."""
    lm = tiny.loaded("llama")
    fed = []

    def before(_model, _args, options):
        ids = options["input_ids"][0].tolist()
        if len(ids) > 1:  # a prompt: the next text begins
            fed.clear()
        fed.append(ids[-1])

    def after(_model, _args, output):
        output.logits[:, -1, token_after(len(fed) - 1)] = 1e6

    lm.model.register_forward_pre_hook(before, with_kwargs=True)
    lm.model.register_forward_hook(after)
    return lm


def test_texts_are_those_of_greedy_generation():
    lm = tiny.loaded("llama")
    model: Any = lm.model
    for found, prompt in zip(check(lm).details["prompts"], PROMPTS, strict=True):
        ids = lm.tokenizer(prompt, return_tensors="pt")["input_ids"]
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )[0, ids.shape[1] :]
        assert found["prompt"] == prompt
        assert found["text"] == lm.tokenizer.decode(made, skip_special_tokens=True)
        assert found["tokens"] == len([token for token in made.tolist() if token != END])


def test_different_tokens_are_no_loop():
    metric = check(saying(lambda place: 50 + place))
    assert metric.value == 0
    assert [found["repetition"] for found in metric.details["prompts"]] == [0.0] * 8
    assert (metric.name, metric.unit, metric.better) == ("degenerate", "share", "lower")
    assert metric.details["tokens"] == 12


def test_a_loop_is_degenerate():
    metric = check(saying(lambda place: 50 + place % 3))
    assert metric.value == 1
    for found in metric.details["prompts"]:
        assert found["repetition"] == pytest.approx(6 / 9)  # 3 of 9 four-grams are new
        assert (found["empty"], found["finite"]) == (False, True)


def test_half_of_it_said_before_is_no_loop_yet():
    lm = saying(lambda place: 50 + place % 5)  # of 10 four-grams, 5 are new
    metric = check(lm, tokens=13)
    assert metric.details["prompts"][0]["repetition"] == 0.5
    assert metric.value == 0


def test_nothing_but_the_end_is_empty():
    metric = check(saying(lambda _place: END))
    assert metric.value == 1
    for found in metric.details["prompts"]:
        assert (found["text"], found["tokens"], found["empty"]) == ("", 0, True)


def test_nothing_but_white_space_is_empty():
    lm = tiny.loaded("llama")
    (space,) = lm.tokenizer(" ")["input_ids"]
    metric = check(saying(lambda place: END if place == 2 else space))
    for found in metric.details["prompts"]:
        assert (found["text"], found["tokens"], found["empty"]) == ("  ", 2, True)


def test_a_text_ends_at_the_end_token():
    metric = check(saying(lambda place: END if place == 5 else 50 + place))
    assert [found["tokens"] for found in metric.details["prompts"]] == [5] * 8
    assert metric.value == 0


def test_an_end_token_of_the_models_own_counts_too():
    lm = saying(lambda place: 77 if place == 5 else 50 + place)
    lm.model.generation_config.eos_token_id = [END, 77]
    assert [found["tokens"] for found in check(lm).details["prompts"]] == [5] * 8


def test_logits_that_are_not_finite_count_and_name_the_prompt():
    lm = saying(lambda place: 50 + place)
    texts = []

    def spoil(_model, args, options, output):
        ids = options["input_ids"]
        if ids.shape[1] > 1:
            texts.append(lm.tokenizer.decode(ids[0]))
        elif texts[-1] == PROMPTS[2] and int(ids) == 53:
            output.logits[..., 7] = math.nan

    lm.model.register_forward_hook(spoil, with_kwargs=True)
    metric = check(lm)
    assert metric.value == 1 / 8
    spoilt = [found for found in metric.details["prompts"] if not found["finite"]]
    assert [found["prompt"] for found in spoilt] == [PROMPTS[2]]
    assert (spoilt[0]["tokens"], spoilt[0]["degenerate"]) == (4, True)


def test_broken_weights_raise_nothing():
    lm = tiny.loaded("llama")
    with torch.no_grad():
        lm.layers[2].get_parameter("mlp.up_proj.weight")[0, 0] = math.inf
    assert check(lm).value == 1


def test_repetition_is_the_share_of_four_grams_seen_before():
    generator = torch.Generator().manual_seed(0)
    for length in range(40):
        tokens = torch.randint(2, (length,), generator=generator).tolist()
        seen, again = [], 0
        for at in range(length - 3):
            gram = tokens[at : at + 4]
            again += gram in seen
            seen.append(gram)
        assert repetition(tokens) == pytest.approx(again / len(seen) if seen else 0.0)


def test_there_are_eight_prompts_and_they_differ():
    assert len(set(PROMPTS)) == 8


def test_too_few_positions_are_told_before_any_work():
    lm = tiny.loaded("llama")
    lm.layers.config.max_position_embeddings = 60
    with pytest.raises(RecipeError, match="positions of this model; ask for fewer"):
        check(lm)
