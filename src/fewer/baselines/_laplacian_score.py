"""The Laplacian score: features that vary little between neighbours, much overall."""

import numpy as np
from scipy import sparse

from fewer.baselines._base import RowRankingBaseline, Values
from fewer.baselines._graph import check_neighbours, check_width, heat_graph

__all__ = ["LaplacianScore", "laplacian_scores"]


def laplacian_scores(rows: Values, graph: sparse.csr_array) -> Values:
    r"""Score each column f of the rows by the weights S of a graph; the smallest is the best.

    With degrees :math:`D = diag(S 1)`, the Laplacian :math:`L = D - S` and f less its mean
    weighted by D,

    .. math:: score(f) = f^\top L f / f^\top D f

    from 0, the same within every connected part, to 2. A column that does not vary where the
    graph has weight scores infinity.
    """
    degree = np.asarray(graph.sum(axis=1)).ravel()
    centred = rows - degree @ rows / max(degree.sum(), np.finfo(float).tiny)
    spread = degree @ centred**2
    near = np.einsum("nd,nd->d", centred, graph @ centred)
    return np.divide(spread - near, spread, out=np.full(len(spread), np.inf), where=spread > 0)


class LaplacianScore(RowRankingBaseline):
    """Choose the k features of smallest Laplacian score (He, Cai and Niyogi, 2005).

    A feature is good if it respects the graph of nearest neighbours: nearly equal for
    neighbours, different elsewhere. Features are scored one by one, so that copies of a good
    one are all chosen.

    Parameters
    ----------
    k : int, default=10
        Number of features to choose.
    n_neighbors : int, default=5
        Each row is joined with this many nearest rows.
    width : "mean", "self-tuning" or float, default="mean"
        Width t of the heat kernel exp(-squared distance / t): the mean squared distance of
        joined rows, one for each pair by their distances to their farthest neighbours, or a
        number in squared units of X.

    Attributes
    ----------
    {ranked}
    scores_ : ndarray of shape (n_features,)
        Laplacian scores: the smaller, the better; infinite for constant features.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> chosen = LaplacianScore(k=2).fit(load_iris().data)
    >>> chosen.order_, chosen.scores_.round(3)
    (array([2, 3]), array([0.024, 0.089, 0.005, 0.017]))
    """

    smallest_is_best = True

    def __init__(self, k: int = 10, *, n_neighbors: int = 5, width: str | float = "mean") -> None:
        self.k = k
        self.n_neighbors = n_neighbors
        self.width = width

    def _check_options(self, n: int, d: int) -> None:
        super()._check_options(n, d)
        check_width(self.width)
        check_neighbours(self.n_neighbors, n)

    def _row_scores(self, rows: Values, rng: np.random.RandomState) -> Values:
        return laplacian_scores(rows, heat_graph(rows, self.n_neighbors, self.width))
