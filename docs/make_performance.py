"""Run benchmarks and write `performance.md`: the figures, the machine, the date of each.

A benchmark is a script in `bench/` whose last line is `NAME VALUE`; the lines above it say what
the figure is made of. All are run, or those that are named; what each gave is kept in
`performance.json`, from which the page is drawn. Arguments that begin with a dash are handed on.

    python docs/make_performance.py [--quick] [search collapse …] [--wikitext FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "performance.json"
EXPERIMENTS = {"merges", "recovery"}  # take hours and write pages of their own
TAKE_TEXT = {"compensation", "collapse_compensation", "samples"}
AT_LEAST = {
    "ceilings": 0.7,
    "collapse_compensation": 1.0,
    "compensation": 1.10,
    "memory": 7,
    "pages": 1,
    "perplexity": 1.3,
    "samples": 25,
    "search": 5,
    "zero_shot": 2,
}
AT_MOST = {
    "collapse": 3.0,
    "crowd": 0,
    "expected": 1.2,
    "export": 2,
    "load": 0.5,
    "similarity": 1.10,
    "start": 2,
    "streaming": 1.3,
}


def main() -> int:
    """Run them; 1 at the first that fails, and then its row stays as it was."""
    names = sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
    names = [name for name in names if name not in EXPERIMENTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="the same measures, smaller")
    parser.add_argument("--text", help="a corpus for the benchmarks of recovery")
    parser.add_argument("--wikitext", help="WikiText-2's test text as a file, for the same")
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"there is no benchmark {unknown.pop()}")
    for name in given.names or names:
        print(f"bench/{name}.py", flush=True)
        found = run(name, given)
        if found is None:
            print(f"bench/{name}.py failed; its row in docs/performance.md stays as it was.")
            return 1
        rows: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        KEPT.write_text(json.dumps({**rows, name: found}, indent=1, sort_keys=True) + "\n")
        (ROOT / "docs" / "performance.md").write_text(page(), encoding="utf-8")
    return 0


def run(name: str, given: argparse.Namespace) -> dict[str, Any] | None:
    """What a benchmark printed, how long it took, where and when; None if it failed."""
    arguments = ["--quick"] if given.quick else []
    if name in TAKE_TEXT:
        for option in ("text", "wikitext"):
            if value := getattr(given, option):
                arguments += [f"--{option}", value]
    started = time.perf_counter()
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, str(ROOT / "bench" / f"{name}.py"), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as benchmark:
        assert benchmark.stdout is not None
        for line in benchmark.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    if benchmark.returncode or not lines:
        return None
    return {
        "lines": [_without_folders(line, given) for line in lines],
        "seconds": round(time.perf_counter() - started),
        "size": "quick" if given.quick else "full",
        "date": datetime.date.today().isoformat(),
        "machine": _machine(),
    }


def page() -> str:
    """`performance.md`, drawn from what is kept."""
    rows: dict[str, Any] = json.loads(KEPT.read_text())
    machines = sorted({row["machine"] for row in rows.values()})
    lines = [
        "# Performance",
        "",
        "Made by `make bench`. Each figure is a ratio measured in one run; what it is made of, and",
        "what it should be, stands below.",
        "",
        *(f"Measured on {machine}." for machine in machines),
        "",
        "| script | figure | value | asked | | size | seconds | date |",
        "|---|---|---:|---|---|---|---:|---|",
    ]
    for name, row in rows.items():
        figure, _, value = row["lines"][-1].partition(" ")
        about = (row["size"], str(row["seconds"]), row["date"])
        cells = (f"`{name}.py`", figure, value, *judged(figure, float(value)), *about)
        lines.append(f"| {' | '.join(cells)} |")
    for name, row in rows.items():
        lines += ["", f"## {name}.py", "", "```", *row["lines"], "```"]
    return "\n".join(lines) + "\n"


def judged(figure: str, value: float) -> tuple[str, str]:
    """What is asked of a figure, and whether it is met."""
    if figure in AT_LEAST:
        return f"at least {AT_LEAST[figure]:g}", "met" if value >= AT_LEAST[figure] else "missed"
    if figure in AT_MOST:
        return f"at most {AT_MOST[figure]:g}", "met" if value <= AT_MOST[figure] else "missed"
    return "", ""


def _without_folders(line: str, given: argparse.Namespace) -> str:
    """A line with the names of text files, not the folders that they lie in on this machine."""
    for path in (given.wikitext, (given.text or "").removeprefix("file:")):
        if path:
            line = line.replace(path, Path(path).name)
    return line


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
    sys.exit(main())
