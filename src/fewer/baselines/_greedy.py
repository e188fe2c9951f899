"""Greedy forward selection on the covariance matrix."""

from typing import Any

import numpy as np
from torch import Tensor

from fewer.baselines._base import Baseline, Columns, Values
from fewer.data import Moments, Source, covariance
from fewer.search import greedy

__all__ = ["Greedy"]


class Greedy(Baseline):
    """Choose features one by one, each time the one that most lowers the linear error of all.

    `fewer.ColumnSubset` starts from this choice and improves it.

    Parameters
    ----------
    k : int or None, default=10
        How many features to choose; None to spend ``budget`` instead.
    include, exclude : lists of names or column numbers, default=()
        Features that are on the panel in any case, and features that must not be.
    costs : mapping from feature to cost, or array, default=None
        What measuring each feature costs.
    budget : float, default=None
        Most that the chosen features may cost together.
    groups : list of lists of features, or a label for each, default=None
        Features that are measured together: choosing one brings all of its group.

    Attributes
    ----------
    columns_ : ndarray of int
        The chosen columns, ascending.
    order_ : ndarray of int
        The chosen columns in the order in which they were taken.
    residuals_ : ndarray of float
        Sum over all features of the variance left unexplained after each pick.
    decoder_ : fewer.nn.MeasuredDecoder
        Least squares from the k measured values to all features.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> chosen = Greedy(k=2).fit(load_iris().data)
    >>> chosen.order_, chosen.residuals_.round(3)
    (array([2, 0]), array([0.36 , 0.144]))
    """

    residuals_: Values

    def __init__(
        self,
        k: int | None = 10,
        *,
        include: Any = (),
        exclude: Any = (),
        costs: Any = None,
        budget: float | None = None,
        groups: Any = None,
    ) -> None:
        self.k = k
        self.include = include
        self.exclude = exclude
        self.costs = costs
        self.budget = budget
        self.groups = groups

    def _check_options(self, n: int, d: int) -> None:
        self._constraints(d)

    def _choose(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Columns:
        path = greedy(covariance(source).matrix, self._constraints(source.shape[1]))
        self.residuals_ = path.errors
        return path.order

    def _extra_meta(self) -> dict[str, Any]:
        return {**super()._extra_meta(), "residuals": self.residuals_.tolist()}

    def _restore_extra(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super()._restore_extra(meta, tensors)
        self.residuals_ = np.array(meta["residuals"])
