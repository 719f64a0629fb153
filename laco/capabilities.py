"""What can be done with a model, before a weight is read: each thing yes, or the reason why not.

Families are known by name here, and their reasons are the ones that loading and pruning give, too.
It reads a config as it stands in its file, and what `card.py` found in the tensors' names and
shapes. It needs no torch. Next: `card.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from laco import checkpoint
from laco.depth import FIELDS, edited_fields, per_layer
from laco.errors import ArchitectureError
from laco.rhythms import made_list

CAPABILITIES = (
    *("similarity", "collapse", "merge", "sparsity", "compensation", "width", "lora"),
    *("evaluation", "export"),
)
NEED_TOKENS = (  # they show text to the model
    *("similarity", "collapse", "sparsity", "compensation", "width", "lora", "evaluation"),
)

# The families whose layout is written down; a test holds this against LAYOUTS, which needs torch.
FAMILIES = frozenset(
    {
        *("bloom", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "falcon", "gemma2"),
        *("gemma3", "gemma3_text", "glm4", "gpt2", "gpt_neox", "gpt_oss", "granite", "jamba"),
        *("lfm2", "llama", "llama4_text", "mamba", "minicpm3", "mistral", "mixtral", "olmo2"),
        *("opt", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "smollm3"),
        "stablelm",
    }
)

_EXPERTS = "its layers hold experts, each with channels of its own, and none is wider than others"
_COMPUTED = "its class computes the MLP's width, so no config can say another"
NO_WIDTH = {  # of families with a layout: why no MLP channels can go
    "bloom": _COMPUTED,
    "deepseek_v2": _EXPERTS,
    "deepseek_v3": _EXPERTS,
    "gpt_oss": _EXPERTS,
    "jamba": _EXPERTS,
    "lfm2": _COMPUTED,
    "llama4_text": _EXPERTS,
    "mamba": "its layers have neither an MLP nor heads of attention",
    "mixtral": _EXPERTS,
    "qwen2_moe": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "qwen3_next": _EXPERTS,
}

_WIDER = "its class computes a head's width from their number, so fewer would be wider"
_LATENT = "its keys and values are made of one short vector for all heads"
_SOME = "not every layer of it has attention"
NO_GROUPS = {  # of families with a layout: why no groups of attention heads can go
    **dict.fromkeys(("bloom", "falcon", "gpt2", "gpt_neox", "opt", "stablelm"), _WIDER),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "gpt_oss": "each of its heads has a sink beside its matrices, which laco does not cut",
    "jamba": _SOME,
    "lfm2": _SOME,
    "mamba": "its layers have no heads of attention",
    "minicpm3": _LATENT,
    "qwen3_next": _SOME,
}

_STREAMS = "its layers hand on several streams of hidden states, and some read others' keys"
NO_STACK = {  # families whose layers are no stack
    "gemma3n": _STREAMS,
    "gemma3n_text": _STREAMS,
}
_EMBEDDING = "each of its layers is fed the tokens' embedding too, so layers cannot run one by one"
NOT_BY_ITSELF = {  # families whose layers need more than hidden states
    "zamba": _EMBEDDING,
    "zamba2": _EMBEDDING,
}

SHARED = "some of its layers share one block of weights, so none can be changed by itself"
SHARING = frozenset({"zamba", "zamba2"})  # `LayerStack` finds it out by looking

BESIDE = "layers that guess further tokens; they are not loaded, and dropped from what is saved"

_DERIVED = (  # lists that a class makes where the file has none
    *("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers", "moe_layers"),
    "indexer_types",
)
Answer = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """What the tensors' names and shapes say of a stack: for each layer, of which make it is.

    `beside` are the places of layers that guess further tokens.
    """

    makes: Sequence[int]
    tokenizer: bool
    beside: Sequence[str] = ()


def capabilities(config: Mapping[str, Any], found: Found, *, trusted: bool) -> dict[str, Answer]:
    """For each thing that laco does: {"ok": bool, "reason": why not, or what to know}."""
    family = config["model_type"]
    remote = bool(config.get("auto_map")) and family not in FAMILIES
    if reason := checkpoint.not_causal(dict(config)):
        return dict.fromkeys(CAPABILITIES, _no(reason))
    if remote and not trusted:
        reason = "it brings its own Python code, which runs only if you set trust_remote_code"
        return dict.fromkeys(CAPABILITIES, _no(reason))
    if reason := NO_STACK.get(family):
        return dict.fromkeys(CAPABILITIES, _no(reason))
    known = f"{family} is a known family"
    if family not in FAMILIES:
        known = f"{family} is no known family; its layers are found by probing when it is loaded"
    answers = {name: _yes(known) for name in CAPABILITIES}
    text = checkpoint.text_config(dict(config))
    answers["collapse"] = _collapse(text, len(found.makes), known)
    answers["merge"] = _merge(text, found.makes, known, text.get("model_type") or family)
    if family in SHARING:
        answers |= dict.fromkeys(("collapse", "merge", "lora"), _no(SHARED))
    if family in FAMILIES:
        answers["width"] = _width(family, known)
    else:
        answers["width"] = _no(
            f"{family} is no known family, so it is not known which weights are a channel"
        )
    if reason := NOT_BY_ITSELF.get(family):
        answers |= dict.fromkeys(("sparsity", "compensation"), _no(reason))
    answers["export"] = _yes("to a folder that stock transformers loads")
    if remote:
        answers["export"] = _yes("to a folder that needs the model's own Python code to load")
    if found.beside:
        dropped = f"{', '.join(found.beside)}, for guessing further tokens, is dropped"
        for name in ("collapse", "merge", "export"):
            if answers[name]["ok"]:
                answers[name] = _yes(f"{answers[name]['reason']}; {dropped}")
    if not found.tokenizer:
        reason = "there is no tokenizer in its folder; copy one there"
        answers |= dict.fromkeys(NEED_TOKENS, _no(reason))
    return answers


def _width(family: str, known: str) -> Answer:
    """Whether MLP channels can go, which is what the form begins with; and groups of heads."""
    heads = NO_GROUPS.get(family)
    if reason := NO_WIDTH.get(family):
        rest = f"nor groups of heads: {heads}" if heads else "groups of heads can, with channels=0"
        return _no(f"no MLP channels can go: {reason}; {rest}")
    return _yes(f"{known}, but no groups of heads can go: {heads}" if heads else known)


def _collapse(text: Mapping[str, Any], depth: int, known: str) -> Answer:
    """Whether any layers can go; with the reason why not all of them can."""
    if depth == 1:
        return _no("it has one layer only")
    refusals = [_refusal(text, depth, start, start + 1) for start in range(depth)]
    if None not in refusals:
        pairs = [_refusal(text, depth, start, start + 2) for start in range(depth - 1)]
        if None not in pairs:
            return _no(next(reason for reason in refusals if reason))
    if reason := next((reason for reason in refusals if reason), None):
        return _yes(f"{known}, but not every layer can go: {reason}")
    return _yes(known)


def _merge(text: Mapping[str, Any], makes: Sequence[int], known: str, family: str) -> Answer:
    """Whether any neighbours can merge: layers of one make that the config says the same of."""
    depth = len(makes)
    if depth == 1:
        return _no("it has one layer only")
    said = SimpleNamespace(**{**text, **made_list(text, family, depth)})
    lists = per_layer(said, depth)
    apart = [_apart(lists, makes, index) for index in range(1, depth)]  # from the one before
    unsaid = "" if family in FAMILIES else "; those that only its class tells apart are refused"
    may = [
        reason is None and _refusal(text, depth, index + 1, index + 2) is None
        for index, reason in enumerate(apart)
    ]
    differ = next((reason for reason in apart if reason), None)
    if not any(may):
        refused = differ or _refusal(text, depth, 1, 2) or "there are no layers"
        return _no(f"no two neighbours can merge: {refused}")
    if differ:
        spans = ", ".join(f"[{start}, {stop})" for start, stop in _runs(may))
        where = f"only within layers {spans}, whose neighbours are alike; elsewhere {differ}"
        return _yes(where + unsaid)
    return _yes(known + unsaid)


def _apart(lists: Mapping[str, Sequence[Any]], makes: Sequence[int], index: int) -> str | None:
    """Why a layer and the one before it are not of one kind, in a few words."""
    for name, values in lists.items():
        if values[index - 1] != values[index]:
            return f"layers {index - 1} and {index} differ in {name}"
    if makes[index - 1] != makes[index]:
        return f"layers {index - 1} and {index} have parameters of different names or shapes"
    return None


def _runs(may: Sequence[bool]) -> list[tuple[int, int]]:
    """The longest spans [start, stop) of layers in which each may merge with the next."""
    runs: list[tuple[int, int]] = []
    for index, good in enumerate(may):
        if good and runs and runs[-1][1] == index + 1:
            runs[-1] = (runs[-1][0], index + 2)
        elif good:
            runs.append((index, index + 2))
    return runs


def _refusal(text: Mapping[str, Any], depth: int, start: int, stop: int) -> str | None:
    """Why the layers [start, stop) cannot go, as far as the config's file says; None if they can.

    Only fields that refuse are asked: others may lack in a file what their class fills in.
    """
    asked = {
        name: value
        for name, value in text.items()
        if name.endswith("_offset") or (name in FIELDS and FIELDS[name].does == "refuse")
    }
    config = SimpleNamespace(
        **dict.fromkeys(_DERIVED, ()), **asked, model_type=text.get("model_type", "")
    )
    kept = [index for index in range(depth) if not start <= index < stop]
    try:
        edited_fields(config, kept, depth, "num_hidden_layers")
    except ArchitectureError as error:
        return str(error).partition("; choose")[0]
    return None


def _yes(reason: str) -> Answer:
    return {"ok": True, "reason": reason}


def _no(reason: str) -> Answer:
    return {"ok": False, "reason": reason}
