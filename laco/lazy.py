"""A checkpoint folder opened layer by layer, and a new folder written layer by layer.

A model larger than the memory is walked with these two: one layer at a time has weights. What is
done to a layer is not known here. Next: `layerfiles.py`, which knows the files; `walk.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from laco import ahead, checkpoint, models
from laco.disk import is_partial, write_json
from laco.errors import ArchitectureError, ModelError
from laco.layerfiles import Weights, place, saved_config, skeleton, write_tensors
from laco.layers import LayerStack
from laco.layouts import LAYOUTS
from laco.recipe import ModelRef
from laco.walk import Tape, record

WINDOWS = 8  # how many go through the embedding at a time


class LazyModel:
    """A checkpoint folder opened layer by layer.

    `model` is a skeleton: its parameters are on meta, but for what `read` and `outside` give it.
    `dtype` is what the files are run in. ModelError, before any weight is read, as of
    `models.load_folder`.
    """

    folder: Path
    ref: ModelRef
    device: str
    dtype: torch.dtype
    model: PreTrainedModel
    tokenizer: Any
    stack: LayerStack

    def __init__(self, folder: Path, ref: ModelRef, device: str):
        self.folder, self.ref, self.device = folder, ref, device
        config, self.dtype = models.check_folder(folder, ref, device)
        with models.quiet(), models.as_model_error(folder, config, ref):
            self.tokenizer = models.causal_tokenizer(folder, config, ref)
            self.model = skeleton(folder, ref.trust_remote_code, self.dtype)
        self.weights = Weights(self.model, folder, self.dtype)
        for name, buffer in list(self.model.named_buffers()):
            if buffer.device.type != "meta":
                place(self.model, name, buffer.to(device))
        self.stack = self._find_stack()
        self._is_outside = False
        self._for_good = ExitStack()
        self._tapes: dict[tuple[int, int], Tape] = {}

    def read(self, index: int, dtype: torch.dtype | None = None) -> nn.Module:
        """Layer `index` with its weights from the files, on `device`.

        In `dtype`, after a rounding to the model's own, so that it is the model's layer. The
        module is the same object each time; whatever weights it had are gone.
        """
        layer = self.stack[index]
        self.release(index)
        self.weights.load(self._names(index), self.device)
        self.weights.foresee(self._names((index + 1) % len(self.stack)))
        if dtype is not None:
            for parameter in layer.parameters():
                parameter.data = parameter.data.to(dtype)
        return layer

    def release(self, index: int) -> None:
        """Put layer `index` back to meta, as it was before it was read."""
        self.weights.unload(self._names(index))

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Everything that is not a layer has its weights meanwhile: embedding, norm, head."""
        layers = f"{self.stack.layout.layers}."
        with self._having([n for n in self.weights.targets() if not n.startswith(layers)]):
            yield

    def load_outside(self) -> None:
        """Give everything that is not a layer its weights, for good."""
        self._for_good.enter_context(self.outside())

    @torch.no_grad()
    def inputs(self, tokens: Tensor) -> Tensor:
        """What the first layer is fed, on the CPU: [windows, length] to [windows, length, hidden].

        In `dtype`; in pinned memory where a CUDA device will fetch it. The embedding is read for
        it, and freed again.
        """
        found: Tensor | None = None
        with self._embedding():
            for start in range(0, len(tokens), WINDOWS):
                part = self._first_inputs(tokens[start : start + WINDOWS])
                if found is None:
                    shape = (*tokens.shape, part.shape[-1])
                    found = torch.empty(shape, dtype=self.dtype, pin_memory=part.is_cuda)
                found[start : start + WINDOWS] = part
        assert found is not None, "there are no windows"
        return found

    def tape(self, batch: int, length: int) -> Tape:
        """How the model calls its layers on `batch` windows of `length` tokens, without padding.

        Recorded once for each shape, on tokens that stand for any; so its `tokens` and `inputs`
        are no one's. ArchitectureError when the layers' arguments depend on the tokens.
        """
        shape = (batch, length)
        if shape not in self._tapes:
            zeros = torch.zeros(shape, dtype=torch.long)
            with self._embedding(), self._set_aside(0):
                self.read(0)
                tape, other = (record(self.stack, zeros + n, shallow=True) for n in (0, 1))
            for index, (call, twin) in enumerate(zip(tape.calls, other.calls, strict=True)):
                if not _same((call.args, call.kwargs), (twin.args, twin.kwargs)):
                    raise ArchitectureError(
                        f"Layer {index} of this {self.stack.family} model is given more of the "
                        "tokens than its hidden states, so its layers cannot be run one by one; "
                        "choose another model."
                    )
            self._tapes[shape] = tape
        return self._tapes[shape]

    def _names(self, index: int) -> list[str]:
        return self.weights.targets(f"{self.stack.layout.layers}.{index}.")

    def _embedding(self) -> Any:
        """What the trunk needs to feed its first layer (and its final norm) has weights."""
        path, _, layers = self.stack.layout.layers.rpartition(".")
        tied = self.model.all_tied_weights_keys
        names = self.weights.targets(f"{path}.")
        names += [n for n in {*tied, *tied.values()} - set(names) if n in self.weights.targets()]
        return self._having([n for n in names if not n.startswith(f"{path}.{layers}.")])

    @contextmanager
    def _having(self, names: list[str]) -> Iterator[None]:
        if self._is_outside:  # then everything is there already
            yield
            return
        try:
            self._is_outside = True
            self.weights.load(names, self.device)
            self.model.tie_weights(missing_keys=set(self.weights.missing), recompute_mapping=False)
            yield
        finally:
            self.weights.unload(names)
            self._is_outside = False

    @contextmanager
    def _set_aside(self, index: int) -> Iterator[nn.Module]:
        """The layer's weights are put back afterwards, whatever it is given meanwhile."""
        layer = self.stack[index]
        before = layer.state_dict(keep_vars=True)
        try:
            self.release(index)
            yield layer
        finally:
            for name, tensor in before.items():
                place(layer, name, tensor)

    def _first_inputs(self, tokens: Tensor) -> Tensor:
        def before(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _Fed(args[0] if args else kwargs["hidden_states"])

        handle = self.stack[0].register_forward_pre_hook(before, with_kwargs=True)
        try:
            self.model(input_ids=tokens.to(self.device), use_cache=False)
        except _Fed as fed:
            return fed.hidden
        finally:
            handle.remove()
        raise AssertionError("the model ran without its first layer")

    def _find_stack(self) -> LayerStack:
        if str(self.model.config.model_type) in LAYOUTS:
            return LayerStack(self.model)
        # Of an unknown family, layers are found by running it; so it is loaded whole, this once.
        whole = models.load_folder(self.folder, self.ref, self.device)
        return LayerStack(self.model, whole.layers.layout)


class _Fed(Exception):  # noqa: N818 - a signal, not an error
    """Ends a forward pass with what the first layer is fed."""

    def __init__(self, hidden: Tensor):
        super().__init__()
        self.hidden = hidden


class LayerWriter:
    """A new folder, written layer by layer; stock `from_pretrained` loads it.

    One safetensors file a layer, one for the rest, an index. A file is there whole or not at all,
    so a folder that was left half done is gone on with: `has` says what is there already.
    `edited` is the stack that is written, without weights, if it is another than the source's.
    """

    def __init__(self, source: LazyModel, folder: Path, edited: LayerStack | None = None):
        self.source, self.folder, self.edited = source, folder, edited
        self.depth = len(edited or source.stack)
        rows = source.model.get_input_embeddings().get_parameter("weight").shape[0]
        if len(source.tokenizer) > rows:
            raise ModelError(
                f"The tokenizer of {source.folder} knows {len(source.tokenizer)} tokens and its "
                f"embedding has {rows} rows, so no other program could run what is made of it; "
                "mend the tokenizer first."
            )
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if is_partial(file):
                file.unlink()

    def has(self, index: int) -> bool:
        """Whether layer `index` is written already."""
        return self._file(index).is_file()

    def put(self, index: int, layer: nn.Module) -> None:
        """Write the layer as layer `index`, in the number format of the source."""
        prefix = f"{self.source.stack.layout.layers}.{index}."
        held = layer.state_dict()
        names = self.source.weights.targets(prefix)
        tensors = {name: held[name.removeprefix(prefix)] for name in names}
        self.put_tensors(index, self.source.weights.as_saved(tensors))

    def put_tensors(self, index: int, tensors: dict[str, Tensor]) -> None:
        """Write what files are to hold of layer `index`, by the names that it has there."""
        write_tensors(self._file(index), tensors)

    def read_back(self, index: int) -> dict[str, Tensor]:
        """What was put as layer `index`, on the CPU, by the names inside the layer."""
        with self.source._set_aside(index) as layer:
            self.source.weights.hold(load_file(self._file(index)))
            prefix = f"{self.source.stack.layout.layers}.{index}."
            held = layer.state_dict()
            names = [n.removeprefix(prefix) for n in self.source.weights.targets(prefix)]
            return {name: held[name] for name in names}

    def finish(self, fields: Mapping[str, Any] = {}) -> None:
        """Write what is no layer, the config with `fields` changed, tokenizer and index.

        All layers must have been put. What was written is then checked against the config, by
        names and shapes: ModelError when they do not fit.
        """
        source = self.source
        assert all(self.has(index) for index in range(self.depth))
        write_tensors(
            self._file(self.depth), dict(source.weights.copies(f"{source.stack.layout.layers}."))
        )
        write_json(self.folder / "config.json", self._config(fields))
        for file in (source.folder / "generation_config.json", *source.folder.glob("*.py")):
            if file.is_file():
                shutil.copy2(file, self.folder)
        with models.quiet():
            source.tokenizer.save_pretrained(self.folder)
        self._write_index()
        Weights(
            skeleton(self.folder, source.ref.trust_remote_code, source.dtype),
            self.folder,
            source.dtype,
        )

    def _file(self, index: int) -> Path:
        """A layer's file, and after the last one that of the rest; named as shards are."""
        count = self.depth + 1
        return self.folder / f"model-{index + 1:05d}-of-{count:05d}.safetensors"

    def _config(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        if self.edited is not None:
            return saved_config(self.edited.model, self.source.dtype)
        config = checkpoint.read_config(self.source.folder)
        text = checkpoint.text_config(config)
        text.update({**ahead.none_counted(text), **fields})
        for part in (config, *(value for value in config.values() if isinstance(value, dict))):
            if {"dtype", "torch_dtype"} & part.keys() or part is config:
                part.pop("torch_dtype", None)
                part["dtype"] = str(self.source.dtype).removeprefix("torch.")
        return config

    def _write_index(self) -> None:
        names: dict[str, str] = {}
        size = 0
        for index in range(self.depth + 1):
            file = self._file(index)
            for name, tensor in load_file(file).items():  # mapped, not read
                names[name] = file.name
                size += tensor.nbytes
        document = {"metadata": {"total_size": size}, "weight_map": names}
        write_json(self.folder / "model.safetensors.index.json", document)


def _same(one: Any, other: Any) -> bool:
    """Whether two arguments agree in every tensor that is in them."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return all(map(_same, one, other))
    if isinstance(one, dict):
        return all(_same(value, other[name]) for name, value in one.items())
    return True
