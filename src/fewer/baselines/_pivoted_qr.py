"""Column-pivoted QR: each time the column that the ones so far explain least."""

import numpy as np
from scipy.linalg import qr

from fewer.baselines._base import Columns, SubsetBaseline, Values
from fewer.baselines._threads import few_threads

__all__ = ["PivotedQR", "pivots"]


def pivots(rows: Values, k: int) -> Columns:
    """Choose k columns, each time the one with most variance left after projecting on the others.

    These are the pivots of a QR factorisation of the rows (Businger and Golub, 1965).

    Examples
    --------
    >>> pivots(np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 1.5]]), 2)
    array([1, 2])
    """
    with few_threads(rows.shape[1]):
        _, order = qr(rows, mode="r", pivoting=True, check_finite=False)
    return order[:k].astype(np.int64)


class PivotedQR(SubsetBaseline):
    """Choose features by QR factorisation of the centred rows with column pivoting.

    The usual way to place sensors: the first feature is the one of largest variance, each next
    one has the largest variance left that the earlier ones do not explain.

    Parameters
    ----------
    k : int, default=10
        How many features to choose.

    Attributes
    ----------
    columns_ : ndarray of int
        The chosen columns, ascending.
    order_ : ndarray of int
        The chosen columns in the order of the pivots.
    decoder_ : fewer.nn.MeasuredDecoder
        Least squares from the k measured values to all features.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> PivotedQR(k=2).fit(load_iris().data).order_
    array([2, 0])
    """

    def __init__(self, k: int = 10) -> None:
        self.k = k

    def _subset(self, rows: Values, k: int, rng: np.random.RandomState) -> Columns:
        return pivots(rows, k)
