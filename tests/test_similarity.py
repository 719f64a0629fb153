"""Similarity maps against loops that keep every hidden state and are too plain to be wrong."""

import json
import math
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from laco.context import Context
from laco.corpora import Windows
from laco.errors import CalibrationError, Cancelled, NumericalError
from laco.evaluations import Similarity
from laco.layers import LayerStack, linears, weight_of
from laco.measures import Sums, linear_cka, rank_uncertain
from laco.similarity import layer_similarity, parameter_similarity
from tests import tiny

FAMILIES = ["llama", "gemma3_text", "gpt2", "gpt_neox", "opt"]
MEASURES = ["cosine", "angular", "relative_l2"]


def windows(tokens, lengths=None):
    lengths = torch.full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
    return Windows(tokens=tokens, lengths=lengths, digest="d", source="tiny")


def compare(lm, text, lengths=None, context=None, **fields):
    spec = Similarity(**fields)
    return layer_similarity(lm, windows(text, lengths), spec, context or Context())


def kept_states(lm, tokens):
    """Every hidden state before the final norm: [windows, seq, depths, hidden] in float64."""
    last = []
    hook = lm.layers[-1].register_forward_hook(
        lambda _layer, _args, out: last.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        states = lm.model(tokens, output_hidden_states=True, use_cache=False).hidden_states
    hook.remove()
    return torch.stack([*states[:-1], last[0]], dim=2).double()


def slow_maps(tokens):
    """Measures over a list of tokens' states, [depths, hidden] each."""
    depths = len(tokens[0])
    maps = {name: [[0.0] * depths for _ in range(depths)] for name in MEASURES}
    for i in range(depths):
        for j in range(depths):
            for states in tokens:
                a, b = states[i], states[j]
                cosine = float(a @ b / (a.norm() * b.norm()))
                cosine = 1.0 if i == j else cosine
                maps["cosine"][i][j] += cosine / len(tokens)
                maps["angular"][i][j] += math.acos(cosine) / math.pi / len(tokens)
                maps["relative_l2"][i][j] += float((b - a).norm() / a.norm()) / len(tokens)
    return maps


def slow_cka(states):
    """Unbiased HSIC as Song et al. write it, for [tokens, depths, hidden]."""
    m = len(states)
    ones = torch.ones(m, dtype=torch.float64)
    grams = []
    for depth in range(states.shape[1]):
        x = states[:, depth].double()
        k = x @ x.T
        k.fill_diagonal_(0)
        grams.append(k)

    def hsic(k, other):
        product = (k @ other).trace()
        product += (ones @ k @ ones) * (ones @ other @ ones) / ((m - 1) * (m - 2))
        product -= 2 / (m - 2) * (ones @ k @ other @ ones)
        return float(product) / (m * (m - 3))

    return [[hsic(a, b) / math.sqrt(hsic(a, a) * hsic(b, b)) for b in grams] for a in grams]


def assert_close(found, expected, tolerance=1e-5):
    found, expected = (torch.as_tensor(one, dtype=torch.float64) for one in (found, expected))
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_map_equals_a_plain_loop_over_kept_states(family):
    lm = tiny.loaded(family)
    tokens = tiny.tokens(3, 9)
    found = compare(lm, tokens, shards=1)
    states = kept_states(lm, tokens)[:, 1:].flatten(0, 1)  # skip_first
    expected = slow_maps(list(states))
    for name in MEASURES:
        assert_close(found["measures"][name], expected[name])
    assert_close(found["measures"]["cka"], slow_cka(states))
    assert_close(
        found["influence"], [1 - expected["cosine"][k][k + 1] for k in range(found["layers"])]
    )
    assert found["depths"] == found["layers"] + 1 == len(lm.layers) + 1
    assert found["tokens"] == 3 * 8


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_the_last_depth_lies_before_the_final_norm(family):
    lm = tiny.loaded(family)
    tokens = tiny.tokens(2, 9)
    before = compare(lm, tokens)["measures"]
    with torch.no_grad():
        lm.model.model.norm.weight.mul_(torch.linspace(-2, 2, 32))
    assert compare(lm, tokens)["measures"] == before


@pytest.mark.parametrize(("which", "start"), [("all", 0), ("skip_first", 1), ("last", -1)])
def test_padding_never_counts(which, start):
    lm = tiny.loaded("llama")
    tokens, lengths = tiny.tokens(4, 10), torch.tensor([10, 4, 7, 2])
    padded = tokens.clone()
    counted = []
    for row, length in enumerate(lengths.tolist()):
        padded[row, length:] = 0
        counted += list(kept_states(lm, tokens[row : row + 1, :length])[0, start:])
    found = compare(lm, padded, lengths, tokens=which, shards=1)
    assert found["tokens"] == len(counted)
    assert found["tokens_counted"] == which
    for name, expected in slow_maps(counted).items():
        assert_close(found["measures"][name], expected)


def test_shards_take_windows_in_turn_and_give_the_spread():
    lm = tiny.loaded("llama")
    tokens = tiny.tokens(5, 9)
    found = compare(lm, tokens, shards=2)
    states = kept_states(lm, tokens)[:, 1:]
    shards = [slow_maps(list(states[shard::2].flatten(0, 1))) for shard in range(2)]
    for name in MEASURES:
        each = torch.tensor([one[name] for one in shards])
        assert_close(found["spread"][name], each.std(0).tolist(), 2e-3)
    for shard, one in enumerate(shards):
        expected = [1 - one["cosine"][k][k + 1] for k in range(found["layers"])]
        assert_close(found["influence_shards"][shard], expected)
    assert_close(found["influence_spread"], torch.tensor(found["influence_shards"]).std(0), 2e-3)
    whole = slow_maps(list(states.flatten(0, 1)))
    assert_close(found["measures"]["cosine"], whole["cosine"])
    assert found["shards"] == 2
    assert found["warnings"] == []


def test_fewer_windows_than_shards_are_said():
    found = compare(tiny.loaded("llama"), tiny.tokens(1, 9), shards=4)
    assert found["shards"] == 1
    assert found["spread"] == {"cosine": None, "angular": None, "relative_l2": None, "cka": None}
    assert found["influence_spread"] is None
    assert found["rank_uncertain"] == [True] * found["layers"]
    assert found["warnings"][0] == "There is text for 1 of 4 shards."


def test_cka_looks_at_no_more_than_its_sample_and_the_seed_chooses_it():
    lm = tiny.loaded("llama")
    tokens = tiny.tokens(12, 40)
    one = compare(lm, tokens)
    again = compare(lm, tokens)
    other = compare(lm, tokens, calibration={"seed": 1})
    assert one["measures"]["cka"] == again["measures"]["cka"]
    assert one["measures"]["cka"] != other["measures"]["cka"]
    assert_close(one["measures"]["cka"], other["measures"]["cka"], 0.1)


def test_cka_is_left_out_with_a_reason_when_tokens_are_too_few():
    found = compare(tiny.loaded("llama"), tiny.tokens(3, 5), tokens="last", shards=1)
    assert "cka" not in found["measures"]
    assert any(warning.startswith("CKA is left out") for warning in found["warnings"])


def test_cka_ignores_rotation_shift_and_scale():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 8, generator=generator)
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=generator)).Q
    states = torch.stack([x, 3 * x @ rotation + 5, torch.randn(40, 8, generator=generator)], dim=1)
    found = linear_cka([states[:10], states[10:]])
    assert found is not None
    assert float(found[0, 1]) == pytest.approx(1, abs=1e-6)
    assert abs(float(found[0, 2])) < 0.15  # the plain estimate would be far above 0


