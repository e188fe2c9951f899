"""Figures: SVG and PNG for the page, the data its script draws from, and image files."""

import base64
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import NDArray

from fewer._checks import check_suffix
from fewer._files import check_path, write_whole

LINES = {"panel": "this panel", "greedy": "greedy", "pca": "PCA"}
CURVES: dict[str, tuple[str, dict[str, bool]]] = {
    "loss": ("loss", {}),
    "temperature": ("temperature", {"log": True}),
    "mean_max_probability": ("mean max probability", {}),
    "distinct": ("distinct features", {"whole": True}),
}
MARKED_BINS = 20  # of a histogram with a mark
COVERED = 0.9  # of the values, by prediction intervals
CHANCE_LEVEL = 0.05  # p-value from which a contribution is drawn faded
MOST_CELLS = 60  # chosen features on the correlation map
PAIRS = 3  # of chosen features, named below the map
EXAMPLES = 16
WARM, COLD = (213, 94, 0), (0, 114, 178)  # of Okabe and Ito
MAX_16_BIT = 400_000  # entries: beyond this, 8 bits per value keep the page small

LARGE, SMALL = (380, 240), (280, 190)  # width and height; text has the same size in both
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 12, 42
LETTER, LINE = 6.2, 14  # rough width of a letter and height of a line, for labels
BAR, MOST_NAMED, LONGEST = 18, 30, 26  # height of a bar, bars with a name, letters of a name


def figures(about: dict[str, Any]) -> dict[str, Any]:
    """SVG and PNG of every figure that the panel has data for."""
    return {
        "histogram": _reconstructability(about),
        "curve": _curve(about["curve"]),
        "size": _size(about["size"]),
        "stability": _stability(about),
        "chance": _chance(about["chance"]),
        "contributions": _contributions(about),
        "coverage": _coverage(about["coverage"]),
        "training": _training(about["history"]),
        "correlation": _correlation(about["correlation"]),
        "image": _image(about),
        "targets": [_target(part) for part in (about["target"] or {"parts": []})["parts"]],
        "tradeoff": _tradeoff(about["target"]),
        "drift": _drift(about["check"]),
    }


def embedded(about: dict[str, Any]) -> dict[str, Any]:
    """The data of the page's script: names, numbers and some packed rows."""
    features = about["features"]
    return {
        "names": about["names"] if about["named"] else None,
        "d": about["d"],
        "r2": _rounded(features["r2"]),
        "error": _rounded(features["error"]),
        "std": _rounded(features["std"]),
        "chosen": np.flatnonzero(features["chosen"]).tolist(),
        "map": _cells(about["correlation"]),
        "order": [row["column"] for row in about["chosen"]],
        "rows": _packed(about["sample"]["true"], about["sample"]["predicted"]),
    }


def _reconstructability(about: dict[str, Any]) -> str:
    others = about["features"]["others"]
    if not len(others):
        return ""
    return histogram(
        others,
        x_label="R²",
        y_label="features",
        title=f"Histogram of R² over the {len(others)} unmeasured features; median "
        f"{np.median(others):.2f}; {int((others < 0).sum())} are below 0.",
    )


def _curve(curve: dict[str, Any] | None) -> str:
    if curve is None:
        return ""
    lines = [
        Series(LINES[role], curve["k"], curve["lines"][role], role, dashed=role == "pca")
        for role in ("pca", "panel", "greedy")
        if role in curve["lines"]
    ]
    reached = ", ".join(f"{line.name} {100 * line.y[-1]:.1f} %" for line in lines)
    return line_chart(
        lines,
        x_label="features measured",
        y_label="explained variance",
        title=f"Explained variance on held-out rows for up to {curve['k'][-1]} features: "
        + reached,
        percent=True,
    )


def _stability(about: dict[str, Any]) -> str:
    found = about["stability"]
    if found is None:
        return ""
    names = [row["name"] for row in about["chosen"]]
    return bar_chart(
        names,
        found["frequency"],
        label="selection frequency",
        title="How often each feature is chosen again from half of the rows",
        top=1.0,
    )


