"""Which devices take jobs: shown, and chosen for the whole store. Next: `../devices.py`."""

from __future__ import annotations

import streamlit as st

from laco import devices as machine
from laco.errors import LacoError
from laco.ui import tables
from laco.ui.plain import plain
from laco.ui.session import runner, store


def devices() -> None:
    """The table of devices, and the form that says which of them take jobs."""
    folder = store().folder
    with st.expander("Devices"):
        st.dataframe(
            tables.devices_table(folder, runner().active()), hide_index=True, width="stretch"
        )
        here, slots = machine.devices_here(), machine.slots(folder)
        if not runner().who.may_run:
            return
        with st.form("devices", border=False):
            names = st.multiselect(
                "Devices that take jobs",
                list(dict.fromkeys([*here, machine.CPU])),
                default=list(dict.fromkeys(slots)),
                help="A job has one device to itself, unless more are let run at once.",
            )
            at_once = st.number_input(
                "Jobs at once on each", 1, 64, max(1, len(slots) // max(1, len(set(slots))))
            )
            if st.form_submit_button("Choose"):
                try:
                    machine.choose(folder, names, int(at_once))
                    st.rerun()
                except LacoError as error:
                    st.error(plain(str(error)))
