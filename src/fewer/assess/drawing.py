"""The curve over k as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fewer.report.images import check_target, save_figure

if TYPE_CHECKING:
    from fewer.assess.curve import Curve

__all__ = ["draw_curve"]

# colour-blind safe (Okabe and Ito)
OURS, BOUND, GRID = "#0072B2", "#999999", "#dddddd"


def draw_curve(curve: "Curve", path: Path) -> Path:
    """Draw share of variance against k, with the bound of PCA, into a picture file."""
    check_target(path)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(curve.k, curve.pca, color=BOUND, linestyle="--", label="k principal components")
    axes.plot(curve.k, curve.share, color=OURS, marker="o", markersize=4, label="k features")
    for level in (0.8, 0.9, 0.95):
        size = curve.reaches(level)
        if size is not None:
            axes.annotate(
                f"{level:.0%} at {size}",
                (size, curve.share[curve.k.index(size)]),
                textcoords="offset points",
                xytext=(6, -12),
                fontsize=9,
                color=OURS,
            )
    axes.set_xlabel("features measured, k")
    axes.set_ylabel("variance of held-out rows reconstructed")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(min(0.0, *curve.share), 1.02)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return save_figure(figure, path)
