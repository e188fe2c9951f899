"""Methods on the graph of nearest rows: Laplacian score, MCFS and UDFS."""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import lars_path_gram
from sklearn.neighbors import NearestNeighbors

from fewer._checks import check_number, check_whole
from fewer.baselines._base import RowRankingBaseline, Values, row_lengths
from fewer.data.source import blocks
from fewer.errors import InputError
from fewer.search.eigen import largest_eigenvectors, smallest_eigenvectors

__all__ = ["GAMMAS", "MCFS", "UDFS", "LaplacianScore"]

GAMMAS = (1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9)
SMOOTH = 1e-6  # below this length the penalty is quadratic, so that weights stay finite
TIE = 1e-9
SMALL = 300  # up to here a dense solver is as quick


@dataclass(eq=False, repr=False, kw_only=True)
class NeighbourBaseline(RowRankingBaseline):
    """Base of methods that look at the nearest rows of each row."""

    n_neighbors: int = 5

    def _check_options(self, n: int, d: int) -> None:
        super()._check_options(n, d)
        check_whole("n_neighbors", self.n_neighbors)
        if self.n_neighbors >= n:
            raise InputError(
                f"n_neighbors={self.n_neighbors} needs at least {self.n_neighbors + 1} rows, but "
                f"X has n_samples={n}; give more rows, or lower n_neighbors"
            )


def nearest_rows(rows: Values, n_neighbors: int) -> tuple[Values, NDArray[np.int64]]:
    """Squared distances to the nearest other rows, and their numbers: both n x n_neighbors."""
    distance, neighbour = NearestNeighbors(n_neighbors=n_neighbors).fit(rows).kneighbors()
    return distance**2, neighbour


def heat_graph(rows: Values, n_neighbors: int, width: str | float = "mean") -> sparse.csr_array:
    r"""Symmetric n x n weights :math:`S_{ij} = \exp(-|x_i - x_j|^2 / t)`, 0 for far pairs.

    Rows are joined where either is among the other's nearest. The width t is a number; "mean",
    the mean squared distance over all joined pairs; or "self-tuning" (Zelnik-Manor and Perona,
    2004), :math:`t_{ij} = \sigma_i \sigma_j` with each row's distance to its farthest neighbour.
    """
    n = len(rows)
    squared, neighbour = nearest_rows(rows, n_neighbors)
    if width == "mean":
        wide = squared.mean()
    elif width == "self-tuning":
        reach = np.sqrt(squared[:, -1])
        wide = reach[:, None] * reach[neighbour]
    elif isinstance(width, str):
        raise InputError(f"width={width!r} is not valid; use 'mean', 'self-tuning' or a number")
    else:
        check_number("width", width, above=0)
        wide = width
    # identical rows have distance 0, even if the width is 0 as well
    apart = np.divide(squared, wide, out=np.zeros_like(squared), where=squared > 0)
    heat = np.exp(-apart)
    start = np.repeat(np.arange(n), n_neighbors)
    directed = sparse.csr_array((heat.ravel(), (start, neighbour.ravel())), shape=(n, n))
    graph = directed.maximum(directed.T).tocsr()
    graph.eliminate_zeros()  # weights that underflow are no edges
    return graph


def smoothest(graph: sparse.csr_array, count: int, rng: np.random.RandomState) -> Values:
    r"""The ``count`` smoothest non-constant functions on a graph with weights S: n x count.

    Generalised eigenvectors :math:`L y = \lambda D y` of the smallest eigenvalues, with
    :math:`D = diag(S 1)` and :math:`L = D - S`, with :math:`y^\top D y = 1`. Eigenvectors of
    eigenvalue 0, constant on each connected component, are known in advance; they come first, for
    the heaviest components first, and spare the solver an eigenvalue of high multiplicity.
    """
    n = graph.shape[0]
    degree = np.asarray(graph.sum(axis=1)).ravel()
    root = np.sqrt(np.where(degree > 0, degree, 1.0))
    near = sparse.diags_array(1 / root) @ graph @ sparse.diags_array(1 / root)
    flat = _flat(graph, root)  # eigenvectors of D^-1/2 S D^-1/2 with eigenvalue 1
    known = _contrasts(flat, root, min(count, flat.shape[1] - 1))
    rest = min(count - known.shape[1], n - flat.shape[1])
    if rest <= 0:
        return known / root[:, None]
    if n <= SMALL or rest + 1 >= n:
        # shift the known eigenvectors from the upper end of the spectrum to the lower
        dense = near.toarray() - 2 * (flat @ flat.T).toarray()
        found = largest_eigenvectors(dense, rest)[1]
    else:
        found = eigsh(
            LinearOperator(
                (n, n), matvec=lambda v: near @ v - 2 * (flat @ (flat.T @ v)), dtype=np.float64
            ),
            k=rest,
            which="LA",
            v0=rng.standard_normal(n),
            ncv=min(n, max(4 * rest + 1, 40)),
            maxiter=50 * n,
            tol=1e-6,
        )[1][:, ::-1]
    return np.hstack([known, found]) / root[:, None]


