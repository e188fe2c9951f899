"""Features by lot: what any method has to beat."""

from typing import Any

import numpy as np

from fewer.baselines._base import Baseline, Columns
from fewer.data import Moments, Source

__all__ = ["RandomSubset"]


class RandomSubset(Baseline):
    """Choose k features at random, all equally likely.

    Parameters
    ----------
    k : int, default=10
        How many features to choose.
    random_state : int, RandomState or None, default=None
        Fixes the result.

    Attributes
    ----------
    columns_ : ndarray of int
        The chosen columns, ascending.
    order_ : ndarray of int
        The chosen columns as they were drawn.
    decoder_ : fewer.nn.MeasuredDecoder
        Least squares from the k measured values to all features.

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
