"""The neighbour graph and its smooth functions, against dense arithmetic."""

import numpy as np
import pytest
from scipy import sparse
from scipy.linalg import eigh
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from fewer.baselines._graph import heat_graph, smoothest
from tests.baselines.cases import planted_clusters


def dense_graph(X, n_neighbors, width):
    squared = cdist(X, X, "sqeuclidean")
    np.fill_diagonal(squared, np.inf)
    nearest = np.argsort(squared, axis=1)[:, :n_neighbors]
    joined = np.zeros(squared.shape, dtype=bool)
    np.put_along_axis(joined, nearest, True, axis=1)
    if width == "mean":
        width = squared[joined].mean()
    elif width == "self-tuning":
        reach = np.sqrt(np.take_along_axis(squared, nearest, axis=1)[:, -1])
        width = np.outer(reach, reach)
    return np.where(joined | joined.T, np.exp(-squared / width), 0.0)


@pytest.mark.parametrize("width", ["mean", "self-tuning", 3.0])
def test_heat_graph_against_all_distances(width):
    X = np.random.default_rng(0).normal(size=(80, 20))
    graph = heat_graph(X, 4, width)
    np.testing.assert_allclose(graph.toarray(), dense_graph(X, 4, width), atol=1e-12)
    assert graph.nnz < 80 * 8


def test_rows_that_coincide_are_as_near_as_can_be():
    for width in ("mean", "self-tuning", 1.0):
        graph = heat_graph(np.zeros((6, 3)), 2, width)
        assert set(graph.data) == {1.0}


def rayleigh(graph, y):
    """How rough functions are: the eigenvalues, if they are eigenvectors."""
    degree = graph.sum(axis=1)
    laplacian = np.diag(degree) - graph
    return np.diag(y.T @ laplacian @ y) / np.diag(y.T @ (degree[:, None] * y))


@pytest.mark.parametrize("n", [200, 900])  # dense and iterative solver
def test_smoothest_functions_of_a_connected_graph(n):
    graph = heat_graph(load_digits().data[:n], 12)
    assert sparse.csgraph.connected_components(graph)[0] == 1
    y = smoothest(graph, 5, np.random.RandomState(0))
    dense = graph.toarray()
    degree = dense.sum(axis=1)
    values = eigh(np.diag(degree) - dense, np.diag(degree), eigvals_only=True)
    np.testing.assert_allclose(rayleigh(dense, y), values[1:6], rtol=1e-4)
    np.testing.assert_allclose(y.T @ (degree[:, None] * y), np.eye(5), atol=1e-6)
    np.testing.assert_allclose(degree @ y, 0, atol=1e-5)


@pytest.mark.parametrize("per_cluster", [40, 150])
def test_connected_components_come_first_and_are_distinguished(per_cluster):
    X, label = planted_clusters(n_clusters=4, informative=6, noise=0, per_cluster=per_cluster)
    graph = heat_graph(X, 5)
    assert sparse.csgraph.connected_components(graph)[0] == 4
    y = smoothest(graph, 6, np.random.RandomState(0))
    dense = graph.toarray()
    found = rayleigh(dense, y)
    np.testing.assert_allclose(found[:3], 0, atol=1e-10)
    degree = dense.sum(axis=1)
    values = eigh(np.diag(degree) - dense, np.diag(degree), eigvals_only=True)
    np.testing.assert_allclose(found[3:], values[4:7], rtol=1e-3)
    # each part is one point, and the four points are different
    points = y[:, :3]
    means = np.array([points[label == c].mean(axis=0) for c in range(4)])
    np.testing.assert_allclose(points, means[label], atol=1e-8)
    assert np.linalg.matrix_rank(means - means.mean(axis=0), tol=1e-6) == 3


def test_at_most_as_many_eigenvectors_as_rows():
    graph = heat_graph(np.arange(4.0)[:, None], 1)
    assert smoothest(graph, 10, np.random.RandomState(0)).shape == (4, 3)


def test_an_isolated_row_is_its_own_component():
    X = np.random.default_rng(0).normal(size=(400, 3))
    X[7] += 1e4
    graph = heat_graph(X, 5, 1.0)
    assert graph[[7]].nnz == 0
    y = smoothest(graph, 3, np.random.RandomState(0))
    assert np.isfinite(y).all()
    np.testing.assert_allclose(np.delete(y[:, 0], 7), np.delete(y[:, 0], 7)[0], atol=1e-8)
