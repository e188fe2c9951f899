"""Eigenvectors of a symmetric matrix."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from fewer.baselines._threads import few_threads

__all__ = ["largest_eigenvectors", "smallest_eigenvectors"]

Values = NDArray[np.float64]


def smallest_eigenvectors(M: Values, count: int) -> tuple[Values, Values]:
    """The ``count`` smallest eigenvalues, rising, and their vectors (d x count).

    Examples
    --------
    >>> values, vectors = smallest_eigenvectors(np.diag([3.0, 1.0, 2.0]), 2)
    >>> values, abs(vectors)
    (array([1., 2.]), array([[0., 0.], [1., 0.], [0., 1.]]))
    """
    return _eigenvectors(M, 0, count - 1)


def largest_eigenvectors(M: Values, count: int) -> tuple[Values, Values]:
    """The ``count`` largest eigenvalues, falling, and their vectors (d x count).

    Examples
    --------
    >>> values, vectors = largest_eigenvectors(np.diag([3.0, 1.0, 2.0]), 2)
    >>> values, abs(vectors)
    (array([3., 2.]), array([[1., 0.], [0., 0.], [0., 1.]]))
    """
    values, vectors = _eigenvectors(M, len(M) - count, len(M) - 1)
    return values[::-1].copy(), vectors[:, ::-1].copy()


def _eigenvectors(M: Values, first: int, last: int) -> tuple[Values, Values]:
    with few_threads(len(M)):
        return eigh(M, subset_by_index=(first, last), check_finite=False)
