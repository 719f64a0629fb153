"""Maps of the bundled model that come with laco, so that the first page has a picture at once.

laco made them itself, by the recipe and the settings that stand in each file; `docs/make_maps.py`
makes them anew. They count for exactly the model that they were
made of, and for what was computed here they make way. No torch. Next: `../ui/session.py`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from laco.evaluations import Analysis

FOLDER = Path(__file__).parent
_ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)


def find(key: str, kind: str) -> tuple[Analysis, dict[str, Any]] | None:
    """The map of this kind for the model under `key`, and how it was made; None if there is none.

    The document's `came_with_laco` is the day on which it was made.
    """
    for held, analysis, document in _all():
        if held == key and analysis.kind == kind:
            return analysis, document
    return None


@cache
def _all() -> tuple[tuple[str, Analysis, dict[str, Any]], ...]:
    found = []
    for file in sorted(FOLDER.glob("*.json")):
        kept = json.loads(file.read_text(encoding="utf-8"))
        document = {**kept["document"], "came_with_laco": kept["made"]}
        found.append((kept["key"], _ANALYSIS.validate_python(kept["analysis"]), document))
    return tuple(found)
