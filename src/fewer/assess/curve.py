"""Explained variance of held-out rows against the number of features."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fewer._checks import check_whole
from fewer._tables import Table, write_table
from fewer._threads import entry_point
from fewer.assess.scoring import Rows
from fewer.errors import InputError
from fewer.search import greedy, search
from fewer.selection.context import WorkPlan

LEVELS = (0.8, 0.9, 0.95)
OURS, REFERENCE, GRID = "#0072B2", "#999999", "#dddddd"  # colour-blind safe (Okabe and Ito)


@dataclass(frozen=True)
class Curve:
    """Explained variance for each number of features; prints as a table.

    Attributes
    ----------
    k, explained_variance : lists
        Numbers of features, and the explained variance of held-out rows with a linear decoder.
    pca : list of float
        The same for k principal components, the reference that k features hardly ever beat.
    order : list
        Features, most useful first, chosen from all rows: the first k are a good panel of k.
    splits, scale
        Number of splits averaged over, and whether features were standardised.
    exact : bool
        Whether each k was searched separately, so that panels are not nested.

    Examples
    --------
    >>> found = Curve([1, 2, 4], [0.5, 0.8, 0.93], [0.6, 0.9, 0.97], [], 1, "none", False)
    >>> found.smallest_k(0.8), found.smallest_k(0.99)
    (2, None)
    """

    k: list[int]
    explained_variance: list[float]
    pca: list[float]
    order: list[Any]
    splits: int
    scale: str
    exact: bool

    def smallest_k(self, level: float) -> int | None:
        """The smallest k with at least this explained variance; None if there is none."""
        pairs = zip(self.k, self.explained_variance, strict=True)
        return next((k for k, reached in pairs if reached >= level), None)

    def describe(self) -> dict[str, Any]:
        """The curve as a dictionary that can be written as JSON."""
        return asdict(self) | {
            "smallest_k": {f"{level:g}": self.smallest_k(level) for level in LEVELS}
        }

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a figure (.png, .svg, .pdf), a table (.csv) or everything (.json)."""
        path = Path(path)
        if path.suffix.lower() in (".csv", ".json"):
            names = ("k", "explained_variance", "pca")
            columns = {name: getattr(self, name) for name in names}
            return write_table(path, columns, self.describe())
        return _draw(self, path)

    def __str__(self) -> str:
        rows = zip(self.k, self.explained_variance, self.pca, strict=True)
        cells = [(str(k), f"{ours:.1%}", f"{pca:.1%}") for k, ours, pca in rows]
        return str(Table(("k", "explained variance", "PCA (reference)"), cells, (0, 1, 2)))


@entry_point
def curve(
    data: Any,
    k: Sequence[int],
    *,
    scale: str = "standard",
    test_size: float = 0.2,
    row_groups: Any = None,
    exact: bool = False,
    random_state: Any = None,
    device: str = "auto",
    progress: Callable[[str, float], None] | None = None,
) -> Curve:
    """Explained variance of held-out rows, reconstructed from k features, for several k.

    A nested path of features is chosen on the training rows by greedy selection; for each k a
    linear decoder is fitted on the same rows and scored on the others.

    Parameters
    ----------
    k : sequence of int
        Numbers of features.
    test_size : float, default=0.2
        Fraction of rows held out; with fewer than 100 rows per feature of the largest k, 5-fold
        cross-validation is used instead.
    exact : bool, default=False
        Search each k separately, which takes longer and is slightly better.
    progress : callable, default=None
        Called as ``progress(step, fraction_done)``.
    data, scale, row_groups, random_state, device
        As in `fewer.select`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> found = curve(load_digits().data, [5, 10, 20], scale="none", random_state=0)
    >>> print(found)
     k  explained variance  PCA (reference)
     5               39.2%            54.1%
    10               60.7%            73.4%
    20               82.3%            88.9%
    >>> found.smallest_k(0.8)
    20
    """
    sizes = sorted({check_whole("k", size) for size in k})
    if not sizes:
        raise InputError("k is empty; give at least one number of features")
    plan = WorkPlan(progress)
    plan.begin("reading", "reading")
    rows = Rows(data, scale, row_groups, random_state, device)
    splits = rows.splits(sizes[-1], test_size, None)
    steps = [f"search for k = {size}" for size in sizes] if exact else ["nested path"]
    for step in steps:
        plan.expect(step, len(splits))
    plan.expect("all rows", 1)
    ours, pca = [], []
    for split in splits:
        if exact:
            panels = []
            for step, size in zip(steps, sizes, strict=True):
                plan.begin(step, step)
                panels.append(search(split.train, size, seed=rows.seed).indices)
        else:
            plan.begin("nested path", "nested path")
            order = greedy(split.train, sizes[-1]).order
            panels = [np.sort(order[:size]) for size in sizes]
        ours.append([split.explained_variance(panel) for panel in panels])
        pca.append(split.pca_explained_variance(sizes[-1])[np.array(sizes) - 1])
    plan.begin("all rows", "all rows")
    fold = splits[0].fold  # the path over all rows is in its units
    whole = replace(fold.covariances.everything, center=fold.center, scale=fold.scale)
    order = greedy(whole.matrix().to(splits[0].device), sizes[-1]).order
    return Curve(
        sizes,
        np.mean(ours, axis=0).tolist(),
        np.mean(pca, axis=0).tolist(),
        rows.named(order),
        len(splits),
        scale,
        exact,
    )


def _draw(curve: Curve, path: Path) -> Path:
    """Draw explained variance against k, beside that of PCA, into an image file."""
    # Matplotlib takes a while to import
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import PercentFormatter  # noqa: PLC0415

    from fewer.report.figures import save_figure  # noqa: PLC0415

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(curve.k, curve.pca, "--", color=REFERENCE, label="PCA (reference)")
    axes.plot(curve.k, curve.explained_variance, "-o", color=OURS, ms=4, label="k features")
    for level in LEVELS:
        size = curve.smallest_k(level)
        if size is not None:
            axes.annotate(
                f"{level:.0%} at {size}",
                (size, curve.explained_variance[curve.k.index(size)]),
                textcoords="offset points",
                xytext=(6, -12),
                fontsize=9,
                color=OURS,
            )
    axes.set(xlabel="features measured, k", ylabel="explained variance of held-out rows")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(min(0.0, *curve.explained_variance), 1.02)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return save_figure(figure, path)
