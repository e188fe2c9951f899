"""Pictures for the experiments on images: chosen pixels, and images rebuilt from them."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewer.paper.case import Case, Values
from fewer.report.images import draw_reconstructions

__all__ = ["bare", "reconstructions"]


def reconstructions(
    case: Case, columns: np.ndarray, rebuilt: Values, *, shown: int = 40, title: str = ""
) -> Figure:
    """The four panels of the paper's first figure, for the first test images."""
    shape = case.data.image_shape
    if shape is None:
        raise ValueError(f"{case.data.name} does not consist of images")
    mask = np.zeros(case.d, dtype=bool)
    mask[columns] = True
    return draw_reconstructions(
        case.test[:shown].reshape(-1, *shape),
        rebuilt[:shown].clip(0, 1).reshape(-1, *shape),
        mask.reshape(shape),
        title=title,
    )


def bare(axis: Axes) -> None:
    """No ticks: pixels have no units."""
    axis.set_xticks([])
    axis.set_yticks([])
