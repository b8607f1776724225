"""Draws plots as SVG text: bars side by side, stacked bars, lines. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TypeAlias

WIDTH = 920
LEFT = 370
RIGHT = 90
BAR = 14
GAP = 12
TOP = 64
PLOT_HEIGHT = 300
COLORS = ("#2563eb", "#9ca3af", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2", "#be185d")

Named: TypeAlias = Sequence[tuple[str, float]]
"""Figures in order, each with the name of its series or part."""


def bars(title: str, groups: Sequence[tuple[str, Named]], *, log: bool = False) -> str:
    """Draws horizontal bars: for each group a bar of every series, followed by its figure."""
    colors = _colors(name for _, figures in groups for name, _ in figures)
    most = max((value for _, figures in groups for _, value in figures), default=1.0)
    least = min((value for _, figures in groups for _, value in figures if value > 0), default=most)
    low = _decade(least) if log else 0.0

    def length(value: float) -> float:
        room = WIDTH - LEFT - RIGHT
        if log:
            return (
                room * max(0.0, math.log10(max(value, low) / low) / math.log10(most / low))
                if most > low
                else room
            )
        return room * value / most if most else 0.0

    parts = [*_legend(colors)]
    y = float(TOP)
    for label, figures in groups:
        parts.append(_text(LEFT - 10, y + len(figures) * BAR / 2 + 4, label, anchor="end"))
        for name, value in figures:
            parts.append(_bar(LEFT, y, length(value), colors[name]))
            parts.append(_text(LEFT + length(value) + 6, y + BAR - 3, _figure(value), size=11))
            y += BAR
        y += GAP
    return _svg(title + (" (logarithmic)" if log else ""), y + 8, parts)


def stacked(title: str, rows: Sequence[tuple[str, Named]]) -> str:
    """Draws horizontal bars of parts, followed by their sum."""
    colors = _colors(name for _, figures in rows for name, _ in figures)
    most = max((sum(value for _, value in figures) for _, figures in rows), default=1.0) or 1.0
    parts = [*_legend(colors)]
    y = float(TOP)
    for label, figures in rows:
        parts.append(_text(LEFT - 10, y + BAR, label, anchor="end"))
        x = float(LEFT)
        for name, value in figures:
            width = (WIDTH - LEFT - RIGHT) * value / most
            parts.append(_bar(x, y, width, colors[name], BAR + 6))
            x += width
        parts.append(_text(x + 6, y + BAR, _figure(sum(value for _, value in figures)), size=11))
        y += BAR + 6 + GAP
    return _svg(title, y + 8, parts)


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    log: bool = True,
) -> str:
    """Draws lines over a shared x; both axes logarithmic, or both from 0. A logarithmic plot has no
    points at 0.

    Series with equal names up to a comma share a color; the second of them is dashed.
    """
    points = [(x, y) for line in series.values() for x, y in line if not log or (x > 0 and y > 0)]
    if not points:
        return _svg(title, TOP, [])
    by_kind = _colors(name.partition(",")[0] for name in series)
    colors = {name: by_kind[name.partition(",")[0]] for name in series}
    dashed = [
        name for number, name in enumerate(series) if colors[name] in list(colors.values())[:number]
    ]
    left, right, bottom = 70.0, 30.0, TOP + PLOT_HEIGHT
    x_axis = _Axis([x for x, _ in points], left, WIDTH - right, log)
    y_axis = _Axis([y for _, y in points], bottom, TOP, log)
    parts = [*_legend(by_kind)]
    for tick in y_axis.ticks():
        at = y_axis.place(tick)
        parts.append(
            f'<line x1="{left}" x2="{WIDTH - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e7eb"/>'
        )
        parts.append(_text(left - 8, at + 4, _figure(tick), anchor="end", size=11))
    for tick in sorted({x for x, _ in points}):
        parts.append(_text(x_axis.place(tick), bottom + 18, _short(tick), anchor="middle", size=11))
    for name, line in series.items():
        drawn = [
            (x_axis.place(x), y_axis.place(y)) for x, y in line if not log or (x > 0 and y > 0)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        dash = ' stroke-dasharray="6 4"' if name in dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colors[name]}" '
            f'stroke-width="2"{dash}/>'
        )
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colors[name]}"/>' for x, y in drawn
        ]
    parts.append(_text((left + WIDTH - right) / 2, bottom + 38, x_label, anchor="middle"))
    unit = f", {y_label}" if y_label else ""
    return _svg(f"{title}{unit}{' (logarithmic)' if log else ''}", bottom + 52, parts)


class _Axis:
    def __init__(self, values: Sequence[float], start: float, end: float, log: bool) -> None:
        self._start, self._end, self._log = start, end, log
        self._high = max(values) or 1.0
        self._low = min(values) if log else 0.0

    def place(self, value: float) -> float:
        if self._log:
            span = math.log10(self._high / self._low) or 1.0
            return self._start + (self._end - self._start) * math.log10(value / self._low) / span
        return self._start + (self._end - self._start) * value / self._high

    def ticks(self) -> list[float]:
        if not self._log:
            step = _decade(self._high)
            step = step / 2 if self._high / step < 3 else step
            return [step * number for number in range(int(self._high / step) + 1)]
        first, last = math.floor(math.log10(self._low)), math.ceil(math.log10(self._high))
        marks = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
        return [mark for mark in marks if self._low <= mark <= self._high]


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" '
        f'height="{height:.0f}" font-family="system-ui, sans-serif" role="img">'
    )
    ground = f'<rect width="{WIDTH}" height="{height:.0f}" rx="6" fill="#ffffff"/>'
    return (
        "\n".join(
            (
                head,
                f"<title>{escape(title)}</title>",
                ground,
                _text(16, 24, title, size=15),
                *parts,
                "</svg>",
            )
        )
        + "\n"
    )


def _colors(names: Iterable[str]) -> dict[str, str]:
    return {name: COLORS[number % len(COLORS)] for number, name in enumerate(dict.fromkeys(names))}


def _legend(colors: Mapping[str, str]) -> Iterator[str]:
    x = 16.0
    for name, color in colors.items():
        yield _bar(x, 36, 12, color, 12)
        yield _text(x + 16, 46, name, size=11)
        x += 30 + 6.5 * len(name)


def _bar(x: float, y: float, width: float, color: str, height: float = BAR - 2) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}" '
        f'fill="{color}"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="#111827">{escape(text)}</text>'
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def _short(value: float) -> str:
    return f"{value / 1000:g}K" if value >= 1000 else f"{value:g}"


def _decade(value: float) -> float:
    return 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
