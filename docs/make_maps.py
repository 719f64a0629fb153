"""Makes the maps of the bundled model that come with laco, in `laco/shipped/`.

They are computed in a store (`--store`, a temporary one unless told otherwise) as the pages would,
and written with their recipe and settings. Some minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from laco import engine, shipped
from laco.context import Context
from laco.evaluations import Request, Similarity, WhatIf
from laco.recipe import ModelRef, Recipe
from laco.reference import BUNDLED
from laco.store import RunStore

DIGITS = 5  # of each number that is kept: more than a picture or a table shows


def make(folder: Path) -> None:
    """Compute what the store lacks, and write all of it."""
    analyses = (Similarity(), WhatIf())
    store = RunStore(folder)
    request = Request(recipe=Recipe(model=ModelRef(path=BUNDLED)), analyses=analyses)
    key = engine.run(request, store, Context(device="cpu"))["key"]
    run = store.run(key)
    for analysis in analyses:
        document = store.analysis(key, analysis)
        assert run is not None
        assert document is not None
        kept = {
            "key": key,
            "recipe": run.recipe.model_dump(mode="json"),
            "analysis": analysis.model_dump(mode="json"),
            "made": time.strftime("%Y-%m-%d"),
            "document": _rounded(document),
        }
        file = shipped.FOLDER / f"{analysis.kind}.json"
        file.write_text(json.dumps(kept, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB")
    store.close()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="a store that may hold the maps already")
    given = parser.parse_args().store
    with tempfile.TemporaryDirectory() as folder:
        make(given or Path(folder))


if __name__ == "__main__":
    main()
