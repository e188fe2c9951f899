"""Multi-cluster feature selection: features that explain the spectral embedding."""

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import lars_path_gram

from fewer._checks import check_whole
from fewer.baselines._base import RowRankingBaseline, Values
from fewer.baselines._graph import check_neighbours, check_width, heat_graph, smoothest

__all__ = ["MCFS", "sparse_weights"]


def sparse_weights(rows: Values, targets: Values, k: int) -> Values:
    """Weights (d x targets) of least-angle regression, with k features for each target."""
    gram, cross = rows.T @ rows, rows.T @ targets
    weights = np.zeros(cross.shape)
    with warnings.catch_warnings():
        # copies of a feature that is in already are left out, which is as it should be
        warnings.simplefilter("ignore", ConvergenceWarning)
        for at in range(cross.shape[1]):
            weights[:, at] = lars_path_gram(
                cross[:, at], gram, n_samples=len(rows), max_iter=k, method="lar", return_path=False
            )[2]
    return weights


class MCFS(RowRankingBaseline):
    """Choose features by which the clusters of the rows can be told (Cai, Zhang and He, 2010).

    The graph of nearest neighbours gives ``n_clusters`` functions that are smooth on it, one for
    each cluster that the data are thought to have. Each is regressed on the features by
    least-angle regression with k features, and a feature scores its largest weight in any.

    Parameters
    ----------
    k : int, default=10
        Number of features to choose.
    n_clusters : int, default=5
        Number of smooth functions to explain; the paper takes the number of clusters, where it is
        known, and found 5 to do well elsewhere.
    n_neighbors : int, default=5
        Each row is joined with this many nearest rows.
    width : "mean", "self-tuning" or float, default="mean"
        Width of the heat kernel, as in `LaplacianScore`.
    random_state : int, RandomState or None, default=None
        Fixes the start of the eigensolver, on which the result hardly depends.

    Attributes
    ----------
    {ranked}
    scores_ : ndarray of shape (n_features,)
        Largest absolute weight of each feature.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> MCFS(k=2, random_state=0).fit(load_iris().data).order_
    array([0, 1])
    """

    def __init__(
        self,
        k: int = 10,
        *,
        n_clusters: int = 5,
        n_neighbors: int = 5,
        width: str | float = "mean",
        random_state: Any = None,
    ) -> None:
        self.k = k
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.width = width
        self.random_state = random_state

    def _check_options(self, n: int, d: int) -> None:
        super()._check_options(n, d)
        check_whole("n_clusters", self.n_clusters)
        check_width(self.width)
        check_neighbours(self.n_neighbors, n)

    def _row_scores(self, rows: Values, rng: np.random.RandomState) -> Values:
        graph = heat_graph(rows, self.n_neighbors, self.width)
        smooth = smoothest(graph, self.n_clusters, rng)
        return np.abs(sparse_weights(rows, smooth, int(self.k or 0))).max(axis=1)
