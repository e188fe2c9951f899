"""Figures: SVG and PNG for the page, the data its script draws from, and image files."""

import base64
import io
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray

from fewer._checks import check_suffix
from fewer._files import check_path, write_whole
from fewer.report.charts import Series, histogram, line_chart

__all__ = ["check_target", "draw_reconstructions", "embedded", "figures", "save_figure"]

LINES = {"panel": "this panel", "greedy": "greedy", "pca": "PCA"}
CURVES: dict[str, tuple[str, dict[str, bool]]] = {
    "loss": ("loss", {}),
    "temperature": ("temperature", {"log": True}),
    "mean_max_probability": ("mean max probability", {}),
    "distinct": ("distinct features", {"whole": True}),
}
MOST_CELLS = 60  # chosen features on the correlation map
PAIRS = 3  # of chosen features, named below the map
EXAMPLES = 16
WARM, COLD = (213, 94, 0), (0, 114, 178)  # of Okabe and Ito
MAX_16_BIT = 400_000  # entries: beyond this, 8 bits per value keep the page small


def figures(about: dict[str, Any]) -> dict[str, Any]:
    """SVG and PNG of every figure that the panel has data for."""
    return {
        "histogram": _reconstructability(about),
        "curve": _curve(about["curve"]),
        "training": _training(about["history"]),
        "correlation": _correlation(about["correlation"]),
        "image": _image(about),
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
        title=f"Histogram of R² over the {len(others)} features that are not measured; median "
        f"{np.median(others):.2f}. Values below 0 are counted in the first bin.",
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
        title=f"Explained variance of held-out rows for up to {curve['k'][-1]} features: "
        + reached,
        percent=True,
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
    """True and predicted values as integers that span the range of each feature.

    The largest integer stands for a missing value.
    """
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
    """Four plots: chosen pixels, inputs, their measured pixels, reconstructions.

    ``images`` and ``rebuilt`` are (n, height, width) on one scale, ``chosen`` is a mask of pixels.
    """
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
