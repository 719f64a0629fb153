"""The store that these pages show; opened once for the server. Next: `session.py`."""

from __future__ import annotations

import os
from pathlib import Path

import streamlit as st

from laco.store import RunStore


def store() -> RunStore:
    """The store that these pages show: `LACO_STORE`, else the folder `cache`."""
    return _open(str(Path(os.environ.get("LACO_STORE") or "cache").resolve()))


@st.cache_resource(show_spinner=False)
def _open(folder: str) -> RunStore:
    return RunStore(folder)
