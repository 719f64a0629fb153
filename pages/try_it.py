"""One prompt continued by two or three models side by side; what each held likely."""

import streamlit as st

from laco import warm
from laco.report import heads
from laco.ui import compared, trying
from laco.ui.frame import begin

begin("Try it")
st.markdown(
    "Two or three models continue one prompt side by side. Each writes the token that it holds "
    "likeliest, so where the texts differ it is the models' doing, not chance."
)
runs = trying.models()
if not runs:
    st.info("There is no model to try. Choose one on the Model page, or run the demo on Home.")
    st.stop()
names = heads(list(runs.values()))
keys = compared.choose_runs(runs, names, "try.runs", unasked=2, most=warm.MOST_MODELS)
text, tokens = trying.prompt()
trying.launch([runs[key] for key in keys], text, tokens)
trying.follow(names)
st.page_link(
    "pages/compare.py",
    label="Set these runs side by side in numbers",
    icon=":material/balance:",
    query_params={"runs": [key[:11] for key in keys]},
)
