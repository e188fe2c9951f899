"""Small SVG charts in the colours of the page, so that they follow dark mode."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator

__all__ = ["Series", "histogram", "line_chart"]

LARGE, SMALL = (380, 240), (280, 190)  # width and height; text has the same size in both
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 12, 42
LETTER, LINE = 6.2, 14  # rough width of a letter and height of a line, for labels


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    role: str = "panel"  # which colour
    dashed: bool = False


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    title: str,
    percent: bool = False,
    log: bool = False,
    whole: bool = False,
    small: bool = False,
) -> str:
    """Lines labelled at their right ends.

    Points that are not finite are omitted; ``title`` is read out by screen readers, ``whole``
    asks for integer ticks, and ``small`` is for one of many charts with a single unlabelled line.
    """
    kept = [line for line in (_finite(line, log) for line in series) if len(line.x)]
    if not kept:
        return ""
    width, height = SMALL if small else LARGE
    right = RIGHT if small else RIGHT + max(len(line.name) for line in kept) * LETTER + 4
    x = _Axis([v for line in kept for v in line.x], LEFT, width - right)
    style = {"log": log, "percent": percent, "whole": whole}
    y = _Axis([v for line in kept for v in line.y], height - BOTTOM, TOP, **style)
    parts = [_frame(x, y, x_label, y_label)]
    for line in kept:
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(line.x, line.y, strict=True))
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(f'<polyline class="line {line.role}" points="{points}"{dash}/>')
    if not small:
        ends = _apart([y(line.y[-1]) for line in kept], TOP, height - BOTTOM)
        parts += [
            f'<text class="name {line.role}" x="{x(line.x[-1]) + 6:.1f}" y="{at + 4:.1f}">'
            f"{escape(line.name)}</text>"
            for line, at in zip(kept, ends, strict=True)
        ]
    return _svg(parts, title, width, height)


def histogram(values: Any, *, x_label: str, y_label: str, title: str, bins: int = 20) -> str:
    """Counts of values between 0 and 1; values below 0 are counted in the first bin."""
    shown = np.clip(np.asarray(values, dtype=float), 0.0, 1.0)
    heights, edges = np.histogram(shown, bins=bins, range=(0.0, 1.0))
    width, height = LARGE
    x = _Axis([0.0, 1.0], LEFT, width - RIGHT)
    y = _Axis([0, int(heights.max(initial=1))], height - BOTTOM, TOP, whole=True)
    parts = [_frame(x, y, x_label, y_label)]
    for number, low, high in zip(heights, edges[:-1], edges[1:], strict=True):
        if number:
            left, top, wide = x(low) + 0.5, y(number), x(high) - x(low) - 1
            parts.append(
                f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" '
                f'height="{y(0) - top:.1f}"><title>{low:.2f} to {high:.2f}: {number}</title>'
                "</rect>"
            )
    return _svg(parts, title, width, height)


class _Axis:
    """Maps values to positions, with ticks at round numbers."""

    def __init__(self, values: Sequence[float], begin: float, end: float, **style: bool) -> None:
        log = style.get("log", False)
        low, high = float(min(values)), float(max(values))
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
        self.begin, self.end, self.log, self.percent = begin, end, log, style.get("percent")
        round_numbers = {"integer": style.get("whole", False), "steps": [1, 2, 2.5, 5, 10]}
        locator = LogLocator(numticks=5) if log else MaxNLocator(5, **round_numbers)
        ticks = locator.tick_values(low, high)
        self.low, self.high = self._inside(low), self._inside(high)
        slack = 1e-9 * (self.high - self.low)
        self.ticks = [
            float(t) for t in ticks if self.low - slack <= self._inside(t) <= self.high + slack
        ]

    def _inside(self, value: float) -> float:
        return float(np.log10(value)) if self.log else float(value)

    def __call__(self, value: float) -> float:
        share = (self._inside(value) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def text(self, value: float) -> str:
        return f"{100 * value:g} %" if self.percent else f"{value:g}"


def _frame(x: _Axis, y: _Axis, x_label: str, y_label: str) -> str:
    base = y.begin
    parts = [f'<path class="axis" d="M{x.begin:.1f} {base}H{x.end:.1f}"/>']
    parts += [
        f'<path class="grid" d="M{x.begin:.1f} {y(tick):.1f}H{x.end:.1f}"/>'
        f'<text class="tick end" x="{LEFT - 6}" y="{y(tick) + 4:.1f}">{y.text(tick)}</text>'
        for tick in y.ticks
    ]
    parts += [
        f'<text class="tick mid" x="{x(tick):.1f}" y="{base + 16}">{x.text(tick)}</text>'
        for tick in x.ticks
    ]
    middle, below, centre = (x.begin + x.end) / 2, base + BOTTOM - 6, (TOP + base) / 2
    return (
        "".join(parts)
        + f'<text class="label mid" x="{middle:.1f}" y="{below:.0f}">{escape(x_label)}</text>'
        f'<text class="label mid" transform="translate(11 {centre:.1f}) rotate(-90)">'
        f"{escape(y_label)}</text>"
    )


def _svg(parts: Sequence[str], title: str, width: float, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )


def _finite(line: Series, log: bool) -> Series:
    x, y = np.asarray(line.x, dtype=float), np.asarray(line.y, dtype=float)
    fine = np.isfinite(x) & np.isfinite(y) & ((y > 0) | (not log))
    return Series(line.name, x[fine].tolist(), y[fine].tolist(), line.role, line.dashed)


def _apart(places: list[float], top: float, bottom: float) -> list[float]:
    """The same positions, moved apart so that labels do not overlap."""
    order = np.argsort(places)
    found = list(places)
    last = top - LINE
    for at in order:
        found[at] = last = max(found[at], last + LINE)
    last = bottom + LINE
    for at in order[::-1]:
        found[at] = last = min(found[at], last - LINE)
    return found
