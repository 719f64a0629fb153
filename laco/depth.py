"""What a change of depth does to a model's config: every field that speaks of layers by index.

`FIELDS` is the table, and `edited_fields` carries it out: it answers with the fields to write, or
refuses with the reason, and changes nothing. That the table knows every such field of the installed
transformers is a test (`tests/test_depth.py`, which scans its source); that the fields suffice is
checked in `layers.py`. It does not know where a model keeps its layers, nor what they compute.
Next: `depth_rules.py`, the rules; `docs/architectures.md` has the table in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from laco import depth_rules as rules
from laco.depth_rules import Fields, Rule
from laco.errors import ArchitectureError


@dataclass(frozen=True)
class Change:
    """What a change of depth does to one field.

    slice: a list with one entry per layer, in the order of those that stay. recompute: said anew.
    rescale: a number divided by the depth somewhere. refuse: no edit, or none that breaks the
    rhythm. leave: nothing, `meaning` says why. `rule` does it where slicing or leaving does not.
    """

    does: Literal["slice", "recompute", "rescale", "refuse", "leave"]
    meaning: str
    rule: Rule | None = None


def _recomputed(meaning: str, rule: Rule) -> Change:
    return Change("recompute", meaning, rule)


def _indices(name: str, meaning: str) -> Change:
    return Change("recompute", meaning, rules.indices(name))


def _rhythm(name: str, meaning: str, offset: str | None = None) -> Change:
    return Change("refuse", meaning, rules.periodic(name, offset))


def _refused(name: str, meaning: str) -> Change:
    return Change("refuse", meaning, rules.refused(name, meaning))


def _derived(name: str, listed: str) -> Change:
    return Change(
        "refuse", f"a rhythm that {listed} says layer by layer", rules.derived(name, listed)
    )


def _tokens_ahead(name: str) -> Change:
    return _recomputed("layers beside the stack that guess further tokens", rules.without(name))


_WITH = "belongs to {}, whose rule reads it"
_AHEAD = "speaks of the layers that guess further tokens, which are not saved"
_LEFT: dict[str, tuple[str, ...]] = {
    "token ids, names or sizes, of which there may happen to be as many as layers": (
        *("architectures", "begin_suppress_tokens", "bos_token_id", "eos_token_id"),
        *("keys_to_ignore_at_inference", "pad_token_id", "suppress_tokens", "time_step_limit"),
    ),
    "the depth itself in some families, written as the depth key": (
        *("decoder_layers", "n_layer", "n_layers", "num_blocks", "num_decoder_layers"),
        *("num_hidden_layers", "num_layers"),
    ),
    "of an encoder": ("encoder_layerdrop", "encoder_layers", "num_encoder_layers"),
    "the same for every layer": (
        *("apply_residual_connection_post_layernorm", "attention_type", "attn_type"),
        *("block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"),
        *("block_size", "decoder_layerdrop", "do_layer_norm_before", "enable_moe_block"),
        *("index_block_size", "index_local_blocks", "index_topk_blocks", "initializer_range"),
        *("layer_norm_elementwise_affine", "layer_norm_eps", "layer_norm_epsilon", "layerdrop"),
        *("moe_num_shared_experts", "moe_shared_expert_intermediate_size"),
        *("moe_shared_expert_overlap", "n_shared_experts", "num_random_blocks"),
        *("num_shared_experts", "output_gate_type", "prefix_dense_sliding_window_pattern"),
        *("qk_layernorm", "shared_expert_combination_strategy", "shared_expert_sink"),
        *("shared_expert_intermediate_size", "shared_experts_intermediate_size"),
        *("shared_intermediate_size", "step_kernel", "time_step_floor", "time_step_init_scheme"),
        *("time_step_max", "time_step_min", "time_step_rank", "time_step_scale"),
        *("use_shared_attention_adapter", "adapter_layer_norm", "adapter_reuse_layer_norm"),
        *("block_ff_dim", "cross_attn_all_layers", "rope_local_base_freq"),
        *("hidden_size", "norm_type", "position_embedding_type", "altup_active_idx"),
    ),
    "outside the layers": (
        *("_remove_final_layer_norm", "depth_decoder_config", "layernorm_embedding"),
        *("prompt_types", "segment_types", "share_encoder_decoder_embeddings", "summary_type"),
        *("use_weighted_layer_sum", "vision_feature_layer", "vocab_size_per_layer_input"),
    ),
    _AHEAD: (
        *(
            "mtp_hybrid_override_pattern",
            "mtp_layer_types",
            "mtp_layers_block_type",
            "mtp_local_layer_ids",
        ),
        "mtp_mlp_layer_types",
    ),
    _WITH.format("attn_layer_period"): ("attn_layer_offset",),
    _WITH.format("expert_layer_period"): ("expert_layer_offset", "layers_num_experts"),
    _WITH.format("moe_layer_interval"): ("moe_layer_end_index", "moe_layer_start_index"),
    _WITH.format("num_kv_shared_layers"): ("kv_sharing_modes",),
}

FIELDS: dict[str, Change] = {
    "activation_sparsity_pattern": Change("slice", "share of activations that count, or a list"),
    "attention_layers": Change("slice", "GPT-Neo's attention types"),
    "attention_types": _recomputed("the short form of attention_layers", rules.attention_types),
    "attn_layer_indices": _indices("attn_layer_indices", "layers with attention"),
    "attn_layer_period": _rhythm("attn_layer_period", "where attention is", "attn_layer_offset"),
    "attn_layers": Change("slice", "attention types"),
    "block_types": _recomputed("kinds of layers, repeated", rules.repeated("block_types")),
    "cross_attention_layers": _indices("cross_attention_layers", "layers that look at an image"),
    "decoder_sparse_step": _recomputed("every so many holds experts", rules.sparse_step),
    "dense_mlp_idx": _derived("dense_mlp_idx", "mlp_layer_types"),
    "expert_layer_period": _rhythm(
        "expert_layer_period", "where experts are", "expert_layer_offset"
    ),
    "first_k_dense_replace": _recomputed(
        "so many first layers are dense", rules.leading("first_k_dense_replace")
    ),
    "full_attention_interval": _derived("full_attention_interval", "layer_types"),
    "full_attn_idxs": _indices("full_attn_idxs", "layers with attention"),
    "global_attn_every_n_layers": _derived("global_attn_every_n_layers", "layer_types"),
    "hidden_size_per_layer_input": _refused(
        "hidden_size_per_layer_input", "an embedding has a part for each layer"
    ),
    "hybrid_override_pattern": _derived("hybrid_override_pattern", "layers_block_type"),
    "index_skip_topk_offset": _derived("index_skip_topk_offset", "indexer_types"),
    "index_topk_freq": _derived("index_topk_freq", "indexer_types"),
    "index_topk_pattern": _derived("index_topk_pattern", "indexer_types"),
    "indexer_types": Change(
        "slice",
        "a layer chooses what it attends to, or takes the last choice",
        rules.borrowed("indexer_types", "shared"),
    ),
    "interleave_moe_layer_step": _derived("interleave_moe_layer_step", "moe_layers"),
    "intermediate_size": Change("slice", "width of the MLP, or a list"),
    "kv_source_layers": _recomputed("whose keys a layer reads", rules.kv_source_layers),
    "layer_group_size": _derived("layer_group_size", "layer_types"),
    "layer_rope_theta": Change("slice", "rotary bases"),
    "layer_types": Change("slice", "attention types, or kinds of layers"),
    "layers_block_type": Change("slice", "kinds of layers"),
    "local_layer_ids": _indices("local_layer_ids", "layers with local attention"),
    "loop_layer_index_end": _refused("loop_layer_index_end", "some layers run more than once"),
    "loop_layer_index_start": _refused("loop_layer_index_start", "some layers run more than once"),
    "max_window_layers": _recomputed(
        "so many first layers attend to everything", rules.max_window_layers
    ),
    "mlp_layer_types": Change("slice", "dense or experts"),
    "mlp_only_layers": _recomputed("dense layers", rules.mlp_only_layers),
    "moe_layer_freq": _recomputed("a rhythm, or a flag per layer", rules.moe_layer_freq),
    "moe_layer_interval": _recomputed("where experts start, end, how often", rules.moe_interval),
    "moe_layers": _indices("moe_layers", "layers with experts"),
    "moe_topk": Change("slice", "experts per token, or a list"),
    "mtp_num_hidden_layers": _tokens_ahead("mtp_num_hidden_layers"),
    "n_input_layers": _refused("n_input_layers", "first and last layers stand apart"),
    "n_layers_per_attn_res_block": _rhythm(
        "n_layers_per_attn_res_block", "where a block of layers starts"
    ),
    "n_output_layers": _refused("n_output_layers", "first and last layers stand apart"),
    "n_recurrent_layers": _refused("n_recurrent_layers", "the layers between run repeatedly"),
    "no_rope_layer_interval": _derived("no_rope_layer_interval", "no_rope_layers"),
    "no_rope_layers": Change("slice", "rotary positions or none"),
    "num_attention_heads_per_layer": Change("slice", "heads"),
    "num_dense_layers": _recomputed(
        "so many first layers are dense", rules.leading("num_dense_layers")
    ),
    "num_experts": Change("slice", "experts, or a list"),
    "num_hash_layers": _derived("num_hash_layers", "mlp_layer_types"),
    "num_kv_shared_layers": _refused("num_kv_shared_layers", "the last layers read others' keys"),
    "num_layers_per_stack": _refused("num_layers_per_stack", "two stacks run in turn"),
    "num_mem_blocks": Change(
        "refuse", "layers share so many blocks in turn", rules.shared_blocks("num_mem_blocks")
    ),
    "num_mtp_layers": _tokens_ahead("num_mtp_layers"),
    "num_nextn_predict_layers": _tokens_ahead("num_nextn_predict_layers"),
    "per_layer_config": _refused("per_layer_config", "it holds settings of single layers"),
    "ple_layer_ids": _refused("ple_layer_ids", "these layers get an embedding of their own"),
    "rescale_every": _refused("rescale_every", "weights are scaled by a layer's index"),
    "rope_scaling_layers": _indices("rope_scaling_layers", "layers whose positions are scaled"),
    "scale_attn_by_inverse_layer_idx": Change(
        "refuse", "attention is scaled by a layer's index", rules.inverse_index_scale
    ),
    "scale_depth": Change("rescale", "residuals are scaled by it / sqrt(depth)", rules.scale_depth),
    "sliding_window_pattern": _derived("sliding_window_pattern", "layer_types"),
    "swiglu_limits": Change("slice", "bounds of activations"),
    "swiglu_limits_shared": Change("slice", "bounds of activations"),
    **{name: Change("leave", reason) for reason, names in _LEFT.items() for name in names},
}


def per_layer(config: Any, depth: int) -> dict[str, Sequence[Any]]:
    """The config's lists with one entry per layer, by name, as the config stores them.

    A list of a field that the table does not know counts when it is as long as the stack.
    """
    lists: dict[str, Sequence[Any]] = {}
    for name, value in vars(config).items():
        if not isinstance(value, list | tuple):
            continue
        change = FIELDS.get(name)
        if (change is None and len(value) == depth) or (
            change is not None and change.does == "slice" and len(value) >= depth
        ):
            lists[name] = value
    return lists


def edited_fields(config: Any, origins: Sequence[int], depth: int, depth_key: str) -> Fields:
    """The config fields to write when layer i of the new stack is layer `origins[i]` of the old.

    Every list with one entry per layer is sliced by `origins`; all others follow `FIELDS`.
    ArchitectureError when a field cannot say what the new stack is.
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
    for name, change in FIELDS.items():
        if change.rule is not None and vars(config).get(name):  # 0, None and [] say nothing
            fields |= change.rule(config, origins, depth)
    return fields
