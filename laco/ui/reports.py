"""The parts of the Report page: chosen runs as a story, with nothing that starts any work.

It shows on a page what `laco/onefile.py` writes into a file. Next: `compared.py`, whose parts it
takes; `../story.py`, which gathers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from urllib.parse import urlencode

import plotly.graph_objects as go
import streamlit as st

from laco import annotations, columns, commands, lineage, report
from laco.chapters import MOST_TEXTS, steps_told
from laco.store import Run
from laco.story import Story, stories
from laco.ui import compared, curves, maps, pictures, progress, strips, tables, told
from laco.ui.plain import plain
from laco.ui.session import store
from laco.ui.words import recipe_text

MOST_CHAPTERS = 12  # runs that are told of at length


def choose() -> tuple[list[Run], str]:
    """The runs that the address names, or those chosen here, and the baseline's key."""
    runs = {run.key: run for run in store().runs(metrics=False)}
    if not runs:
        st.info("There is nothing to tell yet. Run the demo on the Home page, or collapse a model.")
        st.stop()
    names = lineage.names(list(runs.values()), annotations.read_all(store()))
    with st.expander("Which runs", expanded=not st.query_params.get_all("runs")):
        keys = compared.choose_runs(runs, names, "report.runs", unasked=4)
        if not keys:
            st.info("Choose the runs to tell of.")
            st.stop()
        base = compared.choose_baseline(runs, names, keys)
    return store().with_metrics([runs[key] for key in keys]), base


def take_away(picked: Sequence[Run], base: str, rows: Sequence[report.Row]) -> None:
    """The file for who has no server, and the address for who has."""
    left, right = st.columns([1, 2], gap="large")
    left.download_button(
        "Download as one HTML file",
        partial(report.render, rows, "html", picked, partial(stories, store(), picked)),
        file_name="laco-report.html",
        icon=":material/download:",
        type="primary",
        on_click="ignore",
        help="Needs no network and holds no script; opens in any browser, prints",
    )
    query = urlencode([("runs", run.key[:11]) for run in picked] + [("base", base[:11])])
    with right:
        st.caption("The address of this page, for whoever may reach this server (copy: top right)")
        st.code(f"{_here()}?{query}", language=None, wrap_lines=True)


def _here() -> str:
    """The address of this page as the browser knows it, without its query."""
    return re.sub(r"[?#].*", "", str(st.context.url or "")).rstrip("/") or "/report"


def numbers(rows: Sequence[report.Row], picked: Sequence[Run]) -> None:
    """The table with its marks, and the main figures."""
    compared.overview(rows, picked)
    qualities, costs = columns.qualities(rows), columns.costs(rows)
    bars, trade = st.columns(2, gap="large")
    if qualities:
        with bars:
            st.markdown(f"**{qualities[0]}**")
            compared.show(pictures.run_bars(rows, qualities[0]), "report.bars")
    if qualities and costs:
        with trade:
            st.markdown(f"**{qualities[0]} against {costs[0]}**")
            compared.show(pictures.trade_off(rows, qualities[0], costs[0]), "report.trade")
    if columns.by_task(rows):
        st.markdown("**Tasks**")
        compared.show(pictures.task_bars(rows), "report.tasks")


def texts(names: Mapping[str, str], known: Mapping[str, Story]) -> None:
    """What the runs wrote after the same ready prompts, where anything is kept."""
    prompts = list(dict.fromkeys(prompt for story in known.values() for prompt in story.texts))
    if not prompts:
        return
    st.header("What they write", anchor=False)
    for prompt in prompts[:MOST_TEXTS]:
        st.markdown(f"**“{plain(prompt)}”**")
        those = {key: story for key, story in known.items() if prompt in story.texts}
        for place, (key, story) in zip(st.columns(len(those)), those.items(), strict=True):
            place.caption(plain(names[key]))
            place.text(story.texts[prompt].strip())


def chapter(run: Run, name: str, story: Story) -> None:
    """One run: what was done, what came of it by layer, its recipe."""
    st.header(plain(name), anchor=False)
    st.caption(" ".join([run.key, *(plain(f"#{tag}") for tag in story.said.tags)]))
    if story.said.note:
        st.text(story.said.note)
    lines = steps_told(run, story)
    st.markdown("\n".join(f"{place}. {plain(line)}" for place, line in enumerate(lines, 1)))
    left, right = st.columns(2, gap="large")
    walked = story.walk
    with left:
        if walked is not None:
            _figure(
                "Relative error through the depth",
                curves.layer_lines(curves.through_depth(walked), len(walked), "relative error"),
                told.walk_summary(walked, len(walked)),
                f"{run.key}.error",
            )
            progress.data_table("The numbers by layer", tables.layers_table(walked))
        if story.similarity is not None:
            matrix = story.similarity["measures"]["cosine"]
            _figure(
                "How alike its layers are",
                maps.square_map(matrix, "cosine", "depth"),
                f"Mean cosine between the hidden states at {len(matrix)} depths; bright is alike.",
                f"{run.key}.map",
            )
    with right:
        if story.change is not None:
            _figure(
                "How far its weights are from the original's",
                strips.change_bars(story.change),
                strips.change_told(story.change),
                f"{run.key}.change",
            )
            table = strips.change_table(story.change)
            progress.data_table("By layer and tensor, in per cent", table)
    with st.expander("Its recipe, and how to have it again"):
        st.code(recipe_text(run.recipe), language="json")
        st.code(commands.run_again(commands.asked(run.metrics)), language="bash")


def _figure(title: str, figure: go.Figure, words: str, key: str) -> None:
    st.markdown(f"**{title}**")
    st.plotly_chart(figure, alt=words, key=f"report.{key}", config=maps.CONFIG)
    st.caption(plain(words))
