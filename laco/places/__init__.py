"""Where jobs run: `local`, `ray:http://host:8265`, `slurm`.

`local` is the store's own machine and `schedule.py`'s business. Of the others, `PLACES` lists the
kinds; which there are is in the store (`kept.py`). Whoever sends a job names its place, the row
keeps the name, and the scheduler, still the only one that moves rows, asks the place (`watch.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from laco.errors import JobError
from laco.places import kept
from laco.places.kept import Places, RayOptions, SlurmOptions
from laco.places.place import Place
from laco.places.ray import Ray
from laco.places.slurm import Slurm
from laco.recipe import complaints

LOCAL = "local"
CHOICES = "local, ray:http://host:8265, or slurm"


def ray_at(said: str, places: Places) -> Place:
    """`ray`: the cluster that the settings name; `ray:ADDRESS`: one named here."""
    address = said.partition(":")[2]
    known = places.ray
    if not address:
        if known is None:
            raise JobError("No Ray cluster is named; write ray:http://host:8265, or see Settings.")
        return Ray(known)
    try:
        asked = RayOptions(address=address)
    except ValidationError as error:
        raise JobError(f"{said} is no address of a Ray cluster: {complaints(error)}.") from None
    return Ray(known if known is not None and known.address == asked.address else asked)


def slurm_at(said: str, places: Places) -> Place:
    """`slurm`, as the settings say, or with what the cluster gives to whoever says nothing."""
    if said != "slurm":
        raise JobError(f"{said}: there is one SLURM, and it is named slurm; the rest is Settings.")
    return Slurm(places.slurm or SlurmOptions())


PLACES: dict[str, Callable[[str, Places], Place]] = {"ray": ray_at, "slurm": slurm_at}


def place(store: Path, name: str) -> Place:
    """The place of this name, other than `local`. Raises `JobError` for one that is none."""
    kind = PLACES.get(name.partition(":")[0])
    if kind is None:
        raise JobError(f"{name} is no place for jobs; choose {CHOICES}.")
    return kind(name, kept.read(store))


def configured(store: Path) -> list[str]:
    """The names of the places that the store's settings know, `local` first."""
    known = kept.read(store)
    names = [LOCAL]
    if known.ray is not None:
        names.append(f"ray:{known.ray.address}")
    if known.slurm is not None:
        names.append("slurm")
    return names


def tried(store: Path, name: str) -> tuple[bool, str]:
    """Whether a place takes jobs now, and what it has, or why not, in a sentence."""
    try:
        found = place(store, name)
        found.check()
        return True, f"{found.capacity()}"
    except JobError as error:
        return False, str(error)


def named(store: Path, name: str) -> str:
    """The full name of a place that takes jobs now. Raises `JobError`, with the reason, else."""
    if name == LOCAL:
        return LOCAL
    found = place(store, name)
    found.check()
    return found.name
