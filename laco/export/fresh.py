"""Checks an exported folder with stock transformers: run by its path, in a process of its own.

`python -I fresh.py ORDER.json …`; an order says which folder, what is expected of it, and where
the answers go, one line of JSON for each check. Nothing of laco is imported, nor can it be. What
the checks are for is in `docs/export.md`. Next: `verify.py`, which writes orders.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}  # others: 1 byte
PASSING = ("transformers_version", "_name_or_path")  # in a config: about who wrote it

Finding = tuple[bool, str]


class Exported:
    """A folder under check: the order, and what has been read of the folder so far."""

    def __init__(self, order: dict[str, Any]):
        self.order = order
        self.folder = Path(order["folder"])
        self.options = {"trust_remote_code": order["trust"], "local_files_only": True}
        self._model: Any = None

    @property
    def model(self) -> Any:
        if self._model is None:
            raise RuntimeError("not checked, since the model was not loaded")
        return self._model

    def load(self) -> dict[str, Any]:
        """Load the model; what the loader says of its tensors."""
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        loader: Any = AutoModelForCausalLM
        model, info = loader.from_pretrained(
            self.folder,
            dtype=getattr(torch, self.order["dtype"]),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told by the check, with the names
            **self.options,
        )
        self._model = model.to(self.order["device"]).eval().requires_grad_(False)
        # Neither sampling nor an early end: how many tokens come is known.
        self._model.generation_config = GenerationConfig(pad_token_id=0)
        return info

    def headers(self) -> dict[str, dict[str, Any]]:
        """By file: its size, that of its header, and its tensors as the header has them."""
        found: dict[str, dict[str, Any]] = {}
        for file in sorted(self.folder.glob("*.safetensors")):
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                tensors = json.loads(stream.read(length))
            tensors.pop("__metadata__", None)
            told = {"bytes": file.stat().st_size, "header": 8 + length, "tensors": tensors}
            found[file.name] = told
        return found

    def tokens(self) -> Any:
        import torch

        return torch.tensor(self.order["tokens"], device=self.order["device"])  # [1, length]

    def read(self, tokens: Any, kept: int) -> Any:
        """The logits of the last `kept` tokens, read at once: [1, kept, vocabulary], float32."""
        import torch

        few = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        with torch.inference_mode():
            options = {"logits_to_keep": kept} if few else {}
            logits = self.model(input_ids=tokens, use_cache=False, **options).logits
        return logits[:, -kept:].float().cpu()

    def write(self, **options: Any) -> Any:
        """The tokens, and those that the model writes after them, greedily: [1, length + n]."""
        import torch

        tokens = self.tokens()
        options |= {"max_new_tokens": self.order["generate"], "do_sample": False}
        with torch.inference_mode():
            return self.model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)


def inventory(exported: Exported) -> Finding:
    """The files hold the tensors that were written, in their shapes and formats, as indexed."""
    headers = exported.headers()
    there = {
        name: [tensor["dtype"], tensor["shape"]]
        for file in headers.values()
        for name, tensor in file["tensors"].items()
    }
    wanted = exported.order["tensors"]
    for name in sorted(wanted.keys() | there.keys()):
        if name not in there:
            return False, f"{name} is not in the files"
        if name not in wanted:
            return False, f"{name} is in the files and was not written"
        if there[name] != wanted[name]:
            return False, f"{name} is {_words(there[name])} and should be {_words(wanted[name])}"
    index = exported.folder / "model.safetensors.index.json"
    if index.exists() or len(headers) != 1:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        lies = {name: file for file, found in headers.items() for name in found["tensors"]}
        for name in sorted(listed.keys() | lies.keys()):
            if listed.get(name) != lies.get(name):
                return (
                    False,
                    f"{name}: the index says {listed.get(name)}, it is in {lies.get(name)}",
                )
    return (
        True,
        f"{len(there)} tensors, as written and as indexed; files: {len(headers)}",
    )


def loading(exported: Exported) -> Finding:
    """Stock transformers loads the folder, with nothing missing, left over, or misshapen."""
    info = exported.load()
    for kind in ("missing", "unexpected", "mismatched"):
        names = sorted(key if isinstance(key, str) else key[0] for key in info[f"{kind}_keys"])
        if names:
            return False, f"{len(names)} {kind}: {', '.join(names[:3])}"
    name = type(exported.model).__name__
    return True, f"{name}: missing, unexpected and mismatched are 0"


def size(exported: Exported) -> Finding:
    """Each parameter is there once, and the files hold nothing else but their headers."""
    headers = exported.headers()
    tensors = [tensor for file in headers.values() for tensor in file["tensors"].values()]
    elements = [math.prod(tensor["shape"]) for tensor in tensors]
    n_bytes = sum(n * WIDTHS.get(t["dtype"], 1) for n, t in zip(elements, tensors, strict=True))
    once = {t.data_ptr(): t.numel() for t in exported.model.state_dict().values()}
    parameters = sum(once.values())
    if parameters != sum(elements):
        return False, f"the model has {parameters:,} parameters and the files {sum(elements):,}"
    about = sum(file["header"] for file in headers.values())
    there = sum(file["bytes"] for file in headers.values())
    formats = "/".join(sorted({tensor["dtype"] for tensor in tensors}))
    said = f"{parameters:,} parameters in {formats}: {n_bytes:,} bytes, {about:,} of headers"
    return there == n_bytes + about, f"{said}; the files have {there:,}"


def tokenizer(exported: Exported) -> Finding:
    """The tokenizer's files are those of the source, byte by byte, and it fits the embedding."""
    ok, detail = _copied(exported, exported.order["tokenizer"])
    if not ok:
        return ok, detail
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(exported.folder, **exported.options)
    ids = made(exported.order["text"])["input_ids"]
    rows = exported.model.get_input_embeddings().weight.shape[0]
    if len(made) > rows or max(ids) >= rows:
        return False, f"it knows {len(made)} tokens and the embedding has {rows} rows"
    if not all(one == other for one, other in zip(ids, exported.order["tokens"][0], strict=False)):
        return False, "it gives other tokens than the source's"
    return True, f"{detail}; {len(made)} tokens for {rows} rows of the embedding"