def test_the_near_copies_of_a_redundant_model_are_found():
    lm = tiny.loaded("redundant")
    found = compare(lm, tiny.tokens(6, 12))
    ranking = sorted(range(found["layers"]), key=found["influence"].__getitem__)
    assert set(ranking[:3]) == {2, 3, 4}
    assert found["measures"]["cosine"][2][5] > 0.99 > found["measures"]["cosine"][0][2]
    alike = parameter_similarity(lm, Context())
    for name in alike["linears"]:
        assert alike["relative_l2"][name][3][4] < 0.2 < 0.5 < alike["relative_l2"][name][0][1]


def test_ranks_within_the_pooled_errors_are_uncertain():
    shards = torch.tensor([[0.10, 0.11, 0.50], [0.12, 0.10, 0.51], [0.11, 0.12, 0.49]])
    assert rank_uncertain(shards.mean(0), shards) == [True, True, False]


def test_near_parallel_bfloat16_states_do_not_round_to_one():
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(20, 1, 64, generator=generator)
    states = torch.cat([base, base + 0.004 * torch.randn(20, 1, 64, generator=generator)], dim=1)
    states = states.to(torch.bfloat16)
    sums = Sums(1, 2)
    sums.add(0, states.float())
    cosine, _, distance = (float(one[0, 1]) for one in sums.mean())
    exact = slow_maps(list(states.double()))
    assert cosine == pytest.approx(exact["cosine"][0][1], abs=1e-9)
    assert 0 < 1 - cosine < 1e-4
    assert distance == pytest.approx(exact["relative_l2"][0][1], rel=1e-6)


def test_a_bfloat16_model_is_compared_in_full_precision():
    lm = tiny.loaded("redundant")
    lm.model.bfloat16()
    tokens = tiny.tokens(2, 9)
    found = compare(lm, tokens, shards=1)
    expected = slow_maps(list(kept_states(lm, tokens)[:, 1:].flatten(0, 1)))
    assert_close(found["measures"]["cosine"], expected["cosine"])
    assert all(one > 0 for one in found["influence"])


