"""The frame around every page: navigation, where the store is, what is running now.

`make run`, `laco app` and `streamlit run app.py` all start this. A page reads like its screen;
what several pages share is in `laco/ui`. Loads no model. Next: `pages/home.py`.
"""

import streamlit as st

from laco.ui import person, progress
from laco.ui.frame import framed, navigation
from laco.ui.plain import code
from laco.ui.session import session, store

page = navigation()
who = person.enter()
chosen = session()
with st.sidebar:
    person.sidebar(who)
    st.caption("Model")
    st.markdown(code(chosen.address))
    st.caption("Running now")
    progress.sidebar()
    st.caption("Results are kept in")
    st.markdown(code(str(store().folder)))

with framed(page.url_path):  # last, since a page may end early
    page.run()
