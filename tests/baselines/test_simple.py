"""Largest variance, lots, greedy steps and pivots."""

import itertools

import numpy as np
import pytest

from fewer.baselines import Greedy, MaxVariance, PivotedQR, RandomSubset
from fewer.errors import InputError


def residual(X, columns):
    """Sum of residual variances of least squares from some columns, by plain arithmetic."""
    centred = X - X.mean(axis=0)
    part = centred[:, columns]
    back = part @ np.linalg.lstsq(part, centred, rcond=None)[0]
    return ((centred - back) ** 2).sum() / len(X)


@pytest.fixture
def correlated():
    rng = np.random.default_rng(3)
    return rng.normal(size=(60, 9)) @ rng.normal(size=(9, 9))


def test_max_variance(correlated):
    model = MaxVariance(k=3).fit(correlated)
    np.testing.assert_allclose(model.scores_, correlated.var(axis=0))
    assert model.order_.tolist() == np.argsort(-correlated.var(axis=0))[:3].tolist()


def test_random_choices_are_uniform():
    X = np.random.default_rng(0).normal(size=(5, 8))
    drawn = np.concatenate([RandomSubset(2, random_state=s).fit(X).columns_ for s in range(400)])
    times = np.bincount(drawn, minlength=8)
    assert times.min() > 60
    assert times.max() < 140


def test_greedy_equals_trying_every_next_feature(correlated):
    taken = []
    for _ in range(5):
        rest = [j for j in range(9) if j not in taken]
        taken.append(min(rest, key=lambda j: residual(correlated, [*taken, j])))
    model = Greedy(k=5).fit(correlated)
    assert model.order_.tolist() == taken
    expected = [residual(correlated, taken[:size]) for size in range(1, 6)]
    np.testing.assert_allclose(model.residuals_, expected, rtol=1e-8)


def test_greedy_obeys_rules(correlated):
    free = Greedy(k=3).fit(correlated).columns_
    barred = Greedy(k=3, exclude=[int(free[0])], include=[int(free[1])]).fit(correlated)
    assert free[0] not in barred.columns_
    assert free[1] in barred.columns_
    whole = Greedy(k=1, groups=[[0, 1], [2, 3]]).fit(correlated)
    assert len(whole.columns_) in (1, 2)
    bought = Greedy(k=None, costs=np.arange(1.0, 10.0), budget=6).fit(correlated)
    assert (bought.columns_ + 1).sum() <= 6
    with pytest.raises(InputError, match="include and exclude overlap"):
        Greedy(k=2, include=[1], exclude=[1]).fit(correlated)


def test_pivots_are_the_columns_least_explained_so_far(correlated):
    centred = correlated - correlated.mean(axis=0)
    left, taken = centred.copy(), []
    for _ in range(6):
        taken.append(int((left**2).sum(axis=0).argmax()))
        basis = np.linalg.qr(centred[:, taken])[0]
        left = centred - basis @ (basis.T @ centred)
        left[:, taken] = 0
    assert PivotedQR(k=6).fit(correlated).order_.tolist() == taken


def test_pivots_of_a_matrix_made_by_hand():
    # orthogonal columns of falling length, with a copy of the longest beside it
    basis = np.array([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    X = basis[:, [0, 0, 1, 2]] * np.array([4.0, 3.9, 2.0, 1.0])
    assert PivotedQR(k=3).fit(X).order_.tolist() == [0, 2, 3]


def test_greedy_is_close_to_the_best_of_all_subsets(correlated):
    best = min(residual(correlated, list(some)) for some in itertools.combinations(range(9), 3))
    greedy = residual(correlated, Greedy(k=3).fit(correlated).columns_.tolist())
    assert best <= greedy + 1e-9
    assert greedy < 1.5 * best
