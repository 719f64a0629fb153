"""Maps of similarity as the command line gives them: JSON, words, a table file, a page.

Takes the documents that `similarity.py` and `whatif.py` leave; computes nothing anew.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laco.cli.terminal import columns, note, write_file
from laco.errors import RecipeError

MEASURES = ("cosine", "angular", "relative_l2", "cka")
OF_WEIGHTS = ("cosine", "relative_l2")
FILES = (".json", ".html", ".csv")
BAR = 40  # characters for the greatest influence

Document = Mapping[str, Any]


def check(measure: str, weights: bool, out: Path | None) -> None:
    """Raise `RecipeError` for a measure or a kind of file that there is not, before any work."""
    allowed = OF_WEIGHTS if weights else MEASURES
    if measure not in allowed:
        raise RecipeError(f"--measure {measure}: choose one of {', '.join(allowed)}.")
    if out is not None and out.suffix not in FILES:
        raise RecipeError(f"--out {out}: end the name in {', '.join(FILES)}.")


def depth_map(document: Document, measure: str) -> dict[str, Any]:
    """One measure between all depths, with the influence of each layer."""
    rest = {name: value for name, value in document.items() if name not in ("measures", "spread")}
    return {
        "measure": measure,
        "matrix": document["measures"][measure],
        "spread": document["spread"].get(measure),
        **rest,
    }


def weight_map(document: Document, measure: str) -> dict[str, Any]:
    """One measure between the weights of all layers, for each linear."""
    rest = {name: value for name, value in document.items() if name not in OF_WEIGHTS}
    return {"measure": measure, "matrices": document[measure], **rest}


def write(path: Path, found: Document, document: Document) -> None:
    """Write the map as JSON, as a table, or as a page that needs nothing from outside."""
    if path.suffix == ".json":
        text = json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False)
    elif path.suffix == ".csv":
        text = _table(found)
    else:
        text = _page(found, document)
    write_file(path, text)
    note(f"Written to {path}.")


def in_words(found: Document) -> str:
    """The influence of each layer as bars; of weights, the mean over neighbouring layers."""
    if "matrices" in found:
        lines = [
            [name, f"{sum(matrix[i][i + 1] for i in range(len(matrix) - 1)) / gaps:.4f}"]
            for name, matrix in found["matrices"].items()
            if (gaps := len(matrix) - 1) > 0
        ]
        return columns(lines, ("linear", f"{found['measure']}, mean over neighbouring layers"))
    greatest = max(found["influence"]) or 1.0
    spread = found.get("influence_spread") or [0.0] * len(found["influence"])
    lines = [
        [layer, f"{value:.4f} ± {error:.4f}", "█" * max(0, round(BAR * value / greatest))]
        for layer, (value, error) in enumerate(zip(found["influence"], spread, strict=True))
    ]
    least = sorted(range(len(lines)), key=lambda layer: found["influence"][layer])[:3]
    text = columns(lines, ("layer", "influence: 1 − cosine of what goes in and out", ""))
    warnings = "".join(f"\n{warning}" for warning in found.get("warnings", ()))
    least_words = ", ".join(map(str, least))
    return f"{text}\nLeast influence: layers {least_words}; {found['tokens']:,} tokens.{warnings}"


def best_spans(document: Document) -> str:
    """For each length, the span whose collapse changes the model least."""
    lines: list[list[str]] = []
    for length, divergences, cosines in zip(
        document["lengths"], document["kl"], document["cosine"], strict=True
    ):
        tried = [(value, index) for index, value in enumerate(divergences) if value is not None]
        if tried:
            value, index = min(tried)
            start = document["starts"][index]
            span = f"[{start}, {start + length})"
            lines.append([str(length - 1), span, f"{value:.4f}", f"{cosines[index]:.4f}"])
    return columns(lines, ("layers that go", "best span", "KL in nats", "cosine"))


def _table(found: Document) -> str:
    """One line for each cell: the two places, and the value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    matrices: dict[str, Any] = found.get("matrices") or {"hidden states": found["matrix"]}
    writer.writerow(["of", "row", "column", found["measure"]])
    for name, matrix in matrices.items():
        for row, values in enumerate(matrix):
            writer.writerows([name, row, column, value] for column, value in enumerate(values))
    return text.getvalue()


def _page(found: Document, document: Document) -> str:
    from laco.ui import maps

    if "matrices" not in found:
        figures = [maps.depth_map(document, found["measure"])]
    else:
        figures = []
        for name, matrix in found["matrices"].items():
            figure = maps.square_map(matrix, found["measure"])
            figures.append(figure.update_layout(title=name))
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=index == 0)
        for index, figure in enumerate(figures)
    ]
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>laco</title></head>'
    return f"{head}<body>{''.join(parts)}</body></html>"