def _flat(graph: sparse.csr_array, root: Values) -> sparse.csc_array:
    """One unit vector per connected component, D^1/2 on it and 0 elsewhere; heaviest first."""
    parts, label = connected_components(graph, directed=False)
    weight = np.bincount(label, root**2, minlength=parts)
    place = np.argsort(np.argsort(-weight, kind="stable"))
    entries = (root / np.sqrt(weight[label]), (np.arange(len(root)), place[label]))
    return sparse.csc_array(entries, shape=(len(root), parts))


def _contrasts(flat: sparse.csc_array, root: Values, count: int) -> Values:
    """Orthonormal combinations of the flat vectors, without the one constant on all rows."""
    basis = np.eye(flat.shape[1], count + 1, k=1)
    basis[:, 0] = flat.T @ root
    return flat @ np.linalg.qr(basis)[0][:, 1:]


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


@dataclass(eq=False, repr=False, kw_only=True)
class LaplacianScore(NeighbourBaseline):
    """Choose the k features of smallest Laplacian score (He, Cai and Niyogi, 2005).

    A good feature respects the graph of nearest neighbours: similar for neighbours, different
    elsewhere. Features are scored one by one, so all copies of a good one are chosen.

    Parameters
    ----------
    {k}
    n_neighbors : int, default=5
        Each row is joined with this many nearest rows.
    width : "mean", "self-tuning" or float, default="mean"
        Width t of the heat kernel exp(-squared distance / t): the mean squared distance of
        neighbours, a local one per pair, or a number in squared units of X.

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
    width: str | float = "mean"

    def _row_scores(self, rows: Values, rng: np.random.RandomState) -> Values:
        return laplacian_scores(rows, heat_graph(rows, self.n_neighbors, self.width))


def sparse_weights(rows: Values, targets: Values, k: int) -> Values:
    """Weights (d x targets) of least-angle regression, with k features for each target."""
    gram, cross = rows.T @ rows, rows.T @ targets
    weights = np.zeros(cross.shape)
    with warnings.catch_warnings():
        # duplicates of an active feature are dropped with a warning
        warnings.simplefilter("ignore", ConvergenceWarning)
        for at in range(cross.shape[1]):
            weights[:, at] = lars_path_gram(
                cross[:, at], gram, n_samples=len(rows), max_iter=k, method="lar", return_path=False
            )[2]
    return weights


@dataclass(eq=False, repr=False, kw_only=True)
class MCFS(NeighbourBaseline):
    """Multi-cluster feature selection (Cai, Zhang and He, 2010).

    Each of the ``n_clusters`` smoothest functions on the graph of nearest neighbours is regressed
    on the features by least-angle regression with k features; a feature's score is its largest
    weight in any of them.

    Parameters
    ----------
    {k}
    n_clusters : int, default=5
        Number of smooth functions; the paper uses the number of clusters if known, else 5.
    n_neighbors : int, default=5
        Each row is joined with this many nearest rows.
    width : "mean", "self-tuning" or float, default="mean"
        Width of the heat kernel, as in `LaplacianScore`.
    random_state : int, RandomState or None, default=None
        Seed of the eigensolver's start, on which the result hardly depends.

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

    n_clusters: int = 5
    width: str | float = "mean"
    random_state: Any = None

    def _check_options(self, n: int, d: int) -> None:
        super()._check_options(n, d)
        check_whole("n_clusters", self.n_clusters)

    def _row_scores(self, rows: Values, rng: np.random.RandomState) -> Values:
        graph = heat_graph(rows, self.n_neighbors, self.width)
        smooth = smoothest(graph, self.n_clusters, rng)
        return np.abs(sparse_weights(rows, smooth, int(self.k or 0))).max(axis=1)


