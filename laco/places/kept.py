"""Which places there are beyond this machine: `places.json` in the store, and its checks.

No token is kept: it comes from the environment (`ray.py`). Next: `place.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from laco.disk import write_json
from laco.errors import JobError
from laco.reading import Malformed, json_of
from laco.recipe import complaints

FILE = "places.json"
WORD = r"^[\w.:/@+-]*$"  # what goes into a batch file as a value


def _address(text: str) -> str:
    """`http://host:8265`, without a slash at its end."""
    try:
        parts = urlsplit(text.strip())
        there = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, there = urlsplit(""), None
    if not there or parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ValueError("write http://host:8265, as `ray start --head` tells it")
    return f"{parts.scheme}://{parts.netloc}"


Address = Annotated[str, AfterValidator(_address)]


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: int = Field(default=1, ge=0, le=64, description="GPUs for a job; 0: processors alone")
    cpus: int = Field(
        default=1, ge=1, le=1024, description="Processor cores, and threads, for a job"
    )
    python: str = Field(
        default="", max_length=500, description="Python on the nodes; empty: the same path as here"
    )


class RayOptions(_Options):
    """A Ray cluster, by the address of its dashboard."""

    address: Address = Field(description="http://host:8265, or https")


class SlurmOptions(_Options):
    """SLURM, as seen from this machine."""

    partition: str = Field(
        default="", pattern=WORD, description="Partition; empty: the cluster's own"
    )
    account: str = Field(default="", pattern=WORD, description="Account; empty: your own")
    minutes: int = Field(
        default=240, ge=1, le=100_000, description="Time limit of a job, in minutes"
    )
    memory_gb: int = Field(
        default=0, ge=0, le=100_000, description="Memory in GB; 0: the cluster's own"
    )
    executor: Literal["slurm", "local"] = Field(
        default="slurm", description="slurm; or local, to try submitit on this machine"
    )


class Places(BaseModel):
    """What `places.json` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ray: RayOptions | None = None
    slurm: SlurmOptions | None = None


def read(store: Path) -> Places:
    """The places of a store. Raises `JobError` when its file cannot be read."""
    file = store / FILE
    if not file.exists():
        return Places()
    try:
        return Places.model_validate(json_of(file))
    except Malformed as error:
        raise JobError(f"{file} cannot be read: it {error}.") from None
    except ValidationError as error:
        raise JobError(f"{file} cannot be used: {complaints(error)}.") from None


def keep(store: Path, places: Places) -> None:
    """Keep what was chosen, for the whole store."""
    write_json(store / FILE, places.model_dump(mode="json", exclude_none=True))
