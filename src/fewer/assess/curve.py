"""Explained variance of held-out rows against the number of features."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer._checks import check_whole
from fewer._display import Tabular, new_axes
from fewer._tables import Table, write_table
from fewer._threads import entry_point
from fewer.assess.scoring import Rows
from fewer.constraints import resolve
from fewer.errors import InputError
from fewer.estimate import Estimate
from fewer.search import greedy
from fewer.selection import select
from fewer.selection.context import WorkPlan
from fewer.selection.size import elbow, few_groups, noise_limit, size_path
from fewer.train.device import float64_device
from fewer.validation import FOLDS

QUANTILES = (0.1, 0.5, 0.9)  # of R² over the features
LEVELS = (0.8, 0.9, 0.95)
FEW_SIZES = 3  # up to which each is chosen as `select` does
OURS, REFERENCE, GRID = "#0072B2", "#999999", "#dddddd"  # colour-blind safe (Okabe and Ito)


@dataclass(frozen=True, eq=False)
class Curve(Tabular):
    """Explained variance for each number of features, with standard errors; prints as a table.

    Attributes
    ----------
    k, explained_variance, standard_error : lists
        Numbers of features, the explained variance of held-out rows with a linear decoder, and its
        standard error over the folds.
    pca : list of float or None
        The same for k principal components, the reference that k features hardly ever beat; None
        with a target.
    r2 : ndarray of shape (len(k), n_features)
        R² of each feature on held-out rows, at each k; NaN where it is constant. With a target, of
        its numbers or classes.
    r2_standard_error : ndarray of the same shape
        Its standard error over the folds, of nested panels.
    order : list
        Features, most useful first, chosen from all rows: the first k are a good panel of k.
    noise : int or None
        The k after which no feature explains others (the target, if there is one) better than
        permuted columns do (parallel analysis); None if it is beyond the largest k, or not tested.
    few_groups : int or None
        How many groups of rows there are, where they are too few for that test, which permutes one
        row of each.
    folds, scale
        Number of folds, and whether features were standardised.
    exact : bool
        Whether each k was chosen as `fewer.select` does, so that panels are not nested.
    protocol : str
        How rows were held out.
    target : str or None
        Name of the target, whose explained variance it is then, by a linear map; of classes, that
        of their indicators, each class counting the same.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> found = curve(load_wine().data, range(1, 11), random_state=0)
    >>> found.smallest_k(0.5), found.smallest_k(0.99)
    (3, None)
    >>> found.rules()
    {'one_standard_error': 10, 'elbow': 4, 'noise': 8}
    """

    k: list[int]
    explained_variance: list[float]
    standard_error: list[float | None]
    pca: list[float] | None
    r2: NDArray[np.float64]
    r2_standard_error: NDArray[np.float64]
    order: list[Any]
    noise: int | None
    folds: int
    scale: str
    exact: bool
    protocol: str
    target: str | None = None
    few_groups: int | None = None

    def smallest_k(self, level: float) -> int | None:
        """The smallest k with at least this explained variance; None if there is none."""
        pairs = zip(self.k, self.explained_variance, strict=True)
        return next((k for k, reached in pairs if reached >= level), None)

    def rules(self) -> dict[str, int | None]:
        """The k that each rule suggests.

        "one_standard_error": the smallest k within one standard error of the best. "elbow": where
        the curve is farthest above the line between its ends. "noise": see the attribute.
        """
        best = int(np.argmax(self.explained_variance))
        least = self.explained_variance[best] - (self.standard_error[best] or 0.0)
        return {
            "one_standard_error": self.smallest_k(least),
            "elbow": elbow(self.k, self.explained_variance),
            "noise": self.noise,
        }

    def describe(self) -> dict[str, Any]:
        """The curve as a dictionary that can be written as JSON; of R², some quantiles."""
        arrays = ("r2", "r2_standard_error")
        found = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in arrays
        }
        return found | {
            "r2_quantiles": self.r2_quantiles(),
            "smallest_k": {f"{level:g}": self.smallest_k(level) for level in LEVELS},
            "rules": self.rules(),
        }

    def r2_quantiles(self) -> dict[str, list[float]]:
        """The 10%, 50% and 90% quantiles of R² over all features that vary, at each k."""
        varying = self.r2[:, ~np.isnan(self.r2).any(axis=0)]
        found = np.quantile(varying, QUANTILES, axis=1)
        return {f"{q:g}": row.tolist() for q, row in zip(QUANTILES, found, strict=True)}

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a figure (.png, .svg, .pdf), a table (.csv) or everything (.json)."""
        path = Path(path)
        if path.suffix.lower() in (".csv", ".json"):
            return write_table(path, self.columns(), self.describe())
        # Matplotlib takes a while to import
        from matplotlib.figure import Figure  # noqa: PLC0415

        from fewer.report.figures import save_figure  # noqa: PLC0415

        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        self.plot(figure.subplots())
        return save_figure(figure, path)

    def columns(self) -> dict[str, list[Any]]:
        """The curve as columns of numbers; see also `to_frame`."""
        names = ("k", "explained_variance", "standard_error", "pca")
        columns = {name: getattr(self, name) for name in names if getattr(self, name)}
        return columns | {"median_r2": self.r2_quantiles()["0.5"]}

    def plot(self, axes: Any = None) -> Any:
        """Draw explained variance against k, beside that of PCA.

        Parameters
        ----------
        axes : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib Axes
        """
        return _draw(self, new_axes(axes))

    def __str__(self) -> str:
        return str(self.table())

    def table(self) -> Table:
        """The scores as text."""
        columns = [
            ("k", [str(k) for k in self.k]),
            ("explained variance", [f"{value:.1%}" for value in self.explained_variance]),
            ("±", ["" if error is None else f"{error:.1%}" for error in self.standard_error]),
        ]
        if self.pca is not None:
            columns.append(("PCA (reference)", [f"{value:.1%}" for value in self.pca]))
        header, cells = zip(*columns, strict=True)
        return Table(header, list(zip(*cells, strict=True)), range(len(header)))


