"""How figures look: legible at column width, the same colour for the same method everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fewer.paper.methods import METHODS
from fewer.report.figures import save_figure

__all__ = [
    "COLUMN",
    "PALETTE",
    "PIXEL_COLOURS",
    "curve",
    "log_axis",
    "new_figure",
    "save_both",
    "style",
]

COLUMN = 3.3  # inches: the width of a column of a paper
# Okabe and Ito's colours, told apart by people who do not see all colours
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
PIXEL_COLOURS = PALETTE[:7]
RULES: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "svg.hashsalt": "fewer",  # the same figure gives the same file
}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save within this."""
    with rc_context(RULES):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of so many inches, in the style of all others."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def curve(axis: Axes, name: str, x: Iterable[float], y: Iterable[float], **options: Any) -> None:
    """Draw a method's curve in its own colour and marker."""
    method = METHODS[name]
    ours = name == "select"
    axis.plot(
        list(x),
        list(y),
        color=method.colour,
        marker=method.marker,
        label=method.label,
        linestyle="--" if method.family == "bound" else "-",
        linewidth=1.8 if ours else 1.1,
        markersize=7 if ours else 4,
        zorder=3 if ours else 2,
        **options,
    )


def log_axis(axes: Axes, which: str, subs: tuple[float, ...] = (1, 2, 5)) -> None:
    """Make the x or y axis logarithmic, with plain numbers at 1, 2, 5, 10, ..."""
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def save_both(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write PNG, for a screen, and SVG, for print."""
    return [save_figure(figure, folder / f"{stem}.{kind}", dpi=200) for kind in ("png", "svg")]
