"""What there is to know of a model before it is loaded: its size by parts, and what it can take.

Read from config and headers alone; no torch, no weights. What an edit would leave is computed
from the card (`consequences`). Next: `capabilities.py`, what it can take, and `checkpoint.py`,
which reads the headers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laco import ahead, checkpoint, gguf_header, hub, reference
from laco.capabilities import BESIDE, CAPABILITIES, Found, capabilities
from laco.checkpoint import BYTES, Header
from laco.errors import ModelError, RecipeError
from laco.expected import loaded, usual
from laco.machine import speed_here
from laco.recipe import ModelRef

PARTS: tuple[str, ...] = ("embedding", "attention", "mlp", "norms", "head", "other")

_INDEX = re.compile(r"(?:^|\.)(\d+)\.")
_BUFFER = re.compile(r"(attn|attention)\.(masked_)?bias$")
_PART_OF = (  # the first that matches decides
    ("norms", re.compile(r"norm|(^|\.)ln_")),
    ("head", re.compile(r"^(lm_head|embed_out|output)\.|\.lm_head\.")),
    ("embedding", re.compile(r"embd|embed|(^|\.)w[tp]e\.")),
    ("attention", re.compile(r"attn|attention")),
    ("mlp", re.compile(r"mlp|ffn|feed_forward|expert|moe|(^|\.)fc\d")),
)


@dataclass(frozen=True)
class _Tensors:
    """A checkpoint's tensors sorted: how many parameters by layer and by part."""

    parts: dict[str, int]
    layers: list[int]
    makes: list[int]  # for each layer, which make it is of: other tensors, or other shapes
    tied: bool


def config_of(ref: ModelRef, cache: Path) -> dict[str, Any]:
    """The config of a model as its folder (or its GGUF header) has it. Raises `ModelError`."""
    _, config, *_ = _read(reference.pin(ref, cache), cache)
    return config


