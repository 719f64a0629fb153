"""Load a model from wherever a `ModelRef` says, whole and checked, and save one likewise.

A GGUF file, the bundled one too, is converted once into a safetensors folder in the cache and
loaded from there. Nothing here knows what is done to a model. Next: `layers.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import logging as chatter

from laco import ahead, causes, checkpoint, hub, reference
from laco.disk import partial_path
from laco.errors import ModelError
from laco.layers import LayerStack, check_finite
from laco.recipe import ModelRef
from laco.reference import BUNDLED, pin

__all__ = [
    "BUNDLED",
    "LoadedModel",
    "as_model_error",
    "best_device",
    "causal_tokenizer",
    "check_folder",
    "check_loaded",
    "folder_of",
    "list_devices",
    "load",
    "load_folder",
    "pin",
    "quiet",
    "save_folder",
]


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, its tokenizer and its layers; `ref` says where it came from.

    `pass_tokens`: how many tokens should go through it together, if each pass reads it anew.
    """

    model: PreTrainedModel
    tokenizer: Any
    layers: LayerStack
    ref: ModelRef
    pass_tokens: int | None = None

    def rows(self, usual: int, length: int) -> int:
        """How many windows of `length` tokens to run at a time, where `usual` tokens are usual."""
        return max(1, (self.pass_tokens or usual) // length)


def load(ref: ModelRef, cache: Path, device: str) -> LoadedModel:
    """The model that `ref` names, on `device`, ready to be looked at.

    Raises `ModelError` when it is missing, broken, no causal language model, without tokenizer,
    quantised, pickled, or when its weights and its config do not fit each other.
    """
    ref = pin(ref, cache)
    return load_folder(folder_of(ref, cache), ref, device)


def folder_of(ref: ModelRef, cache: Path) -> Path:
    """The folder of a pinned reference: downloaded or converted into the cache where needed."""
    kind = reference.kind_of(ref.path)
    if kind == "folder":
        return Path(ref.path)
    if kind == "hub":
        return hub.snapshot(ref.path, ref.revision, _is_whole)
    target = reference.converted_folder(ref, cache)
    if not target.exists():
        file = Path(ref.path) if kind == "gguf" else reference.bundle_gguf(ref.revision)
        _convert(file, target)
    return target


def load_folder(folder: Path, ref: ModelRef, device: str, spread: bool = False) -> LoadedModel:
    """The model in a folder of safetensors, config and tokenizer, in `ref`'s number format.

    `spread`: over all devices of its kind, by accelerate (`device_map="auto"`).
    """
    config, dtype = check_folder(folder, ref, device)
    with quiet(), as_model_error(folder, config, ref):
        tokenizer = causal_tokenizer(folder, config, ref)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with the names
            device_map=_device_map(device, spread),
            trust_remote_code=ref.trust_remote_code,
        )
    model, found = loaded
    check_loaded(folder, found)
    check_finite(model, str(folder))
    model.eval().requires_grad_(False)
    return LoadedModel(model, tokenizer, LayerStack(model), ref)


def _device_map(device: str, spread: bool) -> str | dict[str, str] | None:
    if spread:
        return "auto"
    return {"": device} if torch.device(device).type != "cpu" else None


def check_folder(folder: Path, ref: ModelRef, device: str) -> tuple[dict[str, Any], torch.dtype]:
    """The config of a folder and the number format to run it in, from its small files alone.

    `ModelError` when it is no causal language model, has no weights or no tokenizer, or cannot be
    run on that device in that format.
    """
    config = checkpoint.read_config(folder)
    if reason := checkpoint.not_causal(config):
        raise ModelError(f"{folder} cannot be loaded: {reason}.")
    headers = checkpoint.read_headers(folder)
    if reason := checkpoint.misfit(config, headers):
        raise ModelError(
            f"{folder} cannot be loaded: {reason}; its weights and its config.json do not belong "
            "together, so fetch both anew."
        )
    reason = checkpoint.uneven(config, headers)
    if reason and not (ref.trust_remote_code and config.get("auto_map")):
        raise ModelError(f"{folder} cannot be loaded: {reason}.")
    dtype = checkpoint.checkpoint_dtype(folder) if ref.dtype == "auto" else ref.dtype
    if dtype == "float16" and torch.device(device).type == "cpu":
        raise ModelError(
            f"{folder} would run in float16 on a CPU, where it overflows and is slow; choose "
            "dtype float32 or bfloat16."
        )
    if not checkpoint.has_tokenizer(folder):
        raise ModelError(
            f"{folder} has no tokenizer; copy tokenizer.json and tokenizer_config.json of the "
            "model it was made from into it."
        )
    checkpoint.check_tokenizer(folder)
    return config, getattr(torch, dtype)


