"""What is running, redrawn every two seconds while something runs; nothing is polled otherwise.

The fragment only looks: the scheduler process owns the queue. When a job ends the whole page is
drawn once more, and with it the fragment, now without its clock. Next: `charts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st

from laco.jobs import JobStatus
from laco.places import LOCAL
from laco.ui.plain import plain
from laco.ui.session import last_job, runner

SECONDS = 2.0
ACTIVE = ("queued", "starting", "running")


def live(draw: Callable[[], object]) -> None:
    """Draw now, and every two seconds for as long as a job is active."""
    before = {status.id for status in runner().active()}

    def tick() -> None:
        draw()
        if before - {status.id for status in runner().active()}:
            st.rerun()

    st.fragment(run_every=SECONDS if before else None)(tick)()


def bars(statuses: Sequence[JobStatus]) -> None:
    """A progress bar for each job, with its message and the time left."""
    for status in statuses:
        st.progress(status.fraction or 0.0, text=sentence(status))


def running() -> None:
    """The bars of every active job."""
    live(lambda: bars(runner().active()))


def last_sent() -> None:
    """The bar of the job that this visitor sent last, or what went wrong with it."""

    def draw() -> None:
        status = last_job()
        if status is not None and status.state in ACTIVE:
            bars([status])

    live(draw)
    last_failure()


def last_failure() -> None:
    """What went wrong with the job that this visitor sent last, if it failed."""
    status = last_job()
    if status is not None and status.state == "failed":
        show_failure(status)


def sidebar() -> None:
    """What is running now, with the way to the jobs."""

    def draw() -> None:
        active = runner().active()
        bars(active[:3])
        if not active:
            st.caption("Nothing is running.")
        elif len(active) > 3:
            st.caption(f"and {len(active) - 3} more")

    live(draw)
    st.page_link("pages/jobs.py", label="All jobs", icon=":material/list_alt:")


def show_failure(status: JobStatus) -> None:
    """The sentence of a failed job; the rest of its error behind an expander."""
    first, _, rest = (status.error or "It ended without a word.").strip().partition("\n")
    st.error(plain(f"{status.label or 'Job ' + status.id} failed: {first}"))
    if rest.strip():
        with st.expander("Trace"):
            st.code(rest.strip(), language=None)


def whereabouts(status: JobStatus) -> str:
    """Which attempt it is, on which device, with how much memory, and where its files are."""
    parts = [f"Attempt {status.attempt} of {status.attempts}" if status.attempt else "Not started"]
    if status.place != LOCAL:
        parts.append(f"at {status.place}")
    if status.device:
        parts.append(f"on {status.device}")
    if status.memory:
        parts.append(f"expected to take {status.memory / 1e9:.1f} GB")
    return f"{', '.join(parts)}, in `{status.folder}`"


def sentence(status: JobStatus) -> str:
    """`Collapse: layer 12 of 30, 2 min left`, in plain words."""
    parts = [status.label or status.id, status.message or status.state]
    if status.seconds_left is not None:
        parts.append(f"{duration(status.seconds_left)} left")
    return " · ".join(plain(part) for part in parts if part)


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: `40 s`, `3 min`, `2.5 h`."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def data_table(title: str, data: pd.DataFrame) -> None:
    """The numbers behind a chart, for who cannot or would rather not read the picture."""
    with st.expander(title):
        st.dataframe(data, width="stretch")
