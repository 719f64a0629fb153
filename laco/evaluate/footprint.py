"""What a model takes: layers, parameters, zeros among them, bytes on disk, memory to read with.

Knows nothing of text. Next: `__init__.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open
from torch import Tensor

from laco.evaluate.greedy import Reader, positions, random_tokens
from laco.evaluations import Metric
from laco.memory import give_back, peak_memory
from laco.shards import weight_files
from laco.streamed import is_whole

if TYPE_CHECKING:
    from laco.context import Context
    from laco.models import LoadedModel

PROMPT = 512  # tokens
FIRST = 8  # tokens of the pass before the one that is measured


def footprint(lm: LoadedModel, context: Context, folder: Path | None) -> tuple[Metric, ...]:
    """Five metrics, four where there is no room for the model. Tied weights count once.

    `zeros` is the share of parameters that are exactly zero: they still take their bytes. `bytes`
    is the size of the safetensors files in `folder`, or, for a model that has none, of its
    parameters in memory (`details` says which).
    `peak_memory` is that of reading a prompt, as `reading_memory` says.
    """
    count = zeros = memory = 0
    whole = is_whole(lm)
    parameters = lm.model.parameters() if whole or folder is None else _in_files(folder)
    expected = sum(parameter.numel() for parameter in lm.model.parameters())
    for parameter in parameters:
        count += parameter.numel()
        zeros += parameter.numel() - int(parameter.count_nonzero())
        memory += parameter.numel() * parameter.element_size()
        context.step(count / expected, "Counting parameters")
    files = sorted(folder.glob("*.safetensors")) if folder is not None else []
    size = sum(file.stat().st_size for file in files) if files else memory
    return (
        Metric("layers", len(lm.layers), "", "lower"),
        Metric("parameters", count, "", "lower"),
        Metric("zeros", zeros / count, "", "higher", details={"parameters": zeros}),
        Metric("bytes", size, "B", "lower", details={"of": "files" if files else "parameters"}),
        *([reading_memory(lm)] if whole else []),
    )


def _in_files(folder: Path) -> Iterator[Tensor]:
    """The tensors of a folder, one in memory at a time."""
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                yield opened.get_tensor(name)


def reading_memory(lm: LoadedModel) -> Metric:
    """Bytes that one pass over 512 random tokens takes beside the model: KV cache and activations.

    Fewer tokens where the model has fewer positions; logits of the last one only, where the
    model's code can do that. On a GPU it is what torch allocated, to the byte. On a CPU it is how
    far resident memory rose, which differs by a tenth from run to run.
    """
    tokens = random_tokens(lm.layers, 1, min(PROMPT, positions(lm.layers) or PROMPT))
    Reader(lm.layers).feed(tokens[:, :FIRST])  # sets up what stays for good: weights, libraries
    device = lm.model.device
    give_back()
    reader = Reader(lm.layers)
    with peak_memory(str(device)) as peak:
        reader.feed(tokens)
    return Metric(
        name="peak_memory",
        value=max(peak.growth, 0),
        unit="B",
        better="lower",
        details={
            "tokens": tokens.shape[1],
            "of": "resident" if device.type == "cpu" else "allocated",
            "device": str(device),
            "logits": "last token" if reader.last_only else "every token",
        },
    )
