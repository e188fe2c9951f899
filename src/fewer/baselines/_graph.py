"""The nearest-neighbour graph of the rows, and the smoothest functions on it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.neighbors import NearestNeighbors

from fewer._checks import check_number, check_whole
from fewer.errors import InputError
from fewer.search.eigen import largest_eigenvectors

__all__ = [
    "check_neighbours",
    "check_width",
    "heat_graph",
    "nearest_rows",
    "smoothest",
]

WIDTHS = ("mean", "self-tuning")
SMALL = 300  # up to here a dense solver is as quick


def nearest_rows(
    rows: NDArray[np.float64], n_neighbors: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Squared distances to the nearest other rows, and their numbers: both n x n_neighbors."""
    distance, neighbour = NearestNeighbors(n_neighbors=n_neighbors).fit(rows).kneighbors()
    return distance**2, neighbour


def heat_graph(
    rows: NDArray[np.float64], n_neighbors: int, width: str | float = "mean"
) -> sparse.csr_array:
    r"""Symmetric n x n weights :math:`S_{ij} = \exp(-|x_i - x_j|^2 / t)`, 0 for far pairs.

    Rows are joined where either is among the other's nearest. The width t is a number; "mean",
    the mean squared distance over all joined pairs; or "self-tuning" (Zelnik-Manor and Perona,
    2004), :math:`t_{ij} = \sigma_i \sigma_j` with each row's distance to its farthest neighbour.
    """
    n = len(rows)
    squared, neighbour = nearest_rows(rows, n_neighbors)
    if isinstance(width, str):
        reach = np.sqrt(squared[:, -1])
        wide = squared.mean() if width == "mean" else reach[:, None] * reach[neighbour]
    else:
        wide = width
    # rows that coincide are as near as can be, also where all of them do
    apart = np.divide(squared, wide, out=np.zeros_like(squared), where=squared > 0)
    heat = np.exp(-apart)
    start = np.repeat(np.arange(n), n_neighbors)
    directed = sparse.csr_array((heat.ravel(), (start, neighbour.ravel())), shape=(n, n))
    graph = directed.maximum(directed.T).tocsr()
    graph.eliminate_zeros()  # a row so far out that its heat is 0 is joined to none
    return graph


def check_width(width: Any) -> None:
    """Refuse a width that is neither known nor a number above 0."""
    if not isinstance(width, str):
        check_number("width", width, above=0)
    elif width not in WIDTHS:
        raise InputError(f"width={width!r} is not known; use 'mean', 'self-tuning' or a number")


def check_neighbours(n_neighbors: Any, n: int) -> None:
    """Refuse more neighbours than there are other rows."""
    check_whole("n_neighbors", n_neighbors)
    if n_neighbors >= n:
        raise InputError(
            f"n_neighbors={n_neighbors} needs at least {n_neighbors + 1} rows, but X has "
            f"n_samples={n}; give more rows, or lower n_neighbors"
        )


def smoothest(
    graph: sparse.csr_array, count: int, rng: np.random.RandomState
) -> NDArray[np.float64]:
    r"""The ``count`` smoothest non-constant functions on a graph with weights S: n x count.

    Generalised eigenvectors :math:`L y = \lambda D y` of the smallest eigenvalues, with
    :math:`D = diag(S 1)` and :math:`L = D - S`, each of length 1 as :math:`y^\top D y`. Functions
    that are constant on each connected part, with eigenvalue 0, are known beforehand, which
    spares the iterative solver an eigenvalue of high multiplicity: they come first, the heaviest
    parts told apart first.
    """
    n = graph.shape[0]
    degree = np.asarray(graph.sum(axis=1)).ravel()
    root = np.sqrt(np.where(degree > 0, degree, 1.0))
    near = sparse.diags_array(1 / root) @ graph @ sparse.diags_array(1 / root)
    flat = _flat(graph, root)  # eigenvectors of D^-1/2 S D^-1/2 with eigenvalue 1
    known = _contrasts(flat, root, min(count, flat.shape[1] - 1))
    wanted = min(count - known.shape[1], n - flat.shape[1])
    if wanted <= 0:
        return known / root[:, None]
    if n <= SMALL or wanted + 1 >= n:
        # 2 takes what is known from the upper end of the spectrum to the lower
        dense = near.toarray() - 2 * (flat @ flat.T).toarray()
        found = largest_eigenvectors(dense, wanted)[1]
    else:
        found = eigsh(
            LinearOperator(
                (n, n), matvec=lambda v: near @ v - 2 * (flat @ (flat.T @ v)), dtype=np.float64
            ),
            k=wanted,
            which="LA",
            v0=rng.standard_normal(n),
            ncv=min(n, max(4 * wanted + 1, 40)),
            maxiter=50 * n,
            tol=1e-6,
        )[1][:, ::-1]
    return np.hstack([known, found]) / root[:, None]


def _flat(graph: sparse.csr_array, root: NDArray[np.float64]) -> sparse.csc_array:
    """One unit vector for each connected part, D^1/2 on it and 0 elsewhere; heaviest first."""
    parts, label = connected_components(graph, directed=False)
    weight = np.bincount(label, root**2, minlength=parts)
    place = np.argsort(np.argsort(-weight, kind="stable"))
    entries = (root / np.sqrt(weight[label]), (np.arange(len(root)), place[label]))
    return sparse.csc_array(entries, shape=(len(root), parts))


def _contrasts(
    flat: sparse.csc_array, root: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """Orthonormal combinations of the flat vectors, without the one that is flat everywhere."""
    basis = np.eye(flat.shape[1], count + 1, k=1)
    basis[:, 0] = flat.T @ root
    return flat @ np.linalg.qr(basis)[0][:, 1:]
