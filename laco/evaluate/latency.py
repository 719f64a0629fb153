"""How fast a model reads a prompt and writes after it.

What is timed is transformers' own forward pass, as it runs here; a server has better kernels. It
knows nothing of text: speed does not depend on which tokens these are. Next: `greedy.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from laco.evaluate.greedy import Reader, check_positions, random_tokens
from laco.evaluations import Metric
from laco.models import list_devices

if TYPE_CHECKING:
    from laco.context import Context
    from laco.evaluations import Latency
    from laco.layers import LayerStack
    from laco.models import LoadedModel


def latency(lm: LoadedModel, spec: Latency, context: Context) -> tuple[Metric, ...]:
    """Tokens per second of reading a prompt and of writing: one text, then `spec.batch` at once.

    `prefill`: tokens of the prompt, over the time until the first token after it is chosen.
    `decode`: `spec.generate` further passes of one token each, greedy, with the KV cache, to the
    end whatever is written; tokens of all texts together. Prompts are random. A value is the mean
    over timed runs, `stderr` that mean's; details have each run's. One run before them is not
    timed. Raises `RecipeError` before any work when the model has too few positions.
    """
    check_positions(lm.layers, spec.prompt, spec.generate)
    sizes = sorted({1, spec.batch})
    metrics: list[Metric] = []
    for place, batch in enumerate(sizes):
        here = context.part(place / len(sizes), (place + 1) / len(sizes))
        prompt = random_tokens(lm.layers, batch, spec.prompt).to(lm.model.device)
        here.step(0.0, f"Warming up, batch {batch}")
        _, cache = timed(lm.layers, prompt, spec.generate)
        runs: list[tuple[float, float]] = []
        for run in range(spec.repeats):
            here.step(run / spec.repeats, f"Batch {batch}, run {run + 1} of {spec.repeats}")
            runs.append(timed(lm.layers, prompt, spec.generate)[0])
        details = {
            "batch": batch,
            "prompt": spec.prompt,
            "generate": spec.generate,
            "repeats": spec.repeats,
            "kv_cache": cache,
            **_circumstances(lm),
        }
        read, wrote = zip(*runs, strict=True)
        metrics += [
            _speed(f"prefill[batch {batch}]", batch * spec.prompt, read, details),
            _speed(f"decode[batch {batch}]", batch * spec.generate, wrote, details),
        ]
    return tuple(metrics)


def timed(stack: LayerStack, prompt: Tensor, generate: int) -> tuple[tuple[float, float], str]:
    """Seconds for reading `prompt` [batch, seq] and for `generate` more; the cache's kind."""
    reader = Reader(stack)
    started = _now(prompt.device)
    token = reader.feed(prompt).argmax(-1, keepdim=True)  # [batch, 1]
    read = _now(prompt.device)
    for _ in range(generate):
        token = reader.feed(token).argmax(-1, keepdim=True)
    return (read - started, _now(prompt.device) - read), type(reader.cache).__name__


def _now(device: torch.device) -> float:
    """The time at which a device has done what it was given so far."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return perf_counter()


def _speed(name: str, tokens: int, seconds: Sequence[float], details: dict[str, Any]) -> Metric:
    values = [tokens / one for one in seconds]
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    spread = {"min": min(values), "max": max(values), "values": values}
    return Metric(
        name=name,
        value=statistics.fmean(values),
        unit="tokens/s",
        better="higher",
        stderr=error,
        details={**details, **spread},
    )


def _circumstances(lm: LoadedModel) -> dict[str, Any]:
    """What else a speed depends on; numbers compare only where these agree."""
    device = str(lm.model.device)
    kinds = {found["name"]: found["kind"] for found in list_devices()}
    return {
        "device": device,
        "processor": kinds.get(device, device),
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "logits": "last token" if Reader(lm.layers).last_only else "every token",
    }
