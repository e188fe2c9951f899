"""Methods side by side: each chooses on the training rows, all are scored on the same others."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import qr
from scipy.linalg.lapack import dpstrf

from fewer._checks import check_choice, check_whole
from fewer._display import Tabular, draw_bars
from fewer._tables import Table, write_table
from fewer._threads import entry_point
from fewer.assess.scoring import Columns, Rows
from fewer.data import ScaledSource
from fewer.data.factored import FactoredCovariance, Matrix
from fewer.estimate import (
    Estimate,
    HeldOutSums,
    fold_ridges,
    held_out_squares,
    panel_sums,
    ratio_of_sums,
    scaled_estimate,
    shared_rows,
)
from fewer.panel import Panel
from fewer.search import greedy, search
from fewer.search.eigen import leading_eigenvectors
from fewer.selection import select
from fewer.selection.context import WorkPlan
from fewer.selection.evidence.significance import random_draws
from fewer.train.device import float64_device
from fewer.validation import FOLDS, Fold

SELECT = "select"
REFERENCE = "PCA (reference)"


@dataclass(frozen=True)
class Comparison(Tabular):
    """Explained variance reached by each method, best first; prints as a table.

    Attributes
    ----------
    rows : list of dict
        For each method: method, k, explained_variance (of held-out rows), its standard_error over
        folds, overlap (fraction of features that two folds have in common), seconds, features
        (of the first fold; of "select" those of the panel).
    folds, scale
        Number of folds, and whether features were standardised.
    protocol : str
        How rows were held out.

    Examples
    --------
    >>> from fewer.assess import compare
    >>> from sklearn.datasets import load_wine
    >>> found = compare(load_wine().data, 3, methods=["greedy", "random"])
    >>> [row["method"] for row in found.rows if row["method"] != "random"][-1]
    'greedy'
    """

    rows: list[dict[str, Any]]
    folds: int
    scale: str
    protocol: str

    def describe(self) -> dict[str, Any]:
        """The comparison as a dictionary that can be written as JSON."""
        return asdict(self)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the table (.csv) or everything (.json)."""
        return write_table(Path(path), self.columns(), self.describe())

    def columns(self) -> dict[str, list[Any]]:
        """The rows as columns of values; see also `to_frame`."""
        names = ("method", "k", "explained_variance", "standard_error", "overlap", "seconds")
        return {name: [row[name] for row in self.rows] for name in names}

    def plot(self, axes: Any = None) -> Any:
        """Draw the explained variance of each method as a bar, with its standard error.

        Parameters
        ----------
        axes : matplotlib Axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib Axes
        """
        found = self.columns()
        what = "explained variance of held-out rows"
        return draw_bars(
            axes,
            found["method"],
            found["explained_variance"],
            what,
            errors=found["standard_error"],
            grey=[REFERENCE],
        )

    def __str__(self) -> str:
        return str(self.table())

    def table(self) -> Table:
        """The rows as text."""
        header = ("method", "k", "explained variance", "±", "overlap", "seconds")
        rows = [
            (
                row["method"],
                str(row["k"]),
                f"{row['explained_variance']:.1%}",
                _or_blank(row["standard_error"], ".1%"),
                _or_blank(row["overlap"], ".0%"),
                _or_blank(row["seconds"], ".1f"),
            )
            for row in self.rows
        ]
        return Table(header, rows, range(1, len(header)))


@entry_point
def compare(
    data: Any,
    k: int,
    *,
    methods: Sequence[str] | None = None,
    panels: Mapping[str, Sequence[Any] | Panel] | None = None,
    scale: str = "standard",
    folds: int = FOLDS,
    validation: Any = "auto",
    row_groups: Any = None,
    random_state: Any = None,
    device: str = "auto",
    progress: Callable[[str, float], None] | None = None,
) -> Comparison:
    """Choose k features by several methods and score them on held-out rows.

    Methods choose on the training rows of each fold, and are scored on its held-out rows by the
    same linear decoder, fitted on the training rows; where rows are few, with the ridge penalty
    that does best on the other folds. "select" is scored by `fewer.select` itself, in the same
    way, so that the number is that of its panel.

    Parameters
    ----------
    k : int
        Number of features.
    methods : sequence of str, default=None
        Some of `METHODS`; all if None.
    panels : mapping from name to list of features or Panel, default=None
        Panels of your own to compare; they need not have k features. Their features are the same
        on all folds, which flatters them if they were chosen with these rows in view; a `Panel`
        that was made from these rows has the score that it was made with.
    folds : int, default=5
        Number of folds of the cross-validation, at least 2.
    validation : float, int, "time", "blocks", "auto" or array of n bool, default="auto"
        Which rows are held out instead, as in `fewer.select`.
    progress : callable, default=None
        Called as ``progress(step, fraction_done)``.
    data, scale, row_groups, random_state, device
        As in `fewer.select`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data[:, 16:40]  # three rows of pixels
    >>> found = compare(X, 5, methods=["search", "random"], scale="none", random_state=0)
    >>> [row["method"] for row in found.rows]
    ['PCA (reference)', 'search', 'random']
    """
    names = list(METHODS) if methods is None else list(methods)
    for name in names:
        check_choice("methods", name, list(METHODS))
    plan = WorkPlan(progress)
    plan.begin("reading", "reading")
    rows = Rows(data, scale, row_groups, random_state, device, folds, validation=validation)
    check_whole("k", k, 1, rows.d, ", the number of features")
    parts = rows.covariances.folds
    for name in names:
        plan.expect(name, len(parts))
    found = []
    for name, given in (panels or {}).items():
        columns, score = rows.judged(given)
        found.append(_row(name, len(columns), score, features=rows.named(columns)))
    for name in names:
        began = time.perf_counter()
        if name == SELECT:
            plan.begin(name, name)
            panel = select(rows.source, k, **rows.options)
            score, chosen = panel.estimates[rows.metric], [[one] for one in panel.fold_panels or ()]
            features = panel.features
        else:
            chosen = []
            for part in parts:
                plan.begin(name, name)
                chosen.append(CHOICES[name](rows, part, k, rows.seed))
            # several panels per fold, such as random draws: their mean counts
            sums = [_sums(rows, list(draw)) for draw in zip(*chosen, strict=True)]
            merged = [
                each[0]._replace(wrong=[one.wrong[0] for one in each])
                for each in zip(*sums, strict=True)
            ]
            score = rows.with_error(scaled_estimate(parts, merged), chosen[0])
            features = rows.named(chosen[0][0])
        seconds = time.perf_counter() - began
        overlap = _overlap([draws[0] for draws in chosen])
        found.append(_row(name, k, score, features, seconds, overlap))
    found.append(_row(REFERENCE, k, _pca(rows, k)))
    found.sort(key=lambda row: -row["explained_variance"])
    return Comparison(found, len(parts), scale, rows.protocol)


