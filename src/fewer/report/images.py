"""Chosen pixels and what can be rebuilt from them, in the manner of the paper's figure 1."""

import os
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fewer._files import write_whole
from fewer.errors import InputError

__all__ = ["check_target", "draw_reconstructions", "mosaic", "save_figure"]

CHOSEN = "#d55e00"  # vermilion: told apart from greys by everybody


def mosaic(images: np.ndarray, columns: int, gap: float = np.nan) -> np.ndarray:
    """Lay images (n, height, width) out in rows, a line of ``gap`` between them.

    Examples
    --------
    >>> import numpy as np
    >>> mosaic(np.ones((4, 8, 8)), columns=2).shape
    (17, 17)
    """
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
    """Draw four panels: chosen pixels, inputs, the measured pixels of each, reconstructions.

    Parameters
    ----------
    images, rebuilt : array (n, height, width)
        Inputs and what the decoder made of their chosen pixels, on the same scale.
    chosen : array of bool (height, width)
        Which pixels were chosen.
    columns : int, default=8
        Images in a row.
    title : str, default=""
        Above everything.
    """
    low, high = float(images.min()), float(images.max())
    grey = {"cmap": "gray", "vmin": low, "vmax": high, "interpolation": "nearest"}
    lines = -(-len(images) // columns)
    panel = 3.3
    figure = Figure(figsize=(4 * panel, panel * lines / columns + 0.75), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 4, width_ratios=[lines / columns, 1, 1, 1])
    k, d = int(chosen.sum()), chosen.size
    axes[0].imshow(chosen, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes[0].set_title(f"(a) {k} of {d} pixels chosen", fontsize=10)
    axes[1].imshow(mosaic(images, columns, high), **grey)
    axes[1].set_title("(b) inputs, not seen in training", fontsize=10)
    axes[2].imshow(mosaic(np.where(chosen, images, low), columns, high), **grey)
    axes[2].set_title(f"(c) the {k} values measured", fontsize=10)
    spots = np.argwhere(mosaic(np.broadcast_to(chosen, images.shape).astype(float), columns, 0))
    axes[2].scatter(spots[:, 1], spots[:, 0], s=9, facecolors="none", edgecolors=CHOSEN, lw=0.6)
    axes[3].imshow(mosaic(rebuilt, columns, high), **grey)
    axes[3].set_title("(d) rebuilt from (c) alone", fontsize=10)
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a path that `save_figure` could not write, before the work that leads to it.

    Examples
    --------
    >>> check_target("picture.docx")
    Traceback (most recent call last):
    fewer.errors.InputError: picture.docx: pictures cannot be written as .docx; use one of ...
    """
    target = Path(path)
    known = FigureCanvasAgg.get_supported_filetypes()
    if _kind(target) not in known:
        raise InputError(
            f"{target}: pictures cannot be written as {target.suffix}; use one of "
            + ", ".join(f".{kind}" for kind in sorted(known))
        )
    if target.is_dir():
        raise InputError(
            f"{target} is a folder; name a file in it, such as {target / 'digits.png'}"
        )
    nearest = next(folder for folder in target.absolute().parents if os.path.lexists(folder))
    if not nearest.is_dir():
        raise InputError(f"{target} cannot be written: {nearest} is not a folder; choose another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(
            f"{target} cannot be written: no permission to write into {nearest}; choose another"
        )


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 150) -> Path:
    """Write a figure under a temporary name, then rename it."""
    check_target(path)
    target = Path(path)
    return write_whole(target, lambda draft: figure.savefig(draft, dpi=dpi, format=_kind(target)))


def _kind(target: Path) -> str:
    return target.suffix.removeprefix(".").lower() or "png"
