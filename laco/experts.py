"""Experts that a layer stores as one tensor of three dimensions, seen as plain weight matrices.

What each expert is fed is not to be had from hooks, since no module stands for one; it is seen
where its matrix is taken out of the tensor and multiplied. It does not know who wants it. Next:
`prune/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

# Of classes that do not say `is_transposed` themselves: whether `in` comes before `out`.
IN_FIRST = {
    "InklingSharedExperts": False,
    "JetMoeParallelExperts": False,
    "Llama4TextExperts": True,
    "Step3p7Experts": False,
}

See = Callable[[str, Tensor], None]  # (an expert's matrix by name, its inputs [tokens, in])


@dataclass(frozen=True)
class Experts:
    """One tensor of a layer that holds a matrix for each expert.

    tensor: [experts, out, in], with `in_first` [experts, in, out]. `name` is the parameter's
    inside the layer; an expert's matrix is called `{name}.{expert}`.
    """

    name: str
    tensor: nn.Parameter
    in_first: bool

    def matrices(self) -> Iterator[tuple[str, Tensor]]:
        """Each expert's matrix [out, in], which shares the tensor's memory, by its name."""
        for index, matrix in enumerate(self.tensor.data):
            yield f"{self.name}.{index}", matrix.T if self.in_first else matrix


def stored_experts(layer: nn.Module) -> Iterator[Experts]:
    """The tensors of a layer that hold experts' matrices, of classes whose layout is known."""
    for path, module in layer.named_modules():
        in_first = getattr(module, "is_transposed", IN_FIRST.get(type(module).__name__))
        if not isinstance(in_first, bool):
            continue
        for leaf, tensor in module.named_parameters(recurse=False):
            if tensor.dim() == 3:
                yield Experts(f"{path}.{leaf}".lstrip("."), tensor, in_first)


@contextmanager
def watched(layer: nn.Module, see: See) -> Iterator[None]:
    """Meanwhile `see(name, inputs)` is told of every product with an expert's matrix.

    Experts run one after another meanwhile, in the class's own loop: the fast ways to run them
    all at once hide who is fed what.
    """
    found = list(stored_experts(layer))
    if not found:
        yield
        return
    configs: dict[int, Any] = {
        id(m.config): m.config for m in layer.modules() if hasattr(m, "config")
    }
    before = [(c, getattr(c, "_experts_implementation", None)) for c in configs.values()]
    try:
        for config, _ in before:
            config._experts_implementation = "eager"
        with _Watch(found, see):
            yield
    finally:
        for config, implementation in before:
            config._experts_implementation = implementation


class _Watch(TorchFunctionMode):
    """Sees `tensor[expert]`, and what is multiplied with that or with the whole tensor."""

    def __init__(self, found: list[Experts], see: See):
        super().__init__()
        self.whole = WeakIdKeyDictionary({experts.tensor: experts for experts in found})
        self.taken = WeakIdKeyDictionary()  # a matrix that was taken out -> its name
        self.see = see

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if len(args) < 2:
            return result
        one, other = args[0], args[1]
        kind = getattr(func, "__name__", "")
        if kind == "__getitem__" and one in self.whole and isinstance(result, Tensor):
            if result.dim() == 2:
                self.taken[result] = f"{self.whole[one].name}.{int(other)}"
        elif kind in ("linear", "matmul", "__matmul__", "mm") and other in self.taken:
            self.see(self.taken[other], one.detach().reshape(-1, one.shape[-1]))
        elif kind in ("bmm", "matmul", "__matmul__") and other in self.whole:
            for index, rows in enumerate(one.detach()):  # of [experts, tokens, in]
                fed = rows[rows.any(-1)]  # tokens for others come as zeros
                self.see(f"{self.whole[other].name}.{index}", fed)
        return result
