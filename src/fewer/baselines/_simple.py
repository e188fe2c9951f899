"""Four simple methods: features at random, by variance, by pivoted QR, and greedily."""

from typing import Any, ClassVar

import numpy as np
from scipy.linalg import qr

from fewer.baselines._base import Baseline, Columns, RankingBaseline, SubsetBaseline, Values
from fewer.data import Moments, Source, covariance
from fewer.search import greedy
from fewer.search.eigen import limited_threads

__all__ = ["Greedy", "MaxVariance", "PivotedQR", "RandomSubset"]


class RandomSubset(Baseline):
    """Choose k features at random, all equally likely.

    Parameters
    ----------
    k : int, default=10
        Number of features to choose.
    random_state : int, RandomState or None, default=None
        Fixes the result.

    Attributes
    ----------
    {chosen}

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> chosen = RandomSubset(k=10, random_state=0).fit(X[:1400])
    >>> chosen.transform(X[1400:]).shape
    (397, 10)
    """

    def __init__(self, k: int = 10, *, random_state: Any = None) -> None:
        self.k = k
        self.random_state = random_state

    def _choose(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Columns:
        return rng.permutation(source.shape[1])[: self.k]


class MaxVariance(RankingBaseline):
    """Choose the k features of largest variance.

    Parameters
    ----------
    k : int, default=10
        Number of features to choose.

    Attributes
    ----------
    {ranked}
    scores_ : ndarray of shape (n_features,)
        Variance of each feature over its observed values.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris().data
    >>> chosen = MaxVariance(k=2).fit(X)
    >>> chosen.order_, chosen.scores_.round(2)
    (array([2, 0]), array([0.68, 0.19, 3.1 , 0.58]))
    >>> round(chosen.score(X), 3)
    0.968
    """

    def __init__(self, k: int = 10) -> None:
        self.k = k

    def _scores(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Values:
        return stats.variance.copy()


class PivotedQR(SubsetBaseline):
    """Choose the pivots of a QR factorisation of the centred rows (Businger and Golub, 1965).

    The usual way to place sensors: the first feature is the one of largest variance, each next
    one has the largest variance left that the earlier ones do not explain.

    Parameters
    ----------
    k : int, default=10
        Number of features to choose.

    Attributes
    ----------
    {chosen}

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> PivotedQR(k=2).fit(load_iris().data).order_
    array([2, 0])
    """

    def __init__(self, k: int = 10) -> None:
        self.k = k

    def _subset(self, rows: Values, k: int, rng: np.random.RandomState) -> Columns:
        with limited_threads(rows.shape[1]):
            _, order = qr(rows, mode="r", pivoting=True, check_finite=False)
        return order[:k].astype(np.int64)


class Greedy(Baseline):
    """Choose features one by one, each time the one that most lowers the linear error of all.

    `fewer.ColumnSubset` starts from this choice and improves it.

    Parameters
    ----------
    k : int or None, default=10
        Number of features to choose; None to spend ``budget`` instead.
    {constraints}

    Attributes
    ----------
    {chosen}
    residuals_ : ndarray of float
        Sum over all features of the variance left unexplained after each pick.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> chosen = Greedy(k=2).fit(load_iris().data)
    >>> chosen.order_, chosen.residuals_.round(3)
    (array([2, 0]), array([0.36 , 0.144]))
    """

    _saved: ClassVar[dict[str, str]] = Baseline._saved | {"residuals_": "array"}
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
