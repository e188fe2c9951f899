"""Spectral embedding: the smoothest functions on a graph."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh

from fewer.baselines._eigen import largest_eigenvectors

__all__ = ["smoothest"]

SMALL = 300  # up to here a dense solver is as quick


def smoothest(
    graph: sparse.csr_array, count: int, rng: np.random.RandomState
) -> NDArray[np.float64]:
    r"""The ``count`` smoothest non-constant functions on a graph with weights S: n x count.

    Generalised eigenvectors :math:`L y = \lambda D y` of the smallest eigenvalues, with
    :math:`D = diag(S 1)` and :math:`L = D - S`, each of length 1 as :math:`y^\top D y`. Functions
    that are constant on each connected part, with eigenvalue 0, are known beforehand, which
    spares the iterative solver an eigenvalue of high multiplicity: they come first, the heaviest
    parts told apart first.

    Examples
    --------
    >>> pairs = sparse.csr_array(np.kron(np.eye(2), [[0.0, 1.0], [1.0, 0.0]]))
    >>> abs(smoothest(pairs, 1, np.random.RandomState(0))).round(2).T
    array([[0.5, 0.5, 0.5, 0.5]])
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
