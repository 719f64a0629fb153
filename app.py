"""The frame around every page: navigation, where the store is, what is running now.

`make run`, `laco app` and `streamlit run app.py` all start this. A page reads like its screen;
what several pages share is in `laco/ui`. Loads no model. Next: `pages/home.py`.
"""

import streamlit as st

from laco.ui import progress
from laco.ui.session import session, store

st.set_page_config(page_title="laco", page_icon="🥞", layout="wide")

page = st.navigation(
    [
        st.Page("pages/home.py", title="Home", icon="🏠", default=True),
        st.Page("pages/model.py", title="Model", icon="🔎"),
        st.Page("pages/similarity.py", title="Similarity", icon="🗺️"),
        st.Page("pages/collapse.py", title="Collapse", icon="🥞"),
        st.Page("pages/compare.py", title="Compare", icon="⚖️"),
        st.Page("pages/jobs.py", title="Jobs", icon="🗂️"),
    ]
)

chosen = session()
page.run()

with st.sidebar:
    st.caption("Model")
    st.markdown(f"`{chosen.address}`")
    st.caption("Running now")
    progress.sidebar()
    st.caption("Results are kept in")
    st.markdown(f"`{store().folder}`")
