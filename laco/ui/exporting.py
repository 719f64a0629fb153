"""A result as a folder for others: the form that asks for it, and the checks it went through.

The work is a job, as everywhere; the newest one of the chosen result is shown. Next:
`../../pages/model.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from laco import commands
from laco.disk import free_place
from laco.errors import LacoError
from laco.evaluations import Export, Request
from laco.jobs import JobStatus
from laco.recipe import Recipe
from laco.ui import progress
from laco.ui.forms import spec_form
from laco.ui.person import start_button
from laco.ui.plain import code, plain
from laco.ui.session import runner, send, store
from laco.wording import describe

PROMISE = (
    "A folder that stock transformers loads: weights, config, tokenizer and a model card. A fresh "
    "process without laco loads it and checks it; with a check that fails, nothing is exported."
)


def section(recipe: Recipe) -> None:
    """Ask where a result should go, start the job, and show how the newest such job went."""
    st.header("Export", anchor=False)
    st.caption(PROMISE)
    place = suggested(recipe)
    spec = spec_form(Export, f"export.{place}", start=Export(folder=place), columns=2)
    if spec is not None:
        try:
            target = str(free_place(spec.folder))
        except LacoError as error:
            st.error(plain(str(error)))
        else:
            wanted = spec.model_copy(update={"folder": target})
            st.code(commands.export(recipe.key[:11], target, spec.dtype), language="bash")
            if start_button("Export and check", type="primary"):
                request = Request(recipe=recipe, export=wanted)
                send(request, label=f"Export {describe(recipe)}")
    progress.live(lambda: newest(recipe))


def suggested(recipe: Recipe) -> str:
    """A folder beside the store, named after the result, where nothing lies yet."""
    beside = store().folder.parent / "exports"
    name = recipe.key[:11]
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return str(next(beside / name for name in names if not (beside / name).exists()))


def newest(recipe: Recipe) -> None:
    """How the newest export of a result goes, or went."""
    jobs = (status for status in runner().jobs() if status.request.export is not None)
    status = next((status for status in jobs if status.request.recipe == recipe), None)
    if status is None:
        return
    if status.active:
        progress.bars([status])
        return
    if status.state == "failed":
        progress.show_failure(status)
    found = findings(status)
    if found.get("path"):
        st.success(f"Exported to {code(found['path'])}, every check passed.")
    if checks := found.get("checks"):
        st.dataframe(checks_table(checks), hide_index=True, width="stretch")
    if notes := found.get("notes"):
        st.markdown("**Other programs**, not tried; by what was known at the date")
        st.dataframe(notes_table(notes), hide_index=True, width="stretch")


def findings(status: JobStatus) -> dict[str, Any]:
    """What an ended export found: whole, or as far as it came."""
    document = status.result or status.live or {}
    return document.get("export") or {}


def checks_table(checks: list[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each check."""
    return pd.DataFrame(
        [
            {
                "check": check["name"],
                "": "✓ passed" if check["ok"] else "✗ failed",
                "found": check["detail"],
            }
            for check in checks
        ]
    )


def notes_table(notes: list[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each program that may read the export."""
    return pd.DataFrame(
        [
            {
                "program": note["name"],
                "": "ready" if note["ready"] else "not ready",
                "why": note["detail"],
                "as of": note["as_of"],
            }
            for note in notes
        ]
    )
