"""What a model takes: layers, parameters, zeros among them, bytes on disk.

Knows nothing of text. Next: `__init__.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from laco.evaluations import Metric

if TYPE_CHECKING:
    from laco.context import Context
    from laco.models import LoadedModel


def footprint(lm: LoadedModel, context: Context, folder: Path | None) -> tuple[Metric, ...]:
    """Four metrics. Tied weights count once.

    `zeros` is the share of parameters that are exactly zero: they still take their bytes. `bytes`
    is the size of the safetensors files in `folder`, or, for a model that has none, of its
    parameters in memory (`details` says which).
    """
    count = zeros = memory = 0
    parameters = list(lm.model.parameters())
    for index, parameter in enumerate(parameters):
        count += parameter.numel()
        zeros += parameter.numel() - int(parameter.count_nonzero())
        memory += parameter.numel() * parameter.element_size()
        context.step((index + 1) / len(parameters), "Counting parameters")
    files = sorted(folder.glob("*.safetensors")) if folder is not None else []
    size = sum(file.stat().st_size for file in files) if files else memory
    return (
        Metric("layers", len(lm.layers), "", "lower"),
        Metric("parameters", count, "", "lower"),
        Metric("zeros", zeros / count, "", "higher", details={"parameters": zeros}),
        Metric("bytes", size, "B", "lower", details={"of": "files" if files else "parameters"}),
    )
