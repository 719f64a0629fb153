"""A model of three billion parameters goes through in the memory of a few layers.

Llama-shaped, random weights in bfloat16, written to disk once. Similarity, perplexity, and the
first layers of a walk that prunes by Wanda to 50 % and compensates by least squares (each layer
takes the same memory, and is let go of), each in a process of its own: how far resident memory
rises above what it was once libraries are imported, which should stay below 1.5 GB. Then the time
of similarity and of perplexity on it, streamed, over that on the same model in memory: at most 1.3.

Last line: `streaming RATIO`, the larger of these two ratios.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from shared.apart import numbers_apart
from shared.recovery import STORE
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from laco import models
from laco.context import Context
from laco.corpora import Windows
from laco.disk import write_json
from laco.errors import Cancelled
from laco.evaluate.perplexity import window_losses
from laco.evaluate.text import Text
from laco.evaluations import Similarity
from laco.layerfiles import write_tensors
from laco.lazy import LayerWriter, LazyModel
from laco.memory import peak_memory
from laco.models import LoadedModel, load_folder
from laco.recipe import Compensate, ModelRef, Prune, Wanda
from laco.rework import Texts, rework
from laco.similarity import layer_similarity
from laco.streamed import load_streamed

SHAPE: dict[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_hidden_layers": 42,
    "num_attention_heads": 20,
    "num_key_value_heads": 5,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
QUICK_LAYERS = 8
LENGTH = 256
GIGABYTE = 1 << 30
WALKED = 3  # layers: each takes a minute of least squares, and the same memory
WORK = ("similarity", "perplexity", "walk")


def written(layers: int) -> Path:
    """The model's folder, a file a layer; made, with SmolLM2's tokenizer, if it is not there."""
    folder = STORE / "bench" / f"llama-3b-{layers}"
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(**{**SHAPE, "num_hidden_layers": layers}, dtype="bfloat16")
    with init_empty_weights():
        state = LlamaForCausalLM(config).state_dict()
    random = torch.Generator().manual_seed(0)
    names: dict[str, str] = {}
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in state.items():
        if name == "lm_head.weight":
            continue
        words = name.split(".")
        file = f"layer-{words[2]}" if words[1] == "layers" else "outside"
        groups.setdefault(f"{file}.safetensors", {})[name] = tensor
    for file, tensors in groups.items():
        made = {
            name: torch.ones(tensor.shape, dtype=torch.bfloat16)
            if tensor.dim() == 1
            else torch.randn(tensor.shape, generator=random).mul_(0.02).bfloat16()
            for name, tensor in tensors.items()
        }
        write_tensors(folder / file, made)
        names |= dict.fromkeys(made, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": names})
    smol = models.folder_of(models.pin(ModelRef(path=models.BUNDLED), STORE), STORE)
    AutoTokenizer.from_pretrained(smol).save_pretrained(folder)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    return folder


def tokens(windows: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(SHAPE["vocab_size"], (windows, LENGTH), generator=random)


def look(lm: LoadedModel, what: str, windows: int) -> None:
    """Similarity or perplexity of a model on so many windows."""
    ids = tokens(windows)
    if what == "similarity":
        shown = Windows(ids, torch.full((windows,), LENGTH), "", "random")
        layer_similarity(lm, shown, Similarity(shards=2), Context())
    else:
        window_losses(lm, Text(ids, (1,) * windows, "", False, LENGTH), Context())


def walked(folder: Path, ref: ModelRef, windows: int) -> None:
    """Wanda at 50 % with least squares, the first layers, in a folder that is then removed."""
    repair = Compensate(epochs=0, held_out=1)
    step = Prune(method=Wanda(), calibration=repair.calibration, compensation=repair)
    student, teacher = LazyModel(folder, ref, "cpu"), LazyModel(folder, ref, "cpu")
    texts = Texts(tokens(windows + 1), windows)
    done: list[int] = []
    context = Context(
        publish=lambda rows: done.append(len(rows["layers"])),
        cancelled=lambda: bool(done) and done[-1] >= WALKED,
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as target, suppress(Cancelled):
        writer = LayerWriter(student, Path(target))
        rework(student, teacher, range(len(student.stack)), step, texts, writer, context)


def taken(folder: Path, what: str, how: str, windows: int) -> None:
    """Print the peak in bytes above the imports, and the milliseconds without loading."""
    ref = ModelRef(path=str(folder))
    with peak_memory("cpu") as peak:
        if what == "walk":
            began = time.perf_counter()
            walked(folder, ref, windows)
        else:
            lm = (load_streamed if how == "streamed" else load_folder)(folder, ref, "cpu")
            began = time.perf_counter()
            look(lm, what, windows)
        seconds = time.perf_counter() - began
    print(peak.growth, round(1000 * seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_LAYERS} layers")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        folder, what, how, windows = given.one
        taken(Path(folder), what, how, int(windows))
        return
    layers, windows = QUICK_LAYERS if given.quick else SHAPE["num_hidden_layers"], 1
    folder = written(layers)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    print(f"{size / 2e9:.2f} billion parameters in bfloat16, a window of {LENGTH} tokens")
    ratios: list[float] = []

    def apart(what: str, how: str) -> list[int]:
        return numbers_apart(__file__, "--one", str(folder), what, how, str(windows))

    for what in WORK:
        peak, streamed = apart(what, "streamed")
        line = f"{what:11} streamed: {streamed / 1000:7.1f} s, peak {peak / GIGABYTE:5.2f} GB"
        if what != "walk":
            more, usual = apart(what, "whole")
            ratios.append(streamed / usual)
            line += (
                f"; in memory: {usual / 1000:7.1f} s, peak {more / GIGABYTE:5.2f} GB; "
                f"time {ratios[-1]:.2f}"
            )
        print(line + (f" ({WALKED} of {layers} layers)" if what == "walk" else ""), flush=True)
    print(f"streaming {max(ratios):.2f}")


if __name__ == "__main__":
    main()
