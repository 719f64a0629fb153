"""Where each architecture family keeps its layers: a table, and a probe for the others.

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
class Layout:
    """Where one architecture family keeps things."""

    layers: str  # dotted path of the ModuleList
    depth_key: str = "num_hidden_layers"


LAYOUTS = {
    "llama": Layout("model.layers"),
    "mistral": Layout("model.layers"),
    "qwen2": Layout("model.layers"),
    "qwen3": Layout("model.layers"),
    "gemma2": Layout("model.layers"),
    "gemma3_text": Layout("model.layers"),
    "phi3": Layout("model.layers"),
    "gpt2": Layout("transformer.h", depth_key="n_layer"),
    "opt": Layout("model.decoder.layers"),
    "gpt_neox": Layout("gpt_neox.layers"),
    "olmo2": Layout("model.layers"),
    "smollm3": Layout("model.layers"),
    "granite": Layout("model.layers"),
    "stablelm": Layout("model.layers"),
    "falcon": Layout("transformer.h"),
    "bloom": Layout("transformer.h", depth_key="n_layer"),
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
