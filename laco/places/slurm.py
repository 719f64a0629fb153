"""SLURM as a place for jobs, through submitit (the extra `slurm`; tried: 1.5.4).

submitit writes the batch file and asks `sacct` how jobs ended; which wait, and why, is asked of
`squeue`. What it starts becomes the worker itself (`exec`), so that SLURM's signals reach it, and
SLURM is told not to requeue: attempts are laco's. Its executor `local` starts jobs on this machine,
all at once, to try the same way without a cluster. Next: `place.py`; `docs/scale.md`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from functools import partial
from typing import Any

import psutil

from laco.devices import cores
from laco.errors import JobError
from laco.places.kept import SlurmOptions
from laco.places.place import Capacity, Seen, Work, counted

TIMEOUT = 20.0  # seconds
FOLDER = "submitit"  # in a job's folder
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")
_WELL = "COMPLETED"
_MISSING = (
    "SLURM needs the package submitit, which is not installed; run "
    "`pip install submitit`, or `pip install laco[slurm]`."
)


class Slurm:
    """The jobs of the SLURM that this machine submits to."""

    name = "slurm"

    def __init__(self, options: SlurmOptions) -> None:
        self.options = options
        self.is_local = options.executor == "local"
        self.patience = 1.0 if self.is_local else 5.0
        self._started: list[Any] = []  # a process's end has to be noted by who started it

    def check(self) -> None:
        """Raise `JobError` without submitit, or where there is no SLURM."""
        _submitit()
        for program in () if self.is_local else ("sbatch", "squeue", "srun"):
            if shutil.which(program) is None:
                raise JobError(
                    f"There is no {program} here; start laco on a machine that submits to SLURM."
                )

    def submit(self, work: Work) -> str:
        """Send a job; SLURM is asked first whether it has this attempt already."""
        options, submitit = self.options, _submitit()
        line = work.shell(self.name, options.python, options.cpus, bool(options.gpus))
        become = partial(os.execvp, "sh", ["sh", "-c", line])
        folder = work.folder / FOLDER
        if self.is_local:
            executor = submitit.LocalExecutor(folder)
            executor.update_parameters(timeout_min=options.minutes, gpus_per_node=options.gpus)
            job = executor.submit(become)
            self._started.append(job)
            pid = int(job.job_id)
            return f"local:{pid}@{psutil.Process(pid).create_time()}"
        self.check()
        there = _asked("squeue", "--noheader", f"--name={work.name}", "--format=%i").split()
        if there:
            return there[-1]
        try:
            executor = submitit.SlurmExecutor(folder)
            executor.update_parameters(job_name=work.name, **self._parameters())
            return executor.submit(become).job_id
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise JobError(f"SLURM did not take the job ({said[-1].rstrip('.')}).") from None

    def _parameters(self) -> dict[str, Any]:
        options = self.options
        found: dict[str, Any] = {
            "time": options.minutes,
            "cpus_per_task": options.cpus,
            "stderr_to_stdout": True,
            "additional_parameters": {"no-requeue": True},
        }
        if options.gpus:
            found["gpus_per_node"] = options.gpus
        if options.memory_gb:
            found["mem"] = f"{options.memory_gb}GB"
        return found | {
            name: value for name in ("partition", "account") if (value := getattr(options, name))
        }

    def state(self, handle: str) -> Seen:
        """What `squeue` says of a job, or `sacct` where that does not know it any more."""
        if handle.startswith("local:"):
            return Seen("running" if self._process(handle) else "failed", "gone")
        told = _asked("squeue", "--noheader", f"--jobs={handle}", "--format=%T|%r")
        state, _, reason = told.strip().partition("|")
        if state in _WAITING:
            asked = self.options.gpus or self.options.cpus
            asked_for = counted(asked, "GPU" if self.options.gpus else "CPU")
            return Seen(
                "waiting",
                f"Waits for resources ({reason or state}): it asks for {asked_for}; slurm has "
                f"{self.capacity()}",
            )
        if state:
            return Seen("running")
        watcher = _submitit().SlurmJob.watcher
        state = watcher.get_state(handle, mode="force").split()[0].rstrip("+")
        if state == _WELL:
            return Seen("done", "gone: SLURM says that it ended well")
        if state == "UNKNOWN":  # or there is no sacct
            return Seen("lost", "lost: SLURM does not know it any more")
        if state in (*_WAITING, "RUNNING", "COMPLETING"):
            return Seen("running")
        return Seen("failed", f"ended by SLURM ({state})")

    def cancel(self, handle: str) -> None:
        """SLURM sends SIGTERM, and SIGKILL some seconds later."""
        if not handle.startswith("local:"):
            _asked("scancel", handle)
        elif (process := self._process(handle)) is not None:
            # submitit passes SIGINT on, but where laco was started with `&` nobody heeds that.
            with contextlib.suppress(psutil.Error):
                for each in process.children(recursive=True):
                    each.terminate()
                process.send_signal(signal.SIGINT)

    def capacity(self) -> Capacity:
        """What `sinfo` says of the partition; how many GPUs are free it does not say."""
        if self.is_local:
            return Capacity(1, 0, cores())
        only = [f"--partition={self.options.partition}"] if self.options.partition else []
        told = _asked("sinfo", "--noheader", "--format=%D|%C|%G", *only)
        try:
            return _capacity(told)
        except ValueError:
            said = told.strip().splitlines()[0][:100]
            raise JobError(f"sinfo tells no nodes and processors ({said}); see it.") from None

    def _process(self, handle: str) -> psutil.Process | None:
        """The process that submitit started here, if it still runs."""
        self._started = [job for job in self._started if not job.done()]
        pid, _, created = handle.removeprefix("local:").partition("@")
        try:
            process = psutil.Process(int(pid))
            same = abs(process.create_time() - float(created)) < 2
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


def _capacity(told: str) -> Capacity:
    """What lines of `nodes|allocated/idle/other/all processors|extras` come to."""
    nodes = gpus = cpus = free = most = 0
    for line in told.splitlines():
        count, processors, extra = (*line.strip().split("|"), "", "")[:3]
        of_each = sum(int(n) for n in re.findall(r"gpu:(?:[\w.-]+:)?(\d+)", extra))
        nodes += int(count)
        gpus += int(count) * of_each
        most = max(most, of_each)
        _, idle, _, whole = (int(part) for part in processors.split("/"))
        cpus, free = cpus + whole, free + idle
    return Capacity(nodes, gpus, cpus, None, free, most)


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise JobError(_MISSING) from None
    return submitit


def _asked(*command: str) -> str:
    """What one of SLURM's programs prints. A job that it does not know any more prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise JobError(f"{command[0]} cannot be asked ({error}); see that SLURM runs.") from None
    if done.returncode and "Invalid job id" not in done.stderr:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise JobError(f"{command[0]} says no ({said.rstrip('.')}); see that SLURM runs.")
    return done.stdout if not done.returncode else ""
