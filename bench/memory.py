"""Peak memory of bringing a model back: layer-wise compensation against LoRA.

A Llama-shaped model of 1.1 billion random float32 weights, written to disk once. Either side runs
in a process of its own with 1,024 tokens in a batch; what counts is how far resident memory rises
above what it was once libraries are imported. Compensation is the whole walk: Wanda at 50 %, least
squares, Adam, the files written. LoRA (r 8, every linear) is measured over its first steps, since
its memory is the same in all of them.

Last line: `memory RATIO`, LoRA's peak over compensation's; it should be at least 7.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from shared.apart import printed_apart
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from laco import models
from laco.context import Context
from laco.errors import Cancelled
from laco.finetune import train_adapters
from laco.lazy import LayerWriter, LazyModel
from laco.memory import peak_memory
from laco.recipe import Compensate, Finetune, ModelRef, Prune, Wanda
from laco.rework import Texts, rework

STORE = Path(__file__).parent.parent / "cache"
SHAPE: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 49152,
}
LENGTH, BATCH = 256, 1024
QUICK_LAYERS = 3
GIGABYTE = 1 << 30


def written() -> Path:
    """The model's folder; made, with SmolLM2's tokenizer, if it is not there yet."""
    folder = STORE / "bench" / "llama-1b"
    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True))
        model.save_pretrained(folder)
        smol = models.folder_of(models.pin(ModelRef(path=models.BUNDLED), STORE), STORE)
        AutoTokenizer.from_pretrained(smol).save_pretrained(folder)
    return folder


def windows(count: int) -> torch.Tensor:
    return torch.randint(SHAPE["vocab_size"], (count, LENGTH))


def compensation(folder: Path, layers: int) -> None:
    """The walk, or its first `layers` layers."""
    repair = Compensate(epochs=1, batch_tokens=BATCH)
    step = Prune(method=Wanda(), calibration=repair.calibration, compensation=repair)
    ref = ModelRef(path=str(folder), dtype="float32")
    student, teacher = LazyModel(folder, ref, "cpu"), LazyModel(folder, ref, "cpu")
    count = len(student.stack)
    done: list[int] = []
    context = Context(
        publish=lambda rows: done.append(len(rows["layers"])),
        cancelled=lambda: bool(done) and done[-1] >= layers,
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as target:
        writer = LayerWriter(student, Path(target))
        try:
            rework(student, teacher, range(count), step, Texts(windows(12), 8), writer, context)
            writer.finish()
        except Cancelled:
            assert layers < count


def lora(folder: Path) -> None:
    """Two steps of LoRA."""
    lm = models.load_folder(folder, ModelRef(path=str(folder), dtype="float32"), "cpu")
    step = Finetune(epochs=1, batch_tokens=BATCH)
    train_adapters(lm, step, windows(8), windows(1), Context(), None)


def peak_apart(what: str, layers: int) -> int:
    return printed_apart(__file__, "--peak", what, "--layers", str(layers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"only {QUICK_LAYERS} layers' walk")
    parser.add_argument("--peak", choices=["compensation", "lora"], help="print this peak, bytes")
    parser.add_argument("--layers", type=int)
    given = parser.parse_args()
    folder = written()
    layers = given.layers or (QUICK_LAYERS if given.quick else SHAPE["num_hidden_layers"])
    if given.peak:
        import peft  # noqa: F401 - what LoRA imports late counts as imported

        with peak_memory("cpu") as found:
            if given.peak == "lora":
                lora(folder)
            else:
                compensation(folder, layers)
        print(found.growth)
        return
    ours, theirs = peak_apart("compensation", layers), peak_apart("lora", layers)
    files = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    print(f"{files / GIGABYTE:.1f} GB of weights, {BATCH} tokens a batch, float32")
    print(f"compensation, {layers} layers: peak {ours / GIGABYTE:.2f} GB above the imports")
    print(f"LoRA r 8: peak {theirs / GIGABYTE:.2f} GB above the imports")
    print(f"memory {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
