"""What a change of depth does to a model's config: every field that speaks of layers by index.

`edited_fields` is pure: it answers with the fields to write, or refuses with the reason, and
changes nothing. It does not know where a model keeps its layers. Next: `layers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from laco.errors import ArchitectureError

Fields = dict[str, Any]
Rule = Callable[[Any, Sequence[int], int], Fields]

# Lists that may happen to be as long as the stack, yet hold nothing per layer.
NOT_PER_LAYER = {
    "architectures",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "keys_to_ignore_at_inference",
    "suppress_tokens",
    "begin_suppress_tokens",
}


def edited_fields(config: Any, origins: Sequence[int], depth: int, depth_key: str) -> Fields:
    """The config fields to write when layer i of the new stack is layer `origins[i]` of the old.

    Every list with one entry per layer is sliced by `origins`; fields that hold indices, counts
    or periods follow `RULES`. ArchitectureError when a field cannot say what the new stack is.
    """
    if list(origins) == list(range(depth)):
        return {}
    fields: Fields = {}
    present = vars(config)
    for name, value in present.items():
        if name in RULES or name in NOT_PER_LAYER:
            continue
        if isinstance(value, list | tuple) and len(value) == depth:
            fields[name] = type(value)(value[i] for i in origins)
    for name, rule in RULES.items():
        if present.get(name):
            fields |= rule(config, origins, depth)
    return fields | {depth_key: len(origins)}


def _refuse(config: Any, name: str, reason: str) -> ArchitectureError:
    return ArchitectureError(
        f"The config of this {config.model_type} model has {name} = {getattr(config, name)!r}, "
        f"and {reason}; choose other layers or another model."
    )


def _no_rope_layers(config: Any, origins: Sequence[int], depth: int) -> Fields:
    return {"no_rope_layers": [config.no_rope_layers[i] for i in origins]}  # may be longer


def _inverse_index_scale(config: Any, origins: Sequence[int], depth: int) -> Fields:
    if list(origins) == list(range(len(origins))):
        return {}
    raise _refuse(
        config,
        "scale_attn_by_inverse_layer_idx",
        "attention is scaled by a layer's index, so a layer cannot move to another index",
    )


def _leading(name: str) -> Rule:
    """A count of special layers at the start: those that stay must still be the first ones."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        special = [i < getattr(config, name) for i in origins]
        count = sum(special)
        if not all(special[:count]):
            raise _refuse(config, name, "its first layers differ in kind and must stay in front")
        return {name: count}

    return rule


def _max_window_layers(config: Any, origins: Sequence[int], depth: int) -> Fields:
    if getattr(config, "layer_types", None):  # says the same, layer by layer; keep them agreeing
        return {"max_window_layers": sum(i < config.max_window_layers for i in origins)}
    return _leading("max_window_layers")(config, origins, depth)


def _indices(name: str) -> Rule:
    """A list of layer indices: the layers that stay get their new index."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        old = {i % depth for i in getattr(config, name)}
        return {name: [new for new, origin in enumerate(origins) if origin in old]}

    return rule


def _scale_depth(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """Residuals are scaled by scale_depth / sqrt(depth): keep that quotient."""
    return {"scale_depth": config.scale_depth * math.sqrt(len(origins) / depth)}


def _shared_kv(config: Any, origins: Sequence[int], depth: int) -> Fields:
    raise _refuse(
        config, "num_kv_shared_layers", "its last layers read the keys of earlier ones by index"
    )


RULES: dict[str, Rule] = {
    "no_rope_layers": _no_rope_layers,
    "max_window_layers": _max_window_layers,
    "scale_attn_by_inverse_layer_idx": _inverse_index_scale,
    "first_k_dense_replace": _leading("first_k_dense_replace"),
    "mlp_only_layers": _indices("mlp_only_layers"),
    "scale_depth": _scale_depth,
    "num_kv_shared_layers": _shared_kv,
}
