"""The nearest-neighbour graph of the rows, weighted by a heat kernel."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.neighbors import NearestNeighbors

from fewer._checks import check_number
from fewer.errors import InputError

__all__ = ["WIDTHS", "check_width", "heat_graph", "nearest_rows"]

WIDTHS = ("mean", "self-tuning")


def nearest_rows(
    rows: NDArray[np.float64], n_neighbors: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Squared distances to the nearest other rows, and their numbers: both n x n_neighbors.

    Examples
    --------
    >>> nearest_rows(np.array([[0.0], [1.0], [3.0]]), 1)
    (array([[1.], [1.], [4.]]), array([[1], [0], [1]]))
    """
    distance, neighbour = NearestNeighbors(n_neighbors=n_neighbors).fit(rows).kneighbors()
    return distance**2, neighbour


def heat_graph(
    rows: NDArray[np.float64], n_neighbors: int, width: str | float = "mean"
) -> sparse.csr_array:
    r"""Symmetric n x n weights :math:`S_{ij} = \exp(-|x_i - x_j|^2 / t)`, 0 for far pairs.

    Rows are joined where either is among the other's nearest. The width t is a number; "mean",
    the mean squared distance over all joined pairs; or "self-tuning" (Zelnik-Manor and Perona,
    2004), :math:`t_{ij} = \sigma_i \sigma_j` with each row's distance to its farthest neighbour.

    Examples
    --------
    >>> graph = heat_graph(np.array([[0.0], [1.0], [3.0]]), 1, width=2.0)
    >>> graph.toarray().round(3)
    array([[0. , 0.607, 0. ], [0.607, 0. , 0.135], [0. , 0.135, 0. ]])
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
    """Refuse a width that is neither known nor a number above 0.

    Examples
    --------
    >>> check_width("wide")
    Traceback (most recent call last):
    fewer.errors.InputError: width='wide' is not known; use 'mean', 'self-tuning' or a number
    """
    if not isinstance(width, str):
        check_number("width", width, above=0)
    elif width not in WIDTHS:
        raise InputError(f"width={width!r} is not known; use 'mean', 'self-tuning' or a number")
