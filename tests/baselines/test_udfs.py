"""UDFS: its matrix against a plain loop, its solver against what it promises."""

import numpy as np
import pytest

from fewer.baselines import GAMMAS, UDFS
from fewer.baselines._base import row_lengths
from fewer.baselines._graph import local_scatter, nearest_rows, row_sparse_directions
from tests.baselines.cases import planted_clusters


def test_local_scatter_against_the_formula_of_the_paper(monkeypatch):
    pieces = [slice(0, 15), slice(15, 30), slice(30, 40)]
    monkeypatch.setattr("fewer.baselines._graph.blocks", lambda n, d: pieces)
    rng = np.random.default_rng(0)
    X, ridge, n_neighbors = rng.normal(size=(40, 7)), 0.5, 3
    _, neighbours = nearest_rows(X, n_neighbors)
    H = np.eye(n_neighbors + 1) - 1 / (n_neighbors + 1)
    total = np.zeros((40, 40))
    for i in range(40):
        members = [i, *neighbours[i]]
        S = np.eye(40)[:, members]
        local = X.T @ S @ H
        B = np.linalg.inv(local.T @ local + ridge * np.eye(n_neighbors + 1))
        total += S @ H @ B @ H @ S.T
    found = local_scatter(X, neighbours, ridge)
    np.testing.assert_allclose(found, X.T @ total @ X, atol=1e-10)
    np.testing.assert_array_equal(found, found.T)


@pytest.mark.parametrize("gamma", [1e-3, 0.1, 10.0, 1e6])
def test_directions_are_orthonormal_and_no_step_raises_the_objective(gamma):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(30, 12))
    M = A.T @ A / 30
    W, objective = row_sparse_directions(M, 3, gamma, max_iter=30)
    np.testing.assert_allclose(W.T @ W, np.eye(3), atol=1e-8)
    assert len(objective) > 1
    assert (np.diff(objective) <= 1e-9 * np.abs(objective[:-1])).all()
    plain = np.trace(W.T @ M @ W) + gamma * row_lengths(W).sum()
    assert objective[-1] == pytest.approx(plain, rel=1e-4)


def test_a_larger_penalty_leaves_fewer_rows():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, 15))
    counts = [
        (row_lengths(row_sparse_directions(A.T @ A / 40, 2, gamma)[0]) > 1e-4).sum()
        for gamma in (1e-4, 10.0)
    ]
    assert counts[0] == 15
    assert counts[1] == 2


def test_without_penalty_it_is_the_eigenproblem():
    M = np.diag([3.0, 1.0, 2.0, 0.5])
    W, _ = row_sparse_directions(M, 2, 0.0)
    np.testing.assert_allclose(row_lengths(W), [0, 1, 0, 1], atol=1e-8)


def test_rows_shorter_than_rounding_are_ranked_by_the_equations_not_by_noise():
    # with one direction e_0, the others' rows are -M_i0 / (gamma D_i) to first order
    M = np.eye(5) * np.array([1.0, 2.0, 2.0, 2.0, 2.0])
    M[0, 1:] = M[1:, 0] = [1e-3, 4e-3, 2e-3, 3e-3]
    W, _ = row_sparse_directions(M, 1, 1e12)
    lengths = row_lengths(W)[1:]
    assert lengths.max() < 1e-16
    np.testing.assert_allclose(lengths / lengths.max(), [0.25, 1.0, 0.5, 0.75], rtol=1e-3)


def test_features_that_separate_clusters():
    X, _ = planted_clusters()
    model = UDFS(k=4, n_clusters=3, gamma=0.1).fit(X)
    assert model.columns_.tolist() == [0, 1, 2, 3]
    assert 1 <= model.n_iter_ <= 50


@pytest.mark.parametrize("gamma", GAMMAS)
def test_every_gamma_of_the_grid_works(gamma, digits):
    model = UDFS(k=10, gamma=gamma).fit(digits[0][:300])
    assert len(set(model.columns_.tolist())) == 10
    assert np.isfinite(model.scores_).all()


def test_fewer_features_than_clusters():
    X = np.random.default_rng(0).normal(size=(30, 3))
    assert UDFS(k=2, n_clusters=9).fit(X).columns_.shape == (2,)
    assert UDFS(k=1, n_clusters=9).fit(X[:, :1]).columns_.tolist() == [0]
