"""Pictures for the experiments on images: chosen pixels, and images rebuilt from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewer.paper.case import Case, Values
from fewer.paper.style import new_figure
from fewer.report.figures import mosaic

__all__ = ["bare", "reconstructions"]

GREY: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "nearest"}
WIDTH, LINES = 8, 4  # images in a row, and rows


def reconstructions(case: Case, columns: np.ndarray, rebuilt: Values) -> Figure:
    """The four panels of the paper's first figure, for the first test images."""
    height, width = case.data.image_shape or (1, case.d)
    images = case.test[: WIDTH * LINES].reshape(-1, height, width)
    figure = new_figure(6.8, 4.1)
    axes = figure.subplots(2, 2)
    chosen = np.zeros((height, width))
    chosen.flat[columns] = 1
    axes[0, 0].imshow(chosen, **GREY)
    axes[0, 0].set_title(f"(a) {len(columns)} of {case.d} pixels chosen")
    axes[0, 1].imshow(mosaic(images, WIDTH, 1.0), **GREY)
    axes[0, 1].set_title("(b) test images")
    axes[1, 0].imshow(mosaic(np.zeros_like(images), WIDTH, 1.0), **GREY)
    for at, image in enumerate(images):
        x = columns % width + (at % WIDTH) * (width + 1)
        y = columns // width + (at // WIDTH) * (height + 1)
        values = image.flat[columns]
        axes[1, 0].scatter(x, y, s=3, c=values, cmap="viridis", vmin=0, vmax=1, linewidths=0)
    axes[1, 0].set_title(f"(c) the {len(columns)} values measured, dark to bright")
    shown = rebuilt[: WIDTH * LINES].clip(0, 1).reshape(-1, height, width)
    axes[1, 1].imshow(mosaic(shown, WIDTH, 1.0), **GREY)
    axes[1, 1].set_title("(d) rebuilt from (c) alone")
    for axis in axes.flat:
        bare(axis)
    return figure


def bare(axis: Axes) -> None:
    """No ticks and no frame: pixels have no units."""
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(False)
