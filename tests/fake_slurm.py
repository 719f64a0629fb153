"""Stands where SLURM's programs are: as sbatch, squeue, sacct, scancel, sinfo and srun.

What it was asked is in `calls.txt` of the folder FAKE_SLURM. It runs batch files on this machine,
each at once, or not before the file `full` is gone: then squeue says that they wait.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("sbatch", "squeue", "sacct", "scancel", "sinfo", "srun")
folder = Path(os.environ.get("FAKE_SLURM", "/nowhere"))


def install(place: Path) -> None:
    """Put the programs into a folder, to be the first in PATH."""
    for name in PROGRAMS:
        (place / name).write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        (place / name).chmod(0o755)


def state(job: str) -> str:
    """What is known of a job; one that waits is started first if there is room now."""
    if (folder / f"{job}.code").exists():
        code = (folder / f"{job}.code").read_text().strip()
        return {"0": "COMPLETED", "cancelled": "CANCELLED by 0"}.get(code, "FAILED")
    if not (folder / f"{job}.pid").exists():
        if (folder / "full").exists():
            return "PENDING"
        start(job)
    return "RUNNING"


def start(job: str) -> None:
    told = {"JOB_ID": job, "NTASKS": "1", "JOB_NUM_NODES": "1", "NODEID": "0", "PROCID": "0"}
    place = folder / job
    line = f"bash {place}.sh; echo $? > {place}.part; mv {place}.part {place}.code"
    process = subprocess.Popen(
        ["sh", "-c", line],
        env={**os.environ, **{f"SLURM_{name}": value for name, value in told.items()}},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    (folder / f"{job}.pid").write_text(str(process.pid))


def main(program: str, words: list[str]) -> int:
    with (folder / "calls.txt").open("a") as calls:
        print(program, *words, file=calls)
    told = (word.removeprefix("--").partition("=") for word in words)
    options = {name: value for name, _, value in told}
    jobs = sorted(path.stem for path in folder.glob("*.sh"))
    if program == "sbatch":
        job = str(len(jobs) + 101)
        text = Path(words[-1]).read_text()
        (folder / f"{job}.sh").write_text(text)
        state(job)
        print(f"Submitted batch job {job}")
    elif program == "squeue":
        flag = f"--job-name={options.get('name')}\n"
        asked = options.get("jobs") or next(
            (job for job in jobs if flag in (folder / f"{job}.sh").read_text()), ""
        )
        if options.get("jobs") and asked not in jobs:
            print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
            return 1
        now = state(asked) if asked else ""
        if now in ("PENDING", "RUNNING"):
            reason = "Resources" if now == "PENDING" else "None"
            print(asked if "name" in options else f"{now}|{reason}")
    elif program == "sacct":
        print("JobID|State|NodeList")
        for job in (word for word in words if word in jobs):
            print(f"{job}|{state(job)}|node1")
            print(f"{job}.batch|{state(job)}|node1")
    elif program == "scancel":
        now = state(words[0])
        if now == "PENDING":
            (folder / f"{words[0]}.code").write_text("cancelled")
        elif now == "RUNNING":
            os.killpg(int((folder / f"{words[0]}.pid").read_text()), signal.SIGTERM)
    elif program == "sinfo":
        print("2|3/13/0/16|gpu:a100:4(S:0-1)\n1|0/8/0/8|(null)")
    elif program == "srun":
        first = next(place for place, word in enumerate(words) if re.search(r"python[\d.]*$", word))
        os.execv(words[first], words[first:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
