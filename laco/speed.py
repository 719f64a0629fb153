"""Measure how fast this machine runs layers, for the estimates of `expected.py`.

A Llama-shaped layer of random weights is run at four widths, forth and back: ten seconds in all.
What is found is kept in the store, and measured again only on another machine. It knows nothing of
the model that an estimate is for.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from laco.disk import digest_of, write_json
from laco.expected import products
from laco.layerfiles import write_tensors
from laco.machine import FILE, Speed, known_speed, machine
from laco.prune.wanda import wanda_mask

WIDTHS = (64, 256, 768, 2048)
WINDOWS, LENGTH = 4, 256
WORDS = 16384  # of a vocabulary
MANY = 1 << 24  # numbers that are copied, updated, written
REPEATS, ENOUGH = 5, 0.3  # so often at least, and so many seconds; the run in the middle counts


def speed(store: Path) -> Speed:
    """The speed of this machine on its CPU: as the store has it, or measured now and kept there."""
    found = known_speed(store)
    if found is None:
        found = measured()
        write_json(store / FILE, asdict(found))
    return found


def measured() -> Speed:
    """The speed of this machine on its CPU, with as many threads as torch has now."""
    program = psutil.Process().memory_info().rss
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        layers = {str(width): _layer(width) for width in WIDTHS}
        head = {str(width): _head(width) for width in WIDTHS}
    numbers = torch.rand(MANY, generator=torch.Generator().manual_seed(0))
    return Speed(
        machine=machine(),
        forward={width: rates[0] for width, rates in layers.items()},
        inputs={width: rates[1] for width, rates in layers.items()},
        weights={width: rates[2] for width, rates in layers.items()},
        head=head,
        update=MANY / _update(numbers),
        rank=MANY
        / _seconds(lambda: wanda_mask(numbers.view(-1, 1024), torch.ones(1024), 0.5, None)),
        copy=numbers.nbytes / _seconds(numbers.clone),
        write=numbers.nbytes / _write(numbers),
        program=program,
    )


def _layer(width: int) -> tuple[float, float, float]:
    """Operations a second of one layer: forward; and back to its inputs; and to its weights."""
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=1,
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 256),
        vocab_size=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).model
    layer = model.layers[0].requires_grad_(False)
    hidden = torch.randn(WINDOWS, LENGTH, width)
    positions = model.rotary_emb(hidden, torch.arange(LENGTH)[None])

    def forward() -> Tensor:
        return layer(hidden, position_embeddings=positions)

    def backward() -> None:
        hidden.requires_grad_(True)
        forward().sum().backward()

    size = sum(parameter.numel() for parameter in layer.parameters())
    work = products(size, width, LENGTH) * WINDOWS * LENGTH
    with torch.no_grad():
        plain = _seconds(forward)
    inputs = _seconds(backward)
    layer.requires_grad_(True)
    return work / plain, work / inputs, work / _seconds(backward)


@torch.no_grad()
def _head(width: int) -> float:
    """Seconds for a token and a word of the vocabulary: the product, and its log-sum-exp."""
    head = nn.Linear(width, WORDS, bias=False)
    states = torch.randn(LENGTH, width)
    return _seconds(lambda: head(states).logsumexp(-1)) / LENGTH / WORDS


def _update(numbers: Tensor) -> float:
    parameter = nn.Parameter(numbers.clone())
    parameter.grad = numbers.clone()
    return _seconds(torch.optim.AdamW([parameter], fused=True).step)


def _write(numbers: Tensor) -> float:
    """Seconds until a file is safe on the disk, and its digest known, as results are kept."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "speed")

        def write() -> None:
            write_tensors(file, {"numbers": numbers})
            digest_of(file)

        return _seconds(write)


def _seconds(work: Callable[[], object]) -> float:
    """Of some runs the median, after one that is not timed."""
    work()
    found: list[float] = []
    while len(found) < REPEATS or sum(found) < ENOUGH:
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found)