def copied_files(exported: Exported) -> Finding:
    """Generation config, code and licence are those of the source, byte by byte."""
    return _copied(exported, exported.order["copied"])


def config_lists(exported: Exported) -> Finding:
    """Each list in the config that goes by layers has an entry for each layer, and the right one.

    As the file says it, and as the class reads it.
    """
    from transformers import AutoConfig

    depth, wanted = exported.order["depth"], exported.order["lists"]
    raw = json.loads((exported.folder / "config.json").read_text(encoding="utf-8"))
    raw = raw.get("text_config") or raw
    for name, values in wanted.items():
        if name in raw and len(raw[name]) != len(values):
            return False, f"{name} has {len(raw[name])} entries for {depth} layers"
    config = AutoConfig.from_pretrained(exported.folder, **exported.options)
    config = config.get_text_config(decoder=True)
    if config.num_hidden_layers != depth:
        return False, f"the config says {config.num_hidden_layers} layers, there are {depth}"
    for name, values in wanted.items():
        found = list(getattr(config, name, None) or ())
        wrong = [i for i, value in enumerate(values) if found[i : i + 1] != [value]]
        if wrong or len(found) != len(values):
            place = wrong[0] if wrong else len(values)
            return False, f"{name} is not that of the layers kept, from layer {place} on"
    return True, f"{', '.join(wanted) or 'none'}; layers: {depth}"


def config(exported: Exported) -> Finding:
    """The config, read and saved again by its class, says the same."""
    from transformers import AutoConfig

    read = AutoConfig.from_pretrained(exported.folder, **exported.options)
    with tempfile.TemporaryDirectory() as place:
        read.save_pretrained(place)
        again = json.loads(Path(place, "config.json").read_text(encoding="utf-8"))
    first = json.loads((exported.folder / "config.json").read_text(encoding="utf-8"))
    for name in sorted((first.keys() | again.keys()) - set(PASSING)):
        if (was := first.get(name, "–")) != (becomes := again.get(name, "–")):
            return False, f"{name} is {was} and becomes {becomes}"
    return True, f"{len(first)} fields, the same after reading and saving"


