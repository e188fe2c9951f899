"""How pages look: Markdown tables, figures legible at column width, a colour for each method."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from paper.case import Case, Columns, Values
from paper.methods import METHODS

__all__ = [
    "COLUMN",
    "GREY",
    "PALETTE",
    "PIXEL_COLOURS",
    "bare",
    "curve",
    "log_axis",
    "markdown",
    "mosaic",
    "new_figure",
    "reconstructions",
    "save_both",
    "spread",
    "style",
]

COLUMN = 3.3  # inches: the width of a column of a paper
# Okabe and Ito's colours, which colour-blind readers can tell apart
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
PIXEL_COLOURS = PALETTE[:7]
GREY: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "nearest"}
WIDTH, LINES = 8, 4  # images in a row, and rows
SETTINGS: Any = {
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


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out as a Markdown table that is legible as plain text too."""
    widths = [max(3, *(len(line[at]) for line in [head, *rows])) for at in range(len(head))]
    lines = [_line([text.ljust(w) for text, w in zip(head, widths, strict=True)])]
    lines.append(_line(["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]))
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(w) for text, w in zip(row[1:], widths[1:], strict=True)]
        lines.append(_line(cells))
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation over seeds, such as "0.025 ± 0.007"."""
    mean = f"{np.mean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


@contextmanager
def style() -> Iterator[None]:
    """Draw and save within this."""
    with rc_context(SETTINGS):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of this size in inches, in the style of all others."""
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
    written = []
    for kind in ("png", "svg"):
        path, draft = folder / f"{stem}.{kind}", folder / f".{stem}.{os.getpid()}.{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(draft, dpi=200)
        os.replace(draft, path)
        written.append(path)
    return written


def reconstructions(case: Case, columns: Columns, reconstructed: Values) -> Figure:
    """The four panels of the paper's first figure, for the first test images."""
    height, width = case.data.image_shape or (1, case.d)
    images = case.test[: WIDTH * LINES].reshape(-1, height, width)
    figure = new_figure(6.8, 4.1)
    axes = figure.subplots(2, 2)
    chosen = np.zeros((height, width))
    chosen.flat[columns] = 1
    axes[0, 0].imshow(chosen, **GREY)
    axes[0, 0].set_title(f"(a) {len(columns)} of {case.d} pixels chosen")
    axes[0, 1].imshow(mosaic(images, WIDTH), **GREY)
    axes[0, 1].set_title("(b) test images")
    axes[1, 0].imshow(mosaic(np.zeros_like(images), WIDTH), **GREY)
    for at, image in enumerate(images):
        x = columns % width + (at % WIDTH) * (width + 1)
        y = columns // width + (at // WIDTH) * (height + 1)
        values = image.flat[columns]
        axes[1, 0].scatter(x, y, s=3, c=values, cmap="viridis", vmin=0, vmax=1, linewidths=0)
    axes[1, 0].set_title(f"(c) the {len(columns)} measured values, dark to bright")
    shown = reconstructed[: WIDTH * LINES].clip(0, 1).reshape(-1, height, width)
    axes[1, 1].imshow(mosaic(shown, WIDTH), **GREY)
    axes[1, 1].set_title("(d) reconstructed from (c) alone")
    for axis in axes.flat:
        bare(axis)
    return figure


def mosaic(images: Values, columns: int) -> Values:
    """Lay images (n, height, width) out in rows, with a white line between them."""
    n, height, width = images.shape
    lines = -(-n // columns)
    canvas = np.ones((lines * (height + 1) - 1, columns * (width + 1) - 1))
    for at, image in enumerate(images):
        top, left = (at // columns) * (height + 1), (at % columns) * (width + 1)
        canvas[top : top + height, left : left + width] = image
    return canvas


def bare(axis: Axes) -> None:
    """No ticks and no frame: pixels have no units."""
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(False)