@entry_point
def curve(
    data: Any,
    k: Iterable[int],
    *,
    target: Any = None,
    target_kind: Any = "auto",
    scale: str = "standard",
    folds: int = FOLDS,
    validation: Any = "auto",
    row_groups: Any = None,
    exact: bool | None = None,
    random_state: Any = None,
    device: str = "auto",
    progress: Callable[[str, float], None] | None = None,
) -> Curve:
    """Explained variance of held-out rows, reconstructed from k features, for several k.

    In each fold, one nested path of features is chosen on the training rows by greedy selection;
    swaps improve it at a few sizes, from where it continues. One factorisation then scores
    linear decoders from the first k features, for every k, on the held-out rows. With fewer than
    100 rows per feature, ridge penalties are chosen on the other folds.

    Parameters
    ----------
    k : iterable of int
        Numbers of features.
    target : array of length n or (n, m), or name of a column, default=None
        Choose features for a linear map to this, as in `fewer.select`, and score how much of its
        variance that explains. Paths are nested then, also for few k.
    target_kind : "auto" or the name of a kind, default="auto"
        How the target is read, as in `fewer.select`.
    folds : int, default=5
        Number of folds of the cross-validation, at least 2.
    validation : float, int, "time", "blocks", "auto" or array of n bool, default="auto"
        Which rows are held out instead, as in `fewer.select`. Where it is a single part of them,
        each k is chosen separately unless there is a target.
    exact : bool, default=None
        Choose and score each k separately, as `fewer.select` does: slower and slightly better. By
        default for up to three numbers, which then are those of `fewer.select`.
    progress : callable, default=None
        Called as ``progress(step, fraction_done)``.
    data, scale, row_groups, random_state, device
        As in `fewer.select`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> found = curve(load_digits().data, [2, 5, 10, 20], scale="none", random_state=0)
    >>> print(found)
     k  explained variance     ±  PCA (reference)
     2               19.5%  0.5%            28.1%
     5               39.3%  1.0%            54.0%
    10               63.0%  0.3%            73.3%
    20               82.7%  0.3%            88.9%
    >>> found.smallest_k(0.8)
    20
    """
    sizes = sorted({check_whole("k", size) for size in k})
    if not sizes:
        raise InputError("k is empty; give at least one number of features")
    if exact and target is not None:
        raise InputError("exact=True cannot be combined with a target; leave one of them out")
    plan = WorkPlan(progress)
    plan.begin("reading", "reading")
    rows = Rows(
        data, scale, row_groups, random_state, device, folds, target, validation, target_kind
    )
    if exact is None:
        exact = (len(sizes) <= FEW_SIZES or rows.one_part) and target is None
    check_whole("k", sizes[-1], 1, rows.d, ", the number of features")
    covariances = rows.covariances
    plan.expect("fold", len(covariances.folds))
    plan.expect("all rows", 1)
    plan.expect("select", len(sizes) if exact else 0)
    constraints = resolve(None, rows.d, sizes[-1])
    place = float64_device(rows.home)
    begin = partial(plan.begin, "fold", "nested path")
    more = rows.more
    path = size_path(covariances, constraints, sizes, place, targets=more, begin=begin)
    plan.begin("all rows", "all rows")
    C = rows.objective(covariances.everything)
    order = greedy(C.to(place), constraints.followed_by(more)).order
    few, noise = few_groups(rows.groups), None
    if few is None:
        noise = noise_limit(
            covariances, constraints, sizes[-1], rows.seed, rows.groups, targets=more
        )
    scores = [Estimate(*pair) for pair in zip(path.mean, path.standard_error, strict=True)]
    r2 = path.r2
    if exact:
        for at, size in enumerate(sizes):
            plan.begin("select", f"k = {size}")
            panel = select(rows.source, size, **rows.options)
            scores[at] = panel.estimates[rows.metric]
            with np.errstate(divide="ignore", invalid="ignore"):
                r2[at] = 1 - panel.held_out.errors / rows.stats.variance
        r2[:, rows.stats.constant] = np.nan
    return Curve(
        k=sizes,
        explained_variance=[float(one.value) for one in scores],
        standard_error=[
            None if one.standard_error is None else float(one.standard_error) for one in scores
        ],
        pca=None if more else path.pca.tolist(),
        r2=r2,
        r2_standard_error=path.r2_error,
        order=rows.named(order),
        noise=noise,
        folds=len(covariances.folds),
        scale=scale,
        exact=exact,
        protocol=rows.protocol,
        target=rows.target,
        few_groups=few,
    )


def _draw(curve: Curve, axes: Any) -> Any:
    """Draw explained variance against k, beside that of PCA."""
    from matplotlib.ticker import PercentFormatter  # noqa: PLC0415 (slow to import)

    if curve.pca is not None:
        axes.plot(curve.k, curve.pca, "--", color=REFERENCE, label="PCA (reference)")
    axes.plot(curve.k, curve.explained_variance, "-o", color=OURS, ms=4, label="k features")
    if None not in curve.standard_error:
        mean, error = np.array(curve.explained_variance), np.array(curve.standard_error, float)
        axes.fill_between(curve.k, mean - error, mean + error, color=OURS, alpha=0.2, lw=0)
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
    what = "" if curve.target is None else f" of {curve.target},"
    axes.set(xlabel="features measured, k", ylabel=f"explained variance{what} of held-out rows")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(min(0.0, *curve.explained_variance), 1.02)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return axes
