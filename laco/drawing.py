"""Numbers -> SVG for a file that nobody serves: bars, points, lines, a heat map.

Static, and without a script, a font or an address in it; colours are variables of the page's style,
so light, dark and paper each have their own. Texts are escaped here. It does not know runs. Next:
`onefile.py`, which puts these into a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

WIDTH, LEFT, RIGHT = 760, 64, 16
ROW, BAR = 40, 13  # pixels of a bar with its label
HEIGHT = 300  # of charts with two axes
WIDE = 10  # from here on, the largest value over the smallest asks for a logarithmic axis
LONG = 96  # characters of a label in a line
DASHES = ("", "6 4", "2 3", "9 3 2 3")
LEVELS = 32  # of a heat map
RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))  # viridis

Value = float | None


@dataclass(frozen=True)
class Bar:
    """One bar: its label, value, standard error, the value in words, and which run's colour."""

    label: str
    value: float
    text: str
    series: int
    error: float = 0.0
    hatched: bool = False


@dataclass(frozen=True)
class Point:
    """One point: its label, both values, the error of the second, and which run's colour."""

    label: str
    x: float
    y: float
    text: str
    series: int
    error: float = 0.0
    hollow: bool = False


def bars(groups: Mapping[str, Sequence[Bar]], words: str) -> str:
    """A bar for each, from zero, under the names of their groups."""
    every = [bar for group in groups.values() for bar in group]
    most = max((bar.value + bar.error for bar in every), default=1.0) or 1.0
    parts: list[str] = []
    y = 4.0
    for name, group in groups.items():
        if name:
            y += 20
            parts.append(_text(0, y, name, weight="600"))
            y += 6
        for bar in group:
            length = max(0.0, bar.value / most) * (WIDTH - RIGHT)
            parts.append(_text(0, y + 15, f"{_short(bar.label)}: {bar.text}"))
            kind = "empty" if bar.hatched else "full"
            told = escape(f"{bar.label}: {bar.text}")
            parts.append(
                f'<rect class="{kind} c{bar.series % 8}" x="1" y="{y + 21:.0f}" '
                f'width="{length:.1f}" height="{BAR}"><title>{told}</title></rect>'
            )
            if bar.error:
                ends = [(bar.value + sign * bar.error) / most * (WIDTH - RIGHT) for sign in (-1, 1)]
                middle = y + 21 + BAR / 2
                parts.append(_line(max(0, ends[0]), middle, ends[1], middle, "error"))
            y += ROW
    return _svg("".join(parts), y + 4, words)


def points(
    found: Sequence[Point], front: Sequence[int], titles: tuple[str, str], words: str
) -> str:
    """Points with numbers on two axes; those on the front are joined. The list says which is which.

    `titles` are those of the x and the y axis; an axis is logarithmic where that is needed.
    """
    x = _Axis([point.x for point in found], LEFT, WIDTH - RIGHT - 12)
    ends = [point.y + sign * point.error for point in found for sign in (-1, 1)]
    y = _Axis([end for end in ends if end > 0 or min(ends) <= 0], HEIGHT - 46, 14)
    parts = [_axes(x, y, titles)]
    path = sorted((found[place] for place in front), key=lambda point: point.x)
    joined = " ".join(f"{x(point.x):.1f},{y(point.y):.1f}" for point in path)
    parts.append(f'<polyline class="front" points="{joined}"/>')
    for place, point in enumerate(found):
        left, top = x(point.x), y(point.y)
        if point.error:
            low, high = y(max(point.y - point.error, y.low)), y(point.y + point.error)
            parts.append(_line(left, low, left, high, "error"))
        kind = "empty" if point.hollow else "full"
        parts.append(
            f'<circle class="{kind} c{point.series % 8}" cx="{left:.1f}" cy="{top:.1f}" r="6">'
            f"<title>{escape(f'{point.label}: {point.text}')}</title></circle>"
            + _text(left + 9, top - 5, str(place + 1), size=11)
        )
    drawn = _svg("".join(parts), HEIGHT, words)
    items = "".join(
        f'<li><span class="dot c{point.series % 8}"></span>'
        f"{escape(point.label)}: {escape(point.text)}</li>"
        for point in found
    )
    return f'{drawn}<ol class="key">{items}</ol>'


def lines(series: Mapping[str, Sequence[Value]], titles: tuple[str, str], words: str) -> str:
    """Lines over places 0, 1, …; they differ by colour, dash and mark. None leaves a gap."""
    known = [value for line in series.values() for value in line if value is not None]
    longest = max((len(line) for line in series.values()), default=1)
    x = _Axis([0, max(1, longest - 1)], LEFT, WIDTH - RIGHT, linear=True)
    y = _Axis(known, HEIGHT - 46, 40, from_zero=True)
    parts = [_axes(x, y, titles)]
    at = float(LEFT)
    for number, (name, values) in enumerate(series.items()):
        dash = DASHES[number % len(DASHES)]
        style = f'class="line c{number % 8}"' + (f' stroke-dasharray="{dash}"' if dash else "")
        there = [(place, value) for place, value in enumerate(values) if value is not None]
        for run in _unbroken(there):
            spots = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in run)
            parts.append(f'<polyline {style} points="{spots}"/>')
        parts += [
            f'<circle class="full c{number % 8}" cx="{x(place):.1f}" cy="{y(value):.1f}" r="2.6">'
            f"<title>{escape(name)}, {place}: {value:.4g}</title></circle>"
            for place, value in there
        ]
        parts.append(f'<polyline {style} points="{at:.0f},14 {at + 30:.0f},14"/>')
        parts.append(_text(at + 36, 18, name))
        at += 60 + 7.2 * len(name)
    return _svg("".join(parts), HEIGHT, words)


