"""Has an exported folder checked by a fresh process, in which laco cannot be imported.

Here is what is known before: the logits of the result in the store, the lists that the config
should have, the files as they were written. What is checked, and how, is in `fresh.py`, which is
next.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from laco import models
from laco.context import Context
from laco.depth import per_layer
from laco.errors import ExportError
from laco.export.files import Written
from laco.export.fresh import CHECKS
from laco.models import LoadedModel
from laco.recipe import ModelRef
from laco.wording import format_value

SCRIPT = Path(__file__).with_name("fresh.py")
TOKENS = 64  # read at once, of a model whose attention has no window
LONGEST = 1024  # windows up to here are read past their end; a longer reading takes too long
PAST = 16  # tokens after a window's end, and how many tokens' logits are compared
GENERATE = 12
TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-2, "float16": 2e-3}  # of the largest logit
PATIENCE = 900.0  # seconds that the checks may take, and so many more for each GB of weights:
PATIENCE_PER_GB = 120.0
EVERY_SECONDS = 0.2
TEXT = (
    "A model that was made smaller is the same to whoever loads it: it reads a text, token by "
    "token, and says what may come next. In 1889, the harbour froze; 27 ships waited, and nobody "
    "knew for how long. def add(one, other): return one + other\n"
)

Check = dict[str, Any]  # {"name", "ok", "detail"}


@dataclass(frozen=True)
class Expected:
    """What the result in the store says to a text, and how it was run for that."""

    tokens: list[list[int]]  # [1, length]
    logits: torch.Tensor  # [1, some of the last tokens, vocabulary], float32 on the CPU
    dtype: str
    device: str


def run_format(dtype: str, device: str) -> str:
    """The number format that weights in `dtype` are run in: a CPU runs float16 in float32."""
    return "float32" if dtype == "float16" and torch.device(device).type == "cpu" else dtype


def expected_of(source: Path, ref: ModelRef, dtype: str, device: str) -> Expected:
    """The logits of the result in `source`, its weights rounded to `dtype`, for a short text.

    The text is longer than the window of local attention, where that is 1024 tokens at most.
    """
    run = run_format(dtype, device)
    lm = models.load_folder(source, ref.model_copy(update={"dtype": run}), device)
    if run != dtype:
        for parameter in lm.model.parameters():
            parameter.data = parameter.data.to(getattr(torch, dtype)).to(parameter.dtype)
    tokens = torch.tensor([_tokens(lm)], device=device)
    few = "logits_to_keep" in inspect.signature(lm.model.forward).parameters
    options = {"logits_to_keep": PAST} if few else {}
    with torch.inference_mode():
        logits = lm.model(input_ids=tokens, use_cache=False, **options).logits
    return Expected(tokens.tolist(), logits[:, -PAST:].float().cpu().contiguous(), run, device)


def _tokens(lm: LoadedModel) -> list[int]:
    config = lm.layers.config
    window = getattr(config, "sliding_window", None) or 0
    length = max(TOKENS, window + PAST) if window <= LONGEST else TOKENS
    context = getattr(config, "max_position_embeddings", None) or length + GENERATE
    length = max(1, min(length, context - GENERATE))
    ids: list[int] = []
    while len(ids) < length:
        ids += lm.tokenizer(TEXT)["input_ids"] or [0]
    return ids[:length]


def expected_lists(original: Any, origins: Sequence[int], depth: int) -> dict[str, list[Any]]:
    """The config's lists that go by layers, as they should be with layer `origins[i]` as i.

    `original` is the text config of the model that the recipe began with, of `depth` layers.
    """
    lists = per_layer(original, depth)
    if list(origins) == list(range(depth)):
        return {name: list(values) for name, values in lists.items()}
    return {name: [values[i] for i in origins] for name, values in lists.items()}


def order(
    folder: Path,
    written: Written,
    expected: Expected,
    lists: Mapping[str, list[Any]],
    depth: int,
    trust: bool,
    place: Path,
) -> Path:
    """The file of an order to `fresh.py`; `place` is a folder for it and for the answers."""
    logits = place / "logits.safetensors"
    save_file({"logits": expected.logits}, logits)
    document = {
        "folder": str(folder),
        "device": expected.device,
        "dtype": expected.dtype,
        "trust": trust,
        "text": TEXT,
        "tokens": expected.tokens,
        "logits": str(logits),
        "tolerance": TOLERANCE[expected.dtype],
        "exact": TOLERANCE["float32"],
        "generate": GENERATE,
        "depth": depth,
        "lists": dict(lists),
        "tensors": written.tensors,
        "tokenizer": written.tokenizer,
        "copied": written.copied,
        "answers": str(place / "answers.jsonl"),
    }
    file = place / "order.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def verify(ordered: Path, n_bytes: int, context: Context) -> list[Check]:
    """The answers to an order, in the order of `fresh.CHECKS`.

    `n_bytes` of weights say how long it may take. ExportError, with the answers so far, when the
    process dies or takes too long; it is killed when the work is cancelled.
    """
    answers = Path(json.loads(ordered.read_text(encoding="utf-8"))["answers"])
    limit = PATIENCE + PATIENCE_PER_GB * n_bytes / 1e9
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    started = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT), str(ordered)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=ordered.parent,
            env=environment,
        )
        try:
            while True:
                try:
                    status = process.wait(EVERY_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    found = _answers(answers)
                    context.step(len(found) / len(CHECKS), f"checking: {_next(found)}")
                    if time.monotonic() - started > limit:
                        raise _ended(found, f"was not done after {limit / 60:.0f} min") from None
        finally:
            process.kill()
            process.wait()
        found = _answers(answers)
        if status == 0 and len(found) == len(CHECKS):
            return found
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
    if status == -signal.SIGKILL:
        raise _ended(
            found,
            f"was killed, most likely because memory ran out ({format_value(n_bytes, 'bytes')} of "
            "weights are loaded)",
        )
    raise _ended(found, f"ended with status {status} ({lines[-1]})")


def failed(checks: Sequence[Check]) -> Check | None:
    """The first check that did not pass, or None."""
    return next((check for check in checks if not check["ok"]), None)


def _answers(file: Path) -> list[Check]:
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _next(found: Sequence[Check]) -> str:
    names = list(CHECKS)
    return names[min(len(found), len(names) - 1)]


def _ended(found: list[Check], how: str) -> ExportError:
    name = _next(found)
    return ExportError(
        f"The process that checks the export {how}, at the check {name!r}; nothing was exported.",
        [*found, {"name": name, "ok": False, "detail": f"the process {how}"}],
    )
