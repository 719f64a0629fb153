"""What a change of depth does to a model's config: every field that speaks of layers by index.

`edited_fields` is pure: it answers with the fields to write, or refuses with the reason, and
changes nothing. It does not know where a model keeps its layers, nor what they compute; that the
fields suffice is checked in `layers.py`, which is next. `docs/architectures.md` has the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from laco.errors import ArchitectureError

Fields = dict[str, Any]
Rule = Callable[[Any, Sequence[int], int], Fields]  # (config, origins, depth) -> fields to write

# One entry per layer, even where the list is longer than the stack.
PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers")

# Lists that may happen to be as long as the stack, yet hold nothing per layer.
NOT_PER_LAYER = (
    "architectures",
    "begin_suppress_tokens",
    "bos_token_id",
    "eos_token_id",
    "keys_to_ignore_at_inference",
    "pad_token_id",
    "suppress_tokens",
)


def per_layer(config: Any, depth: int) -> dict[str, Sequence[Any]]:
    """The config's lists with one entry per layer, by name, as the config stores them."""
    lists: dict[str, Sequence[Any]] = {}
    for name, value in vars(config).items():
        if not isinstance(value, list | tuple) or name in RULES or name in NOT_PER_LAYER:
            continue
        if len(value) == depth or (name in PER_LAYER and len(value) > depth):
            lists[name] = value
    return lists


def edited_fields(config: Any, origins: Sequence[int], depth: int, depth_key: str) -> Fields:
    """The config fields to write when layer i of the new stack is layer `origins[i]` of the old.

    Every list with one entry per layer is sliced by `origins`; fields that hold indices, counts
    or periods follow `RULES`. ArchitectureError when a field cannot say what the new stack is.
    """
    if list(origins) == list(range(depth)):
        return {}
    if getattr(config, "is_heterogeneous", False):
        raise ArchitectureError(
            f"The config of this {config.model_type} model holds settings of single layers "
            "(per_layer_config), and laco cannot renumber these; choose another model."
        )
    fields: Fields = {depth_key: len(origins)}
    for name, value in per_layer(config, depth).items():
        sliced = [value[i] for i in origins]
        fields[name] = tuple(sliced) if isinstance(value, tuple) else sliced
    for name, rule in RULES.items():
        if vars(config).get(name):  # 0, None and empty lists say nothing
            fields |= rule(config, origins, depth)
    return fields


def _refusal(config: Any, name: str, reason: str) -> ArchitectureError:
    return ArchitectureError(
        f"The config of this {config.model_type} model has {name} = {getattr(config, name)!r}: "
        f"{reason}; choose other layers or another model."
    )


def _refused(name: str, reason: str) -> Rule:
    """A field that laco cannot translate."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        raise _refusal(config, name, reason)

    return rule


def _leading(name: str) -> Rule:
    """A count of layers of another kind at the start: those that stay must still come first."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        special = [i < getattr(config, name) for i in origins]
        count = sum(special)
        if not all(special[:count]):
            raise _refusal(config, name, "so many layers at the start differ and must stay there")
        return {name: count}

    return rule