def _sums(rows: Rows, panels: list[Columns]) -> list[HeldOutSums]:
    ridges = fold_ridges(rows.covariances.folds, panels, rows.n)
    return panel_sums(rows.covariances, panels, ridges)


def _pca(rows: Rows, k: int) -> Estimate:
    folds, device = rows.covariances.folds, float64_device(rows.home)
    wrong, total = [], []
    for fold, squares in zip(folds, held_out_squares(folds), strict=True):
        vectors = leading_eigenvectors(fold.matrix(), k, device=device)
        kept = float((vectors * fold.held_product(vectors)).sum())
        wrong.append(fold.n_held * (float(fold.held_diagonal.sum()) - kept))
        total.append(float((squares / fold.scale**2).sum()))
    found = ratio_of_sums(np.array(wrong), np.array(total), shared_rows(folds))
    return rows.with_error(found, axes=vectors)


def _row(
    method: str,
    k: int,
    score: Estimate,
    features: list[Any] | None = None,
    seconds: float | None = None,
    overlap: float | None = None,
) -> dict[str, Any]:
    row = {"method": method, "k": k, "explained_variance": score.value}
    row["standard_error"] = score.standard_error
    return row | {"overlap": overlap, "seconds": seconds, "features": features}


def _overlap(panels: list[Columns]) -> float | None:
    """Fraction of features that two panels have in common, averaged over pairs of folds."""
    pairs = [len(np.intersect1d(a, b)) / max(len(a), len(b)) for a, b in combinations(panels, 2)]
    return float(np.mean(pairs)) if pairs else None


def _or_blank(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


# -- methods: from rows, a fold, k and a seed to panels of ascending column numbers -----------
# simple ones work on the covariance, which never needs all rows in memory as `fewer.baselines` do


def _matrix(rows: Rows, fold: Fold) -> Matrix:
    return fold.matrix().to(float64_device(rows.home))


def _search(rows: Rows, fold: Fold, k: int, seed: int) -> list[Columns]:
    return [search(_matrix(rows, fold), k, seed=seed).indices]


def _concrete(rows: Rows, fold: Fold, k: int, seed: int) -> list[Columns]:
    from fewer.estimators import ConcreteAutoencoder  # noqa: PLC0415 (loads scikit-learn)

    scaled = ScaledSource(rows.train(fold), fold.center, fold.scale)
    model = ConcreteAutoencoder(k, random_state=seed, device=str(rows.home))
    return [model.fit(scaled).columns_]


def _greedy(rows: Rows, fold: Fold, k: int, seed: int) -> list[Columns]:
    return [greedy(_matrix(rows, fold), k).panel()]


def _pivoted_qr(rows: Rows, fold: Fold, k: int, seed: int) -> list[Columns]:
    C = fold.matrix().cpu()
    if isinstance(C, FactoredCovariance):
        pivots = qr(C.rows.numpy(), mode="r", pivoting=True)[1]
    else:
        # the pivots of QR on centred rows are those of Cholesky on their covariance
        pivots = dpstrf(C.numpy(), tol=0.0)[1] - 1
    return [np.sort(pivots[:k].astype(np.int64))]


def _variance(rows: Rows, fold: Fold, k: int, seed: int) -> list[Columns]:
    # in the units of the data, since scaled features all have the same variance
    own = fold.variance * fold.scale**2
    return [np.sort(np.argsort(-own, kind="stable")[:k])]


def _random(rows: Rows, fold: Fold, k: int, seed: int) -> list[Columns]:
    folds = rows.covariances.folds
    draws = random_draws([k] * len(folds), np.arange(rows.d), seed)
    return [draw[fold.number or 0] for draw in draws]


CHOICES: dict[str, Callable[[Rows, Fold, int, int], list[Columns]]] = {
    "search": _search,
    "concrete autoencoder": _concrete,
    "greedy": _greedy,
    "pivoted QR": _pivoted_qr,
    "variance": _variance,
    "random": _random,
}

METHODS = (SELECT, *CHOICES)
