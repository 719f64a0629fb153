"""What becomes of a config's field that speaks of layers by index, kind by kind.

Each rule answers with the fields to write, given the config, `origins` (the old index of each layer
of the new stack) and the old depth; or refuses with the reason. None of them changes the config.
Which field follows which rule is not known here. Next: `depth.py`, the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from laco.errors import ArchitectureError

Fields = dict[str, Any]
Rule = Callable[[Any, Sequence[int], int], Fields]  # (config, origins, depth) -> fields to write


def _refusal(config: Any, name: str, reason: str) -> ArchitectureError:
    return ArchitectureError(
        f"The config of this {config.model_type} model has {name} = {getattr(config, name)!r}: "
        f"{reason}; choose other layers or another model."
    )


def refused(name: str, reason: str) -> Rule:
    """A field that laco cannot translate."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        raise _refusal(config, name, reason)

    return rule


def leading(name: str) -> Rule:
    """A count of layers of another kind at the start: those that stay must still come first."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        special = [i < getattr(config, name) for i in origins]
        count = sum(special)
        if not all(special[:count]):
            raise _refusal(config, name, "so many layers at the start differ and must stay there")
        return {name: count}

    return rule


def indices(name: str) -> Rule:
    """A list of layer indices: the layers that stay get their new index."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        old = {i % depth for i in getattr(config, name)}
        return {name: [new for new, origin in enumerate(origins) if origin in old]}

    return rule


def periodic(period: str, offset: str | None = None) -> Rule:
    """Every so many layers one differs: the layers that stay must fit the same rhythm."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        every, start = getattr(config, period), getattr(config, offset) if offset else 0
        before = [origin % every == start for origin in origins]
        if before != [new % every == start for new in range(len(origins))]:
            raise _refusal(config, period, "layers differ by that rhythm, which this edit breaks")
        return {}

    return rule


def max_window_layers(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """The first layers attend to everything; `layer_types` says the same, layer by layer."""
    if getattr(config, "layer_types", None):
        return {"max_window_layers": sum(i < config.max_window_layers for i in origins)}
    return leading("max_window_layers")(config, origins, depth)


def sparse_step(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """Layer i holds experts when (i + 1) % step == 0 and i is not in `mlp_only_layers`.

    With a step of 1, `mlp_only_layers` alone can name any set of dense layers.
    """
    step, only = config.decoder_sparse_step, set(config.mlp_only_layers or ())
    dense = [i in only or (i + 1) % step != 0 for i in origins]
    return {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [new for new, is_dense in enumerate(dense) if is_dense],
    }


def mlp_only_layers(config: Any, origins: Sequence[int], depth: int) -> Fields:
    if getattr(config, "decoder_sparse_step", None):
        return {}  # written with it
    return indices("mlp_only_layers")(config, origins, depth)


def moe_layer_freq(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """A period, or one flag per layer."""
    if isinstance(config.moe_layer_freq, list | tuple):
        return {"moe_layer_freq": [config.moe_layer_freq[i] for i in origins]}
    return periodic("moe_layer_freq")(config, origins, depth)


def moe_interval(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """Layer i holds experts when (i + 1) % interval == 0 and start <= i <= end."""
    interval = config.moe_layer_interval
    first, last = config.moe_layer_start_index, config.moe_layer_end_index
    last = depth - 1 if last == -1 else last
    sparse = [
        new for new, i in enumerate(origins) if (i + 1) % interval == 0 and first <= i <= last
    ]
    if not sparse:
        raise _refusal(config, "moe_layer_interval", "no layer with experts would stay")
    said = [i for i in range(sparse[0], sparse[-1] + 1) if (i + 1) % interval == 0]
    if said != sparse:
        raise _refusal(config, "moe_layer_interval", "this edit breaks the rhythm of the experts")
    return {"moe_layer_start_index": sparse[0], "moe_layer_end_index": sparse[-1]}


def inverse_index_scale(config: Any, origins: Sequence[int], depth: int) -> Fields:
    if list(origins) == list(range(len(origins))):
        return {}
    raise _refusal(
        config,
        "scale_attn_by_inverse_layer_idx",
        "attention is scaled by a layer's index, so no layer can move to another index",
    )


def scale_depth(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """Residuals are scaled by scale_depth / sqrt(depth): keep that quotient."""
    return {"scale_depth": config.scale_depth * math.sqrt(len(origins) / depth)}


def attention_types(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """GPT-Neo's short form, [[["global", "local"], 12]], from which `attention_layers` is made."""
    return {"attention_types": [[[config.attention_layers[i]], 1] for i in origins]}


def kv_source_layers(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """For each layer, the layer whose keys it reads: that one must stay, and before it."""
    sources = [config.kv_source_layers[i] for i in origins]
    new = [origins.index(s) if s in origins else depth for s in sources]
    if any(source > reader for reader, source in enumerate(new)):
        raise _refusal(config, "kv_source_layers", "a layer would lose the one whose keys it reads")
    return {"kv_source_layers": new}


def without(name: str) -> Rule:
    """Layers that guess further tokens are no part of the stack, and are not saved with it."""
    return lambda config, origins, depth: {name: 0}


def derived(name: str, listed: str) -> Rule:
    """A period that the list `listed` is made of where it is not given; it is written out."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        if getattr(config, listed, None) is None and list(origins) != list(range(len(origins))):
            raise _refusal(config, name, f"layers differ by that rhythm, and no {listed} says how")
        return {}

    return rule


def shared_blocks(name: str) -> Rule:
    """More than one block, of which layers take turns to use the weights."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        if getattr(config, name) > 1:
            raise _refusal(config, name, "layers share so many blocks in turn")
        return {}

    return rule


def repeated(name: str) -> Rule:
    """A short list that is repeated until every layer has its entry: it is written out."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        entries = getattr(config, name)
        return {name: [entries[i % len(entries)] for i in origins]}

    return rule


def borrowed(name: str, word: str) -> Rule:
    """One entry per layer, where `word` means that it uses what the last other layer made."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        kinds = getattr(config, name)

        def lender(layer: int, stack: Sequence[int]) -> int | None:
            """The old index of the layer that the one at `layer` of `stack` borrows from."""
            before = [i for i in stack[: layer + 1] if kinds[i] != word]
            return before[-1] if before else None

        whole = range(depth)
        for new, origin in enumerate(origins):
            if kinds[origin] == word and lender(new, origins) != lender(origin, whole):
                raise _refusal(config, name, "a layer would lose the one whose choice it shares")
        return {name: [kinds[i] for i in origins]}

    return rule
