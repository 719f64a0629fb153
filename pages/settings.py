"""Where else jobs can run: a Ray cluster, SLURM."""

import streamlit as st

from laco import access, places
from laco.errors import LacoError
from laco.places.kept import RayOptions, SlurmOptions
from laco.ui.frame import begin
from laco.ui.person import person
from laco.ui.places import form, token_said
from laco.ui.plain import code, plain
from laco.ui.session import store

begin("Settings")
st.markdown(
    "Jobs run on this machine, and at every place named here; the buttons that start work offer "
    "them. All machines need this store at the same path (docs/scale.md)."
)
try:
    names = places.configured(store().folder)
    st.markdown(f"Places now: {', '.join(code(name) for name in names)}")
    if person().may_set:
        form(
            "ray",
            RayOptions,
            "A Ray cluster",
            "Its dashboard's address, as `ray start --head` tells it. " + token_said(),
        )
        form(
            "slurm",
            SlurmOptions,
            "SLURM",
            "Jobs go through `sbatch` on this machine; the package submitit is needed.",
        )
    else:
        st.info(access.SETTING)
except LacoError as error:
    st.error(plain(str(error)))
