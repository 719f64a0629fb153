"""The parts of the Try it page: the prompt, the texts as they grow, what was likely next.

Models run in a process of their own (`laco/warm.py`); this only reads what it has written. Texts of
models are shown as plain text or in tables, never as Markdown. Next: `../../pages/try_it.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from laco import access, commands, warm
from laco.continued import Text, Token, start_of, token_at
from laco.errors import LacoError
from laco.prompts import PROMPTS
from laco.recipe import Recipe
from laco.store import Run
from laco.ui import evaluating
from laco.ui.person import person, settings, start_button
from laco.ui.plain import plain
from laco.ui.session import held, store
from laco.wording import describe

SECONDS = 0.5  # between looks at texts that grow
HEIGHT = 340  # of a text, so that nothing below it moves while it grows
PLACES = ("After the prompt", "Where they first differ")
ENDS = {
    "its own": "ended by the model itself, after {}",
    "length": "{}, as many as asked for",
    "not finite": "ended after {}: the logits were not finite",
}
MARKS = str.maketrans({" ": "␣", "\n": "⏎", "\r": "⏎", "\t": "⇥"})


def models() -> dict[str, Run]:
    """What can be tried, by key: untouched models, and results that are on disk."""
    runs = evaluating.runs_and_chosen()
    return {key: run for key, run in runs.items() if run.path or not run.recipe.steps}


def prompt() -> tuple[str, int]:
    """The prompt, typed or one of eight that are ready, and how many tokens are to follow."""
    st.pills(
        "Ready prompts",
        PROMPTS,
        format_func=_beginning,
        key="try.ready",
        on_change=_take_ready,
        help="One click puts it below, where it can be changed",
    )
    if "prompt" not in st.query_params:
        st.session_state.setdefault("prompt", PROMPTS[0])
    words, count = st.columns([3, 1], gap="large")
    text = words.text_area(
        "Prompt",
        key="prompt",
        max_chars=warm.MOST_CHARACTERS,
        height=90,
        bind="query-params",
        persist_state="session",
        help="The models go on with it as with any text; no chat template is put around it",
    )
    tokens = count.slider(
        "New tokens, at most",
        8,
        warm.MOST_TOKENS,
        48,
        step=8,
        key="tokens",
        bind="query-params",
        persist_state="session",
        help="A token is a word or a part of one; a model may end its text earlier",
    )
    return text or "", tokens


def _beginning(text: str) -> str:
    """Four words of a prompt, to choose it by."""
    return " ".join(text.split()[:4]) + " …"


def _take_ready() -> None:
    if st.session_state["try.ready"]:
        st.session_state["prompt"] = st.session_state["try.ready"]


def launch(runs: Sequence[Run], text: str, tokens: int) -> None:
    """The buttons that start and stop the writing, and the same from a terminal."""
    write, stop, _ = st.columns([1, 1, 4])
    asked = _now()
    if start_button("Write", write, not runs, sends=False, type="primary", width="stretch"):
        try:
            _ask([run.recipe for run in runs], text, tokens)
        except LacoError as error:
            st.error(plain(str(error)))
        else:
            st.rerun()
    writing = asked is not None and not asked.ended
    if start_button("Stop", stop, not writing, sends=False, width="stretch"):
        warm.stop(store(), _name() or "", person())
    with st.expander("The same from a terminal"):
        names = [run.key[:11] if run.created else run.recipe.model.path for run in runs]
        st.code(commands.trial(names, text, tokens), language="bash")


def _ask(recipes: Sequence[Recipe], text: str, tokens: int) -> None:
    """Have these models go on with a prompt, instead of with what this visitor asked before."""
    wanted, who = warm.checked(recipes, text, tokens), person()
    access.check_request(wanted.model_dump(mode="json"), settings(), store().folder, who)
    if held().text:
        warm.stop(store(), held().text or "", who)
    held().text = st.query_params["text"] = warm.ask(store(), wanted, who)


def _now() -> warm.Said | None:
    """What this visitor asked for, or what the address names, as it stands."""
    name = _name()
    try:
        return warm.said(store(), name) if name else None
    except LacoError:
        return None


def _name() -> str | None:
    return st.query_params.get("text") or held().text


def follow(names: Mapping[str, str]) -> None:
    """The texts side by side, looked at twice a second while they grow."""
    before = _now()
    if before is None:
        if st.query_params.get("text"):
            st.info("The text that the address names is no longer kept; press Write for a new one.")
        else:
            st.info("Press Write; the first text takes as long as loading the models.")
        return

    def draw() -> None:
        now = _now()
        if now is None:
            return
        show(now, names)
        if now.ended and not before.ended:
            st.rerun()

    st.fragment(run_every=None if before.ended else SECONDS)(draw)()


def show(now: warm.Said, names: Mapping[str, str]) -> None:
    """One answer: what went wrong, the texts, and the tokens that were likely."""
    if now.error:
        st.error(plain(now.error))
        with st.expander("What the process wrote last"):
            st.code(warm.log(store()) or "Nothing.", language=None)
    st.caption("The texts below continue this prompt")
    st.text(now.ask.prompt)
    titles = [names.get(recipe.key, describe(recipe)) for recipe in now.ask.recipes]
    columns = st.columns(len(titles), vertical_alignment="bottom")  # titles may take two lines
    for place, title, text in zip(columns, titles, now.texts, strict=True):
        with place:
            st.markdown(f"**{plain(title)}**")
            _text(text, now)
    _verdict(now)
    if any(text.tokens for text in now.texts):
        _likely(now, titles)


def _text(text: Text, now: warm.Said) -> None:
    with st.container(border=True, height=HEIGHT, autoscroll=not now.ended):
        if text.error:
            st.error(plain(text.error))
        place = None if now.difference is None else start_of(text, now.difference)
        if text.text[:place]:
            st.text(text.text[:place])
        if place is not None:
            st.badge("From here they differ", icon=":material/call_split:", color="orange")
            if text.text[place:]:
                st.text(text.text[place:])
    st.caption(_state(text, now))


def _state(text: Text, now: warm.Said) -> str:
    """How far one text is, in words."""
    count = len(text.tokens) - (text.end in ("its own", "not finite"))
    words = "1 token" if count == 1 else f"{count} tokens"
    if text.end:
        return ENDS[text.end].format(words)
    if text.error or now.ended:
        return f"stopped after {words}"
    if text.tokens:
        return f"writing, {count} of {now.ask.tokens} tokens"
    return f"{plain(text.doing or now.waiting or 'Waiting for its turn')} …"


def _verdict(now: warm.Said) -> None:
    """Whether the texts are the same, when that is known."""
    if len(now.texts) > 1 and all(text.end for text in now.texts) and now.difference is None:
        st.success("The texts are the same.")


def _likely(now: warm.Said, titles: Sequence[str]) -> None:
    """The likeliest tokens of each model at one place, with their probabilities."""
    st.header("Likeliest next tokens", anchor=False)
    at: int | None = None
    if now.difference is not None:
        chosen = st.segmented_control(
            "At which place",
            PLACES,
            default=PLACES[0],
            required=True,
            key="try.place",
            persist_state="session",
        )
        at = now.difference if chosen == PLACES[1] else None
    columns = st.columns(len(titles), vertical_alignment="bottom")
    for number, (place, text) in enumerate(zip(columns, now.texts, strict=True)):
        place.caption(plain(titles[number]))
        token = token_at(text, at)
        if token is None or not token.top:
            place.caption("Not known here.")
            continue
        place.dataframe(
            table(token),
            hide_index=True,
            width="stretch",
            key=f"try.top.{number}",
            column_config={
                "probability": st.column_config.ProgressColumn(
                    format="%.1f %%", min_value=0, max_value=100
                )
            },
        )


def table(token: Token) -> pd.DataFrame:
    """The likeliest tokens with their probabilities in per cent; white space can be seen."""
    rows = [(word.translate(MARKS), 100 * share) for word, share in token.top]
    return pd.DataFrame(rows, columns=["token", "probability"])
