"""Perplexity against the model's own loss, and against a plain loop over windows."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import processors

from laco import head
from laco.context import Context
from laco.errors import CalibrationError, Cancelled, NumericalError, RecipeError
from laco.evaluate import evaluate, text
from laco.evaluate.text import ratio
from laco.evaluations import Perplexity
from tests import tiny

WORDS = "the quick brown fox jumps over the lazy dog and then some of the other animals "
FAMILIES = [
    "llama",
    "gemma2",
    "gemma3_text",
    "granite",
    "gpt2",
    "gpt_neox",
    "opt",
    "falcon",
    "bloom",
]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{number} {WORDS}" for number in range(40)))
    return f"file:{path}"


def ids_of(lm, source):
    text = Path(source.removeprefix("file:")).read_text()
    return torch.tensor(lm.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def with_bos(lm):
    """The same model with a tokenizer that puts BOS before every text, as Llama's and Gemma's."""
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return replace(lm, tokenizer=tokenizer)


def measure(lm, source, context=None, **fields):
    (metric,) = evaluate(lm, Perplexity(source=source, **fields), context or Context()).metrics
    return metric


def plain(lm, ids, window, starts, bos, scored):
    """Sums of -log p of the last `scored[w]` tokens of each window."""
    sums = []
    for start, last in zip(starts, scored, strict=True):
        row = ids[start : start + window - bos].tolist()
        row = [lm.tokenizer.bos_token_id] * bos + row
        with torch.no_grad():
            logits = lm.model(torch.tensor([row])).logits[0].double()
        log_p = logits.log_softmax(-1)
        sums.append(sum(-float(log_p[at - 1, row[at]]) for at in range(len(row) - last, len(row))))
    return sums


@pytest.mark.parametrize("family", FAMILIES)
def test_perplexity_is_exp_of_the_models_own_loss(family, source):
    lm = tiny.loaded(family)
    found = measure(lm, source, window=48, windows=6)
    windows = ids_of(lm, source)[: 48 * 6].view(6, 48)
    with torch.no_grad():
        losses = [float(lm.model(row[None], labels=row[None]).loss) for row in windows]
    assert found.value == pytest.approx(math.exp(sum(losses) / 6), rel=1e-5)
    assert found.details["tokens_scored"] == 6 * 47
    assert found.details["nll"] == pytest.approx(math.log(found.value))
    spread = torch.tensor(losses, dtype=torch.float64).std() / math.sqrt(6)
    assert found.stderr == pytest.approx(found.value * float(spread), rel=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_many_tiles_give_the_same(family, source, monkeypatch):
    lm = tiny.loaded(family)
    matrix = lm.model.get_output_embeddings()
    whole = measure(lm, source, window=48, windows=6)
    monkeypatch.setitem(head.TILE_BYTES, "cpu", 1)  # the least: 256 of 320 ids, then 64
    monkeypatch.setitem(text.BATCH_TOKENS, "cpu", 1)
    monkeypatch.setattr(head, "TOKENS", 10)
    assert measure(lm, source, window=48, windows=6).value == pytest.approx(whole.value, rel=1e-6)
    assert lm.model.get_output_embeddings() is matrix


def test_a_head_that_is_no_plain_matrix_is_taken_whole(source):
    lm = tiny.loaded("llama")
    expected = measure(lm, source, window=48, windows=3).value

    class Head(torch.nn.Linear):
        pass

    lm.model.lm_head.__class__ = Head
    assert measure(lm, source, window=48, windows=3).value == pytest.approx(expected, rel=1e-6)


def test_a_head_with_a_bias_keeps_it(source, monkeypatch):
    lm = tiny.loaded("llama")
    lm.model.lm_head.bias = torch.nn.Parameter(torch.randn(tiny.VOCABULARY), requires_grad=False)
    monkeypatch.setitem(head.TILE_BYTES, "cpu", 1)
    found = measure(lm, source, window=48, windows=3)
    windows = ids_of(lm, source)[: 48 * 3].view(3, 48)
    with torch.no_grad():
        losses = [float(lm.model(row[None], labels=row[None]).loss) for row in windows]
    assert found.value == pytest.approx(math.exp(sum(losses) / 3), rel=1e-5)


@pytest.mark.parametrize("bos", [False, True])
def test_a_stride_scores_every_token_once(source, bos):
    lm = tiny.loaded("llama")
    found = measure(lm, source, window=20, stride=7, windows=5, bos="always" if bos else "never")
    ids = ids_of(lm, source)
    scored = [20 - 1, 7, 7, 7, 7]
    sums = plain(lm, ids, 20, [7 * w for w in range(5)], int(bos), scored)
    assert found.value == pytest.approx(math.exp(sum(sums) / sum(scored)), rel=1e-5)
    assert found.details["tokens_scored"] == sum(scored)
    assert found.details["stride"] == 7
    assert found.details["windows"] == 5


def test_bos_goes_before_each_window_and_leaves_no_token_out(source):
    lm = tiny.loaded("llama")
    found = measure(lm, source, window=20, windows=4, bos="always")
    sums = plain(lm, ids_of(lm, source), 20, [0, 19, 38, 57], 1, [19] * 4)
    assert found.value == pytest.approx(math.exp(sum(sums) / 76), rel=1e-5)
    assert found.details["bos"] is True
    assert found.details["stride"] == 19


def test_the_tokenizers_own_habit_decides_on_bos(source):
    lm = tiny.loaded("llama")
    plain_habit = measure(lm, source, window=20, windows=4)
    bos_habit = measure(with_bos(lm), source, window=20, windows=4)
    assert plain_habit.details["bos"] is False
    assert bos_habit.details["bos"] is True
    assert plain_habit.value == measure(lm, source, window=20, windows=4, bos="never").value
    assert bos_habit.value == measure(lm, source, window=20, windows=4, bos="always").value
    assert bos_habit.value != plain_habit.value


def test_details_say_what_was_read(source):
    lm = tiny.loaded("llama")
    one = measure(lm, source, window=20, windows=3)
    more = measure(lm, source, window=20, windows=None)
    tokens = len(ids_of(lm, source))
    assert one.name == f"perplexity[{source}]"
    assert one.better == "lower"
    assert one.details["source"] == source
    assert one.details["window"] == 20
    assert more.details["windows"] == tokens // 20
    assert one.details["digest"] != more.details["digest"]
    assert one.details["digest"] == measure(lm, source, window=30, windows=2).details["digest"]


def test_one_window_has_no_standard_error(source):
    assert measure(tiny.loaded("llama"), source, window=20, windows=1).stderr is None


def test_the_standard_error_of_unequal_windows_is_the_ratio_estimates():
    sums, counts = torch.tensor([10.0, 6.0, 9.0], dtype=torch.float64), [4, 2, 4]
    mean, error = ratio(sums, counts)
    assert mean == pytest.approx(2.5)
    residuals = [10 - 2.5 * 4, 6 - 2.5 * 2, 9 - 2.5 * 4]
    assert error == pytest.approx(math.sqrt(3 / 2 * sum(r * r for r in residuals)) / 10)


def test_a_text_too_short_says_how_many_tokens_it_has(tmp_path):
    (tmp_path / "short.txt").write_text("abc")
    with pytest.raises(CalibrationError, match="has 3 tokens and one window takes 20"):
        measure(tiny.loaded("llama"), f"file:{tmp_path / 'short.txt'}", window=20)


def test_a_stride_beyond_the_window_is_refused(source):
    with pytest.raises(RecipeError, match="A stride of 21 would pass over text"):
        measure(tiny.loaded("llama"), source, window=20, stride=21)


def test_a_window_beyond_the_models_positions_is_refused(source):
    with pytest.raises(RecipeError, match="longer than the 512 positions"):
        measure(tiny.loaded("gpt2"), source, window=513)


def test_bos_always_needs_a_bos_token(source):
    lm = tiny.loaded("llama")
    lm.tokenizer.bos_token = None
    with pytest.raises(RecipeError, match="needs a BOS token"):
        measure(lm, source, window=20, bos="always")
    assert measure(lm, source, window=20, windows=2).details["bos"] is False


def test_a_number_that_is_not_finite_names_window_and_layer(source):
    lm = tiny.loaded("llama")
    with torch.no_grad():
        lm.layers[3].get_parameter("mlp.down_proj.weight")[0, 0] = float("nan")
    with pytest.raises(NumericalError, match="window 0 is not finite, first after layer 3"):
        measure(lm, source, window=20, windows=2)
    assert not any(layer._forward_hooks for layer in lm.layers)


def test_a_broken_head_is_not_blamed_on_a_layer(source):
    lm = tiny.loaded("llama")
    with torch.no_grad():
        lm.model.lm_head.weight[5, 0] = float("inf")
    with pytest.raises(NumericalError, match="the final norm or the head"):
        measure(lm, source, window=20, windows=2)


def test_a_perplexity_beyond_all_numbers_is_an_error(source):
    lm = tiny.loaded("llama")
    with torch.no_grad():
        lm.model.lm_head.weight.mul_(1e5)
    with pytest.raises(NumericalError, match="exponential no number holds"):
        measure(lm, source, window=20, windows=2)


def test_bfloat16_losses_are_summed_in_full_precision(source):
    lm = tiny.loaded("llama")
    lm.model.bfloat16()
    found = measure(lm, source, window=48, windows=6)
    windows = ids_of(lm, source)[: 48 * 6].view(6, 48)
    total = 0.0
    for row in windows:
        with torch.no_grad():
            log_p = lm.model(row[None]).logits[0].double().log_softmax(-1)
        total -= sum(float(log_p[at - 1, row[at]]) for at in range(1, 48))
    assert found.value == pytest.approx(math.exp(total / (6 * 47)), rel=1e-4)


def test_perplexity_stops_when_asked_to(source):
    with pytest.raises(Cancelled):
        measure(tiny.loaded("llama"), source, Context(cancelled=lambda: True), window=20)


def test_progress_reaches_the_end(source):
    told = []
    context = Context(progress=lambda fraction, message: told.append((fraction, message)))
    measure(tiny.loaded("llama"), source, context, window=512, windows=3)
    assert [fraction for fraction, _ in told] == [pytest.approx(2 / 3), 1.0]
    assert told[-1][1] == "Window 3 of 3"
