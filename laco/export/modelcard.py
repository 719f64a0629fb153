"""The README.md of an export: the recipe in words and as JSON, the numbers, checks and licence.

Text from data; of the source it reads the README, for its licence. It knows nothing of weights.
Next: `__init__.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from laco import __version__
from laco.evaluations import Metric
from laco.recipe import Recipe
from laco.wording import describe, format_value

LICENCE_FIELDS = ("license", "license_name", "license_link")
_FRONT = re.compile(r"\A---\n(.*?)\n---", re.DOTALL)


def model_card(
    recipe: Recipe,
    key: str,
    metrics: Sequence[Metric],
    before: Sequence[Metric],
    checks: Sequence[Mapping[str, Any]],
    notes: Sequence[Mapping[str, Any]],
    source: Path,
    licence: Mapping[str, str],
    hub: bool,
) -> str:
    """The whole card. `before` are the metrics of the untouched model, `source` its folder.

    `licence` has the front matter's fields of the source's licence; `hub` says whether the source
    has a name on the hub, which then stands in the front matter.
    """
    return "\n".join(
        [
            *_front(recipe, licence, hub),
            f"# {describe(recipe)}",
            "",
            "A causal language model made smaller with laco. Stock transformers loads it:",
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            "model = AutoModelForCausalLM.from_pretrained(FOLDER)",
            "tokenizer = AutoTokenizer.from_pretrained(FOLDER)",
            "```",
            "",
            "## How it was made",
            "",
            f"laco {__version__}, key `{key}`. `laco run` takes this recipe:",
            "",
            "```json",
            json.dumps(recipe.model_dump(mode="json"), indent=1),
            "```",
            "",
            "## Numbers",
            "",
            *_numbers(metrics, before),
            "",
            "## Checks",
            "",
            "Made of this folder by a fresh process with stock transformers, without laco.",
            "",
            "| check | | found |",
            "|---|---|---|",
            *(_row(c["name"], "passed" if c["ok"] else "failed", c["detail"]) for c in checks),
            "",
            "## Other programs",
            "",
            "Not tried; by what was known at the date.",
            "",
            "| program | | why | as of |",
            "|---|---|---|---|",
            *(
                _row(n["name"], "ready" if n["ready"] else "not ready", n["detail"], n["as_of"])
                for n in notes
            ),
            "",
            "## Licence",
            "",
            _licence_note(recipe, licence, source),
            "",
        ]
    )


def read_licence(source: Path) -> dict[str, str]:
    """What the front matter of a model's README says of its licence; empty if nothing."""
    try:
        text = (source / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    front = _FRONT.match(text.replace("\r\n", "\n"))
    found = re.findall(r"^(\w+):[ \t]*(\S.*)$", front[1] if front else "", re.MULTILINE)
    return {name: value.strip() for name, value in found if name in LICENCE_FIELDS}


def _front(recipe: Recipe, licence: Mapping[str, str], hub: bool) -> list[str]:
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    if hub:
        lines.append(f"base_model: {recipe.model.path}")
    lines += [f"{name}: {value}" for name, value in licence.items()]
    return [*lines, "tags:", "- laco", "---", ""]


def _numbers(metrics: Sequence[Metric], before: Sequence[Metric]) -> list[str]:
    if not metrics:
        return ["Nothing was measured of it; `laco evaluate` does."]
    settled = {(metric.name, _settings(metric)): metric for metric in before}
    lines = ["| metric | this model | before |", "|---|---|---|"]
    for metric in metrics:
        earlier = settled.get((metric.name, _settings(metric)))
        lines.append(_row(metric.name, _said(metric), _said(earlier) if earlier else "–"))
    return lines


def _settings(metric: Metric) -> str:
    """What has to agree for two numbers to be compared."""
    names = ("source", "digest", "window", "stride", "windows", "task", "shots", "limit", "batch")
    return json.dumps({name: metric.details.get(name) for name in names}, default=str)


def _said(metric: Metric) -> str:
    error = f" ± {metric.stderr:.2g}" if metric.stderr else ""
    return format_value(metric.value, metric.unit) + error


def _licence_note(recipe: Recipe, licence: Mapping[str, str], source: Path) -> str:
    files = sorted(
        file.name
        for file in source.glob("*")
        if re.match(r"(LICEN[SC]E|NOTICE|USE_POLICY)", file.name)
    )
    told = ", ".join(f"`{name}: {value}`" for name, value in licence.items())
    copied = f" {', '.join(files)} of the source lie in this folder." if files else ""
    origin = f"`{recipe.model.path}`"
    if told:
        return f"The source, {origin}, says {told}; it holds for what is made of it.{copied}"
    if files:
        return f"The licence is that of the source, {origin}.{copied}"
    return (
        f"The files of the source, {origin}, name no licence. Look where it came from before you "
        "pass this model on: its terms hold for what is made of it."
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