def _chance(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    return marked_histogram(
        found["random"],
        found["panel"],
        "this panel",
        x_label="explained variance on held-out rows",
        y_label="random panels",
        title=f"Explained variance of {len(found['random'])} random panels, and of this one",
    )


def _coverage(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    return marked_histogram(
        found["shares"],
        COVERED,
        f"{COVERED:.0%}",
        x_label="held-out values in their 90% interval",
        y_label="features",
        title=f"Coverage of 90% prediction intervals over {len(found['shares'])} features. "
        f"{found['sentence']}",
    )


def _contributions(about: dict[str, Any]) -> str:
    found = about["contributions"]
    if found is None:
        return ""
    tests = found["p_values"] or [0.0] * len(found["lost"])
    return bar_chart(
        [row["name"] for row in about["chosen"]],
        found["lost"],
        label="explained variance lost without it",
        title="Explained variance lost without each chosen feature",
        faded=[p > CHANCE_LEVEL for p in tests],
    )


def _target(about: dict[str, Any]) -> str:
    """Predicted against true numbers, survival by hazard, or the confusion of many classes."""
    if about["confusion"] is not None and not about["confusion"]["small"]:
        shares = np.array(about["confusion"]["shares"])
        pixels = np.zeros((*shares.shape, 4), dtype=np.uint8)
        pixels[..., :3] = COLD
        pixels[..., 3] = (255 * shares).round()
        return _png(pixels)
    if about["survival"]:
        return _survival(about)
    if not about["true"]:
        return ""
    true, predicted = np.array(about["true"]), np.array(about["predicted"])
    scale = np.where(np.ptp(true, axis=0) > 0, np.ptp(true, axis=0), 1.0)
    several = true.shape[1] > 1  # each in units of its range
    if several:
        low = true.min(axis=0)
        true, predicted = (true - low) / scale, (predicted - low) / scale
    unit = " (share of its range)" if several else ""
    return scatter(
        true.ravel(),
        predicted.ravel(),
        x_label=f"true{unit}",
        y_label=f"predicted{unit}",
        title=f"Predicted against true values of {about['name']} on {len(true)} held-out rows",
    )


def _survival(about: dict[str, Any]) -> str:
    """Kaplan and Meier's curves as steps."""
    colours = {"low": "panel", "medium": "greedy", "high": "random"}
    lines = []
    for name, (times, alive) in about["survival"].items():
        x, y = np.repeat(times, 2)[1:].tolist(), np.repeat(alive, 2)[:-1].tolist()
        lines.append(Series(f"{name} hazard", x, y, colours.get(name, "random")))
    return line_chart(
        lines,
        x_label="time",
        y_label="fraction without event",
        title=f"Survival by predicted hazard of {about['name']}",
    )


def _tradeoff(about: dict[str, Any] | None) -> str:
    if about is None or not about["tradeoff"]:
        return ""
    shares, score, explained = (about["tradeoff"][n] for n in ("reconstruct", "score", "explained"))
    order = np.argsort(explained[:-1], kind="stable")
    x, y = (np.array(values[:-1])[order].tolist() for values in (explained, score))
    return line_chart(
        [
            Series("other weights", x, y, "greedy", dots=True),
            Series("this panel", explained[-1:], score[-1:], "panel", dots=True),
        ],
        x_label="explained variance of the features",
        y_label=f"{about['kind']} of {about['name']}",
        title=f"{about['kind']} against explained variance for reconstruction weights from "
        f"{min(shares[:-1]):g} to {max(shares[:-1]):g}; this panel has {shares[-1]:g}",
    )


def _size(size: dict[str, Any] | None) -> str:
    if size is None or len(size["k"]) < 2:
        return ""
    reference = [] if size["pca"] is None else [Series("PCA", size["k"], size["pca"], "pca", True)]
    at = size["k"].index(size["chosen"])
    return line_chart(
        [
            *reference,
            Series("k features", size["k"], size["mean"], band=(size["low"], size["high"])),
            Series("", [size["chosen"]], [size["mean"][at]], dots=True),
        ],
        x_label="features measured",
        y_label="explained variance",
        title=f"Explained variance on held-out rows, ± one standard error. {size['sentence']}",
        percent=True,
    )


def _drift(check: dict[str, Any] | None) -> str:
    """The shift of the features that move most, from batch to batch."""
    if check is None or check["drift"] is None:
        return ""
    drift = check["drift"]
    places = list(range(1, len(drift["labels"]) + 1))
    roles = ("panel", "greedy", "pca", "random")
    series = [
        Series(name, places, shift, roles[at % len(roles)], dashed=at >= len(roles), dots=True)
        for at, (name, shift) in enumerate(drift["lines"].items())
    ]
    return line_chart(
        series,
        x_label="batch of rows, in order",
        y_label="shift (training sd)",
        title=f"Shift of the mean of {len(series)} features over {len(places)} batches of rows",
    )


def _training(history: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    found = []
    for strategy, rows in history.items():
        unit = "step" if rows and "step" in rows[0] else "epoch"
        charts = []
        for key, (label, options) in CURVES.items():
            kept = [row for row in rows if row.get(key) is not None]
            if len(kept) < 2:
                continue
            x, y = ([float(row[name]) for row in kept] for name in (unit, key))
            if any(b <= a for a, b in pairwise(x)):
                x = [float(at) for at in range(1, len(x) + 1)]  # several attempts in a row
            charts.append(
                line_chart(
                    [Series(label, x, y)],
                    x_label=unit,
                    y_label=label,
                    title=f"{strategy}: {label} by {unit}, from {y[0]:.3g} to {y[-1]:.3g}",
                    small=True,
                    **options,
                )
            )
        if charts:
            found.append({"strategy": strategy, "charts": charts})
    return found


def _correlation(about: dict[str, Any] | None) -> dict[str, Any] | None:
    """Blue for positive, orange for negative, opaque for strong correlations."""
    if about is None:
        return None
    R = about["matrix"][:MOST_CELLS, :MOST_CELLS]
    names = about["names"][: len(R)]
    pixels = np.zeros((*R.shape, 4), dtype=np.uint8)
    pixels[..., :3] = np.where(R[..., None] >= 0, COLD, WARM)
    pixels[..., 3] = (255 * np.abs(np.nan_to_num(R))).round()
    pairs = np.stack(np.triu_indices(len(R), 1), axis=1)
    strongest = pairs[np.argsort(-np.abs(R[tuple(pairs.T)]), kind="stable")[:PAIRS]]
    return {
        "source": _png(pixels),
        "names": names,
        "pairs": [{"one": names[a], "other": names[b], "value": R[a, b]} for a, b in strongest],
        "left_out": len(about["names"]) - len(names),
    }


def _image(about: dict[str, Any]) -> dict[str, Any] | None:
    if about["image_shape"] is None:
        return None
    height, width = about["image_shape"]
    chosen = about["features"]["chosen"].reshape(height, width)
    r2 = np.nan_to_num(about["features"]["r2"].reshape(height, width).astype(float), nan=0.0)
    strength = (255 * np.clip(r2, 0, 1)).round().astype(np.uint8)
    pixels = np.zeros((height, width, 4), dtype=np.uint8)
    pixels[..., :3], pixels[..., 3] = COLD, strength
    pixels[chosen] = (*WARM, 255)
    found: dict[str, Any] = {"map": _png(pixels), "shape": (height, width)}
    true, predicted = about["sample"]["true"], about["sample"]["predicted"]
    if len(true):
        some = np.unique(np.linspace(0, len(true) - 1, min(EXAMPLES, len(true))).astype(int))
        shape = (len(some), height, width)
        found["true"] = _grey(np.nan_to_num(true[some]).reshape(shape), true[some])
        found["predicted"] = _grey(predicted[some].reshape(shape), true[some])
        found["count"] = len(some)
    return found


def _grey(images: NDArray[Any], scale: NDArray[Any]) -> str:
    low, high = float(np.nanmin(scale)), float(np.nanmax(scale))
    level = np.clip((images - low) / max(high - low, 1e-300), 0, 1)
    tiles = mosaic(level.astype(float), columns=4)
    shade = (255 * np.nan_to_num(tiles, nan=0.0)).round().astype(np.uint8)
    pixels = np.repeat(shade[..., None], 4, axis=2)
    pixels[..., 3] = np.where(np.isnan(tiles), 0, 255)
    return _png(pixels)


def _png(pixels: NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    imsave(file, pixels, format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _cells(about: dict[str, Any] | None) -> list[list[int]] | None:
    """Correlations in hundredths, shown under the pointer."""
    if about is None:
        return None
    hundredths = np.round(100 * np.nan_to_num(about["matrix"][:MOST_CELLS, :MOST_CELLS]))
    return hundredths.astype(int).tolist()


def _rounded(values: NDArray[Any]) -> list[float | None]:
    """Four significant digits, to keep the page small."""
    return [float(f"{x:.4g}") if np.isfinite(x) else None for x in values.tolist()]


def _packed(true: NDArray[Any], predicted: NDArray[Any]) -> dict[str, Any] | None:
    """Values as integers that span the range of each feature; the largest means missing."""
    if not len(true):
        return None
    kind = np.dtype("<u2") if true.size <= MAX_16_BIT else np.dtype("u1")
    missing = np.iinfo(kind).max
    both = np.concatenate([true, predicted]).astype(np.float64)  # 2 m x d
    seen = np.isfinite(both)
    any_seen = seen.any(axis=0)
    low = np.where(any_seen, np.where(seen, both, np.inf).min(axis=0), 0.0)
    high = np.where(any_seen, np.where(seen, both, -np.inf).max(axis=0), 0.0)
    span = np.where(high > low, high - low, 1.0)
    level = np.where(seen, (np.where(seen, both, 0.0) - low) / span * (missing - 1), missing)
    codes = level.round().astype(kind).T  # d x 2 m: the values of a feature are contiguous
    return {
        "count": len(true),
        "bytes": kind.itemsize,
        "low": [float(f"{x:.9g}") for x in low],
        "high": [float(f"{x:.9g}") for x in high],
        "codes": base64.b64encode(codes.tobytes()).decode("ascii"),
    }


# -- SVG charts in the colours of the page, so that they follow dark mode -----------------------


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    role: str = "panel"  # which colour
    dashed: bool = False
    dots: bool = False
    band: tuple[Sequence[float], Sequence[float]] | None = None  # lower and upper ends


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
    """Lines labelled at their right ends, or one ``small`` unlabelled line; ``whole``: integers."""
    kept = [line for line in (_finite(line, log) for line in series) if len(line.x)]
    if not kept:
        return ""
    width, height = SMALL if small else LARGE
    right = RIGHT if small else RIGHT + max(len(line.name) for line in kept) * LETTER + 4
    x = _Axis([v for line in kept for v in line.x], LEFT, width - right)
    style = {"log": log, "percent": percent, "whole": whole}
    ends = [v for line in kept if line.band is not None for part in line.band for v in part]
    y = _Axis([*ends, *(v for line in kept for v in line.y)], height - BOTTOM, TOP, **style)
    parts = [_frame(x, y, x_label, y_label)]
    for line in kept:
        if line.band is not None:
            low, high = ([(x(a), y(b)) for a, b in zip(line.x, p, strict=True)] for p in line.band)
            around = " ".join(f"{a:.1f},{b:.1f}" for a, b in low + high[::-1])
            parts.append(f'<polygon class="band {line.role}" points="{around}"/>')
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(line.x, line.y, strict=True))
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(f'<polyline class="line {line.role}" points="{points}"{dash}/>')
        if line.dots:
            parts += [
                f'<circle class="dot {line.role}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.5"/>'
                for a, b in zip(line.x, line.y, strict=True)
            ]
    if not small:
        ends = _apart([y(line.y[-1]) for line in kept], TOP, height - BOTTOM)
        parts += [
            f'<text class="name {line.role}" x="{x(line.x[-1]) + 6:.1f}" y="{at + 4:.1f}">'
            f"{escape(line.name)}</text>"
            for line, at in zip(kept, ends, strict=True)
        ]
    return _svg(parts, title, width, height)


BELOW = (-0.12, -0.05)  # where a histogram has the bar of all values below 0


def histogram(values: Any, *, x_label: str, y_label: str, title: str, bins: int = 20) -> str:
    """Counts of values between 0 and 1; all below 0 are one bar of its own, left of the others."""
    found = np.asarray(values, dtype=float)
    negative = int((found < 0).sum())
    heights, edges = np.histogram(found[found >= 0].clip(max=1.0), bins=bins, range=(0.0, 1.0))
    width, height = LARGE
    x = _Axis([BELOW[0] if negative else 0.0, 1.0], LEFT, width - RIGHT)
    y = _Axis([0, max(int(heights.max(initial=1)), negative)], height - BOTTOM, TOP, whole=True)
    parts = [_frame(x, y, x_label, y_label)]
    bars = [
        (number, low, high, "bar", f"{low:.2f} to {high:.2f}")
        for number, low, high in zip(heights.tolist(), edges[:-1], edges[1:], strict=True)
    ]
    if negative:
        bars.append((negative, *BELOW, "bar below", "below 0"))
        parts.append(
            f'<text class="tick mid" x="{x(sum(BELOW) / 2):.1f}" y="{y.begin + 16}">&lt; 0</text>'
        )
    for number, low, high, kind, label in bars:
        if number:
            left, top, wide = x(low) + 0.5, y(number), x(high) - x(low) - 1
            parts.append(
                f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" '
                f'height="{y(0) - top:.1f}"><title>{label}: {number}</title></rect>'
            )
    return _svg(parts, title, width, height)


def marked_histogram(
    values: Sequence[float], mark: float, name: str, *, x_label: str, y_label: str, title: str
) -> str:
    """Counts of values, with a line at one that they are compared with."""
    heights, edges = np.histogram(values, bins=min(MARKED_BINS, 1 + math.isqrt(len(values))))
    width, height = LARGE
    x = _Axis([edges[0], edges[-1], mark], LEFT, width - RIGHT - len(name) * LETTER, percent=True)
    y = _Axis([0, 1.15 * int(heights.max())], height - BOTTOM, TOP, whole=True)  # a name above
    parts = [_frame(x, y, x_label, y_label)]
    for number, (low, high) in zip(heights.tolist(), pairwise(edges), strict=True):
        if number:
            parts.append(
                f'<rect class="bar random" x="{x(low) + 0.5:.1f}" y="{y(number):.1f}" '
                f'width="{max(x(high) - x(low) - 1, 0.5):.1f}" height="{y(0) - y(number):.1f}">'
                f"<title>{100 * low:.1f} to {100 * high:.1f} %: {number}</title></rect>"
            )
    parts.append(f'<path class="line panel" d="M{x(mark):.1f} {y.begin}V{TOP}"/>')
    parts.append(f'<text class="name" x="{x(mark) + 6:.1f}" y="{TOP + 8}">{escape(name)}</text>')
    return _svg(parts, title, width, height)


def bar_chart(
    names: Sequence[str],
    values: Sequence[float],
    *,
    label: str,
    title: str,
    top: float | None = None,
    faded: Sequence[bool] = (),
) -> str:
    """Percentages as bars: with their names beside them or, if they are many, under the pointer."""
    few = len(names) <= MOST_NAMED
    width, height = (LARGE[0], TOP + len(names) * BAR + BOTTOM) if few else LARGE
    shown = [_short(name) for name in names]
    start = max(len(name) for name in shown) * LETTER + 10 if few else LEFT
    most = max(*values, 1e-9) if top is None else top
    ends = (start, width - RIGHT - 8) if few else (height - BOTTOM, TOP)
    across = _Axis([min(0.0, *values), most], *ends, percent=True)
    if few:
        parts = [_upright(across, height - BOTTOM, label)]
    else:
        x = _Axis([0, len(values)], LEFT, width - RIGHT, whole=True)
        parts = [_frame(x, across, "chosen features, most useful first", label)]
    for at, (name, value) in enumerate(zip(names, values, strict=True)):
        first, last = sorted((across(value), across(0.0)))
        weak = ' opacity="0.35"' if at < len(faded) and faded[at] else ""
        if few:
            y = TOP + at * BAR
            place = f'x="{first:.1f}" y="{y + 2}" width="{last - first:.1f}" height="{BAR - 4}"'
            parts.append(
                f'<text class="tick end" x="{start - 6:.1f}" y="{y + BAR / 2 + 4:.1f}">'
                f"{escape(shown[at])}</text>"
            )
        else:
            wide = max(x(at + 1) - x(at) - 1, 0.5)
            place = f'x="{x(at) + 0.5:.1f}" y="{first:.1f}" width="{wide:.1f}" '
            place += f'height="{last - first:.1f}"'
        text = f"{escape(name)}: {100 * value:.1f} %"
        parts.append(f'<rect class="bar"{weak} {place}><title>{text}</title></rect>')
    return _svg(parts, title, width, height)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _upright(x: "_Axis", base: float, label: str) -> str:
    """The frame of bars that lie: lines at the ticks, and the label below."""
    parts = [
        f'<path class="grid" d="M{x(tick):.1f} {TOP}V{base}"/>'
        f'<text class="tick mid" x="{x(tick):.1f}" y="{base + 16}">{x.text(tick)}</text>'
        for tick in x.ticks
    ]
    middle = (x.begin + x.end) / 2
    parts.append(f'<text class="mid" x="{middle:.1f}" y="{base + 34}">{escape(label)}</text>')
    return "".join(parts)


def scatter(x: Any, y: Any, *, x_label: str, y_label: str, title: str) -> str:
    """Points, and the diagonal where both are equal."""
    width, height = LARGE
    across = _Axis([*x, *y], LEFT, width - RIGHT)
    up = _Axis([*x, *y], height - BOTTOM, TOP)
    parts = [
        _frame(across, up, x_label, y_label),
        f'<path class="same" d="M{across.begin:.1f} {up.begin:.1f}'
        f'L{across.end:.1f} {up.end:.1f}"/>',
    ]
    parts += [
        f'<circle class="point" cx="{across(a):.1f}" cy="{up(b):.1f}" r="2.5"/>'
        for a, b in zip(x, y, strict=True)
    ]
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
    return replace(line, x=x[fine].tolist(), y=y[fine].tolist())


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


# -- images of chosen pixels, and image files ---------------------------------------------------


def mosaic(images: np.ndarray, columns: int, gap: float = np.nan) -> np.ndarray:
    """Images (n, height, width) laid out in rows, with one pixel of ``gap`` between them."""
    n, height, width = images.shape
    lines = -(-n // columns)
    canvas = np.full((lines * (height + 1) - 1, columns * (width + 1) - 1), gap)
    for at, image in enumerate(images):
        top, left = (at // columns) * (height + 1), (at % columns) * (width + 1)
        canvas[top : top + height, left : left + width] = image
    return canvas


def draw_reconstructions(
    images: np.ndarray,
    rebuilt: np.ndarray,
    chosen: np.ndarray,
    *,
    columns: int = 8,
    title: str = "",
) -> Figure:
    """Four plots: chosen pixels, inputs, their measured pixels, reconstructions."""
    low, high = float(images.min()), float(images.max())
    lines = -(-len(images) // columns)
    panel = 3.3
    figure = Figure(figsize=(4 * panel, panel * lines / columns + 0.75), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 4, width_ratios=[lines / columns, 1, 1, 1])
    k, d = int(chosen.sum()), chosen.size
    titled = {
        f"(a) {k} of {d} pixels chosen": np.where(chosen, high, low),
        "(b) inputs, not seen in training": mosaic(images, columns, high),
        f"(c) the {k} values measured": mosaic(np.where(chosen, images, low), columns, high),
        "(d) reconstructed from (c) alone": mosaic(rebuilt, columns, high),
    }
    for axis, (text, picture) in zip(axes, titled.items(), strict=True):
        axis.imshow(picture, cmap="gray", vmin=low, vmax=high, interpolation="nearest")
        axis.set_title(text, fontsize=10)
        axis.set(xticks=[], yticks=[])
    spots = np.argwhere(mosaic(np.broadcast_to(chosen, images.shape).astype(float), columns, 0))
    axes[2].scatter(spots[:, 1], spots[:, 0], s=9, facecolors="none", edgecolors="#d55e00", lw=0.6)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a path that `save_figure` cannot write, before the work that leads to it."""
    known = [f".{kind}" for kind in sorted(FigureCanvasAgg.get_supported_filetypes())]
    check_suffix(Path(path), known, ", ".join(known), f".{_kind(Path(path))}")
    check_path(path)


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 150) -> Path:
    """Write a figure under a temporary name, then rename it."""
    check_target(path)
    target = Path(path)
    return write_whole(target, lambda draft: figure.savefig(draft, dpi=dpi, format=_kind(target)))


def _kind(target: Path) -> str:
    return target.suffix.removeprefix(".").lower() or "png"
