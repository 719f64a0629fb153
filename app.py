"""The frame around every page: navigation, where the store is, what is running now.

`make run`, `laco app` and `streamlit run app.py` all start this. A page reads like its screen;
what several pages share is in `laco/ui`. Loads no model. Next: `pages/home.py`.
"""

import streamlit as st

from laco.ui import progress
from laco.ui.frame import framed, navigation
from laco.ui.session import session, store

page = navigation()
chosen = session()
with framed():
    page.run()

with st.sidebar:
    st.caption("Model")
    st.markdown(f"`{chosen.address}`")
    st.caption("Running now")
    progress.sidebar()
    st.caption("Results are kept in")
    st.markdown(f"`{store().folder}`")
