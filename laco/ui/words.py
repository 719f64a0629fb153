"""Documents in sentences: what a picture shows, for who does not see it, and how it was made.

Pure, as `maps.py`. Next: `tables.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from laco.evaluations import Request
from laco.recipe import Recipe, Spec, identity
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
    return (
        f"Made from {document['tokens']:,} tokens of {document['source']}, {counted}, "
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
    return json.dumps(_short_recipe(recipe), indent=2)


def requests_text(requests: Sequence[Request]) -> str:
    """Requests to measure, as JSON that reads back as the same; defaults are left out."""
    documents = [
        {
            "recipe": _short_recipe(request.recipe),
            "evaluations": [_short(spec) for spec in request.evaluations],
        }
        for request in requests
    ]
    return json.dumps(documents, indent=2)


def _short_recipe(recipe: Recipe) -> dict[str, Any]:
    model = recipe.model.model_dump(mode="json", exclude_defaults=True)
    return {"model": model, "steps": [_short(step) for step in recipe.steps]}


def _short(spec: Spec) -> dict[str, Any]:
    """The fewest fields that still read back as the same spec."""
    found = spec.model_dump(mode="json")
    for name in reversed(found):  # what others follow from stands first, and stays
        fewer = {other: value for other, value in found.items() if other != name}
        if name != "kind" and _reads_as(type(spec), fewer, spec):
            found = fewer
    for name in found:
        value = getattr(spec, name)
        if isinstance(value, Spec):
            found[name] = _short(value)
    return found


def _reads_as(cls: type[Spec], fields: dict[str, Any], spec: Spec) -> bool:
    try:
        return cls.model_validate(fields) == spec
    except ValidationError:  # they ask for more
        return False


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for name, item in value.items():
        if name != "version":
            found.update(_flat(item, f"{path}.{name}" if path else name))
    return found
