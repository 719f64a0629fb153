"""A Ray cluster as a place for jobs, over the plain HTTP of its dashboard (Ray Jobs; tried: 2.60).

No ray package is needed here. A cluster without token authentication runs whatever anybody sends
to it, so laco sends a token wherever the environment has one: `RAY_AUTH_TOKEN`, or the file that
`RAY_AUTH_TOKEN_PATH` names, read each time. Next: `place.py`, what is asked; `docs/scale.md`.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from laco.causes import of_death
from laco.errors import JobError
from laco.places.kept import RayOptions
from laco.places.place import Capacity, Seen, Work, counted

TIMEOUT = 5.0  # seconds
_MOST = 32 << 20  # bytes of an answer
_ENDED = ("STOPPED", "SUCCEEDED", "FAILED")
_LOST = ("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE")


class _Stays(urllib.request.HTTPRedirectHandler):
    """No redirect is followed: the token is for the address that was named."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


_open = urllib.request.build_opener(_Stays).open


class Ray:
    """The jobs of one Ray cluster."""

    patience = 1.0

    def __init__(self, options: RayOptions) -> None:
        self.options = options
        self.name = f"ray:{options.address}"

    def check(self) -> None:
        """Raise `JobError` where the cluster is not there, or takes no jobs from here."""
        self.capacity()

    def submit(self, work: Work) -> str:
        """Send a job. An attempt that Ray gave up before it began is sent once more."""
        options = self.options
        asked: dict[str, Any] = {"entrypoint_num_cpus": options.cpus}
        if options.gpus:
            asked = {"entrypoint_num_gpus": options.gpus}
        line = work.shell(self.name, options.python, options.cpus, bool(options.gpus))
        body = {"entrypoint": line, "submission_id": work.name, **asked}
        try:
            self._ask("POST", "/api/jobs/", body)
        except _RefusedError as error:
            if "already exists" not in error.body:
                raise
            if self.state(work.name).state == "expired":
                self._ask("DELETE", f"/api/jobs/{work.name}")
                self._ask("POST", "/api/jobs/", body)
        return work.name

    def state(self, handle: str) -> Seen:
        """What Ray says of a job."""
        try:
            found = self._ask("GET", f"/api/jobs/{handle}")
        except _RefusedError as error:
            if error.code != 404:
                raise
            return Seen("lost", f"lost: {self.name} does not know it any more")
        status, message = found.get("status"), _last_line(found.get("message"))
        if status == "PENDING":
            return Seen("waiting", self._waiting())
        if status not in _ENDED:
            return Seen("running")
        if status == "SUCCEEDED":
            return Seen("done", f"gone: {self.name} says that it ended well")
        if found.get("error_type") == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT":
            return Seen("expired", message)
        code = found.get("driver_exit_code")
        if code is None and found.get("error_type") in _LOST:
            return Seen("lost", f"lost with its node: {self.name} says “{message}”")
        if code is not None and (code < 0 or message.endswith(":")):  # nothing of a log follows
            return Seen("failed", f"{of_death(code, 0, {})[0]}, at {self.name}")
        return Seen("failed", f"ended: {self.name} says “{message}”")

    def cancel(self, handle: str) -> None:
        """Ray sends SIGTERM, and SIGKILL after three seconds. One that waits is left waiting."""
        try:
            self._ask("POST", f"/api/jobs/{handle}/stop")
        except _RefusedError as error:
            if error.code != 404:
                raise

    def capacity(self) -> Capacity:
        """What the nodes have, all together, and what of that no job has reserved."""
        data = self._ask("GET", "/api/cluster_status").get("data") or {}
        report = (data.get("clusterStatus") or {}).get("loadMetricsReport") or {}
        usage, nodes = report.get("usage") or {}, report.get("usageByNode") or {}
        (used_gpus, gpus), (used_cpus, cpus) = (
            usage.get(kind) or (0.0, 0.0) for kind in ("GPU", "CPU")
        )
        most = max((node.get("GPU", (0.0, 0.0))[1] for node in nodes.values()), default=0.0)
        return Capacity(len(nodes), gpus, cpus, gpus - used_gpus, cpus - used_cpus, most)

    def _waiting(self) -> str:
        """Why a job waits: what it asks for, beside what the cluster has."""
        has = self.capacity()
        asked = counted(self.options.gpus, "GPU") if self.options.gpus else ""
        asked = asked or counted(self.options.cpus, "CPU")
        free, wanted = has.free_cpus, self.options.cpus
        if self.options.gpus:
            free, wanted = has.free_gpus, self.options.gpus
        if free is not None and free >= wanted and self.options.gpus <= has.most_gpus:
            return f"Starting at {self.name}, which has {has}"
        words = f"Waits for resources: it asks for {asked}; {self.name} has {has}"
        if self.options.gpus > has.most_gpus:
            words += ", and no node has as many: it waits until one joins"
        return words

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The answer as JSON data. Raises `JobError`: no answer, or one that says no."""
        headers = {"Content-Type": "application/json"}
        if token := _token():
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        address = self.options.address
        request = urllib.request.Request(address + path, data, headers, method=method)
        try:
            with _open(request, timeout=TIMEOUT) as answer:
                found = json.loads(answer.read(_MOST))
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(_MOST).decode(errors="replace")
            raise _RefusedError(error.code, said, address) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error or type(error).__name__
            raise JobError(
                f"The Ray cluster at {address} does not answer ({reason}); see that it runs and "
                "that its dashboard can be reached from here."
            ) from None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise JobError(f"What answers at {address} is no Ray dashboard; see the address.")
        return found


class _RefusedError(JobError):
    """An answer that says no. `body` has what it says."""

    def __init__(self, code: int, body: str, address: str) -> None:
        self.code, self.body = code, body
        if code in (401, 403):
            told = "needs a token" if code == 401 else "does not take this token"
            super().__init__(
                f"The Ray cluster at {address} {told}; set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH "
                "to the cluster's own."
            )
        else:
            super().__init__(
                f"The Ray cluster at {address} refuses ({code}: {_last_line(body)}); see its log."
            )


def _token() -> str:
    """The token that the environment has; empty where it has none."""
    given = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    file = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    if given or not file:
        return given
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise JobError(f"The token file {file} cannot be read ({reason}); mend it.") from None


def _last_line(text: Any) -> str:
    """The last line that says something, at most 300 characters of it."""
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip(" .")]
    return lines[-1].rstrip(".")[:300] if lines else "nothing"
