"""Documents in sentences: what a picture shows, for who does not see it, and how it was made.

Pure, as `maps.py`. Next: `tables.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from laco.evaluations import Request
from laco.recipe import Recipe, Span, Spec, identity
from laco.spec import shortest
from laco.ui.maps import MEASURES
from laco.ui.spans import listed


def settings(spec: Spec) -> str:
    """The fields that differ from their defaults: `tokens all, calibration.windows 8`."""
    changed = _flat({k: v for k, v in identity(spec).items() if k not in ("kind", "version")})
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "the defaults"


def tokens(document: Mapping[str, Any]) -> str:
    """What text a map was made from."""
    counted = {
        "skip_first": "the first token of each window left out",
        "all": "every token counted",
        "last": "only the last token of each window counted",
    }[document.get("tokens_counted", "all")]
    came = f"{came_with_laco(document)} " if "came_with_laco" in document else ""
    return (
        f"{came}Made from {document['tokens']:,} tokens of {document['source']}, {counted}, "
        f"in {document['seconds']:.1f} s; spread over {document['shards']} shards."
    )


def map_summary(document: Mapping[str, Any], measure: str) -> str:
    """The depth map and its bars in a few sentences."""
    influence = np.array(document["influence"])
    least = [int(layer) for layer in np.argsort(influence, kind="stable")[:5]]
    start, stop = most_alike(document, measure)
    doubtful = [layer for layer, doubt in enumerate(document["rank_uncertain"]) if doubt]
    named = listed(doubtful) if len(doubtful) <= 8 else f"{len(doubtful)} layers"
    doubt = (
        f" For {named} the rank lies within the spread over shards (hatched): "
        "more text may change it."
        if doubtful
        else ""
    )
    return (
        f"{MEASURES[measure].title} between {document['depths']} depths of {document['layers']} "
        f"layers. The least influence have {listed(least)}. Depths {start} and {stop} are the "
        f"most alike of those four apart: layers {start}–{stop - 1} change little.{doubt}"
    )


def most_alike(document: Mapping[str, Any], measure: str, apart: int = 4) -> tuple[int, int]:
    """The two depths, `apart` layers from each other, whose states are the most alike."""
    values = np.array(document["measures"][measure], dtype=float)
    apart = min(apart, len(values) - 1)
    beside = np.diagonal(values, apart)
    best = np.argmax(beside) if MEASURES[measure].alike_is_high else np.argmin(beside)
    return int(best), int(best) + apart


def apart(document: Mapping[str, Any], measure: str, span: Span) -> str:
    """How alike the states before and after a range are: what its layers change."""
    value = document["measures"][measure][span[0]][span[1]]
    return f"{MEASURES[measure].title} between depths {span[0]} and {span[1]}: {value:.3f}."


def what_if_of(document: Mapping[str, Any] | None, span: Span) -> str:
    """What collapsing this range alone would do to the model's predictions, where that is known."""
    start, length = span[0], span[1] - span[0]
    if document is None:
        return "What the whole model would lose is on no map yet: compute it under What-if map."
    try:
        place = document["lengths"].index(length), document["starts"].index(start)
    except ValueError:
        return f"The what-if map ends at {document['lengths'][-1]} layers; this range is longer."
    kl, cosine = (document[name][place[0]][place[1]] for name in ("kl", "cosine"))
    if kl is None or cosine is None:
        return "The what-if map does not have this range."
    return (
        f"What if this range alone becomes one layer ({document['merge']}): KL {kl:.3g} nats per "
        f"token from the original's predictions, cosine {cosine:.3f} of the last states."
    )


def came_with_laco(document: Mapping[str, Any]) -> str:
    """Where a map that nobody computed here is from."""
    return f"This map came with laco, which made it on {document['came_with_laco']}."


def what_if_summary(document: Mapping[str, Any], measure: str) -> str:
    """The cheapest collapse of each length."""
    better = np.nanargmin if measure == "kl" else np.nanargmax
    found = []
    for length, row in zip(document["lengths"], np.array(document[measure], float), strict=True):
        if not np.isnan(row).all():
            best = int(better(row))
            start = document["starts"][best]
            found.append(f"{start}:{start + length} ({row[best]:.3g})")
    unit = "KL in nats per token" if measure == "kl" else "cosine with the original"
    return f"The mildest range of each length, with its {unit}: {', '.join(found)}."


def recipe_text(recipe: Recipe) -> str:
    """The recipe as JSON that reads back as the same; what goes without saying is left out."""
    return json.dumps(shortest(recipe), indent=2)


def requests_text(requests: Sequence[Request]) -> str:
    """Requests to measure, as JSON that reads back as the same; defaults are left out."""
    documents = [
        {
            "recipe": shortest(request.recipe),
            "evaluations": [shortest(spec) for spec in request.evaluations],
        }
        for request in requests
    ]
    return json.dumps(documents, indent=2)


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for name, item in value.items():
        if name != "version":
            found.update(_flat(item, f"{path}.{name}" if path else name))
    return found
