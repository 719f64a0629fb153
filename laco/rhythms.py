"""By which rule layers differ where a config lists nothing, family by family, without torch.

Older configs give a period or nothing, and their class makes the list that newer ones hold
(`layer_types`, `no_rope_layers`). Here are the rules of the known families, so that a card does not
take unlike layers for alike. Kinds that show in the tensors (experts, Mamba) are not told here. A
test holds these rules against the classes. Next: `capabilities.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"
Rule = Callable[[Mapping[str, Any], int], list[Any]]  # (the language model's config, depth)


def _every(field: str | None, usual: int, most: Any, one: Any) -> Rule:
    """Every so many layers one differs: the last of each so many."""

    def rule(text: Mapping[str, Any], depth: int) -> list[Any]:
        period = int(text.get(field, usual) if field else usual)
        return [most if (index + 1) % period else one for index in range(depth)]

    return rule


def _from_window(text: Mapping[str, Any], depth: int) -> list[Any]:
    """Qwen2 and Qwen3: the first layers attend to everything."""
    if not text.get("use_sliding_window") or text.get("sliding_window", 4096) is None:
        return [_FULL] * depth
    first = text.get("max_window_layers", 28)
    return [_FULL if index < first else _SLIDING for index in range(depth)]


def _other_window(text: Mapping[str, Any], depth: int) -> list[Any]:
    """Qwen2-MoE: every other one of the first layers has a window."""
    first = text.get("max_window_layers", 28) if text.get("use_sliding_window") else 0
    return [_FULL if index % 2 or index >= first else _SLIDING for index in range(depth)]


_TURNS = _every(None, 2, _SLIDING, _FULL)
_SIXTH = _every("sliding_window_pattern", 6, _SLIDING, _FULL)
_NO_ROPE = _every("no_rope_layer_interval", 4, 1, 0)

RULES: dict[str, tuple[str, Rule]] = {  # family -> the list that its class makes, and how
    "cohere2": ("layer_types", _every("sliding_window_pattern", 4, _SLIDING, _FULL)),
    "gemma2": ("layer_types", _TURNS),
    "gemma3": ("layer_types", _SIXTH),
    "gemma3_text": ("layer_types", _SIXTH),
    "gpt_oss": ("layer_types", _TURNS),
    "llama4_text": ("no_rope_layers", _NO_ROPE),
    "qwen2": ("layer_types", _from_window),
    "qwen2_moe": ("layer_types", _other_window),
    "qwen3": ("layer_types", _from_window),
    "qwen3_next": (
        "layer_types",
        _every("full_attention_interval", 4, "linear_attention", _FULL),
    ),
    "smollm3": ("no_rope_layers", _NO_ROPE),
}


def made_list(text: Mapping[str, Any], family: str, depth: int) -> dict[str, list[Any]]:
    """The list that a family's class makes of a config that has none; empty if it makes none."""
    name, rule = RULES.get(family, ("", None))
    if rule is None or text.get(name):
        return {}
    return {name: rule(text, depth)}
