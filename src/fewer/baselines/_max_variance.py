"""The features that vary most."""

import numpy as np

from fewer.baselines._base import RankingBaseline, Values
from fewer.data import Moments, Source

__all__ = ["MaxVariance"]


class MaxVariance(RankingBaseline):
    """Choose the k features of largest variance.

    Parameters
    ----------
    k : int, default=10
        How many features to choose.

    Attributes
    ----------
    columns_ : ndarray of int
        The chosen columns, ascending.
    order_ : ndarray of int
        The chosen columns, most important first.
    scores_ : ndarray of shape (n_features,)
        Variance of each feature over its observed values.
    ranking_ : ndarray of shape (n_features,)
        All columns, best first.
    decoder_ : fewer.nn.MeasuredDecoder
        Least squares from the k measured values to all features.

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
