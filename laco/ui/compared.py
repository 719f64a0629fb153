"""The parts of a comparison: which runs, which numbers, which files. Next: `pages/compare.py`.

The choice lives in the address (`?runs=…&runs=…&base=…`), so a comparison can be sent to someone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from laco import report
from laco.evaluations import Metric
from laco.store import Run
from laco.ui.session import store

FILES = {  # by format: its name on the button, and what the file's name ends in
    "csv": ("CSV", "csv"),
    "json": ("JSON", "json"),
    "markdown": ("Markdown", "md"),
    "latex": ("LaTeX", "tex"),
    "html": ("HTML", "html"),
}
MOST_MAPS = 4


@dataclass(frozen=True)
class Measured:
    """Runs that have both a quality and a size, as columns for the charts."""

    labels: list[str]
    values: list[float]
    errors: list[float | None]
    costs: list[float]
    front: list[int]
    baseline: int | None

    def frame(self) -> pd.DataFrame:
        """The same as a table."""
        return pd.DataFrame(
            {
                "run": self.labels,
                "perplexity": self.values,
                "standard error": self.errors,
                "parameters": self.costs,
                "on the front": [place in self.front for place in range(len(self.labels))],
            }
        )


def choice(runs: Mapping[str, Run], names: Mapping[str, str]) -> tuple[list[str], str]:
    """The keys to show and the baseline's, from the address or from the widgets."""
    asked = [key for text in st.query_params.get_all("runs") if (key := _known(text, runs))]
    keys = st.multiselect(
        "Runs",
        list(runs),
        default=list(dict.fromkeys(asked)) or default_runs(list(runs.values())),
        format_func=lambda key: names[key],
        key="compare.runs",
        persist_state="session",
    )
    base = _known(st.query_params.get("base", ""), runs)
    if base is None or base not in keys:
        base = next((key for key in keys if not runs[key].recipe.steps), keys[0] if keys else "")
    if keys:
        base = st.selectbox(
            "Baseline",
            keys,
            index=keys.index(base),
            format_func=lambda key: names[key],
        )
    st.query_params.from_dict(
        {**st.query_params.to_dict(), "runs": [key[:11] for key in keys], "base": base[:11]}
    )
    return keys, base


def default_runs(runs: Sequence[Run]) -> list[str]:
    """The newest run's family: every run of the same model, the original first, eight at most."""
    family = [run for run in runs if run.recipe.model == runs[0].recipe.model]
    family.sort(key=lambda run: (bool(run.recipe.steps), -run.created))
    return [run.key for run in family[:8]]


def _known(text: str, runs: Mapping[str, Run]) -> str | None:
    found = [key for key in runs if text and key.startswith(text)]
    return found[0] if len(found) == 1 else None


def quality_metric(runs: Sequence[Run]) -> str | None:
    """The perplexity that most of the runs have."""
    names = [
        metric.name
        for run in runs
        for metric in run.metrics
        if metric.name.startswith("perplexity")
    ]
    return max(dict.fromkeys(names), key=names.count) if names else None


def measured(
    runs: Sequence[Run], names: Mapping[str, str], quality: str, baseline: str
) -> Measured:
    """The runs that have `quality` and a number of parameters, with their Pareto front."""
    found = [
        (run, value, size)
        for run in runs
        if (value := _metric(run, quality)) and (size := _metric(run, "parameters"))
    ]
    front = report.pareto([run for run, _, _ in found], quality, "parameters")
    keys = [run.key for run, _, _ in found]
    return Measured(
        labels=[names[key] for key in keys],
        values=[value.value for _, value, _ in found],
        errors=[value.stderr for _, value, _ in found],
        costs=[size.value for _, _, size in found],
        front=[place for place, key in enumerate(keys) if key in front],
        baseline=keys.index(baseline) if baseline in keys else None,
    )


def _metric(run: Run, name: str) -> Metric | None:
    return next((metric for metric in run.metrics if metric.name == name), None)


def downloads(rows: Sequence[report.Row]) -> None:
    """A button for each format."""
    for place, (form, (title, suffix)) in zip(st.columns(len(FILES)), FILES.items(), strict=True):
        place.download_button(
            title,
            report.render(rows, form),
            file_name=f"laco-comparison.{suffix}",
            on_click="ignore",
            width="stretch",
            key=f"download.{form}",
        )


def similarity_documents(runs: Sequence[Run]) -> list[tuple[Run, dict]]:
    """The newest similarity map of each run that has one, four at most."""
    found = []
    for run in runs:
        for spec, _ in store().analyses(run.key):
            if spec.kind == "similarity":
                document = store().analysis(run.key, spec)
                if document is not None:
                    found.append((run, document))
                break
    return found[:MOST_MAPS]
