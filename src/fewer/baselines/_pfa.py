"""Principal feature analysis: one feature from each cluster of loadings."""

import warnings
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fewer._checks import check_number, check_whole
from fewer.baselines._base import Columns, SubsetBaseline, Values
from fewer.errors import InputError
from fewer.search.eigen import largest_eigenvectors, limited_threads

__all__ = ["PFA", "component_count", "nearest_to_centres"]


def component_count(eigenvalues: Values, total: float, wanted: float) -> int:
    """How many of the descending eigenvalues to keep: this many, or this fraction of the total."""
    if isinstance(wanted, Integral):
        return min(int(wanted), len(eigenvalues))
    enough = np.cumsum(eigenvalues) >= wanted * total * (1 - 1e-12)
    return int(np.argmax(enough)) + 1 if enough.any() else len(eigenvalues)


def nearest_to_centres(points: Values, k: int, rng: np.random.RandomState) -> Columns:
    """Of each of k clusters of points, the one nearest the mean; largest clusters first."""
    with warnings.catch_warnings(), limited_threads(len(points)):
        # fewer different points than clusters: some clusters stay empty
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(k, n_init=10, random_state=rng).fit(points)
    far = np.square(points - found.cluster_centers_[found.labels_]).sum(axis=1)
    size = np.bincount(found.labels_, minlength=k)
    clusters = np.argsort(-size, kind="stable")[: np.count_nonzero(size)]
    return np.array(
        [np.flatnonzero(found.labels_ == c)[far[found.labels_ == c].argmin()] for c in clusters]
    )


class PFA(SubsetBaseline):
    """Choose one feature from each of k clusters of principal loadings (Lu and others, 2007).

    Features with similar loadings on the leading principal components are redundant. The rows of
    the matrix of loadings, without their signs, are clustered by k-means, and the feature nearest
    each mean is chosen.

    Parameters
    ----------
    k : int, default=10
        Number of features to choose.
    n_components : float or int, default=0.9
        Leading components that loadings are taken from: enough to explain this fraction of the
        variance, or this many; never more than k, since the paper wants at least as many features
        as components.
    random_state : int, RandomState or None, default=None
        Fixes the starts of k-means.

    Attributes
    ----------
    {chosen}

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> PFA(k=2, random_state=0).fit(load_iris().data).columns_
    array([2, 3])
    """

    def __init__(self, k: int = 10, *, n_components: float = 0.9, random_state: Any = None) -> None:
        self.k = k
        self.n_components = n_components
        self.random_state = random_state

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
