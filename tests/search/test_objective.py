import numpy as np
import pytest
import torch

from fewer.errors import InputError
from fewer.search import greedy, residual, search, swap
from tests.search.brute import KINDS, explained, instance


def test_it_is_the_squared_error_of_least_squares():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 8)) @ rng.normal(size=(8, 8))
    X -= X.mean(0)
    S = [1, 4, 6]
    B = np.linalg.lstsq(X[:, S], X, rcond=None)[0]
    expected = ((X - X[:, S] @ B) ** 2).sum() / 50
    assert residual(X.T @ X / 50, S) == pytest.approx(expected, rel=1e-9)


def test_with_ridge_it_is_the_penalised_error():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 6))
    C, S, ridge = X.T @ X / 40, [0, 5], 0.3
    B = np.linalg.solve(C[np.ix_(S, S)] + ridge * np.eye(2), C[S])
    expected = ((X - X[:, S] @ B) ** 2).sum() / 40 + ridge * (B**2).sum()
    assert residual(C, S, ridge) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_it_agrees_with_pseudo_inverses(kind, ridge):
    C = instance(kind, 10, 3)
    ridge *= np.trace(C) / 10
    panels = np.array([np.random.default_rng(s).permutation(10)[:6] for s in range(10)])
    expected = np.trace(C) - explained(C, panels, ridge)
    found = [residual(C, panel, ridge) for panel in panels]
    np.testing.assert_allclose(found, expected, atol=1e-7 * np.trace(C))


def test_edges():
    C = np.diag([2.0, 0.0, 1.0])
    assert residual(C, []) == 3.0
    assert residual(C, [1]) == 3.0
    assert residual(C, [0, 1, 2]) == 0.0
    assert residual(torch.eye(3, dtype=torch.float32), [0]) == 2.0


@pytest.mark.parametrize(
    ("C", "words"),
    [
        (np.ones((2, 3)), "shape"),
        (np.zeros((0, 0)), "shape"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "NaN"),
        (np.array([[1.0, 0.5], [-0.5, 1.0]]), "not symmetric"),
        (np.diag([1.0, -1.0]), r"C\[1, 1\] is negative"),
    ],
)
def test_an_invalid_covariance_is_refused(C, words):
    for call in (residual, swap):
        with pytest.raises(InputError, match=words):
            call(C, [0])
    for call in (greedy, search):
        with pytest.raises(InputError, match=words):
            call(C, 1)


@pytest.mark.parametrize("call", [greedy, search])
def test_bad_options_are_refused(call):
    with pytest.raises(InputError, match="ridge=-1"):
        call(np.eye(3), 1, ridge=-1)
    with pytest.raises(InputError, match="k=4 is more"):
        call(np.eye(3), 4)
