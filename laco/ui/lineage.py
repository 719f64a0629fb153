"""The parts of the Results page: the tree, the chosen result, what is said of it, and its end.

The chosen result lives in the address (`?run=`). Next: `trees.py`, which draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from laco import annotations
from laco.annotations import Annotation
from laco.errors import LacoError
from laco.lineage import Node, descendants, tree
from laco.store import Run
from laco.ui import tables, trees
from laco.ui.person import owner_button, person
from laco.ui.plain import on_badge, plain
from laco.ui.session import store

CHOSEN = "results.run"
MOST_LINES = 60  # of the tree at once
GO_ON = (  # pages that go on from a result: their file, and what the link says
    ("similarity", "Map its layers", ":material/grid_on:"),
    ("collapse", "Collapse layers", ":material/compress:"),
    ("sparsify", "Sparsify", ":material/blur_on:"),
    ("compensate", "Compensate", ":material/healing:"),
)


def shown_nodes(runs: Sequence[Run], said: Mapping[str, Annotation]) -> list[Node]:
    """The nodes that the visitor asks to see: words that they hold, archived ones or not."""
    find, more = st.columns([3, 1], vertical_alignment="bottom")
    words = find.text_input(
        "Find", key="find", bind="query-params", placeholder="words of a name, a step, a tag, a key"
    )
    archived = more.toggle(
        "Show archived", key="archived", bind="query-params", help="Results that were put away"
    )
    nodes = tree(runs, said, archived or _asked_for_archived(said))
    return with_those_above(nodes, words)


def with_those_above(nodes: Sequence[Node], words: str) -> list[Node]:
    """The nodes that hold all the words somewhere, and those that lead to them."""
    wanted = words.casefold().split()
    by_key = {node.run.key: node for node in nodes}
    kept: set[str] = set()
    for node in nodes:
        text = " ".join([node.label, node.step, node.said.note, *node.said.tags, node.run.key])
        if all(word in text.casefold() for word in wanted):
            key: str | None = node.run.key
            while key is not None and key not in kept:
                kept.add(key)
                key = by_key[key].parent
    return [node for node in nodes if node.run.key in kept]


def _asked_for_archived(said: Mapping[str, Annotation]) -> bool:
    """Whether the address names a result that was put away."""
    asked = st.query_params.get("run", "")
    return bool(asked) and any(k.startswith(asked) and one.archived for k, one in said.items())


def draw(nodes: Sequence[Node]) -> Node:
    """The tree as a chart and as a table; the node that is chosen, by click, list or address."""
    by_key = {node.run.key: node for node in nodes}
    asked = st.query_params.get("run", "")
    found = [key for key in by_key if asked and key.startswith(asked)]
    held = st.session_state.get(CHOSEN)
    if len(found) == 1 and asked != st.session_state.get(f"{CHOSEN}.written"):
        held = found[0]
    st.session_state[CHOSEN] = (
        held if held in by_key else max(by_key, key=lambda key: by_key[key].run.created)
    )
    page = list(nodes)
    if len(nodes) > MOST_LINES:
        count = -(-len(nodes) // MOST_LINES)
        place = st.pagination(count, key="part") - 1
        page = list(nodes[place * MOST_LINES : (place + 1) * MOST_LINES])
        st.caption(f"{len(nodes)} results, {MOST_LINES} at a time.")
    lines = lines_of(page)
    key = st.session_state[CHOSEN]
    with st.container(height=620 if len(lines) > 12 else "content", border=True):
        st.plotly_chart(
            trees.figure(lines, key),
            alt=trees.told(lines),
            key="tree",
            on_select=_clicked,
            selection_mode="points",
            config={"displayModeBar": False},
        )
    with st.expander("The tree as a table"):
        st.dataframe(trees.table(lines), hide_index=True, width="stretch")
    names = trees.options(nodes)
    key = st.selectbox("Result", list(names), format_func=names.__getitem__, key=CHOSEN)
    st.session_state[f"{CHOSEN}.written"] = st.query_params["run"] = key[:11]
    return by_key[key]


def lines_of(nodes: Sequence[Node]) -> list[trees.Line]:
    """The lines of these nodes, with what was measured of them and their sizes on disk."""
    runs = store().with_metrics([node.run for node in nodes])
    sizes = {run.key: _size(run) for run in runs if run.path is not None}
    return trees.lines(nodes, {run.key: run.metrics for run in runs}, sizes)


def _size(run: Run) -> int:
    """Bytes on disk: as measured, else as saved."""
    measured = next((m.value for m in run.metrics if m.name == "bytes"), None)
    if measured is not None:
        return int(measured)
    artifact = store().artifact(run.key)
    return artifact.n_bytes if artifact is not None else 0


def _clicked() -> None:
    """Choose the result whose mark was clicked."""
    points = st.session_state["tree"].selection.points
    if points and points[0].get("customdata"):
        key = points[0]["customdata"]
        st.session_state[CHOSEN] = key if isinstance(key, str) else key[0]


def about(node: Node, nodes: Sequence[Node]) -> None:
    """The chosen result: what it is, its numbers, its note, and where one can go from here."""
    run = store().with_metrics([node.run])[0]
    st.header(plain(node.label), anchor=False)
    st.markdown(plain(run.label))
    owner = annotations.owner_of(store(), run.key)
    by = f", by {owner}" if owner else ""
    line = trees.numbers(run.metrics, _size(run) if run.path is not None else None)
    st.caption(plain(f"{run.key} · made {tables.when(run.created)}{by} · {line or 'not measured'}"))
    if node.said.archived or node.said.tags:
        with st.container(horizontal=True):
            if node.said.archived:
                st.badge("archived", color="gray")
            for tag in node.said.tags:
                st.badge(on_badge(f"#{tag}"), color="blue")
    if node.said.note:
        st.text(node.said.note)
    chain = [one.run.key[:11] for one in chain_of(node, nodes)]
    those = {"runs": chain, "base": chain[0]}
    above = "Compare with those above" if len(chain) > 1 else "Compare"
    links: list[tuple[str, str, str, dict[str, Any]]] = [
        *((*link, {"model": run.key[:11]}) for link in GO_ON),
        ("compare", above, ":material/balance:", those),
        ("try_it", "Read what it writes", ":material/edit_note:", {"runs": chain[-2:]}),
        ("report", "Show it as a report", ":material/article:", those),
    ]
    with st.container(horizontal=True):
        for page, label, icon, query in links:
            st.page_link(
                f"pages/{page}.py", label=label, icon=icon, query_params=query, width="content"
            )


def chain_of(node: Node, nodes: Sequence[Node]) -> list[Node]:
    """The nodes from the root down to this one."""
    by_key = {one.run.key: one for one in nodes}
    found = [node]
    while found[0].parent is not None:
        found.insert(0, by_key[found[0].parent])
    return found


def edit(node: Node, known: Sequence[str]) -> None:
    """What is said of the chosen result, to be changed by its owner."""
    key, said = node.run.key, node.said
    left, right = st.columns(2, gap="large")
    name = left.text_input("Name", said.name, max_chars=120, key=f"name.{key}")
    tags = left.multiselect(
        "Tags",
        sorted({*known, *said.tags}),
        default=list(said.tags),
        accept_new_options=True,
        max_selections=annotations.MOST_TAGS,
        key=f"tags.{key}",
    )
    archived = left.toggle(
        "Archived",
        said.archived,
        key=f"archived.{key}",
        help="Hidden unless asked for; not deleted",
    )
    note = right.text_area("Note", said.note, max_chars=4000, height=190, key=f"note.{key}")
    changes = {"name": name, "tags": tuple(tags), "archived": archived, "note": note}
    if _owned_button("Save", key, f"save.{key}", type="primary"):
        _try(partial(annotations.annotate, store(), key, person(), **changes), "Saved.")


def delete(node: Node, runs: Sequence[Run], names: Mapping[str, str]) -> None:
    """Delete the chosen result and all that was made from it, once that was read and agreed to."""
    key = node.run.key
    gone = [key, *descendants(runs, key)]
    also = [names[one] for one in gone[1:]]
    st.markdown(
        "Deleting a result removes its model from disk, all that was measured of it and what is "
        "said of it, together with **every result that was made from it**. Exports stay."
    )
    if also:
        st.markdown(f"Made from it, and deleted with it ({len(also)}):")
        st.markdown("\n".join(f"- {plain(name)}" for name in also))
    else:
        st.caption("Nothing was made from it.")
    count = "this result" if not also else f"these {len(gone)} results"
    agreed = st.checkbox(f"Delete {count} for good", key=f"agreed.{key}")
    if _owned_button(f"Delete {count}", key, f"delete.{key}", disabled=not agreed):
        # Those that were made from others first, so that a refusal names what is in use.
        _try(partial(store().remove, *reversed(gone), who=person()), "Deleted.")


def _owned_button(label: str, key: str, name: str, **options: Any) -> bool:
    return owner_button(label, annotations.owner_of(store(), key), key=name, **options)


def _try(change: Any, done: str) -> None:
    """Make a change and draw the page anew; where it is refused, say why."""
    try:
        change()
    except LacoError as error:
        st.error(plain(str(error)))
    else:
        st.toast(done)
        st.rerun()