def heat_map(
    matrix: Sequence[Sequence[Value]], limits: tuple[float, float], axis: str, words: str
) -> str:
    """A square map, first row on top; `limits` are the values of the darkest and brightest cell."""
    low, high = limits
    size = max(1, len(matrix))
    cell = 400 / size
    paths: dict[int, list[str]] = {}
    for row, values in enumerate(matrix):
        levels = [_level(value, low, high) for value in values]
        column = 0
        for level, same in groupby(levels):
            count = len(list(same))
            if level is not None:
                paths.setdefault(level, []).append(f"M{column} {row}h{count}v1h-{count}z")
            column += count
    drawn = "".join(
        f'<path fill="{_colour(level / (LEVELS - 1))}" d="{"".join(path)}"/>'
        for level, path in sorted(paths.items())
    )
    step = max(1, round(size / 8))
    ticks = "".join(
        _text(44 + (place + 0.5) * cell, 418, str(place), size=11, anchor="middle")
        + _text(38, 4 + (place + 0.5) * cell, str(place), size=11, anchor="end")
        for place in range(0, size, step)
    )
    bar = "".join(
        f'<rect x="470" y="{400 - 400 / 16 * (part + 1):.1f}" width="16" height="25.5" '
        f'fill="{_colour(part / 15)}"/>'
        for part in range(16)
    )
    told = _text(492, 400, f"{low:.3g}") + _text(492, 12, f"{high:.3g}")
    name = _text(244, 440, axis, anchor="middle")
    cells = f'<g transform="translate(44 0) scale({cell:.4f})" shape-rendering="crispEdges">'
    return _svg(f"{cells}{drawn}</g>{ticks}{bar}{told}{name}", 446, words, width=560)


class _Axis:
    """Values -> pixels, with round ticks; logarithmic where one value would dwarf the others."""

    def __init__(
        self,
        values: Sequence[float],
        start: float,
        stop: float,
        from_zero: bool = False,
        linear: bool = False,
    ) -> None:
        low, high = min(values, default=0.0), max(values, default=1.0)
        self.log = not linear and low > 0 and high >= WIDE * low
        if not self.log and from_zero and low > 0:
            low = 0.0
        if high == low:
            low, high = low - abs(low or 1) * 0.05, high + abs(high or 1) * 0.05
        elif not linear and not from_zero and not self.log:
            low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(max(v, self.low)) for v in (value, low, high))
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first < 4 else (1,)
            every = [m * 10.0**power for power in range(first, last + 1) for m in steps]
        else:
            rough = (self.high - self.low) / 5
            size = 10.0 ** math.floor(math.log10(rough))
            step = next(m * size for m in (1, 2, 5, 10) if m * size >= rough)
            first = math.ceil(self.low / step)
            every = [step * n for n in range(first, math.floor(self.high / step) + 1)]
        return [tick for tick in every if self.low <= tick <= self.high]


def _axes(x: _Axis, y: _Axis, titles: tuple[str, str]) -> str:
    bottom, top = y.start, y.stop
    parts = [_line(x.start, bottom, x.stop, bottom, "axis")]
    for tick in x.ticks():
        parts.append(_text(x(tick), bottom + 16, _number(tick), size=11, anchor="middle"))
    for tick in y.ticks():
        parts.append(_line(x.start, y(tick), x.stop, y(tick), "grid"))
        parts.append(_text(x.start - 6, y(tick) + 4, _number(tick), size=11, anchor="end"))
    middle = (x.start + x.stop) / 2
    names = [
        title + (" (logarithmic)" if axis.log else "")
        for title, axis in zip(titles, (x, y), strict=True)
    ]
    parts.append(_text(middle, bottom + 36, names[0], anchor="middle"))
    turn = f'transform="rotate(-90 13 {(top + bottom) / 2:.0f})"'
    parts.append(_text(13, (top + bottom) / 2, names[1], anchor="middle", more=turn))
    return "".join(parts)


def _unbroken(there: Sequence[tuple[int, float]]) -> Iterable[list[tuple[int, float]]]:
    """The stretches of a line without a gap."""
    numbered = enumerate(there)
    for _, run in groupby(numbered, key=lambda item: item[1][0] - item[0]):
        yield [spot for _, spot in run]


def _number(value: float) -> str:
    for limit, suffix in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= limit:
            return f"{value / limit:.4g} {suffix}"
    return f"{value:.4g}"


def _level(value: Value, low: float, high: float) -> int | None:
    if value is None or not math.isfinite(value):
        return None
    share = (value - low) / (high - low) if high > low else 1.0
    return round(min(1.0, max(0.0, share)) * (LEVELS - 1))


def _colour(share: float) -> str:
    place = share * (len(RAMP) - 1)
    first = min(len(RAMP) - 2, int(place))
    part = place - first
    mixed = [a + (b - a) * part for a, b in zip(RAMP[first], RAMP[first + 1], strict=True)]
    return "#" + "".join(f"{round(channel):02x}" for channel in mixed)


def _short(label: str) -> str:
    return label if len(label) <= LONG else f"{label[: LONG - 1]}…"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(
    x: float,
    y: float,
    words: str,
    size: int = 13,
    anchor: str = "start",
    weight: str = "400",
    more: str = "",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" {more}>{escape(words)}</text>'
    )


def _svg(inside: str, height: float, words: str, width: int = WIDTH) -> str:
    """The picture with what it shows in words, for who does not see it."""
    return (
        f'<svg role="img" aria-label="{escape(words, quote=True)}" '
        f'viewBox="0 0 {width} {height:.0f}" style="max-width:{width}px">{inside}</svg>'
    )
