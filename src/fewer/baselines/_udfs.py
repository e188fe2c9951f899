"""Unsupervised discriminative feature selection."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fewer._checks import check_number, check_whole
from fewer.baselines._base import RowRankingBaseline, Values, row_lengths
from fewer.baselines._graph import check_neighbours, nearest_rows
from fewer.data.reading import blocks
from fewer.search.eigen import smallest_eigenvectors

__all__ = ["GAMMAS", "UDFS", "local_scatter", "row_sparse_directions"]

GAMMAS = (1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9)
SMOOTH = 1e-6  # below this length the penalty is quadratic, so that weights stay finite
TIE = 1e-9


def local_scatter(rows: Values, neighbours: NDArray[np.int64], ridge: float) -> Values:
    r"""What a linear map should keep small to tell apart rows that are not neighbours: d x d.

    With :math:`X_i` row i and its neighbours, one per row, less their mean,

    .. math:: M = X^\top \Big[\sum_i S_i H (X_i X_i^\top + \lambda I)^{-1} H S_i^\top\Big] X

    where :math:`S_i` puts them back in their places among all rows and H centres. The sum is a
    sparse n x n matrix, and its small inverses are computed many at a time.
    """
    n, d = rows.shape
    member = np.hstack([np.arange(n)[:, None], neighbours])  # n x m
    m = member.shape[1]
    H = np.eye(m) - 1 / m
    total = sparse.csr_array((n, n))
    for part in blocks(n, d * m):
        at = member[part]
        local = rows[at] - rows[at].mean(axis=1, keepdims=True)  # b x m x d
        gram = local @ local.transpose(0, 2, 1)
        inner = H @ np.linalg.inv(gram + ridge * np.eye(m)) @ H
        places = (np.repeat(at, m, axis=1).ravel(), np.tile(at, m).ravel())
        total += sparse.coo_array((inner.ravel(), places), shape=(n, n)).tocsr()
    M = rows.T @ (total @ rows)
    return (M + M.T) / 2


def row_sparse_directions(
    M: Values, count: int, gamma: float, *, max_iter: int = 50, tol: float = 1e-6
) -> tuple[Values, list[float]]:
    r"""Orthonormal directions of small variance that use few features; objective after each step.

    .. math:: \min_W tr(W^\top M W) + \gamma \sum_i |w_i|, \quad W^\top W = I

    over d x count matrices with rows :math:`w_i`. Since :math:`|w| \le |w|^2 / 2r + r / 2`, with
    equality at r = \|w\|, each step replaces the sum by :math:`tr(W^\top D W)` with
    :math:`D_{ii} = 1 / 2 |w_i|` from the step before, which makes it an eigenproblem, and never
    raises the objective.
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


class UDFS(RowRankingBaseline):
    r"""Choose features by local discriminative analysis (Yang and others, 2011).

    Minimises :math:`tr(W^\top M W) + \gamma |W|_{2,1}` over orthonormal W, n_features x
    n_clusters, where M (`local_scatter`) is large for maps that scatter neighbours; a feature
    scores the length of its row of W. Choose ``gamma`` by `sweep` on rows that are not in the
    fit.

    Parameters
    ----------
    k : int, default=10
        Number of features to choose.
    gamma : float, default=1.0
        Penalty on the lengths of the rows of W; the paper tries 1e-9, 1e-6, ..., 1e9 (`GAMMAS`).
    n_clusters : int, default=5
        Columns of W; the paper takes the number of classes. At most n_features - 1.
    n_neighbors : int, default=5
        Neighbours of each row that make up its surroundings.
    ridge : float, default=1.0
        Added to the diagonal of each row's local Gram matrix, which otherwise cannot be inverted.
    max_iter : int, default=50
        Maximum number of eigenproblems to solve.

    Attributes
    ----------
    {ranked}
    scores_ : ndarray of shape (n_features,)
        Length of each feature's row of W.
    n_iter_ : int
        Eigenproblems that were solved.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> UDFS(k=2, n_clusters=3).fit(load_iris().data).columns_.shape
    (2,)
    """

    _saved: ClassVar[dict[str, str]] = RowRankingBaseline._saved | {"n_iter_": "optional"}
    n_iter_: int

    def __init__(
        self,
        k: int = 10,
        *,
        gamma: float = 1.0,
        n_clusters: int = 5,
        n_neighbors: int = 5,
        ridge: float = 1.0,
        max_iter: int = 50,
    ) -> None:
        self.k = k
        self.gamma = gamma
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.ridge = ridge
        self.max_iter = max_iter

    def _check_options(self, n: int, d: int) -> None:
        super()._check_options(n, d)
        check_number("gamma", self.gamma)
        check_number("ridge", self.ridge, above=0)
        check_whole("n_clusters", self.n_clusters)
        check_whole("max_iter", self.max_iter)
        check_neighbours(self.n_neighbors, n)

    def _row_scores(self, rows: Values, rng: np.random.RandomState) -> Values:
        _, neighbours = nearest_rows(rows, self.n_neighbors)
        M = local_scatter(rows, neighbours, self.ridge)
        # with as many directions as features, any orthonormal W is as good as any other
        count = max(1, min(self.n_clusters, rows.shape[1] - 1))
        W, objective = row_sparse_directions(M, count, self.gamma, max_iter=self.max_iter)
        self.n_iter_ = len(objective)
        return row_lengths(W)
