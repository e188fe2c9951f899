"""Held-out errors from covariances equal those from rows."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LinearRegression, Ridge

from fewer.data import open_source
from fewer.train.folds import choose_ridge, make_folds, split_rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4)) @ RNG.normal(size=(4, 8)) + 0.5 * RNG.normal(size=(90, 8)) + 3
COLUMNS = np.array([1, 6])


@pytest.mark.parametrize("folds", [5, 0.3])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_errors_equal_those_of_a_regression(folds, form):
    for fold in make_folds(open_source(form(X)), split_rows(90, folds, seed=0)):
        train, held = X[fold.train_index], X[fold.held_index]
        assert len(train) + len(held) == 90
        plain = LinearRegression().fit(train[:, COLUMNS], train)
        expected = ((plain.predict(held[:, COLUMNS]) - held) ** 2).mean()
        assert fold.error(COLUMNS) == pytest.approx(expected)
        ridge = Ridge(alpha=0.2 * len(train)).fit(train[:, COLUMNS], train)
        expected = ((ridge.predict(held[:, COLUMNS]) - held) ** 2).mean()
        assert fold.error(COLUMNS, 0.2) == pytest.approx(expected)


def test_groups_stay_together():
    groups = np.repeat(np.arange(9), 10)
    parts = split_rows(90, 3, seed=0, groups=groups)
    assert sorted(np.concatenate(parts)) == list(range(90))
    for part in parts:
        assert not set(groups[part]) & set(np.delete(groups, part))


def test_a_penalty_is_chosen_only_where_it_pays():
    folds = make_folds(open_source(X), split_rows(90, 5, seed=0))
    panels = dict.fromkeys((0.0, 1e-3, 10.0), COLUMNS)
    assert choose_ridge(folds, panels) == 0.0
    few = RNG.normal(size=(14, 30)) + RNG.normal(size=(14, 1))
    folds = make_folds(open_source(few), split_rows(14, 7, seed=0))
    panels = dict.fromkeys((0.0, 0.3), np.arange(10))
    assert choose_ridge(folds, panels) == 0.3