def logits(exported: Exported) -> Finding:
    """On a text, the model gives the logits that the result in laco's store gave."""
    import torch
    from safetensors.torch import load_file

    wanted = load_file(exported.order["logits"])["logits"]
    found = exported.read(exported.tokens(), wanted.shape[1])
    if found.shape != wanted.shape:
        return False, f"of the shape {list(found.shape)}, not {list(wanted.shape)}"
    if not torch.isfinite(found).all():
        return False, "some are not finite"
    apart, most = float((found - wanted).abs().max()), float(wanted.abs().max())
    allowed = exported.order["tolerance"] * most
    return apart <= allowed, (
        f"largest difference {apart:.2g} of {most:.3g}, allowed {allowed:.2g} in "
        f"{exported.order['dtype']}"
    )


def cached_generation(exported: Exported) -> Finding:
    """What the model writes with its cache is what it would write by reading all anew each time."""
    return _as_read(exported)


def static_cache(exported: Exported) -> Finding:
    """The same with a cache of fixed size, where the class supports one."""
    if not getattr(exported.model, "_can_compile_fullgraph", False):
        return True, "not supported by this class"
    return _as_read(exported, cache_implementation="static", disable_compile=True)


CHECKS: dict[str, Callable[[Exported], Finding]] = {
    "tensor inventory": inventory,
    "copied files": copied_files,
    "config lists": config_lists,
    "config round trip": config,
    "loading": loading,
    "size": size,
    "tokenizer": tokenizer,
    "logits": logits,
    "cached generation": cached_generation,
    "static cache": static_cache,
}


def _as_read(exported: Exported, **options: Any) -> Finding:
    """Whether each token written is the likeliest where the whole text is read at once.

    Then writing without a cache, which reads all anew for each token, would write the same. Where
    two tokens are equally likely, up to the tolerance, either is right. What fails in a short
    number format is done again in float32, since rounding alone may turn the choice.
    """
    count, tolerance, note = exported.order["generate"], exported.order["tolerance"], ""
    while True:
        written = exported.write(**options)
        read = exported.read(written[:, :-1], count)[0]  # [generated, vocabulary]
        chosen = written[0, -count:].cpu()
        short = read.amax(-1) - read.gather(-1, chosen[:, None])[:, 0]
        wrong = (short > tolerance * float(read.abs().max())).nonzero().flatten().tolist()
        if not wrong:
            return True, f"{count} tokens as without cache{note}"
        if exported.model.dtype.itemsize == 4:
            return False, f"token {wrong[0] + 1} of {count} is another than without cache{note}"
        exported.model.float()
        tolerance, note = exported.order["exact"], ", in float32"


def _copied(exported: Exported, digests: dict[str, str]) -> Finding:
    for name, digest in digests.items():
        file = exported.folder / name
        if not file.is_file():
            return False, f"{name} is not there"
        if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            return False, f"{name} is not that of the source"
    return True, ", ".join(digests) or "none"


def _words(tensor: list[Any]) -> str:
    return f"{tensor[0]} {' x '.join(map(str, tensor[1]))}"


def check(order: dict[str, Any]) -> None:
    """Carry out an order; each answer is written as soon as it is there."""
    exported = Exported(order)
    with Path(order["answers"]).open("a", encoding="utf-8") as answers:
        for name, look in CHECKS.items():
            try:
                ok, detail = look(exported)
            except Exception as error:  # whatever goes wrong with a folder is about the folder
                lines = str(error).strip().splitlines() or [type(error).__name__]
                ok, detail = False, lines[0]
            answers.write(json.dumps({"name": name, "ok": bool(ok), "detail": detail}) + "\n")
            answers.flush()


def main() -> None:
    """Carry out the orders whose files are named."""
    sys.modules["laco"] = None  # type: ignore[assignment]  # from now on, importing it fails
    from transformers import logging as chatter

    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    for name in sys.argv[1:]:
        check(json.loads(Path(name).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
