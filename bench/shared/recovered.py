"""The tables and the figure of `recovery.py`, from what it measured.

Shares are those of the gap in log perplexity (pruned to original) that a way back closes, the mean
over both texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from shared.recovery import Result, crossing, share

EXPERIMENTS = ("prune", "collapse", "windows", "parts")
STYLES = {"nothing": "C7o-", "paper mode": "C2^-.", "LoRA": "C1s--", "laco+": "C0D-"}
NOTHING = "Wanda 50 % | nothing"  # where `windows` and `parts` start
FURTHER = 25  # how many times as many windows as were measured the line is drawn to

Cell = list[float]  # perplexity on each text


@dataclass(frozen=True)
class Measured:
    """Perplexities of the original, and of each experiment's cells, `changed model | way back`."""

    original: Cell
    texts: list[str]
    cells: dict[str, dict[str, Cell]]

    def rows(self, experiment: str) -> dict[str, dict[str, Cell]]:
        """The cells of an experiment by model, then by way back."""
        found: dict[str, dict[str, Cell]] = {}
        for name, cell in self.cells.get(experiment, {}).items():
            model, _, way = name.partition(" | ")
            found.setdefault(model, {})[way] = cell
        return found

    def closed(self, cell: Cell, nothing: Cell) -> float:
        """The share of the gap that a way back closes."""
        after, changed, original = (Result(tuple(v)) for v in (cell, nothing, self.original))
        return share(after, changed, original, log=True)

    @property
    def half(self) -> Cell | None:
        """Wanda's 50 % with nothing done after it."""
        return self.cells.get("prune", {}).get(NOTHING)

    def told(self, cell: Cell | None, nothing: Cell | None) -> str:
        """A cell of a table: perplexities, and the share where there is one."""
        if cell is None:
            return "not measured"
        if nothing is None or nothing == cell:
            return pair(cell)
        return f"{pair(cell)} ({self.closed(cell, nothing):.0%})"


@dataclass(frozen=True)
class Growth:
    """The shares that a way back closes on more and more windows."""

    windows: list[int]
    shares: list[float]

    @property
    def line(self) -> tuple[float, float]:
        """The least squares line over the logarithm of the windows: share at one, and slope."""
        slope, start = np.polyfit(np.log(self.windows), self.shares, 1)
        return float(start), float(slope)

    def needed(self, wanted: float) -> tuple[float, bool]:
        """How many windows reach a share, and whether that is read from the line, beyond them."""
        found = crossing(wanted, self.windows, self.shares)
        if found is not None:
            return found, False
        start, slope = self.line
        return (math.exp((wanted - start) / slope) if slope > 0 else math.inf), True


def growths(measured: Measured) -> dict[str, Growth]:
    """How each way back grows with its windows, as far as that was measured."""
    points: dict[str, list[tuple[int, float]]] = {}
    nothing = measured.half
    for model, row in measured.rows("windows").items() if nothing else ():
        for way, cell in row.items():
            found = (int(model.split()[0]), measured.closed(cell, nothing or cell))
            points.setdefault(way, []).append(found)
    return {
        way: Growth([n for n, _ in sorted(found)], [part for _, part in sorted(found)])
        for way, found in points.items()
    }


def draw(measured: Measured, folder: Path, about: str) -> None:
    """Write `recovery.md` and `recovery.png`; `about` says how it was measured."""
    lines = [
        "# What comes back, measured",
        "",
        f"{about} Perplexity on {' / '.join(measured.texts)}; in brackets the share of the gap in "
        "log perplexity that is closed, the mean over both.",
        "",
        f"Original: {pair(measured.original)}.",
        "",
        "![What comes back, by way](recovery.png)",
        *_tables(measured),
    ]
    (folder / "recovery.md").write_text("\n".join(lines) + "\n")
    _figure(measured, folder / "recovery.png")


def pair(cell: Cell) -> str:
    """Perplexities as a table shows them."""
    return " / ".join(f"{value:,.2f}" for value in cell)


def _tables(measured: Measured) -> list[str]:
    lines: list[str] = []
    for experiment in EXPERIMENTS:
        rows = measured.rows(experiment)
        if experiment == "parts":  # one model and many ways: a row each
            rows = {way: {"perplexity": c} for row in rows.values() for way, c in row.items()}
        if not rows:
            continue
        ways = list(dict.fromkeys(way for row in rows.values() for way in row))
        head = ["model" if experiment in ("prune", "collapse") else "after Wanda 50 %", *ways]
        lines += ["", f"## {experiment}", ""]
        lines += [f"| {' | '.join(head)} |", "|---|" + "---|" * len(ways)]
        for name, row in rows.items():
            nothing = row.get("nothing", measured.half)
            shown = [measured.told(row.get(way), nothing) for way in ways]
            lines.append(f"| {' | '.join([name, *shown])} |")
        if experiment == "windows":
            lines += _matches(growths(measured))
    return lines


def _matches(found: dict[str, Growth]) -> list[str]:
    """How many windows LoRA needs for what laco+ reaches on each number of them."""
    ours, theirs = found.get("laco+"), found.get("LoRA")
    if ours is None or theirs is None or len(theirs.windows) < 2:
        return []
    lines = ["", "LoRA closes as much as laco+ does", ""]
    for windows, wanted in zip(ours.windows, ours.shares, strict=True):
        needed, beyond = theirs.needed(wanted)
        how = "from the line through all its points, not measured" if beyond else "interpolated"
        lines.append(
            f"- on {windows} windows ({wanted:.1%}): with {needed:,.0f} windows, "
            f"{needed / windows:.1f} times as many ({how})"
        )
    return lines


def _figure(measured: Measured, path: Path) -> None:
    grid = Figure(figsize=(15, 8.5), layout="constrained")
    flat: list[Any] = list(grid.subplots(2, 3).flat)
    by_method: dict[str, dict[str, dict[str, Cell]]] = {}
    for name, row in measured.rows("prune").items():
        method, _, level = name.partition(" ")
        by_method.setdefault(method, {})[level] = row
    changed = by_method | {"collapse": measured.rows("collapse")}
    for panel, (title, rows) in zip(flat[:4], changed.items(), strict=False):
        for way, style in STYLES.items():
            points = [(level, row[way][0]) for level, row in rows.items() if way in row]
            if points:
                panel.plot(*zip(*points, strict=True), style, label=way)
        panel.axhline(measured.original[0], color="gray", linewidth=1, label="original")
        panel.set(title=title, yscale="log", ylabel=f"perplexity on {measured.texts[0]}")
    growing, parts = flat[4:]
    for way, growth in growths(measured).items():
        growing.plot(growth.windows, growth.shares, STYLES[way], label=way)
        if way == "LoRA" and len(growth.windows) > 1:
            start, slope = growth.line
            ends = [growth.windows[0], FURTHER * growth.windows[-1]]
            line = [start + slope * math.log(windows) for windows in ends]
            growing.plot(ends, line, "C1:", label="line through LoRA's")
    growing.set(title="windows", xscale="log", xlabel="windows of text", ylabel="share closed")
    for row in measured.rows("parts").values() if measured.half else ():
        names = list(reversed(row))
        parts.barh(names, [measured.closed(row[way], measured.half or row[way]) for way in names])
    parts.set(title="parts of laco+, after Wanda 50 %", xlabel="share closed")
    for panel in flat:
        panel.set_visible(panel.has_data())  # what has not been measured yet is not drawn
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend()
    grid.savefig(path, dpi=110)
