"""Divergence and footprint against plain loops; perplexity has its own file."""

import math
import platform
from pathlib import Path
from typing import get_args

import pytest
import torch

from laco.context import Context
from laco.errors import CalibrationError, ModelError, NumericalError
from laco.evaluate import EVALUATORS, evaluate
from laco.evaluate.divergence import kl
from laco.evaluations import Divergence, Evaluation, Footprint
from tests import tiny


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("the cat and the dog ate in the inner garden near the other man " * 20)
    return f"file:{path}"


def tokens_of(lm, source, windows, window):
    text = Path(source.removeprefix("file:")).read_text()
    ids = lm.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor(ids[: windows * window]).view(windows, window)


def dropped(family, kept):
    lm = tiny.loaded(family)
    lm.layers.keep([lm.layers[i] for i in kept], kept)
    return lm


def test_every_kind_of_evaluation_has_an_evaluator():
    kinds = get_args(get_args(Evaluation)[0])
    assert set(EVALUATORS) == set(kinds)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_divergence_is_the_mean_kl_to_the_original(family, source):
    lm, original = dropped(family, [0, 1, 4, 5]), tiny.loaded(family)
    (found,) = evaluate(
        lm, Divergence(source=source, window=16, windows=3), Context(), lambda: original
    ).metrics
    per_window = []
    for row in tokens_of(lm, source, 3, 16):
        p = original.model(row[None]).logits[0, :-1].double().softmax(-1)
        q = lm.model(row[None]).logits[0, :-1].double().softmax(-1)
        per_window.append(float((p * (p / q).log()).sum()) / 15)
    assert found.name == f"kl[{source}]"
    assert found.value == pytest.approx(sum(per_window) / 3, rel=1e-4)
    assert found.value > 0.001
    spread = torch.tensor(per_window, dtype=torch.float64).std() / math.sqrt(3)
    assert found.stderr == pytest.approx(float(spread), rel=1e-2)
    assert found.unit == "nats/token"
    assert found.details["tokens_scored"] == 45


def test_an_untouched_model_does_not_diverge(source):
    (found,) = evaluate(
        tiny.loaded("llama"), Divergence(source=source, window=16, windows=3), Context()
    ).metrics
    assert found.value == 0


def test_kl_ignores_tokens_that_both_models_rule_out():
    reference = torch.tensor([[0.0, 1.0, -torch.inf]])
    scores = torch.tensor([[1.0, 0.0, -torch.inf]])
    expected = kl(reference[:, :2], scores[:, :2])
    assert torch.equal(kl(reference, scores), expected)


def test_divergence_reads_the_text_before_it_loads_the_original(tmp_path):
    (tmp_path / "short.txt").write_text("abc")

    def original():
        raise AssertionError("the original was loaded for nothing")

    with pytest.raises(CalibrationError, match="has 3 tokens"):
        evaluate(
            tiny.loaded("llama"),
            Divergence(source=f"file:{tmp_path / 'short.txt'}", window=16),
            Context(),
            original,
        )


def test_divergence_refuses_another_vocabulary(source):
    original = tiny.loaded("llama")
    original.model.resize_token_embeddings(400)
    with pytest.raises(ModelError, match="predicts 400 tokens and this model 320"):
        evaluate(
            tiny.loaded("llama"), Divergence(source=source, window=16), Context(), lambda: original
        )


def test_divergence_names_the_window_that_is_not_finite(source):
    lm, original = tiny.loaded("llama"), tiny.loaded("llama")
    with torch.no_grad():
        lm.layers[2].get_parameter("mlp.up_proj.weight")[0, 0] = float("nan")
    with pytest.raises(NumericalError, match="window 0 is not finite, first after layer 2"):
        evaluate(lm, Divergence(source=source, window=16), Context(), lambda: original)


def test_footprint_counts_layers_parameters_zeros_and_bytes():
    lm = dropped("llama", [0, 1, 4])
    with torch.no_grad():
        lm.layers[0].get_parameter("mlp.up_proj.weight")[:10] = 0
    layers, parameters, zeros, size, _ = evaluate(lm, Footprint(), Context()).metrics
    count = sum(parameter.numel() for parameter in lm.model.parameters())
    assert (layers.name, layers.value) == ("layers", 3)
    assert (parameters.name, parameters.value) == ("parameters", count)
    assert zeros.name == "zeros"
    assert zeros.value == pytest.approx(10 * 32 / count, rel=0.2)
    assert zeros.value * count == pytest.approx(
        sum(int((p == 0).sum()) for p in lm.model.parameters())
    )
    assert (size.name, size.value, size.unit) == ("bytes", 4 * count, "B")
    assert size.details["of"] == "parameters"


def test_footprint_counts_tied_weights_once():
    lm = tiny.loaded("gpt2")
    assert lm.model.lm_head.weight is lm.model.get_parameter("transformer.wte.weight")
    parameters = {
        metric.name: metric.value for metric in evaluate(lm, Footprint(), Context()).metrics
    }
    unique = {id(p): p.numel() for p in lm.model.parameters()}
    assert parameters["parameters"] == sum(unique.values())


def test_footprint_weighs_the_files_of_a_saved_model(tmp_path):
    lm = tiny.loaded("llama")
    folder = tiny.save(lm.model, tmp_path / "model")
    size = evaluate(lm, Footprint(), Context(), None, folder).metrics[3]
    assert size.value == sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert size.value > 1000
    assert size.details["of"] == "files"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are Linux's here")
def test_footprint_takes_the_memory_of_reading_512_tokens():
    lm = tiny.loaded("llama")
    read = []

    def hook(_layer, _args, output):
        read.append(output.shape[1])
        torch.ones(len(read) * 4 << 20)  # 16 MB in the first pass, 32 MB in the one measured

    lm.layers[3].register_forward_hook(hook)
    memory = evaluate(lm, Footprint(), Context()).metrics[4]
    assert (memory.name, memory.unit, memory.better) == ("peak_memory", "B", "lower")
    assert read[-1] == memory.details["tokens"] == 512
    assert memory.details["of"] == "resident"
    assert 32 << 20 <= memory.value < 64 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are Linux's here")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others cannot be asked to give back")
def test_memory_that_was_freed_earlier_hides_nothing():
    lm = tiny.loaded("llama")

    def blocks(count):
        return [torch.ones(16 << 10) for _ in range(count)]  # 64 KB each: malloc keeps these

    lm.layers[3].register_forward_hook(lambda _layer, _args, _output: (blocks(512), None)[1])
    freed = blocks(2048)
    above = freed.pop()
    del freed
    assert evaluate(lm, Footprint(), Context()).metrics[4].value >= 32 << 20
    assert above.sum() > 0


def test_footprint_reads_no_more_tokens_than_there_are_positions():
    lm = tiny.loaded("llama")
    lm.layers.config.max_position_embeddings = 100
    assert evaluate(lm, Footprint(), Context()).metrics[4].details["tokens"] == 100
