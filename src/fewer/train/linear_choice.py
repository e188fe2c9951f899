r"""What held-out rows say about the search for a linear decoder: its penalty, and if to trust it.

The search minimises the error on the rows that it sees. With many rows that is the error on new
rows, too. Where rows are few, or where tails are heavy, so that a few values make up much of the
variance, it fits what will not come again: a panel that is 5% better on the training rows may have
twice the error of greedy selection on others. There, greedy selection and swaps compete on folds,
each with the penalties that do best.

How many rows count follows from the largest deviation of each feature. Of n normal values it is
about :math:`\sigma \sqrt{2 \log n}`, so that

.. math:: n_\mathrm{eff} = \min\left(n, \; n \, \frac{2 \log n \sum_j \sigma_j^2}
    {\sum_j \max_i (x_{ij} - \mu_j)^2}\right)

Rows that resemble their neighbours, as those of one patient or one hour do, count as fewer, too: in
proportion to how much they differ from the next row, relative to any two rows. Folds are then runs
of rows, so that what is alike is held out together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.constraints import Constraints
from fewer.data import Moments, Source
from fewer.distributed import on_rank0
from fewer.search import greedy, swap
from fewer.validation import (
    FOLDS,
    RIDGES,
    ROWS_PER_FEATURE,
    Fold,
    fold_covariances,
    split_rows,
)

__all__ = [
    "LinearChoice",
    "Trust",
    "choose_linear",
    "difference_of_neighbours",
    "effective_rows",
]

Trust = Literal["all", "search", "swaps", "greedy"]

FEWEST = 10  # rows per feature: with fewer, a long search fits them rather than what is behind them
ALIKE = 0.5  # of the variance: rows that differ less from the next one do not stand alone
RUNS, RUN = 16, 64  # runs of neighbouring rows that show this, and rows in each
CLEARLY = 0.995  # of a held-out error: what lowers it less is chance


@dataclass(frozen=True)
class LinearChoice:
    """The penalty of search and decoder, and what to trust.

    "all" is any panel with a lower residual, "search" that of a search, "swaps" what swaps make of
    the panel of greedy selection, which is all that folds compare, and "greedy" that panel itself.
    """

    ridge: float = 0.0
    trust: Trust = "all"


def effective_rows(stats: Moments) -> float:
    """The number of rows, less where a few values make up much of the variance."""
    far = np.maximum(stats.maximum - stats.mean, stats.mean - stats.minimum)
    largest, total = float(np.square(far).sum()), float(stats.variance.sum())
    if stats.n < 2 or largest == 0:
        return float(stats.n)
    return stats.n * min(1.0, 2 * np.log(stats.n) * total / largest)


def difference_of_neighbours(source: Source, stats: Moments) -> float:
    """How much rows differ from the next, relative to any two rows: 1 if order means nothing."""
    starts = np.linspace(0, max(stats.n - RUN, 0), RUNS).astype(np.int64)
    index = np.unique(np.add.outer(starts, np.arange(min(RUN, stats.n))))
    x = source.rows(index, torch.float64)
    apart = (x[1:] - x[:-1])[torch.from_numpy(np.diff(index) == 1)].square().nanmean(0) / 2
    variance = torch.from_numpy(stats.variance)
    total = float(variance.sum())
    return float(torch.where(apart.isnan(), variance, apart).sum()) / total if total else 1.0


def choose_linear(
    source: Source,
    stats: Moments,
    constraints: Constraints,
    *,
    seed: int,
    device: torch.device,
) -> LinearChoice:
    """What does best on held-out rows; the search without penalty where rows are many."""
    if constraints.only_choice or stats.n < 2:
        return LinearChoice()
    apart = on_rank0(lambda: difference_of_neighbours(source, stats))
    alike = apart < ALIKE
    per_feature = effective_rows(stats) * (apart if alike else 1.0) / constraints.most_units
    if per_feature >= ROWS_PER_FEATURE:
        return LinearChoice()
    runs = np.arange(stats.n) * FOLDS // stats.n if alike else None
    folds = fold_covariances(source, split_rows(stats.n, FOLDS, seed, runs), device=device).folds
    return on_rank0(
        lambda: _chosen(folds, constraints, "search" if per_feature >= FEWEST else "swaps")
    )


def _chosen(folds: Sequence[Fold], constraints: Constraints, trust: Trust) -> LinearChoice:
    unit = float(np.mean(folds[0].variance))
    penalties = [ridge * unit for ridge in RIDGES]
    first, plain = [], []  # panels of greedy selection, and after swaps
    thorough = not folds[0].covariances.factored  # of very many features, promising ones are enough
    for fold in folds:
        C = fold.matrix()
        first.append(greedy(C, constraints).panel())
        plain.append(swap(C, first[-1], constraints, thorough=thorough).indices)
    by_greedy, by_swaps = (
        _log_errors(folds, panels, constraints, penalties) for panels in (first, plain)
    )
    at, rival = _clearly_best(by_swaps), _clearly_best(by_greedy)
    best = by_swaps[:, at]
    if at:
        options: dict[str, Any] = {"ridge": penalties[at], "thorough": thorough}
        panels = [
            swap(fold.matrix(), panel, constraints, **options).indices
            for fold, panel in zip(folds, first, strict=True)
        ]
        best = _log_errors(folds, panels, constraints, penalties[at : at + 1])[:, 0]
    # a few extreme rows may decide a fold, but hardly half of the folds
    if np.median(best - by_greedy[:, rival]) > -np.log(CLEARLY):
        return LinearChoice(penalties[rival], "greedy")
    return LinearChoice(penalties[at], trust)


def _log_errors(
    folds: Sequence[Fold],
    panels: Sequence[NDArray[np.int64]],
    constraints: Constraints,
    penalties: Sequence[float],
) -> NDArray[np.float64]:
    """Logarithms of held-out errors, including the prices of panels: folds x penalties."""
    rows = []
    for fold, panel in zip(folds, panels, strict=True):
        price = constraints.price(panel) / constraints.d
        rows.append(np.array(fold.errors(panel, penalties)) + price)
    return np.log(np.maximum(rows, np.finfo(float).tiny))


def _clearly_best(errors: NDArray[np.float64]) -> int:
    """The penalty that does best on most folds; the first, none, unless it is clearly better."""
    change = np.median(errors - errors[:, :1], axis=0)
    best = int(np.argmin(change))
    return best if change[best] < np.log(CLEARLY) else 0
