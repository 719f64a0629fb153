"""How near each step comes to what the machine can do, and how its cost grows.

The machine's ceilings are measured first, in the same process: the rate of a large matrix product
in float32, and of a copy of memory. Then each step by itself, on a layer of Llama's shape with
random weights: its multiplications and additions, or the bytes that it has to move at least, over
its time, as a share of the ceiling that bounds it. Then similarity and the walk (Wanda, least
squares, one epoch of Adam) on small models, and the exponents of their time in layers, width and
windows, fitted on a logarithmic scale.

Last line: `ceilings SHARE`, the least share of a step that is bound by matrix products.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from shared.recovery import STORE
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from laco import models
from laco.context import Context
from laco.corpora import Windows
from laco.evaluations import Similarity
from laco.expected import products
from laco.head import token_losses
from laco.layerfiles import write_tensors
from laco.layers import LayerStack
from laco.lazy import LayerWriter, LazyModel
from laco.measures import Sums
from laco.merging import merge_tensors
from laco.models import load_folder
from laco.prune.masks import row_mask
from laco.prune.sparsegpt import gram, inverse_factor, sparsegpt
from laco.prune.wanda import square_sums, wanda_mask
from laco.recipe import Compensate, ModelRef, Prune, Wanda
from laco.rework import Texts, rework
from laco.ridge import masked_ridge
from laco.similarity import layer_similarity

TOKENS, LENGTH = 1024, 256
REPEATS = 5
SORTED = "by rows, weights have to be sorted"
COLUMNS = "columns depend on those before, so products are narrow"
SHAPE: dict[str, int] = {"layers": 4, "width": 256, "windows": 8}  # of the growth
SERIES: dict[str, tuple[int, ...]] = {
    "layers": (4, 8, 16),
    "width": (256, 512, 1024),
    "windows": (8, 16, 32),
}


@dataclass(frozen=True)
class Step:
    """A step, what it does at least (operations or bytes), and why it may be far from the bound."""

    name: str
    work: Callable[[], object]
    operations: float = 0.0
    moved: float = 0.0
    why: str = ""


def seconds(work: Callable[[], object]) -> float:
    """The best of a few runs, after one that does not count."""
    work()
    found: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def model(width: int, layers: int, words: int = 4096) -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 256),
        vocab_size=words,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def steps(width: int) -> list[Step]:
    """Each step alone, on a layer of this width and 1,024 tokens."""
    inner, depths, words = width * 11 // 4, 31, 16384
    whole = model(width, 1, words)
    layer, trunk = whole.model.layers[0], whole.model
    hidden = torch.randn(TOKENS // LENGTH, LENGTH, width)
    positions = trunk.rotary_emb(hidden, torch.arange(LENGTH)[None])
    size = sum(parameter.numel() for parameter in layer.parameters())
    once = products(size, width, LENGTH) * TOKENS
    fed = torch.randn(TOKENS, inner)
    weight, square = torch.randn(width, inner), gram(fed)
    factor, _ = inverse_factor(square, 0.01)
    support = weight > 0
    cross = torch.randn(width, inner)
    states = torch.randn(LENGTH, depths, width)
    sums = Sums(1, depths)
    labels = torch.randint(words, (TOKENS,))
    parameter = nn.Parameter(torch.randn(inner, width))
    parameter.grad = torch.randn(inner, width)
    adam = torch.optim.AdamW([parameter], fused=True)
    place = tempfile.mkdtemp(dir=STORE)

    def forward() -> Tensor:
        return layer(hidden, position_embeddings=positions)

    def backward() -> None:
        for each in layer.parameters():
            each.requires_grad_(True)
            each.grad = None
        forward().sum().backward()
        layer.requires_grad_(False)

    def head() -> Tensor:
        return token_losses(LayerStack(whole), hidden.flatten(0, 1), labels)

    dead = torch.zeros(inner, dtype=torch.bool)
    flops = 2 * width * inner
    return [
        Step("a layer, forward", torch.no_grad()(forward), once),
        Step("a layer, forward and back to its weights", backward, 3 * once),
        Step("head with log-sum-exp", torch.no_grad()(head), 2 * TOKENS * words * width),
        Step(
            "similarity of all depths",
            lambda: sums.add(0, states),
            2 * 2 * LENGTH * depths**2 * width,  # in float64: twice
            why="31 depths make products too narrow; a hundredth of the layers' time",
        ),
        Step("Gram matrix of inputs", lambda: gram(fed), 2 * TOKENS * inner**2),
        Step(
            "least squares, 15 steps",
            lambda: masked_ridge(square, cross, support, 1.0, 15, None),
            15 * flops * inner,
        ),
        Step(
            "SparseGPT",
            lambda: sparsegpt(weight, factor, dead, 0.5, None, 128),
            flops * inner / 2,
            why=COLUMNS,
        ),
        Step(
            "Wanda's mask",
            lambda: wanda_mask(weight, square_sums(fed), 0.5, None),
            moved=4 * (2 * weight.numel() + fed.numel()),
            why=SORTED,
        ),
        Step(
            "a row's smallest, of which Wanda's mask is made",
            lambda: row_mask(weight.abs(), torch.zeros_like(support), inner // 2),
            moved=4 * 2 * weight.numel(),
            why=SORTED,
        ),
        Step("Adam's update", adam.step, moved=4 * 7 * parameter.numel()),
        Step(
            "merging three matrices (rdsc)",
            lambda: merge_tensors([weight, cross, weight], "rdsc"),
            moved=4 * 4 * weight.numel(),
            why="sums are in float64, so that equal layers stay equal",
        ),
        Step(
            "writing a file",
            lambda: write_tensors(Path(place, "speed"), {"weight": weight}),
            moved=2 * 4 * weight.numel(),
            why="it waits until the disk has it",
        ),
    ]


def grown(asked: dict[str, int], what: str) -> float:
    """Seconds of similarity or of the walk on a small model of this shape."""
    with tempfile.TemporaryDirectory(dir=STORE) as place:
        folder = Path(place, "model")
        model(asked["width"], asked["layers"], 49152).save_pretrained(folder)
        smol = models.folder_of(models.pin(ModelRef(path=models.BUNDLED), STORE), STORE)
        AutoTokenizer.from_pretrained(smol).save_pretrained(folder)
        ref = ModelRef(path=str(folder))
        ids = torch.randint(4096, (asked["windows"] + 2, LENGTH))
        if what == "similarity":
            lm = load_folder(folder, ref, "cpu")
            shown = Windows(ids, torch.full((len(ids),), LENGTH), "", "random")
            began = time.perf_counter()
            layer_similarity(lm, shown, Similarity(shards=2), Context())
        else:
            repair = Compensate(epochs=1, held_out=2)
            step = Prune(method=Wanda(), calibration=repair.calibration, compensation=repair)
            ours, theirs = LazyModel(folder, ref, "cpu"), LazyModel(folder, ref, "cpu")
            texts = Texts(ids, asked["windows"])
            writer = LayerWriter(ours, Path(place, "made"))
            began = time.perf_counter()
            rework(ours, theirs, range(len(ours.stack)), step, texts, writer, Context())
        return time.perf_counter() - began


def exponent(sizes: tuple[int, ...], times: list[float]) -> float:
    """The slope of the logarithm of time over that of size, by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(each) for each in times]
    middle, mean = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - middle) * (b - mean) for a, b in zip(x, y, strict=True))
    return above / sum((a - middle) ** 2 for a in x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two sizes of each series, width 512")
    given = parser.parse_args()
    large = torch.randn(2048, 2048)
    product = 2 * 2048**3 / seconds(lambda: large @ large)
    block = torch.randn(1 << 26)
    copied = torch.empty_like(block)
    copy = 2 * block.nbytes / seconds(lambda: copied.copy_(block))
    threads = torch.get_num_threads()
    print(f"{threads} threads: product {product / 1e9:.0f} Gflop/s, copy {copy / 1e9:.1f} GB/s")
    worst = 1.0
    for step in steps(512 if given.quick else 1024):
        took = seconds(step.work)
        if step.operations:
            rate = step.operations / took
            share, told = rate / product, f"{rate / 1e9:7.1f} Gflop/s of products"
            worst = min(worst, share if not step.why else 1.0)
        else:
            rate = step.moved / took
            share, told = rate / copy, f"{rate / 1e9:7.1f} GB/s of a copy   "
        why = f"  {step.why}" if step.why and share < 0.7 else ""
        print(f"{step.name:48} {1000 * took:9.2f} ms {told} {share:5.0%}{why}", flush=True)
    for what in ("similarity", "walk"):
        words: list[str] = []
        for name, sizes in SERIES.items():
            sizes = sizes[:2] if given.quick else sizes
            times = [grown({**SHAPE, name: size}, what) for size in sizes]
            words.append(f"{name} {exponent(sizes, times):.2f} ({_times(sizes, times)})")
        print(f"{what}: time grows as a power of {', '.join(words)}", flush=True)
    print(f"ceilings {worst:.2f}")


def _times(sizes: tuple[int, ...], times: list[float]) -> str:
    return ", ".join(f"{size}: {each:.1f} s" for size, each in zip(sizes, times, strict=True))


if __name__ == "__main__":
    main()
