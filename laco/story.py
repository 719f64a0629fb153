"""What there is to tell of a run beside its numbers: steps, maps, changed weights, texts.

Gathered from a store for the one-file report and the Report page. It makes and computes nothing.
Next: `chapters.py`, which writes it down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from laco import annotations, warm
from laco.annotations import NOTHING, Annotation
from laco.evaluations import Similarity, WeightChange
from laco.prompts import PROMPTS
from laco.rows import Measured

if TYPE_CHECKING:
    from laco.store import RunStore

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Story:
    """What is known of a run. `texts` has what it wrote, by prompt; documents are as analyses left.

    `change` is that of its weights against the original's, `steps` the reports of its recipe.
    """

    key: str
    said: Annotation = NOTHING
    steps: tuple[Document, ...] = ()
    similarity: Document | None = None
    change: Document | None = None
    texts: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def walk(self) -> list[Document] | None:
        """The rows by layer of the last step that walked the layers; None if none did."""
        found = [step["report"].get("layers") for step in self.steps]
        walks = [rows for rows in found if isinstance(rows, list) and rows and "error" in rows[-1]]
        return walks[-1] if walks else None


def stories(store: RunStore, runs: Sequence[Measured]) -> dict[str, Story]:
    """What is known of these runs, by key.

    Texts are those after the ready prompts alone: what people typed themselves is theirs.
    """
    asked = warm.kept_texts(store, PROMPTS)
    return {run.key: _story(store, run, asked.get(run.key, {})) for run in runs}


def _story(store: RunStore, run: Measured, asked: Mapping[str, str]) -> Story:
    artifact = store.artifact(run.key)
    texts = {**_degenerations(run), **asked}
    return Story(
        key=run.key,
        said=annotations.read(store, run.key),
        steps=artifact.steps if artifact is not None else (),
        similarity=_newest_map(store, run.key),
        change=store.analysis(run.key, WeightChange()),
        texts={prompt: texts[prompt] for prompt in PROMPTS if prompt in texts},
    )


def _newest_map(store: RunStore, key: str) -> Document | None:
    for spec, _ in store.analyses(key):
        if isinstance(spec, Similarity):
            return store.analysis(key, spec)
    return None


def _degenerations(run: Measured) -> dict[str, str]:
    """The texts that the check for degenerate text left."""
    return {
        str(one["prompt"]): str(one["text"])
        for metric in run.metrics
        if metric.name == "degenerate"
        for one in metric.details.get("prompts", ())
    }
