"""Queue, progress, logs, cancel."""

import streamlit as st

from laco.errors import LacoError
from laco.ui import choosing, progress, tables
from laco.ui.frame import begin
from laco.ui.person import start_button
from laco.ui.plain import plain
from laco.ui.session import runner

begin("Jobs")
st.markdown(
    "Every job is a process of its own: it goes on when this page is closed or the server stops."
)


def take_row(ids: list[str]) -> None:
    """Make the clicked row the chosen job."""
    rows = st.session_state["jobs"].selection.rows
    if rows:
        st.session_state["job"] = ids[rows[0]]


def draw() -> None:
    """The table, and everything about the chosen job."""
    jobs = runner()
    statuses = {status.id: status for status in jobs.jobs()}
    if not statuses:
        st.info("No jobs yet. Run the demo on the Home page, or start a collapse.")
        return
    ids = list(statuses)
    st.dataframe(
        tables.jobs_table(list(statuses.values())),
        hide_index=True,
        width="stretch",
        key="jobs",
        on_select=lambda: take_row(ids),
        selection_mode="single-row",
        column_config={
            "job": st.column_config.TextColumn(width="large"),
            "progress": st.column_config.ProgressColumn(format="percent", width="small"),
        },
    )
    at_work = [place for place, job in enumerate(ids) if statuses[job].state == "running"]
    chosen = st.selectbox(
        "Job", ids, index=at_work[0] if at_work else 0, key="job", bind="query-params"
    )
    status = statuses[chosen]
    st.header(plain(status.label or status.id), anchor=False)
    if status.state == "failed":
        progress.show_failure(status)
    else:
        progress.bars([status])
    cancel, retry, _ = st.columns([1, 1, 4])
    try:
        over = status.state not in progress.ACTIVE
        if start_button("Cancel", cancel, over, sends=False, width="stretch"):
            jobs.cancel(status.id)
            st.rerun()
        ended = status.state in ("failed", "cancelled")
        if start_button("Retry", retry, not ended, sends=False, width="stretch"):
            jobs.retry(status.id)
            st.rerun()
    except LacoError as error:
        st.error(plain(str(error)))
    st.caption(progress.whereabouts(status))
    st.code(jobs.log(status.id, tail=200) or "The log is empty.", language=None, height=260)
    with st.expander("The request as JSON"):
        st.json(status.request.model_dump(mode="json"))


progress.live(draw)
choosing.devices()
