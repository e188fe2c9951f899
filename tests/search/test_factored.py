"""Few rows and many features: the rows give what their covariance gives."""

import sys

import numpy as np
import pytest
import torch

from fewer.constraints import resolve
from fewer.data.factored import FactoredCovariance, symmetric_product
from fewer.errors import InputError
from fewer.search import greedy, residual, search, swap
from fewer.search.eigen import leading_eigenvectors
from fewer.search.exchange import best_swap, swap_losses, whole_exchange
from fewer.search.greedy import nested
from fewer.search.swap import Explorer

swap_module = sys.modules["fewer.search.swap"]  # fewer.search.swap is the function
N, D, K = 18, 90, 5


@pytest.fixture(scope="module")
def pair():
    """A covariance as rows, and as a matrix; one column is constant, one a duplicate."""
    random = np.random.default_rng(0)
    X = random.normal(size=(N, 6)) @ random.normal(size=(6, D)) + 0.5 * random.normal(size=(N, D))
    X[:, 7], X[:, 8] = 3.0, X[:, 9]
    X = torch.from_numpy(X - X.mean(0)) / N**0.5
    return FactoredCovariance(X), X.T @ X


CONSTRAINTS = {
    "plain": {},
    "include and exclude": {"include": [3, 60], "exclude": list(range(10, 40))},
    "costs": {"costs": np.linspace(1, 3, D), "budget": 9.0},
    "weighted costs": {"costs": np.linspace(1, 3, D), "cost_weight": 0.01},
    "groups": {"groups": np.arange(D) // 3},
}


def constraints(name, k=K):
    return resolve(None, D, k, **CONSTRAINTS[name])


def test_rows_products_diagonal_and_trace(pair):
    few, C = pair
    w = torch.linspace(0, 1, D, dtype=torch.float64)
    assert len(few) == D
    assert few.shape == C.shape
    for found, wanted in [
        (few[np.array([4, 2])], C[[4, 2]]),
        (few[torch.tensor([[1, 2]])], C[[1, 2]][None]),
        (w @ few, w @ C),
        (few @ w, C @ w),
        (few.diagonal(), C.diagonal()),
        (few.trace(), C.trace()),
        (few.squares, (C @ C).diagonal()),
    ]:
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("m", [3, 64, 300])
def test_symmetric_products_and_squares_of_many_rows(m):
    x = torch.randn(m, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(symmetric_product(x, x), x @ x.T)
    C = x.T @ x
    torch.testing.assert_close(FactoredCovariance(x).squares, (C @ C).diagonal())


def test_some_features_with_sums_over_all(pair):
    few, C = pair
    at = torch.tensor([4, 30, 2])
    part = few.among(at)
    torch.testing.assert_close(part[torch.arange(3)], C[at][:, at])
    torch.testing.assert_close(part.squares, (C @ C).diagonal()[at])
    assert float(part.trace()) == pytest.approx(float(C.trace()))


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_swaps_are_scored_some_features_at_a_time(pair, ridge, monkeypatch):
    monkeypatch.setattr("fewer.search.exchange.SOME_COLUMNS", 7)
    S = torch.tensor([[3, 60, D, 89], [1, 2, 40, 80]])  # D marks an empty place
    found, wanted = (whole_exchange(C, ridge, S) for C in pair)
    for _ in range(6):
        torch.testing.assert_close(found.gains(), wanted.gains(), rtol=1e-7, atol=1e-9)
        gain, i, j = best_swap(wanted.gains())
        for state in (found, wanted):
            state.swap(i, j, gain, gain > -torch.inf)
    torch.testing.assert_close(found.objective, wanted.objective)


@pytest.mark.parametrize("name", ["plain", "include and exclude", "costs", "weighted costs"])
def test_walks_need_no_matrix_of_the_candidates(pair, name, monkeypatch):
    rules, few = constraints(name), pair[0]
    start = greedy(few, rules).panel()
    found = []
    for wide in (1, 1e9):  # rows, and matrices
        monkeypatch.setattr(swap_module, "WIDE", wide)
        explorer = Explorer(few, rules, 0.1, np.arange(D), torch.Generator().manual_seed(0))
        assert (explorer.square is None) == (wide == 1)
        found.append(explorer.improve([start, start[:-1]], 8, [start[:0], start[-1:]]))
    for mine, wanted in zip(*found, strict=True):
        assert mine.tolist() == wanted.tolist()


def test_swaps_of_promising_features_only(pair, monkeypatch):
    monkeypatch.setattr(swap_module, "FIRST_CANDIDATES", 10)
    few, start = pair[0], np.array([1, 2, 3, 4, 5])
    quick, thorough = (swap(few, start, ridge=0.1, thorough=which) for which in (False, True))
    assert not quick.optimal
    assert quick.objective == pytest.approx(residual(few, quick.indices, 0.1))
    assert thorough.objective <= quick.objective < 0.7 * residual(few, start, 0.1)
    assert quick.evaluations < thorough.evaluations


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_greedy_takes_the_same_features(pair, name, ridge):
    found, wanted = (greedy(C, constraints(name), ridge=ridge) for C in pair)
    assert found.order.tolist() == wanted.order.tolist()
    np.testing.assert_allclose(found.errors, wanted.errors, rtol=1e-9)


def test_greedy_until_nothing_is_left(pair):
    # beyond the rank all choices are equal, so only the errors count
    found, wanted = (greedy(C, N + 2) for C in pair)
    assert found.order[: N - 2].tolist() == wanted.order[: N - 2].tolist()
    np.testing.assert_allclose(found.errors, wanted.errors, atol=1e-9 * float(pair[0].trace()))


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_swaps_and_search_end_alike(pair, name, ridge):
    rules = constraints(name)
    start = greedy(pair[0], rules).panel()
    found, wanted = (swap(C, start, rules, ridge=ridge) for C in pair)
    assert found.indices.tolist() == wanted.indices.tolist()
    assert found.objective == pytest.approx(wanted.objective, rel=1e-9)
    few, dense = (search(C, rules, ridge=ridge, seed=0, stall=2) for C in pair)
    assert few.objective == pytest.approx(dense.objective, rel=1e-3)
    assert few.objective <= found.objective + 1e-12


@pytest.mark.parametrize("k", [1, 2])
def test_all_panels_are_judged_where_there_are_few(pair, k):
    found, wanted = (search(C, k) for C in pair)
    assert found.stopped == wanted.stopped == "optimal"
    assert found.indices.tolist() == wanted.indices.tolist()


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_residual_swap_losses_and_order(pair, ridge):
    panel = [2, 8, 9, 30, 7]  # with the duplicates and the constant
    found, wanted = (residual(C, panel, ridge) for C in pair)
    assert found == pytest.approx(wanted, rel=1e-9)
    found, wanted = (swap_losses(C, [2, 30, 55], ridge) for C in pair)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
    found, wanted = (nested(C, panel, ridge) for C in pair)
    assert found[0][:3].tolist() == wanted[0][:3].tolist()
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-9, atol=1e-12)


def test_swaps_are_precise_where_hardly_anything_is_left():
    random = np.random.default_rng(1)
    X = random.normal(size=(12, 4)) @ random.normal(size=(4, 60))
    X = torch.from_numpy(X + 1e-5 * random.normal(size=X.shape)) / 12**0.5
    start = greedy(FactoredCovariance(X), 4).panel()
    found, wanted = (swap_losses(C, start) for C in (FactoredCovariance(X), X.T @ X))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-12)
    assert 0 < residual(FactoredCovariance(X), start) < 1e-6


@pytest.mark.parametrize("scaled", [False, True])
def test_leading_eigenvectors(pair, scaled):
    few, C = pair
    scale = torch.linspace(0.5, 2, D, dtype=torch.float64) if scaled else None
    found, wanted = (leading_eigenvectors(M, 6, scale=scale) for M in pair)
    torch.testing.assert_close(found @ found.T, wanted @ wanted.T, rtol=0, atol=1e-8)
    more = leading_eigenvectors(few, N + 4)
    torch.testing.assert_close(more.T @ more, torch.eye(N + 4, dtype=torch.float64))
    kept = float((more * (C @ more)).sum())
    assert kept == pytest.approx(float(C.trace()), rel=1e-9)


def test_missing_values_are_refused():
    X = torch.ones(2, 9, dtype=torch.float64)
    X[1, 3] = torch.nan
    with pytest.raises(InputError, match="NaN"):
        greedy(FactoredCovariance(X), 2)
