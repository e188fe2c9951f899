"""Simple methods: random features, largest variance, pivoted QR, PFA and greedy selection."""

import warnings
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import qr
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fewer._checks import check_number, check_whole
from fewer._threads import for_matrix
from fewer.baselines._base import Baseline, Columns, RankingBaseline, SubsetBaseline, Values
from fewer.data import Moments, Source
from fewer.data.moments import summarize
from fewer.errors import InputError
from fewer.estimators.selector import ConstrainedSelector
from fewer.search import greedy
from fewer.search.eigen import largest_eigenvectors

__all__ = ["PFA", "Greedy", "MaxVariance", "PivotedQR", "RandomSubset"]


@dataclass(eq=False, repr=False, kw_only=True)
class RandomSubset(Baseline):
    """Choose k features at random, all equally likely.

    Parameters
    ----------
    {k}
    random_state : int, RandomState or None, default=None
        Seed.

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

    random_state: Any = None

    def _choose(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Columns:
        return rng.permutation(source.shape[1])[: self.k]


class MaxVariance(RankingBaseline):
    """Choose the k features of largest variance.

    Parameters
    ----------
    {k}

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

    def _scores(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Values:
        return stats.variance.copy()


class PivotedQR(SubsetBaseline):
    """Choose the pivots of a QR factorisation of the centred rows (Businger and Golub, 1965).

    The usual way to place sensors: each feature has the largest variance that the earlier ones
    leave unexplained.

    Parameters
    ----------
    {k}

    Attributes
    ----------
    {chosen}

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> PivotedQR(k=2).fit(load_iris().data).order_
    array([2, 0])
    """

    def _subset(self, rows: Values, k: int, rng: np.random.RandomState) -> Columns:
        with for_matrix(rows.shape[1]):
            _, order = qr(rows, mode="r", pivoting=True, check_finite=False)
        return order[:k].astype(np.int64)


class Greedy(ConstrainedSelector, Baseline):
    """Choose features one by one, each time the one that most lowers the linear error of all.

    `fewer.ColumnSubset` starts from this choice and improves it.

    Parameters
    ----------
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

    def _check_options(self, n: int, d: int) -> None:
        self._constraints(d)

    def _choose(self, source: Source, stats: Moments, rng: np.random.RandomState) -> Columns:
        path = greedy(summarize(source).matrix, self._constraints(source.shape[1]))
        self.residuals_ = path.errors
        return path.order


def component_count(eigenvalues: Values, total: float, asked: float) -> int:
    """How many of the descending eigenvalues to keep: this many, or this fraction of the total."""
    if isinstance(asked, Integral):
        return min(int(asked), len(eigenvalues))
    enough = np.searchsorted(np.cumsum(eigenvalues), asked * total * (1 - 1e-12)) + 1
    return min(int(enough), len(eigenvalues))


def nearest_to_centres(points: Values, k: int, rng: np.random.RandomState) -> Columns:
    """Of each of k clusters of points, the one nearest the mean; largest clusters first."""
    with warnings.catch_warnings(), for_matrix(len(points)):
        # fewer different points than clusters: some clusters stay empty
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(k, n_init=10, random_state=rng).fit(points)
    far = np.square(points - found.cluster_centers_[found.labels_]).sum(axis=1)
    size = np.bincount(found.labels_, minlength=k)
    clusters = np.argsort(-size, kind="stable")[: np.count_nonzero(size)]
    return np.array(
        [np.flatnonzero(found.labels_ == c)[far[found.labels_ == c].argmin()] for c in clusters]
    )


@dataclass(eq=False, repr=False, kw_only=True)
class PFA(SubsetBaseline):
    """Choose one feature from each of k clusters of principal loadings (Lu and others, 2007).

    Features with similar absolute loadings on the leading principal components are redundant:
    these are clustered by k-means, and the feature nearest each mean is chosen.

    Parameters
    ----------
    {k}
    n_components : float or int, default=0.9
        Leading components: enough to explain this fraction of the variance, or this many; at most
        k, as in the paper.
    random_state : int, RandomState or None, default=None
        Seed of k-means.

    Attributes
    ----------
    {chosen}

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> PFA(k=2, random_state=0).fit(load_iris().data).columns_
    array([2, 3])
    """

    n_components: float = 0.9
    random_state: Any = None

    def _check_options(self, n: int, d: int) -> None:
        super()._check_options(n, d)
        if isinstance(self.n_components, Integral):
            check_whole("n_components", self.n_components)
        else:
            check_number("n_components", self.n_components, above=0)
            if self.n_components > 1:
                raise InputError(
                    f"n_components={self.n_components!r} must be a fraction of variance up to 1.0, "
                    "or a whole number"
                )

    def _subset(self, rows: Values, k: int, rng: np.random.RandomState) -> Columns:
        scatter = rows.T @ rows
        values, vectors = largest_eigenvectors(scatter, k)
        count = component_count(values, scatter.trace(), self.n_components)
        return nearest_to_centres(np.abs(vectors[:, :count]), k, rng)
