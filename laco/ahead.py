"""Layers that guess further tokens (multi-token prediction): beside the stack, and left out.

Checkpoints bring them for speculative decoding. No class of transformers has a place for them, so
they are not loaded, and what is made of a model has none and says so. How other layers are named is
not known here. Next: `checkpoint.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from laco import checkpoint

COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")  # in a config

_NAMED = re.compile(r"^(.*?\bmtp(?:_\w+)?)\.")  # Qwen3-Next, Ernie 4.5, MiMo
_NUMBERED = re.compile(r"^((?!.*vis).*?\blayers\.(\d+))\.(.*)")  # DeepSeek-V3, GLM-4.5
_OWN = ("eh_proj", "enorm", "hnorm", "shared_head")  # parts that only such a layer has


def left_out(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, list[str]]:
    """Of a checkpoint's tensors, those of layers that guess further tokens, by where they lie.

    They are named `mtp`, or follow the last layer in its own list: as many as the config counts,
    or those with parts that no other layer has.
    """
    text = checkpoint.text_config(dict(config))
    depth = checkpoint.depth_of(dict(config)) or 0
    end = depth + max((int(text.get(name) or 0) for name in COUNTS), default=0)
    found: defaultdict[str, list[str]] = defaultdict(list)
    after: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        if match := _NAMED.match(name):
            found[match[1]].append(name)
        elif (match := _NUMBERED.match(name)) and int(match[2]) >= depth:
            after[match[1]].append(name)
            if int(match[2]) < end or match[3].startswith(_OWN):
                found[match[1]] = after[match[1]]
    return dict(found)


def none_counted(text: Mapping[str, Any]) -> dict[str, int]:
    """The fields of a config, and their values, that say that there are no such layers."""
    return {name: 0 for name in COUNTS if text.get(name)}