def test_no_hidden_states_are_kept():
    lm = tiny.loaded("llama")
    alive, seen = [], []

    def watch(_layer, _args, out):
        states = out[0] if isinstance(out, tuple) else out
        seen.append(weakref.ref(states))
        alive.append(sum(one() is not None for one in seen))

    hooks = [layer.register_forward_hook(watch) for layer in lm.layers]
    compare(lm, tiny.tokens(6, 9))
    for hook in hooks:
        hook.remove()
    assert len(seen) == 6 * len(lm.layers)
    assert max(alive) <= 3
    assert not any(one() is not None for one in seen)


def test_hooks_are_gone_afterwards_even_when_cancelled():
    lm = tiny.loaded("llama")
    calls = []

    def cancelled():
        calls.append(1)
        return len(calls) == 2

    with pytest.raises(Cancelled):
        compare(lm, tiny.tokens(4, 9), context=Context(cancelled=cancelled))
    assert len(calls) == 2
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in lm.layers)


def test_progress_is_told_after_every_window():
    told = []
    compare(
        tiny.loaded("llama"),
        tiny.tokens(4, 9),
        context=Context(progress=lambda fraction, message: told.append((fraction, message))),
    )
    assert [fraction for fraction, _ in told] == [0.25, 0.5, 0.75, 1.0]
    assert told[-1][1] == "Window 4 of 4 compared"


def zeroed(_layer: Any, _args: Any, out: Any) -> Any:
    return torch.zeros_like(out)


def test_states_that_are_all_zero_name_their_layer():
    lm = tiny.loaded("llama")
    lm.layers[3].register_forward_hook(zeroed)
    with pytest.raises(NumericalError, match="after layer 3 are all zero"):
        compare(lm, tiny.tokens(2, 9))


def test_states_that_are_not_finite_name_their_layer():
    lm = tiny.loaded("gpt2")
    with torch.no_grad():
        weight_of(dict(linears(lm.layers[4]))["mlp.c_proj"])[0, 5] = float("inf")
    with pytest.raises(NumericalError, match="after layer 4 are not finite"):
        compare(lm, tiny.tokens(2, 9))


def test_a_text_without_counted_tokens_is_refused():
    with pytest.raises(CalibrationError, match="No token of tiny counts"):
        compare(tiny.loaded("llama"), tiny.tokens(3, 1))


def test_the_document_is_small_json_without_gaps():
    found = compare(tiny.loaded("llama"), tiny.tokens(4, 9))
    text = json.dumps(found, allow_nan=False)
    numbers = (len(MEASURES) + 1) * 2 * found["depths"] ** 2
    assert len(text) < 12 * numbers + 2000  # so the maps of 80 layers stay well below 1 MB


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_compare_as_in_a_plain_loop(family):
    lm = tiny.loaded(family)
    found = parameter_similarity(lm, Context())
    assert found["linears"] == [name for name, _ in linears(lm.layers[0])]
    assert found["lacking"] == {}
    for name in found["linears"]:
        flat = [weight_of(dict(linears(layer))[name]).double().flatten() for layer in lm.layers]
        cosine = [[float(a @ b / (a.norm() * b.norm())) for b in flat] for a in flat]
        distance = [[float((b - a).norm() / a.norm()) for b in flat] for a in flat]
        assert_close(found["cosine"][name], cosine)
        assert_close(found["relative_l2"][name], distance)


def test_a_layer_of_another_shape_is_named_and_left_out():
    lm = tiny.loaded("llama")
    lm.layers[2].get_submodule("mlp").up_proj = torch.nn.Linear(32, 40, bias=False)
    found = parameter_similarity(lm, Context())
    assert found["lacking"] == {"mlp.up_proj": [2]}
    assert found["cosine"]["mlp.up_proj"][2] == [None] * 6
    assert found["cosine"]["mlp.up_proj"][1][2] is None
    assert found["cosine"]["mlp.up_proj"][1][1] == 1
    assert None not in found["cosine"]["mlp.gate_proj"][2]


def test_a_weight_that_is_not_finite_is_named():
    lm = tiny.loaded("llama")
    with torch.no_grad():
        lm.layers[1].get_parameter("self_attn.q_proj.weight")[0, 0] = float("nan")
    with pytest.raises(NumericalError, match=r"self_attn\.q_proj of layer 1 is not finite"):
        parameter_similarity(lm, Context())


def test_a_changed_stack_is_compared_as_it_stands():
    lm = tiny.loaded("llama")
    kept = [0, 1, 4, 5]
    with lm.layers.trial([lm.layers[i] for i in kept], kept):
        found = compare(replace(lm, layers=LayerStack(lm.model)), tiny.tokens(2, 9))
    assert found["layers"] == 4
