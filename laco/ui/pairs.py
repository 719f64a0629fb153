"""Two runs beside each other: recipes, layers, configs, weights. Next: `strips.py`, which draws.

Numbers and texts are on Compare and Try it as a whole; here is what the two are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from laco import card as cards
from laco import report
from laco.errors import LacoError
from laco.evaluations import Request, WeightChange
from laco.lineage import origins
from laco.recipe import ModelRef, Recipe
from laco.store import Run
from laco.ui import maps, progress, strips, tables
from laco.ui.cards import amount, shape_table
from laco.ui.person import start_button
from laco.ui.plain import plain
from laco.ui.session import card_of, send, store
from laco.wording import Difference


@st.fragment
def section(picked: Mapping[str, Run], names: Mapping[str, str], base: str) -> None:
    """Two of the chosen runs, and what differs between them, under four heads."""
    left, right = st.columns(2)
    others = [key for key in picked if key != base] or list(picked)
    one = left.selectbox("This run", others, format_func=names.__getitem__)
    against = [base, *(key for key in picked if key not in (base, one))]
    other = right.selectbox("Against", against, format_func=names.__getitem__)
    if one == other:
        st.caption("Choose a second run above; what differs between the two is shown here.")
        return
    mine, theirs = picked[one], picked[other]
    titles = {names[other]: theirs, names[one]: mine}
    parts = {
        "Recipes": partial(_recipes, mine, theirs, list(titles)),
        "Layers and widths": partial(_structure, titles),
        "Configs": partial(_configs, titles),
        "Weights": partial(_weights, mine, theirs, names),
    }
    for tab, draw in zip(
        st.tabs(list(parts), key="pair", bind="query-params"), parts.values(), strict=True
    ):
        if tab.open:  # the others read files for nothing
            with tab:
                _guarded(draw)


def _guarded(draw: Callable[[], None]) -> None:
    """Draw; where a model is no longer there or cannot be read, say so."""
    try:
        draw()
    except LacoError as error:
        st.error(plain(str(error)))


def _recipes(mine: Run, theirs: Run, titles: Sequence[str]) -> None:
    """The fields in which two recipes are unlike, or both whole."""
    if st.toggle("Differences only", value=True, key="diff", bind="query-params"):
        found = report.diff(theirs.recipe, mine.recipe)
        if found:
            table = tables.differences(found, titles[0], titles[1])
            st.dataframe(table, hide_index=True, width="stretch")
        else:
            st.caption("The two recipes are the same.")
    else:
        left, right = st.columns(2)
        left.json(mine.recipe.model_dump(mode="json"))
        right.json(theirs.recipe.model_dump(mode="json"))


def _structure(titles: Mapping[str, Run]) -> None:
    """Which of the original's layers each run has, and the sizes of both."""
    found = {name: card_of(run.recipe) for name, run in titles.items()}
    first, second = titles.values()
    if first.recipe.model == second.recipe.model:
        depth = card_of(Recipe(model=first.recipe.model))["layers"]
        sides = {name: layers_of(run, found[name]["layers"]) for name, run in titles.items()}
        st.plotly_chart(
            strips.presence(depth, sides),
            alt=strips.presence_told(sides, depth),
            key="pair.layers",
            config=maps.CONFIG,
        )
        st.caption(plain(strips.presence_told(sides, depth)))
    else:
        st.caption("The two are of different originals, so their layers are not set side by side.")
    st.dataframe(sizes_table(found), hide_index=True, width="stretch")


def layers_of(run: Run, layers: int) -> list[int]:
    """Which layer of the original each layer of a run began as."""
    artifact = store().artifact(run.key)
    reports = [step["report"] for step in artifact.steps] if artifact is not None else []
    return origins([report["kept"] for report in reports if "kept" in report], layers)


def sizes_table(found: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The sizes of two models, one a row; a mark where they differ."""
    columns = {
        name: [
            str(card["layers"]),
            amount(card["parameters"]),
            amount(card["bytes"], "bytes"),
            card["dtype"],
            *shape_table(card).iloc[:, 1],
        ]
        for name, card in found.items()
    }
    heads = ["layers", "parameters", "weights", "number format"]
    titles = [*heads, *shape_table(next(iter(found.values()))).iloc[:, 0]]
    values = list(columns.values())
    marks = ["" if one == other else "≠" for one, other in zip(*values, strict=True)]
    return pd.DataFrame({"of the model": titles, **columns, "": marks})


def _configs(titles: Mapping[str, Run]) -> None:
    """The fields in which the two configs are unlike."""
    (left, theirs), (right, mine) = titles.items()
    one, other = (_fields(_config(run.recipe)) for run in (theirs, mine))
    found = [
        Difference(name, one.get(name), other.get(name))
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]
    if found:
        table = tables.differences(found, left, right)
        st.dataframe(table, hide_index=True, width="stretch")
    else:
        st.caption("The two configs are the same.")
    st.caption(f"{len(one.keys() | other.keys()) - len(found)} fields are the same in both.")


def _config(recipe: Recipe) -> dict[str, Any]:
    run = store().run(recipe.key)
    ref = recipe.model if run is None or run.path is None else ModelRef(path=str(run.path))
    return cards.config_of(ref, store().folder)


def _fields(value: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """A config with its inner ones laid flat: `text_config.hidden_size`."""
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            found |= _fields(item, f"{place}{name}.")
        else:
            found[f"{place}{name}"] = item
    return found


def _weights(mine: Run, theirs: Run, names: Mapping[str, str]) -> None:
    """How far the weights of each layer moved, where that was computed; else the way to it."""
    if mine.recipe.model != theirs.recipe.model:
        st.caption("The two are of different originals, so their weights are not compared.")
        return
    spec = WeightChange(against=theirs.key if theirs.recipe.steps else None)
    document = store().analysis(mine.key, spec)
    if document is None:
        st.caption(
            "How far each layer's weights are from the other run's, read from the files, one layer "
            "in memory at a time."
        )
        if start_button("Compare the weights", key="pair.start"):
            request = Request(recipe=mine.recipe, analyses=(spec,))
            send(request, label=f"Weights of {names[mine.key]}")
        progress.last_sent()
        return
    st.caption(plain(strips.change_told(document)))
    st.plotly_chart(
        strips.change_bars(document),
        alt=strips.change_told(document),
        key="pair.weights",
        config=maps.CONFIG,
    )
    progress.data_table("By layer and tensor, in per cent", strips.change_table(document))
    st.caption("‖a − b‖ / ‖b‖ with Frobenius norms; layers matched by the original's.")
