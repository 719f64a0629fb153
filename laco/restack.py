"""A model on disk with layers dropped or merged, written tensor by tensor from file to file.

The edit is tried on the model without its weights first, so that it is refused, and its config
written, just as for a model in memory. Then each new layer's file is made of the tensors of the old
ones; a tensor that only moves is never in memory. Which layers should go is not known here. Next:
`merging.py`, the merges; `lazy.py`, how layers lie in files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from laco.context import Context
from laco.errors import ModelError
from laco.layerfiles import skeleton
from laco.layers import LayerStack
from laco.lazy import LayerWriter, LazyModel
from laco.memory import give_back
from laco.merging import Source, edit_report, merge_tensors, merging_names, origin, sources_of
from laco.recipe import Drop, Merge

_INDEX = re.compile(r"(?<![^.])\d+(?=\.)")  # the first number between dots: that of the layer


def restack(
    source: LazyModel, step: Drop | Merge, folder: Path, context: Context
) -> dict[str, Any]:
    """Write the model in `source` after `step` into `folder`; returns what went and what stays.

    To the last bit what `merging.apply_edit` makes of the model in memory. `LacoError`s come before
    anything is written. In memory is at most one merged layer; a layer that was written before the
    work was stopped stays, and another call goes on there.
    """
    sources = sources_of(source.stack, step)
    kept = [origin(made_of) for made_of in sources]
    bare = skeleton(source.folder, source.ref.trust_remote_code, source.dtype)
    bare.tie_weights(missing_keys=set(source.weights.missing), recompute_mapping=False)
    edited = LayerStack(bare, source.stack.layout)
    edited.keep([edited[index] for index in kept], kept)
    writer = LayerWriter(source, folder, edited)
    for index, made_of in enumerate(sources):
        context.step(index / len(sources), f"writing layer {index} of {len(sources)}")
        if not writer.has(index):
            writer.put_tensors(index, dict(_tensors(source, step, made_of, index)))
            if not isinstance(made_of, int):
                give_back()  # a heap in pieces would keep several layers' worth
    writer.finish()
    report = edit_report(len(source.stack), kept)
    if not source.stack.recognised:
        report["notes"] = [
            f"{source.stack.family} is no known family, so the model was loaded whole, once, to "
            "find its layers."
        ]
    return report


def _tensors(
    source: LazyModel, step: Drop | Merge, made_of: Source, index: int
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of layer `index` of the new stack, as files hold them."""
    first, weights = origin(made_of), source.weights
    prefix = f"{source.stack.layout.layers}.{first}."
    merging: set[str] = set()
    if isinstance(step, Merge) and not isinstance(made_of, int):
        merging = {prefix + name for name in merging_names(source.stack[first], step.parameters)}

    def value(part: Source, name: str) -> Tensor:
        """What the file's tensor `name` of layer `first` becomes when `part` is merged."""
        if isinstance(part, int):
            return weights.tensor(_renumbered(name, first, part))
        assert isinstance(step, Merge)
        if step.merge == "drop":
            return value(part[0], name)
        return merge_tensors([value(each, name) for each in part], step.merge)

    for name, target in weights.names(prefix):
        tensor = value(made_of if target in merging else first, name)
        for saved, held in weights.named_as_saved(name, tensor).items():
            yield _renumbered(saved, first, index), held


def _renumbered(name: str, old: int, new: int) -> str:
    """The name that a tensor of layer `old` would have in layer `new`."""
    found = _INDEX.search(name)
    if found is None or int(found[0]) != old:
        raise ModelError(
            f"The tensor {name} belongs to layer {old} and does not say so in its name; save the "
            "model with `save_pretrained` and take that folder."
        )
    return f"{name[: found.start()]}{new}{name[found.end() :]}"
