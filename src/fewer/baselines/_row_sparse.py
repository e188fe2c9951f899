"""Matrices with few rows that are not zero: the l2,1 norm, which sums the lengths of rows."""

import numpy as np
from numpy.typing import NDArray

from fewer.baselines._eigen import smallest_eigenvectors

__all__ = ["row_lengths", "row_sparse_directions"]

SMOOTH = 1e-6  # below this length the penalty is quadratic, so that weights stay finite

TIE = 1e-9


def row_lengths(W: NDArray[np.float64]) -> NDArray[np.float64]:
    """Length of each row.

    Examples
    --------
    >>> row_lengths(np.array([[3.0, 4.0], [0.0, 1.0]]))
    array([5., 1.])
    """
    return np.sqrt(np.einsum("dc,dc->d", W, W))


def row_sparse_directions(
    M: NDArray[np.float64],
    count: int,
    gamma: float,
    *,
    max_iter: int = 50,
    tol: float = 1e-6,
) -> tuple[NDArray[np.float64], list[float]]:
    r"""Orthonormal directions of small variance that use few features.

    .. math:: \min_W tr(W^\top M W) + \gamma \sum_i |w_i|, \quad W^\top W = I

    over d x count matrices with rows :math:`w_i`. Since :math:`|w| \le |w|^2 / 2r + r / 2`, with
    equality at r = \|w\|, each step replaces the sum by :math:`tr(W^\top D W)` with
    :math:`D_{ii} = 1 / 2 |w_i|` from the step before, which makes it an eigenproblem, and never
    raises the objective.

    Returns
    -------
    W : ndarray of shape (d, count)
    objective : list of float
        After each step.

    Examples
    --------
    >>> W, objective = row_sparse_directions(np.diag([1.0, 2.0, 3.0]), 1, gamma=0.5)
    >>> abs(W).round(3).T, round(objective[-1], 3)
    (array([[1., 0., 0.]]), 1.5)
    """
    # The paper starts with D = I, for which gamma does not matter. Where M is singular that
    # leaves the first W open; this settles it, for the features that vary most.
    rank = np.argsort(np.argsort(-M.diagonal(), kind="stable"))
    P = M + np.diag(TIE * M.diagonal().max() * (rank + 1) / len(M))
    objective: list[float] = []
    for _ in range(max_iter):
        values, W = smallest_eigenvectors(P, count)
        # Jacobi: solvers leave noise of about 1e-16 in rows that are shorter than that, and by
        # such rows the features are ranked where gamma is large
        W -= (P @ W - W * values) / np.maximum(P.diagonal(), np.finfo(float).tiny)[:, None]
        lengths = row_lengths(W)
        smoothed = np.where(lengths < SMOOTH, lengths**2 / SMOOTH + SMOOTH, 2 * lengths).sum() / 2
        objective.append(float(np.einsum("dc,dc->", W, M @ W) + gamma * smoothed))
        if len(objective) > 1 and objective[-2] - objective[-1] <= tol * abs(objective[-1]):
            break
        P = M + np.diag(gamma / (2 * np.maximum(lengths, SMOOTH)))
    return W, objective
