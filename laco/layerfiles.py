"""Which tensor of a checkpoint's files belongs where in a model's modules, in both directions.

Files and modules may name things differently, and join them differently (experts, a head under an
older name, a missing prefix). transformers' own loader settles that, here too: it is given a model
without memory, and only the tensors that are wanted. What is done with layers is not known here.
Next: `lazy.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    rename_source_key,
    revert_weight_conversion,
)
from transformers.initialization import no_init_weights
from transformers.modeling_utils import LoadStateDictConfig

from laco import checkpoint, models
from laco.disk import explained, is_full, no_space, partial_path
from laco.errors import ModelError, NumericalError, StoreError
from laco.layers import is_finite
from laco.shards import Header


def skeleton(folder: Path, trust_remote_code: bool, dtype: torch.dtype) -> PreTrainedModel:
    """The model that a folder's config describes, without memory: its parameters are on meta.

    Buffers that no file holds (rotary frequencies) are real.
    """
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    with models.quiet():
        config = AutoConfig.from_pretrained(folder, **options)
        with no_init_weights(), init_empty_weights(include_buffers=False):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, **options)
    return model.eval().requires_grad_(False)


class Weights:
    """The tensors of a folder, read into the modules of a skeleton by the model's names.

    `expected[name]` has the shape and the number format of each of the model's tensors; it is on
    meta where the files hold the tensor. `missing` are those that are tied to one in the files.
    ModelError at once, from the files' headers alone, when they and the config do not fit.
    """

    expected: dict[str, Tensor]
    missing: frozenset[str]

    def __init__(self, model: PreTrainedModel, folder: Path, dtype: torch.dtype):
        self.model = model
        self._headers = headers = checkpoint.read_headers(folder)
        self._files = {}
        for file in checkpoint.weight_files(folder):
            with safe_open(file, framework="pt") as opened:
                self._files |= dict.fromkeys(opened.keys(), file)
        self._dtype = dtype
        self._mapping: list[Any] = get_model_conversion_mapping(model)
        state = model.state_dict()
        self._targets = {name: self._target(name, state)[0] for name in self._files}
        shapes = {name: torch.empty(h.shape, device="meta") for name, h in headers.items()}
        self._check(folder, shapes)
        self.expected = model.state_dict()
        self._conversions = model._weight_conversions

    def load(self, targets: Iterable[str], device: str) -> None:
        """Read from the files what becomes the `targets`, and set it on the model's modules."""
        wanted = set(targets)
        names = [name for name, target in self._targets.items() if target in wanted]
        with ExitStack() as until:
            opened: dict[Path, Any] = {
                file: until.enter_context(safe_open(file, framework="pt"))
                for file in {self._files[name] for name in names}
            }
            self._convert({n: opened[self._files[n]].get_slice(n) for n in names}, device)
        self._freeze(wanted)

    def foresee(self, targets: Iterable[str]) -> None:
        """Have the system fetch what becomes the `targets` while something else goes on.

        It lands in the system's cache, not in this process. Where a system has no such wish,
        nothing happens.
        """
        wish = getattr(os, "posix_fadvise", None)
        if wish is None:
            return
        wanted = set(targets)
        ranges: dict[Path, list[Header]] = {}
        for name, target in self._targets.items():
            if target in wanted:
                ranges.setdefault(self._files[name], []).append(self._headers[name])
        for file, headers in ranges.items():
            with file.open("rb") as opened:
                for header in headers:
                    wish(opened.fileno(), header.start, header.bytes, os.POSIX_FADV_WILLNEED)

    def hold(self, saved: dict[str, Tensor]) -> None:
        """Set tensors that `as_saved` named on the model's modules, on the CPU, of any shape."""
        for name, tensor in saved.items():
            target, joined = self._target(name, self.expected)
            if not joined and tensor.shape != self.expected[target].shape:
                place(self.model, target, self.expected[target].new_empty(tensor.shape))
        self._convert(saved, "cpu")

    def unload(self, targets: Iterable[str]) -> None:
        """Put the model's tensors of these names back to meta, in their first shape and format."""
        for target in targets:
            place(self.model, target, self.expected[target])

    def targets(self, inside: str = "") -> list[str]:
        """The model's names of what the files hold, of those that begin with `inside`."""
        return [
            name
            for name, tensor in self.expected.items()
            if tensor.device.type == "meta" and name.startswith(inside)
        ]

    def as_saved(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by the model's names, as files hold them: by the files' names, and contiguous."""
        self.model._weight_conversions = self._conversions
        named = {
            name: tensor.detach().to("cpu", self.expected[name].dtype)
            for name, tensor in tensors.items()
        }
        saved = revert_weight_conversion(self.model, named)
        return {name: _own(tensor) for name, tensor in saved.items()}

    def copies(self, outside: str) -> Iterator[tuple[str, Tensor]]:
        """What the files hold for names that do not begin with `outside`, as `as_saved` names it.

        One tensor at a time; one that keeps its number format stays in the file until it is used.
        """
        for name, target in self.names(""):
            if not target.startswith(outside):
                yield from self.named_as_saved(name, self.tensor(name)).items()

    def names(self, inside: str) -> list[tuple[str, str]]:
        """The files' tensors that become one of the model's that begins with `inside`.

        As (the file's name, the model's).
        """
        return [
            (name, target)
            for name, target in self._targets.items()
            if target.startswith(inside) and target in self.expected
        ]

    def tensor(self, name: str) -> Tensor:
        """A tensor of the files, in the number format that the model has it in."""
        if name not in self._files:
            raise ModelError(f"The files lack {name}, which layers like its own have.")
        with safe_open(self._files[name], framework="pt") as opened:
            return opened.get_tensor(name).to(self.expected[self._targets[name]].dtype)

    def named_as_saved(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """A tensor that the files call `name`, as `as_saved` names it."""
        target, joined = self._target(name, self.expected)
        return {name: tensor} if joined else self.as_saved({target: tensor})

    def _target(self, name: str, state: dict[str, Tensor]) -> tuple[str, bool]:
        """The model's name for a tensor of a file, as the loader finds it; whether it is joined."""
        renamings = [each for each in self._mapping if isinstance(each, WeightRenaming)]
        converters = [each for each in self._mapping if isinstance(each, WeightConverter)]
        target, joined = rename_source_key(
            name, renamings, converters, self.model.base_model_prefix, state
        )
        if target not in state and name in state:
            return name, False
        return target, joined is not None

    def _check(self, folder: Path, shapes: dict[str, Tensor]) -> None:
        """Load the files' headers, as it were: shapes without memory."""
        info = self._convert(shapes, "meta")
        self.missing = frozenset(info.missing_keys)
        self.model.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
        self.model._adjust_missing_and_unexpected_keys(info)
        models.check_loaded(folder, info.to_dict())
        self.model.requires_grad_(False)

    def _convert(self, tensors: dict[str, Any], device: str) -> Any:
        config = LoadStateDictConfig(
            dtype=self._dtype,
            dtype_plan=self.model._get_dtype_plan(self._dtype),
            device_map={"": device},
            weight_mapping=self._mapping,
        )
        with models.quiet():
            return convert_and_load_state_dict_in_model(self.model, tensors, config)[0]

    def _freeze(self, targets: Iterable[str]) -> None:
        """What was just read asks for no gradients, whatever the loader thinks."""
        for target in targets:
            self.model.get_parameter_or_buffer(target).requires_grad_(False)


def place(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Set a parameter or a buffer, found by its dotted name, on the module that owns it."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    if leaf in owner._parameters and not isinstance(tensor, nn.Parameter):
        tensor = nn.Parameter(tensor, requires_grad=False)
    setattr(owner, leaf, tensor)


def saved_config(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Any]:
    """The config.json that `save_pretrained` would write of a model in a number format."""
    model.config.dtype = str(dtype).removeprefix("torch.")
    model.config.architectures = [type(model).__name__]
    return json.loads(model.config.to_json_string())


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file under its name in one move, after it has reached the disk.

    NumericalError, naming the tensor, instead of a file with a number that is not finite.
    """
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise NumericalError(
                f"{name} would be written with a number that is not finite; run the model in "
                "another dtype, or look for the step before it that went wrong."
            )
    partial = partial_path(file)
    with explained(file):
        try:
            save_file(tensors, partial, metadata={"format": "pt"})
            with partial.open("rb") as written:
                os.fsync(written.fileno())
            partial.replace(file)
        except SafetensorError as error:
            if is_full(error):
                raise no_space(file) from error
            raise StoreError(f"{file} cannot be written ({error}); mend that.") from error
        finally:
            partial.unlink(missing_ok=True)


def _own(tensor: Tensor) -> Tensor:
    """The tensor contiguous and in storage of its own, as safetensors wants it."""
    if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)
