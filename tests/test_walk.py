"""Layer by layer, a model answers as it does whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laco.layers import LayerStack
from laco.walk import Tape, final_hidden, logits, record, walk
from tests import tiny

FAMILIES = {**tiny.ARCHITECTURES, **tiny.PROBED}


@pytest.fixture(params=FAMILIES)
def stack(request: pytest.FixtureRequest) -> LayerStack:
    return LayerStack(FAMILIES[request.param]())


@pytest.fixture
def llama() -> LayerStack:
    return LayerStack(FAMILIES["llama"]())


@torch.no_grad()
def whole(stack: LayerStack, tokens: Tensor) -> Tensor:
    return stack.model(input_ids=tokens, use_cache=False).logits


def run(stack: LayerStack, tape: Tape, layers: list[int]) -> Tensor:
    hidden = tape.inputs
    for index in layers:
        hidden = tape.run(stack[index], index, hidden)
    return hidden


class TestEveryFamily:
    def test_layer_by_layer_equals_the_model(self, stack: LayerStack) -> None:
        tokens = tiny.tokens(batch=3)
        tape = record(stack, tokens)
        final = final_hidden(stack, tape, run(stack, tape, list(range(tiny.DEPTH))))
        assert torch.equal(logits(stack, final), whole(stack, tokens))

    def test_without_some_layers_equals_a_trial(self, stack: LayerStack) -> None:
        tokens, kept = tiny.tokens(), [0, 2, 3, 5]
        tape = record(stack, tokens)
        final = final_hidden(stack, tape, run(stack, tape, kept))
        with stack.trial([stack[i] for i in kept], kept):
            assert torch.equal(logits(stack, final), whole(stack, tokens))

    def test_the_head_works_on_chunks(self, stack: LayerStack) -> None:
        tokens = tiny.tokens()
        tape = record(stack, tokens)
        final = final_hidden(stack, tape, run(stack, tape, list(range(tiny.DEPTH))))
        chunk = logits(stack, final[:, 3:7])
        torch.testing.assert_close(chunk, whole(stack, tokens)[:, 3:7], atol=1e-5, rtol=1e-5)

    def test_the_model_is_left_as_it_was(self, stack: LayerStack) -> None:
        def hooks() -> list[int]:
            return [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in modules]

        modules, tokens = list(stack.model.modules()), tiny.tokens()
        before, answer, config = hooks(), whole(stack, tokens), stack.model.config.to_dict()
        tape = record(stack, tokens)
        logits(stack, final_hidden(stack, tape, tape.inputs))
        assert list(stack.model.modules()) == modules
        assert hooks() == before
        assert "forward" not in vars(stack.trunk)
        assert stack.model.config.to_dict() == config
        assert torch.equal(whole(stack, tokens), answer)

    def test_padding_at_the_right_leaves_earlier_tokens_alone(self, stack: LayerStack) -> None:
        tokens = tiny.tokens(batch=2, length=12)
        padded = tokens.clone()
        padded[1, 7:] = 0
        whole_tape, padded_tape = record(stack, tokens), record(stack, padded)
        layers = list(range(tiny.DEPTH))
        torch.testing.assert_close(
            run(stack, padded_tape, layers)[1, :7],
            run(stack, whole_tape, layers)[1, :7],
            atol=1e-4,
            rtol=1e-4,
        )

    def test_walk_equals_the_model(self, stack: LayerStack) -> None:
        batches = [tiny.tokens(2, 12), tiny.tokens(1, 7, seed=1)]  # of different shapes
        seen: list[int] = []

        def visit(index: int, layer: nn.Module, inputs: list[Tensor], runs: list[Any]) -> None:
            seen.append(index)
            assert layer is stack[index]
            assert [states.shape[:2] for states in inputs] == [(2, 12), (1, 7)]

        outputs = walk(stack, batches, visit)
        assert seen == list(range(tiny.DEPTH))
        for tokens, hidden in zip(batches, outputs, strict=True):
            final = final_hidden(stack, record(stack, tokens), hidden)
            assert torch.equal(logits(stack, final), whole(stack, tokens))


def test_each_layer_keeps_the_mask_of_its_attention_type() -> None:
    stack = LayerStack(FAMILIES["gemma3_text"]())  # sliding, sliding, full, ...
    tape = record(stack, tiny.tokens())
    masks = [call.kwargs["attention_mask"] for call in tape.calls]
    assert masks[0] is masks[1] is masks[3]
    assert masks[2] is masks[5]
    right, wrong = tape.run(stack[2], 2, tape.inputs), tape.run(stack[2], 1, tape.inputs)
    assert not torch.allclose(right, wrong, atol=1e-3)


def test_walk_feeds_a_layer_from_the_edited_one_before() -> None:
    stack = LayerStack(FAMILIES["llama"]())
    tokens = tiny.tokens()

    def visit(index: int, layer: nn.Module, inputs: list[Tensor], runs: list[Any]) -> None:
        before = runs[0](layer, inputs[0])
        if index == 2:
            with torch.no_grad():
                layer.get_parameter("mlp.down_proj.weight").zero_()
            assert not torch.equal(runs[0](layer, inputs[0]), before)

    [hidden] = walk(stack, [tokens], visit)
    tape = record(stack, tokens)  # of the edited model
    assert torch.equal(logits(stack, final_hidden(stack, tape, hidden)), whole(stack, tokens))


def test_recording_stops_before_the_last_layer_runs(llama: LayerStack) -> None:
    ran: list[int] = []
    for index, layer in enumerate(llama):
        layer.register_forward_hook(lambda *_, index=index: ran.append(index))
    record(llama, tiny.tokens())
    assert ran == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("family", ["llama", "falcon"])  # falcon's layers return tuples
def test_a_single_layer_is_recorded_too(family: str) -> None:
    stack = LayerStack(FAMILIES[family]())
    stack.keep([stack[0]], [0])
    tokens = tiny.tokens()
    tape = record(stack, tokens)
    final = final_hidden(stack, tape, run(stack, tape, [0]))
    assert torch.equal(logits(stack, final), whole(stack, tokens))


def test_an_error_inside_the_model_comes_out_and_leaves_no_hooks(llama: LayerStack) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    handle = llama[3].register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        record(llama, tiny.tokens())
    handle.remove()
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in llama)


def test_an_error_in_the_head_puts_the_trunk_back(llama: LayerStack) -> None:
    with pytest.raises(RuntimeError):
        logits(llama, torch.zeros(1, 2, 7))  # the hidden size is 32
    assert "forward" not in vars(llama.trunk)


def test_a_forward_that_was_put_on_the_trunk_stays_there(llama: LayerStack) -> None:
    trunk: Any = llama.trunk
    trunk.forward = own = trunk.forward
    tokens = tiny.tokens()
    tape = record(llama, tokens)
    logits(llama, final_hidden(llama, tape, tape.inputs))
    assert vars(trunk)["forward"] is own


def test_nothing_of_the_layers_is_kept_for_gradients() -> None:
    stack = LayerStack(FAMILIES["llama"]())
    stack.model.requires_grad_(True)
    tape = record(stack, tiny.tokens())
    hidden = run(stack, tape, [0, 1])
    assert not tape.inputs.requires_grad
    assert not final_hidden(stack, tape, hidden).requires_grad
