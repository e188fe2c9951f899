"""Unsupervised discriminative feature selection."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fewer._checks import check_number, check_whole
from fewer.baselines._base import RowRankingBaseline, Values
from fewer.baselines._graph import nearest_rows
from fewer.baselines._options import check_neighbours
from fewer.baselines._row_sparse import row_lengths, row_sparse_directions
from fewer.data import blocks

__all__ = ["GAMMAS", "UDFS", "local_scatter"]

GAMMAS = (1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9)


def local_scatter(rows: Values, neighbours: NDArray[np.int64], ridge: float) -> Values:
    r"""What a linear map should keep small to tell apart rows that are not neighbours: d x d.

    With :math:`X_i` row i and its neighbours, one a row, less their mean,

    .. math:: M = X^\top \Big[\sum_i S_i H (X_i X_i^\top + \lambda I)^{-1} H S_i^\top\Big] X

    where :math:`S_i` puts them back in their places among all rows and H centres. The sum is a
    sparse n x n matrix, and its small inverses are computed many at a time.

    Examples
    --------
    >>> rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> local_scatter(rows, np.array([[1], [0], [0]]), ridge=1.0).round(3)
    array([[0.667, 0.   ], [0.   , 0.667]])
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


class UDFS(RowRankingBaseline):
    r"""Choose features by local discriminative analysis (Yang and others, 2011).

    Minimises :math:`tr(W^\top M W) + \gamma |W|_{2,1}` over orthonormal W, n_features x
    n_clusters, where M (`local_scatter`) is large for maps that scatter neighbours; a feature
    scores the length of its row of W. Choose ``gamma`` by `sweep` on rows that are not in the
    fit.

    Parameters
    ----------
    k : int, default=10
        How many features to choose.
    gamma : float, default=1.0
        Penalty on the lengths of the rows of W; the paper tries 1e-9, 1e-6, ..., 1e9 (`GAMMAS`).
    n_clusters : int, default=5
        Columns of W; the paper takes the number of classes. At most n_features - 1.
    n_neighbors : int, default=5
        Neighbours of each row that make up its surroundings.
    ridge : float, default=1.0
        Added to the diagonal of each row's local Gram matrix, which otherwise cannot be inverted.
    max_iter : int, default=50
        Most eigenproblems that are solved.

    Attributes
    ----------
    columns_ : ndarray of int
        The chosen columns, ascending.
    order_ : ndarray of int
        The chosen columns, most important first.
    scores_ : ndarray of shape (n_features,)
        Length of each feature's row of W.
    ranking_ : ndarray of shape (n_features,)
        All columns, best first.
    n_iter_ : int
        Eigenproblems that were solved.
    decoder_ : fewer.nn.MeasuredDecoder
        Least squares from the k measured values to all features.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> UDFS(k=2, n_clusters=3).fit(load_iris().data).columns_.shape
    (2,)
    """

    numbers_to_keep = ("n_iter_",)
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
