"""Run every benchmark and write `performance.md`: the figures, the machine, the date.

A benchmark is a script in `bench/` whose last line is `NAME VALUE`; the lines above it say what
the figure is made of. `--quick` is handed on.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
EXPERIMENTS = {"merges.py"}  # takes an hour and writes its own page, `merges.md`


def main(arguments: list[str]) -> int:
    """Run them all; 1 if one failed, and then the page stays as it was."""
    rows: list[str] = []
    details: list[str] = []
    for script in sorted((ROOT / "bench").glob("*.py")):
        if script.name in EXPERIMENTS:
            continue
        print(f"bench/{script.name}", flush=True)
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            print(f"bench/{script.name} failed; docs/performance.md stays as it was.")
            return 1
        name, _, value = lines[-1].partition(" ")
        print(lines[-1], flush=True)
        rows.append(f"| `{script.name}` | {name} | {value} | {time.perf_counter() - started:.0f} |")
        details.append(f"## {script.name}\n\n```\n{chr(10).join(lines)}\n```\n")
    page = ROOT / "docs" / "performance.md"
    page.write_text("\n".join([_head(arguments), *rows, "", *details]), encoding="utf-8")
    return 0


def _head(arguments: list[str]) -> str:
    size = "the quick size" if "--quick" in arguments else "the full size"
    return "\n".join(
        [
            "# Performance",
            "",
            f"`make bench` on {datetime.date.today().isoformat()}, {size}, on {_machine()}.",
            "Each figure is a ratio measured in one run; what it is made of stands below.",
            "",
            "| script | figure | value | seconds |",
            "|---|---|---:|---:|",
        ]
    )


def _machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else model
    memory = psutil.virtual_memory().total / 2**30
    python = platform.python_version()
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, Python {python}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