def inspect(ref: ModelRef, cache: Path) -> dict[str, Any]:
    """The card of a model, as `laco inspect` prints it.

    `parameters` counts a tied head once. `bytes` are the weights in the number format `dtype`,
    `file_bytes` as they lie on disk. `layer_parameters` has one number a layer, first to last.
    `left_out` says in words which tensors are not loaded nor saved, or is None.
    `expected` holds estimates for this machine's CPU (`expected.py`): `memory_bytes` of the model
    while it is loaded, and under `work` memory and seconds of each capability, with its form's
    own settings; `measured` says whether the machine's speed was measured or is assumed.
    Raises `ModelError` for what is missing or broken.
    """
    ref = reference.pin(ref, cache)
    kind, config, headers, file_bytes, tokenizer = _read(ref, cache)
    text = checkpoint.text_config(config)
    layers = checkpoint.depth_of(config)
    if not layers:
        raise ModelError(f"The config of {ref.path} does not say how many layers it has.")
    if reason := checkpoint.misfit(config, headers):
        raise ModelError(f"{ref.path} is broken: {reason}; fetch its config and weights anew.")
    beside = ahead.left_out(config, headers)
    gone = {name for names in beside.values() for name in names}
    tensors = _sort({name: t for name, t in headers.items() if name not in gone}, layers, text)
    parameters, width = sum(tensors.parts.values()), BYTES[ref.dtype]
    heads = _first(text, "num_attention_heads", "n_head", "num_heads") or 1
    hidden = _first(text, "hidden_size", "n_embd") or 0
    intermediate = _first(text, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if isinstance(intermediate, list):  # one for each layer
        intermediate = max(intermediate)
    intermediate = intermediate or 4 * hidden
    vocabulary = _first(text, "vocab_size") or 0
    card: dict[str, Any] = {
        "model_type": config["model_type"],
        "layers": layers,
        "parameters": parameters,
        "bytes": parameters * width,
        "file_bytes": file_bytes,
        "dtype": ref.dtype,
        "layer_parameters": tensors.layers,
        "hidden_size": hidden,
        "heads": heads,
        "kv_heads": _kv_heads(text, heads),
        "head_dim": _first(text, "head_dim") or hidden // heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "tied": tensors.tied,
        "active_share": _active_share(text),
        "context_length": _first(text, "max_position_embeddings", "n_positions", "seq_length"),
        "parts": tensors.parts,
        "left_out": _left_out(beside),
        "source": {"kind": kind, "path": ref.path, "revision": ref.revision},
    }
    card["capabilities"] = capabilities(
        config,
        Found(tensors.makes, tokenizer, tuple(beside)),
        trusted=ref.trust_remote_code,
    )
    if reason := checkpoint.uneven(config, headers):
        card["capabilities"] = {name: {"ok": False, "reason": reason} for name in CAPABILITIES}
    speed = speed_here(cache)
    card["expected"] = {
        "memory_bytes": loaded(card, speed),
        "work": usual(card, speed),
        "measured": bool(speed.machine),
    }
    return card


def consequences(card: Mapping[str, Any], removed: Sequence[int]) -> dict[str, dict[str, float]]:
    """What removing layers changes: {"before": {…}, "after": {…}} with the same five numbers.

    `layers`, `parameters`, `bytes` (in the card's number format), `kv_bytes_per_token` (keys and
    values of one token in every layer), and `speed` of decoding relative to before: tokens at
    batch 1 wait for the weights to be read, so it is bytes read a token before over after. The
    embedding of an untied model is not read whole, and the KV cache not counted. Raises
    `RecipeError` for a layer that is not there, or when none would be left.
    """
    layers, sizes = card["layers"], card["layer_parameters"]
    gone = sorted(set(removed))
    wrong = [layer for layer in gone if not 0 <= layer < layers]
    if wrong:
        raise RecipeError(
            f"Layer {wrong[0]} is not there: the model's layers are 0 to {layers - 1}."
        )
    if len(gone) == layers:
        raise RecipeError(f"All {layers} layers would go; leave one at least.")
    if gone and not sizes:
        raise ModelError("The card does not know the size of each layer; load the model first.")
    width = BYTES[card["dtype"]]
    unread = 0 if card["tied"] else card["parts"]["embedding"]

    def state(gone: Sequence[int]) -> dict[str, float]:
        parameters = card["parameters"] - sum(sizes[layer] for layer in gone)
        kept = layers - len(gone)
        return {
            "layers": kept,
            "parameters": parameters,
            "bytes": parameters * width,
            "kv_bytes_per_token": kept * 2 * card["kv_heads"] * card["head_dim"] * width,
            "speed": (card["parameters"] - unread) / (parameters - unread),
        }

    return {"before": state(()), "after": state(gone)}


def _read(ref: ModelRef, cache: Path) -> tuple[str, dict[str, Any], dict[str, Header], int, bool]:
    """(kind, config, headers, bytes on disk, is there a tokenizer) of a pinned reference."""
    kind = reference.kind_of(ref.path)
    folder = Path(ref.path)
    if kind in ("bundled", "gguf"):
        folder = reference.converted_folder(ref, cache)
        if not folder.exists():
            file = _gguf_file(ref, kind)
            config, headers = gguf_header.read(file)
            return kind, config, headers, file.stat().st_size, True
    elif kind == "hub":
        folder = hub.description(ref.path, ref.revision)
        if not _has_weights(folder):
            config = checkpoint.read_config(folder)
            found = hub.headers(ref.path, ref.revision)
            headers = {name: Header(dtype, shape) for name, (dtype, shape, _) in found.items()}
            return kind, config, headers, sum(size for *_, size in found.values()), True
    config = checkpoint.read_config(folder)
    headers = checkpoint.read_headers(folder)
    size = sum(file.stat().st_size for file in checkpoint.weight_files(folder))
    return kind, config, headers, size, checkpoint.has_tokenizer(folder)


def _gguf_file(ref: ModelRef, kind: str) -> Path:
    """The GGUF file of a pinned reference."""
    return Path(ref.path) if kind == "gguf" else reference.bundle_gguf(ref.revision)


def _has_weights(folder: Path) -> bool:
    try:
        return bool(checkpoint.weight_files(folder))
    except ModelError:
        return False


def _sort(headers: dict[str, Header], depth: int, text: Mapping[str, Any]) -> _Tensors:
    headers = {name: tensor for name, tensor in headers.items() if not _is_buffer(name, tensor)}
    stack = _stack_prefix(headers, depth)
    layers, parts = [0] * depth, dict.fromkeys(PARTS, 0)
    makes: defaultdict[int, set[tuple[str, tuple[int, ...]]]] = defaultdict(set)
    embedding = max((t.size for n, t in headers.items() if _part(n) == "embedding"), default=0)
    tied = True
    for name, tensor in headers.items():
        part = _part(name)
        if part == "head":
            if text.get("tie_word_embeddings") and tensor.size == embedding:
                continue  # some checkpoints store the tied head a second time
            tied = False
        parts[part] += tensor.size
        if stack is not None and name.startswith(stack):
            index, _, rest = name.removeprefix(stack).partition(".")
            layers[int(index)] += tensor.size
            makes[int(index)].add((rest, tensor.shape))
    kinds: dict[frozenset[tuple[str, tuple[int, ...]]], int] = {}
    order = [kinds.setdefault(frozenset(makes[index]), len(kinds)) for index in range(depth)]
    return _Tensors(parts, layers if stack is not None else [], order, tied)


def _stack_prefix(headers: Mapping[str, Header], depth: int) -> str | None:
    """What the names of the layers' tensors begin with: the largest numbered list of that depth."""
    indices: defaultdict[str, set[int]] = defaultdict(set)
    sizes: Counter[str] = Counter()
    for name, tensor in headers.items():
        if found := _INDEX.search(name):
            prefix = name[: found.start(1)]
            indices[prefix].add(int(found.group(1)))
            sizes[prefix] += tensor.size
    whole = [prefix for prefix, seen in indices.items() if seen == set(range(depth))]
    return max(whole, key=lambda prefix: sizes[prefix], default=None)


def _part(name: str) -> str:
    return next((part for part, pattern in _PART_OF if pattern.search(name)), "other")


def _is_buffer(name: str, tensor: Header) -> bool:
    """Causal masks, rotary frequencies and routers' running corrections are no parameters."""
    if _BUFFER.search(name) and len(tensor.shape) in (0, 4):
        return True
    return name.endswith(("inv_freq", ".gate.e_score_correction_bias")) or name.startswith(
        "rope_freqs"
    )


def _first(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _left_out(beside: Mapping[str, Sequence[str]]) -> str | None:
    count = sum(len(names) for names in beside.values())
    return f"{', '.join(beside)} ({count} tensors): {BESIDE}" if beside else None


def _active_share(text: Mapping[str, Any]) -> float:
    """The share of its experts that a layer sends one token through; 1 where there are none."""
    experts = _first(text, "num_local_experts", "num_experts", "n_routed_experts")
    chosen = _first(text, "num_experts_per_tok", "num_experts_per_token", "moe_topk")
    return min(1.0, chosen / experts) if experts and chosen else 1.0


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    return _first(text, "num_key_value_heads", "num_kv_heads") or heads