def save_folder(lm: LoadedModel, folder: Path) -> None:
    """Write safetensors, config, generation config and tokenizer into `folder`, then check them.

    What is checked: the files hold every element of the model once (a tied head is one with the
    embedding); the config counts the layers; no list in it that goes by layers has another length;
    the tokenizer knows no id past the embedding. Raises `ModelError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in ahead.none_counted(vars(lm.layers.config)).items():
        setattr(lm.layers.config, name, value)
    with quiet():
        lm.model.save_pretrained(folder)
        lm.tokenizer.save_pretrained(folder)
    # By elements: a family's files may name and cut its tensors otherwise (experts, an older head).
    once = {t.data_ptr() or id(t): t.numel() for t in lm.model.state_dict(keep_vars=True).values()}
    held = sum(header.size for header in checkpoint.read_headers(folder).values())
    if held != sum(once.values()):
        raise ModelError(
            f"{folder} was written with {held:,} elements where the model has "
            f"{sum(once.values()):,}; the model is not saved."
        )
    config = checkpoint.read_config(folder)
    depth = checkpoint.depth_of(config)
    if depth != len(lm.layers):
        raise ModelError(
            f"{folder} says {depth} layers where the model has {len(lm.layers)}; it is not saved."
        )
    types = checkpoint.text_config(config).get("layer_types")
    if types is not None and len(types) != depth:
        raise ModelError(f"{folder} lists {len(types)} layer types for {depth} layers.")
    rows = lm.model.get_input_embeddings().get_parameter("weight").shape[0]
    if len(lm.tokenizer) > rows:
        raise ModelError(
            f"The tokenizer knows {len(lm.tokenizer)} tokens and the embedding has {rows} rows; "
            "the model is not saved, since no other program could run it."
        )


def best_device() -> str:
    """The fastest device here: "cuda", else "mps", else "cpu"."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def list_devices() -> list[dict[str, Any]]:
    """Every device that a job can ask for: `name` for torch, `kind` in words, `memory` in bytes."""
    memory = psutil.virtual_memory().total
    devices = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        devices.append({"name": f"cuda:{index}", "kind": about.name, "memory": about.total_memory})
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "kind": "Apple GPU", "memory": memory})
    cores = os.cpu_count() or 1
    return [*devices, {"name": "cpu", "kind": f"CPU, {cores} cores", "memory": memory}]


def _is_whole(folder: Path) -> bool:
    try:
        return bool(checkpoint.weight_files(folder)) and checkpoint.has_tokenizer(folder)
    except ModelError:
        return False


def causal_tokenizer(folder: Path, config: dict[str, Any], ref: ModelRef) -> Any:
    """The tokenizer of a folder; `ModelError` when no causal model of its kind is known.

    Known is one that transformers has, or code that comes with the folder.
    """
    options: dict[str, Any] = {"trust_remote_code": ref.trust_remote_code}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    found = transformers.AutoConfig.from_pretrained(folder, **options)
    known = type(found) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if not known and "AutoModelForCausalLM" not in (getattr(found, "auto_map", None) or {}):
        raise ModelError(
            f"{folder} cannot be loaded: {config['model_type']} is not a causal language model."
        )
    rows = checkpoint.text_config(config).get("vocab_size")
    added = tokenizer.get_added_vocab()  # such as a padding token, which plain text does not hold
    last = max((n for word, n in tokenizer.get_vocab().items() if word not in added), default=0)
    if isinstance(rows, int) and last >= rows:
        raise ModelError(
            f"{folder} cannot be loaded: its tokenizer gives numbers up to {last:,}, and its "
            f"embedding has {rows:,} rows; copy the tokenizer of the model it was made from."
        )
    return tokenizer


def _convert(file: Path, target: Path) -> None:
    """Dequantise a GGUF file into a float32 folder. Two at once are safe: one rename wins."""
    partial = partial_path(target)
    options: dict[str, Any] = {"gguf_file": file.name}
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
            model = AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=torch.float32, **options
            )
            _forget_quantisation(model)
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        try:
            partial.rename(target)
        except OSError:
            if not target.exists():
                raise
    except Exception as error:
        raise ModelError(
            f"{file} cannot be converted ({hub.first_line(error)}); check that it is a whole GGUF "
            "file of a causal language model, and that the disk has room."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _forget_quantisation(model: Any) -> None:
    """The weights are plain float32 now; what says otherwise would forbid saving them."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False


def check_loaded(folder: Path, found: dict[str, Any]) -> None:
    """`ModelError` when a loader found tensors missing, left over, or of another shape.

    Layers that guess further tokens may be left over.
    """
    more_tokens = ahead.left_out(checkpoint.read_config(folder), found.get("unexpected_keys") or ())
    passed = {name for names in more_tokens.values() for name in names}
    for kind, meaning in (
        ("missing_keys", "lacks"),
        ("unexpected_keys", "has, unknown to its config,"),
        ("mismatched_keys", "has in another shape than its config says"),
    ):
        keys = (key if isinstance(key, str) else key[0] for key in found.get(kind) or ())
        if names := sorted(set(keys) - passed):
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ModelError(
                f"{folder} {meaning} {', '.join(names[:3])}{more}; its weights and its config.json "
                "do not belong together, so fetch both anew."
            )


@contextmanager
def as_model_error(folder: Path, config: dict[str, Any], ref: ModelRef) -> Iterator[None]:
    """Turn whatever transformers raises for a folder that it can't read into a `ModelError`."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # there are a dozen kinds
        if causes.lacks_memory(error):  # nothing is wrong with the folder
            raise
        raise ModelError(_why_not(folder, config, ref, error)) from error


def _why_not(folder: Path, config: dict[str, Any], ref: ModelRef, error: Exception) -> str:
    if config.get("auto_map") and not ref.trust_remote_code:
        return (
            f"{folder} brings its own Python code, which laco does not run unasked; set "
            "trust_remote_code for it if you trust where it comes from."
        )
    return (
        f"{folder} ({config['model_type']}) cannot be loaded: {hub.first_line(error)}; check that "
        "its config, weights and tokenizer are whole and known to this version of transformers."
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' own progress bars and reports: ours go to whoever asked."""
    level, bars = chatter.get_verbosity(), chatter.is_progress_bar_enabled()
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    try:
        yield
    finally:
        chatter.set_verbosity(level)
        if bars:
            chatter.enable_progress_bar()
