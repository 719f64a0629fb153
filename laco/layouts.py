"""Where each architecture family keeps its layers and what is in them: a table, and a probe.

It does not know what may be done with layers. Next: `layers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from laco.errors import ArchitectureError


@dataclass(frozen=True)
class Mlp:
    """The modules of a layer that its MLP's channels run through."""

    inputs: tuple[str, ...]  # linears whose rows are the channels
    output: str  # the linear that is fed with them
    blocks: int = 1  # an input has so many rows of each channel: all gates first, then all ups
    width_key: str | None = "intermediate_size"  # None: the class computes the width


@dataclass(frozen=True)
class Attention:
    """The modules of a layer that its heads run through.

    `inputs` says of each module whose rows are heads which of query, key and value it holds, in
    turn; with `by_group`, the rows of a key's group lie together: its queries, the key, the value.
    """

    inputs: tuple[tuple[str, str], ...]
    output: str  # the linear that is fed with the heads
    by_group: bool = False
    heads_key: str = "num_attention_heads"
    groups_key: str | None = "num_key_value_heads"  # None: each head has a key of its own


@dataclass(frozen=True)
class Layout:
    """Where one architecture family keeps things; `mlp` and `attention` are inside a layer."""

    layers: str  # dotted path of the ModuleList
    depth_key: str = "num_hidden_layers"
    mlp: Mlp | None = None
    attention: Attention | None = None


def _separate(output: str, groups_key: str | None = "num_key_value_heads") -> Attention:
    """Query, key and value as three linears beside the output."""
    inputs = tuple((f"self_attn.{letter}_proj", letter) for letter in "qkv")
    return Attention(inputs, f"self_attn.{output}", groups_key=groups_key)


def _fused(place: str, heads_key: str, groups_key: str | None = None) -> Attention:
    """Query, key and value in one linear, group by group."""
    inputs = ((f"{place}.query_key_value", "qkv"),)
    return Attention(inputs, f"{place}.dense", True, heads_key, groups_key)


_NESTED = "model.language_model.layers"  # beside a vision tower
_FOUR = ("mlp.dense_h_to_4h",), "mlp.dense_4h_to_h"
_LLAMA = Layout(
    "model.layers",
    mlp=Mlp(("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),
    attention=_separate("o_proj"),
)

LAYOUTS = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma2": _LLAMA,
    "gemma3_text": _LLAMA,
    "phi3": Layout(
        "model.layers",
        mlp=Mlp(("mlp.gate_up_proj",), "mlp.down_proj", blocks=2),
        attention=Attention((("self_attn.qkv_proj", "qkv"),), "self_attn.o_proj"),
    ),
    "gpt2": Layout(
        "transformer.h",
        depth_key="n_layer",
        mlp=Mlp(("mlp.c_fc",), "mlp.c_proj", width_key="n_inner"),
        attention=Attention(
            (("attn.c_attn", "qkv"),), "attn.c_proj", heads_key="n_head", groups_key=None
        ),
    ),
    "opt": Layout(
        "model.decoder.layers",
        mlp=Mlp(("fc1",), "fc2", width_key="ffn_dim"),
        attention=_separate("out_proj", groups_key=None),
    ),
    "gpt_neox": Layout(
        "gpt_neox.layers",
        mlp=Mlp(*_FOUR),
        attention=_fused("attention", "num_attention_heads"),
    ),
    "olmo2": Layout(
        "model.layers",
        mlp=_LLAMA.mlp,
        attention=Attention(  # its norms run over all heads at once
            (
                *_separate("o_proj").inputs,
                ("self_attn.q_norm", "q"),
                ("self_attn.k_norm", "k"),
            ),
            "self_attn.o_proj",
        ),
    ),
    "smollm3": _LLAMA,
    "granite": _LLAMA,
    "stablelm": _LLAMA,
    "falcon": Layout(
        "transformer.h",
        mlp=Mlp(*_FOUR, width_key="ffn_hidden_size"),
        attention=_fused("self_attention", "num_attention_heads", "num_kv_heads"),
    ),
    "cohere": _LLAMA,
    "cohere2": _LLAMA,
    "deepseek_v2": Layout("model.layers"),
    "deepseek_v3": Layout("model.layers"),
    "gemma3": Layout(_NESTED, mlp=_LLAMA.mlp, attention=_LLAMA.attention),
    "glm4": Layout(
        "model.layers",
        mlp=Mlp(("mlp.gate_up_proj",), "mlp.down_proj", blocks=2),
        attention=_separate("o_proj"),
    ),
    "gpt_oss": Layout("model.layers"),
    "jamba": Layout("model.layers"),
    "lfm2": Layout("model.layers"),
    "llama4_text": Layout("model.layers", attention=_LLAMA.attention),
    "mamba": Layout("backbone.layers"),
    "minicpm3": Layout("model.layers", mlp=_LLAMA.mlp),
    "mixtral": Layout("model.layers", attention=_LLAMA.attention),
    "qwen2_moe": Layout("model.layers", attention=_LLAMA.attention),
    "qwen3_moe": Layout("model.layers", attention=_LLAMA.attention),
    "qwen3_next": Layout("model.layers"),
    "bloom": Layout(
        "transformer.h",
        depth_key="n_layer",
        mlp=Mlp(*_FOUR, width_key=None),
        attention=_fused("self_attention", "n_head"),
    ),
}

DEPTH_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def probe(model: PreTrainedModel, config: Any) -> Layout:
    """The layout of an unknown family, found by running it on two tokens.

    The stack is the one list of as many modules as the config says there are layers, each of
    which is fed the hidden states [1, 2, hidden] that the one before it returns.
    """
    family = model.config.model_type
    depth_key = next((key for key in DEPTH_KEYS if getattr(config, key, None)), None)
    if depth_key is None:
        raise _unknown(family, f"its config has none of {', '.join(DEPTH_KEYS)}")
    depth = getattr(config, depth_key)
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == depth
    }
    flows: dict[str, list[tuple[Any, Any]]] = {name: [] for name in lists}  # (input, output)

    def after(flow: list[tuple[Any, Any]], _m: Any, args: Any, kwargs: Any, out: Any) -> None:
        fed = args[0] if args else kwargs.get("hidden_states")
        flow.append((fed, out[0] if isinstance(out, tuple) else out))

    handles = [
        layer.register_forward_hook(partial(after, flows[name]), with_kwargs=True)
        for name, layers in lists.items()
        for layer in layers
    ]
    try:
        with torch.no_grad():
            tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
            model(input_ids=tokens, use_cache=False)
    except Exception as error:
        raise _unknown(family, f"it does not run on token ids alone ({error})") from error
    finally:
        for handle in handles:
            handle.remove()
    found = [name for name, flow in flows.items() if len(flow) == depth and _is_chain(flow)]
    if len(found) != 1:
        what = f"several ({', '.join(found)})" if found else "no list"
        raise _unknown(family, f"{what} of {depth} layers, each fed by the one before, was found")
    return Layout(found[0], depth_key)


def _is_chain(flow: list[tuple[Any, Any]]) -> bool:
    return all(
        isinstance(fed, Tensor) and fed.dim() == 3 and fed.shape[:2] == (1, 2) for fed, _ in flow
    ) and all(torch.equal(out, fed) for (_, out), (fed, _) in pairwise(flow))


def _unknown(family: str, reason: str) -> ArchitectureError:
    return ArchitectureError(
        f"laco has no layout for {family!r} models and cannot find its layers: {reason}; "
        f"known families are {', '.join(sorted(LAYOUTS))}."
    )