def _indices(name: str) -> Rule:
    """A list of layer indices: the layers that stay get their new index."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        old = {i % depth for i in getattr(config, name)}
        return {name: [new for new, origin in enumerate(origins) if origin in old]}

    return rule


def _periodic(period: str, offset: str | None = None) -> Rule:
    """Every so many layers one differs: the layers that stay must fit the same rhythm."""

    def rule(config: Any, origins: Sequence[int], depth: int) -> Fields:
        every, start = getattr(config, period), getattr(config, offset) if offset else 0
        before = [origin % every == start for origin in origins]
        if before != [new % every == start for new in range(len(origins))]:
            raise _refusal(config, period, "layers differ by that rhythm, which this edit breaks")
        return {}

    return rule


def _max_window_layers(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """The first layers attend to everything; `layer_types` says the same, layer by layer."""
    if getattr(config, "layer_types", None):
        return {"max_window_layers": sum(i < config.max_window_layers for i in origins)}
    return _leading("max_window_layers")(config, origins, depth)


def _sparse_step(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """Layer i holds experts when (i + 1) % step == 0 and i is not in `mlp_only_layers`.

    With a step of 1, `mlp_only_layers` alone can name any set of dense layers.
    """
    step, only = config.decoder_sparse_step, set(config.mlp_only_layers or ())
    dense = [i in only or (i + 1) % step != 0 for i in origins]
    return {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [new for new, is_dense in enumerate(dense) if is_dense],
    }


def _mlp_only_layers(config: Any, origins: Sequence[int], depth: int) -> Fields:
    if getattr(config, "decoder_sparse_step", None):
        return {}  # written with it
    return _indices("mlp_only_layers")(config, origins, depth)


def _moe_layer_freq(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """A period, or one flag per layer."""
    if isinstance(config.moe_layer_freq, list | tuple):
        return {"moe_layer_freq": [config.moe_layer_freq[i] for i in origins]}
    return _periodic("moe_layer_freq")(config, origins, depth)


def _moe_interval(config: Any, origins: Sequence[int], depth: int) -> Fields:
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


def _inverse_index_scale(config: Any, origins: Sequence[int], depth: int) -> Fields:
    if list(origins) == list(range(len(origins))):
        return {}
    raise _refusal(
        config,
        "scale_attn_by_inverse_layer_idx",
        "attention is scaled by a layer's index, so no layer can move to another index",
    )


def _scale_depth(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """Residuals are scaled by scale_depth / sqrt(depth): keep that quotient."""
    return {"scale_depth": config.scale_depth * math.sqrt(len(origins) / depth)}


def _attention_types(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """GPT-Neo's short form, [[["global", "local"], 12]], from which `attention_layers` is made."""
    return {"attention_types": [[[config.attention_layers[i]], 1] for i in origins]}


def _kv_source_layers(config: Any, origins: Sequence[int], depth: int) -> Fields:
    """For each layer, the layer whose keys it reads: that one must stay, and before it."""
    sources = [config.kv_source_layers[i] for i in origins]
    new = [origins.index(s) if s in origins else depth for s in sources]
    if any(source > reader for reader, source in enumerate(new)):
        raise _refusal(config, "kv_source_layers", "a layer would lose the one whose keys it reads")
    return {"kv_source_layers": new}


def _without_more_tokens(name: str) -> Rule:
    """Layers that guess further tokens are no part of the stack, and are not saved with it."""
    return lambda config, origins, depth: {name: 0}


RULES: dict[str, Rule] = {
    "attention_types": _attention_types,
    "attn_layer_indices": _indices("attn_layer_indices"),
    "attn_layer_period": _periodic("attn_layer_period", "attn_layer_offset"),
    "cross_attention_layers": _indices("cross_attention_layers"),
    "decoder_sparse_step": _sparse_step,  # with mlp_only_layers
    "expert_layer_period": _periodic("expert_layer_period", "expert_layer_offset"),
    "first_k_dense_replace": _leading("first_k_dense_replace"),
    "full_attn_idxs": _indices("full_attn_idxs"),
    "kv_source_layers": _kv_source_layers,
    "local_layer_ids": _indices("local_layer_ids"),
    "loop_layer_index_end": _refused("loop_layer_index_end", "some layers run more than once"),
    "max_window_layers": _max_window_layers,
    "mlp_only_layers": _mlp_only_layers,
    "moe_layer_freq": _moe_layer_freq,
    "moe_layer_interval": _moe_interval,
    "moe_layers": _indices("moe_layers"),
    "num_dense_layers": _leading("num_dense_layers"),
    "num_kv_shared_layers": _refused("num_kv_shared_layers", "the last layers read others' keys"),
    "num_mtp_layers": _without_more_tokens("num_mtp_layers"),
    "num_nextn_predict_layers": _without_more_tokens("num_nextn_predict_layers"),
    "ple_layer_ids": _refused("ple_layer_ids", "these layers get an embedding of their own"),
    "rescale_every": _refused("rescale_every", "weights are scaled by a layer's index"),
    "scale_attn_by_inverse_layer_idx": _inverse_index_scale,
    "scale_depth": _scale_depth,
}