def local_scatter(rows: Values, neighbours: NDArray[np.int64], ridge: float) -> Values:
    r"""The d x d matrix M of the UDFS objective.

    With :math:`X_i` row i and its neighbours, one per row, less their mean,

    .. math:: M = X^\top \Big[\sum_i S_i H (X_i X_i^\top + \lambda I)^{-1} H S_i^\top\Big] X

    where :math:`S_i` places them among all rows and H centres. The sum is a sparse n x n matrix.
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
    # The paper starts with D = I, which does not determine W if M is singular: break ties in
    # favour of the features that vary most.
    rank = np.argsort(np.argsort(-M.diagonal(), kind="stable"))
    P = M + np.diag(TIE * M.diagonal().max() * (rank + 1) / len(M))
    objective: list[float] = []
    for _ in range(max_iter):
        values, W = smallest_eigenvectors(P, count)
        # a Jacobi step removes solver noise of about 1e-16 from short rows, whose lengths rank
        # the features if gamma is large
        W -= (P @ W - W * values) / np.maximum(P.diagonal(), np.finfo(float).tiny)[:, None]
        lengths = row_lengths(W)
        smoothed = np.where(lengths < SMOOTH, lengths**2 / SMOOTH + SMOOTH, 2 * lengths).sum() / 2
        objective.append(float(np.einsum("dc,dc->", W, M @ W) + gamma * smoothed))
        if len(objective) > 1 and objective[-2] - objective[-1] <= tol * abs(objective[-1]):
            break
        P = M + np.diag(gamma / (2 * np.maximum(lengths, SMOOTH)))
    return W, objective


@dataclass(eq=False, repr=False, kw_only=True)
class UDFS(NeighbourBaseline):
    r"""Choose features by local discriminative analysis (Yang and others, 2011).

    Minimises :math:`tr(W^\top M W) + \gamma |W|_{2,1}` over orthonormal W, n_features x
    n_clusters, where M is large for maps that scatter neighbours; a feature's score is the length
    of its row of W. Choose ``gamma`` by `sweep` on held-out rows.

    Parameters
    ----------
    {k}
    gamma : float, default=1.0
        Penalty on the lengths of the rows of W; the paper tries 1e-9, 1e-6, ..., 1e9 (`GAMMAS`).
    n_clusters : int, default=5
        Columns of W; the paper uses the number of classes. At most n_features - 1.
    n_neighbors : int, default=5
        Size of each row's neighbourhood.
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
        Number of eigenproblems solved.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> UDFS(k=2, n_clusters=3).fit(load_iris().data).columns_.shape
    (2,)
    """

    _saved: ClassVar[dict[str, str]] = NeighbourBaseline._saved | {"n_iter_": "optional"}
    gamma: float = 1.0
    n_clusters: int = 5
    ridge: float = 1.0
    max_iter: int = 50

    def _check_options(self, n: int, d: int) -> None:
        super()._check_options(n, d)
        check_number("gamma", self.gamma)
        check_number("ridge", self.ridge, above=0)
        check_whole("n_clusters", self.n_clusters)
        check_whole("max_iter", self.max_iter)

    def _row_scores(self, rows: Values, rng: np.random.RandomState) -> Values:
        _, neighbours = nearest_rows(rows, self.n_neighbors)
        M = local_scatter(rows, neighbours, self.ridge)
        # with as many directions as features, any orthonormal W is as good as any other
        count = max(1, min(self.n_clusters, rows.shape[1] - 1))
        W, objective = row_sparse_directions(M, count, self.gamma, max_iter=self.max_iter)
        self.n_iter_ = len(objective)
        return row_lengths(W)
