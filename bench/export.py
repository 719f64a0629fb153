"""Peak memory of a collapse that is given, from the files of a model to those of the result.

A Llama-shaped model of ten shards, random bfloat16 weights, written to disk once. A recipe that
drops layers and one that merges spans of four are carried out by the engine, each in a process of
its own; what counts is how far resident memory (VmHWM, which the kernel keeps) rises above what it
was once libraries are imported. That includes pages of the mapped files, which the system could
take back at any time; what is the process's own (RssAnon, sampled) is printed beside it.

Last line: `export RATIO`, the higher of the two peaks over the largest shard; it should be below 2.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch
from shared.apart import numbers_apart
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from laco import engine, models
from laco.context import Context
from laco.evaluations import Request
from laco.memory import peak_memory
from laco.recipe import Drop, Merge, ModelRef, Recipe
from laco.store import RunStore

STORE = Path(__file__).parent.parent / "cache"
SHAPE: dict[str, Any] = {
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 49152,
}
QUICK_LAYERS = 12
SHARDS = 10
MEGABYTE = 1 << 20
SAMPLE_SECONDS = 0.002
EDITS: dict[str, Any] = {
    "drop": Drop(layers=(3, 6, 7)),
    "merge": Merge(spans=((2, 6), (7, 11)), merge="rdsc"),
}


def written(layers: int) -> Path:
    """The model's folder; made, with SmolLM2's tokenizer, if it is not there yet."""
    folder = STORE / "bench" / f"llama-{SHARDS}-shards-{layers}"
    if not (folder / "tokenizer.json").exists():
        torch.manual_seed(0)
        shape = {**SHAPE, "num_hidden_layers": layers}
        model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True)).bfloat16()
        n_bytes = 2 * sum(parameter.numel() for parameter in model.parameters())
        model.save_pretrained(folder, max_shard_size=int(1.08 * n_bytes / SHARDS))
        smol = models.folder_of(models.pin(ModelRef(path=models.BUNDLED), STORE), STORE)
        AutoTokenizer.from_pretrained(smol).save_pretrained(folder)
    return folder


def measured(folder: Path, edit: str) -> tuple[int, int]:
    """Bytes above the imports while the engine carries out an edit: (own, resident)."""
    recipe = Recipe(model=ModelRef(path=str(folder)), steps=(EDITS[edit],))
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        store = RunStore(place)
        before = own()
        seen, over = [before], threading.Event()

        def watch() -> None:
            while not over.wait(SAMPLE_SECONDS):
                seen.append(own())

        watcher = threading.Thread(target=watch)
        watcher.start()
        with peak_memory("cpu") as resident:
            engine.run(Request(recipe=recipe), store, Context())
        over.set()
        watcher.join()
        store.close()
    return max(seen) - before, resident.growth


def own() -> int:
    """Bytes of memory that are this process's own, and in no file."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_LAYERS} layers")
    parser.add_argument("--peak", choices=list(EDITS), help="print this edit's two peaks, bytes")
    given = parser.parse_args()
    folder = written(QUICK_LAYERS if given.quick else SHAPE["num_hidden_layers"])
    if given.peak:
        print(*measured(folder, given.peak))
        return
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    largest = max(sizes)
    print(
        f"{sum(sizes) / MEGABYTE:.0f} MB of weights in {len(sizes)} shards, the largest "
        f"{largest / MEGABYTE:.0f} MB"
    )
    quick = ["--quick"] if given.quick else []
    worst = 0
    for edit in EDITS:
        anonymous, resident = numbers_apart(__file__, "--peak", edit, *quick)
        worst = max(worst, resident)
        print(
            f"{edit}: peak {resident / MEGABYTE:.0f} MB above the imports, "
            f"{resident / largest:.2f} of the largest shard; without mapped files "
            f"{anonymous / MEGABYTE:.0f} MB"
        )
    print(f"export {worst / largest:.2f}")


if __name__ == "__main__":
    main()
