"""Evaluations as one types them after `laco evaluate`, and a run's commands, to have it once more.

The inverse of `cli/arguments.py`, which reads them. It knows no pages. Next: `cli/arguments.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from laco.evaluations import (
    Degeneration,
    Divergence,
    Evaluation,
    Footprint,
    Latency,
    Metric,
    Perplexity,
    ZeroShot,
)

NAMES = {"divergence": "kl", "zero_shot": "zero-shot"}  # of kinds that are typed otherwise
FOOTPRINT = ("layers", "parameters", "zeros", "bytes", "peak_memory")
ABOUT = {"perplexity": "source", "divergence": "source", "zero_shot": "task"}  # after the colon


def typed(specs: Iterable[Evaluation]) -> list[str]:
    """Each evaluation in one word: `perplexity:SOURCE,window=256`; defaults go without saying.

    Tasks that are asked in the same way share one: `zero-shot:hellaswag,piqa,shots=5`.
    """
    told: dict[tuple[str, str], list[str]] = {}
    for spec in specs:
        about = ABOUT.get(spec.kind, "")
        fields = {
            name: getattr(spec, name)
            for name, field in type(spec).model_fields.items()
            if name not in ("kind", "pinned", about) and getattr(spec, name) != field.default
        }
        settings = "".join(
            f",{name}={'all' if value is None else value}" for name, value in fields.items()
        )
        name = NAMES.get(spec.kind, spec.kind)
        subject = str(getattr(spec, about)) if about else ""
        together = name if isinstance(spec, ZeroShot) else f"{name}:{subject}"
        told.setdefault((together, settings), []).append(subject)
    return [
        f"{name.partition(':')[0]}{':' if any(subjects) else ''}{','.join(subjects)}{settings}"
        for (name, settings), subjects in told.items()
    ]


def trial(models: Sequence[str], prompt: str, tokens: int) -> str:
    """What has models go on with a prompt from a terminal."""
    return shlex.join(["laco", "try", *models, "--prompt", prompt, "--tokens", str(tokens)])


def command(model: str, specs: Iterable[Evaluation]) -> str:
    """What measures a model or a result from a terminal."""
    return shlex.join(["laco", "evaluate", model, *typed(specs)])


def export(key: str, folder: str, dtype: str = "auto") -> str:
    """What exports a result."""
    form = [] if dtype == "auto" else ["--dtype", dtype]
    return shlex.join(["laco", "export", key, folder, *form])


def run_again(specs: Iterable[Evaluation]) -> str:
    """What carries out a recipe and measures what comes out."""
    words = (part for word in typed(specs) for part in ("--evaluate", word))
    return shlex.join(["laco", "run", "recipe.json", *words])


def asked(metrics: Sequence[Metric]) -> list[Evaluation]:
    """The evaluations that would give these metrics again, read from how they were measured.

    What cannot be told from a metric's details is left out.
    """
    found: dict[Evaluation, None] = {}
    for metric in metrics:
        try:
            spec = _spec(metric.name.partition("[")[0], metric.details)
        except ValidationError:
            continue
        if spec is not None:
            found.setdefault(spec)
    alone = [spec for spec in found if isinstance(spec, Latency) and spec.batch == 1]
    for spec in alone:  # one text is always timed, beside several
        same = [other for other in found if isinstance(other, Latency) and other != spec]
        if any(other.model_copy(update={"batch": 1}) == spec for other in same):
            del found[spec]
    return list(found)


def _spec(name: str, details: Mapping[str, Any]) -> Evaluation | None:
    def held(*names: str) -> dict[str, Any]:
        return {name: details[name] for name in names if name in details}

    if "task" in details:
        return ZeroShot(**held("task", "data", "shots", "limit", "seed"))
    if name == "perplexity":
        stride = None if details.get("stride") == details.get("window") else details.get("stride")
        return Perplexity(**held("source", "window", "windows"), stride=stride)
    if name == "kl":
        return Divergence(**held("source", "window", "windows"))
    if name in ("prefill", "decode"):
        return Latency(**held("prompt", "generate", "batch", "repeats"))
    if name == "degenerate":
        return Degeneration(**held("tokens"))
    return Footprint() if name in FOOTPRINT else None
