"""Sweeps: options are judged on rows that are not in the fit."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from fewer.baselines import PFA, UDFS, MaxVariance, sweep
from fewer.errors import InputError


def test_the_lowest_validation_error_wins():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 20)) + 0.3 * rng.normal(size=(300, 20))
    train, validation, test = X[:150], X[150:250], X[250:]
    found = sweep(UDFS(k=4), {"gamma": (1e-6, 1.0, 30.0, 1e3)}, train, validation)
    assert [options["gamma"] for options, _ in found.errors_] == [1e-6, 1.0, 30.0, 1e3]
    for options, error in found.errors_:
        columns = UDFS(k=4, **options).fit(train).columns_
        decoder = LinearRegression().fit(train[:, columns], train)
        residual = decoder.predict(validation[:, columns]) - validation
        assert error == pytest.approx((residual**2).mean())
    errors = [error for _, error in found.errors_]
    assert len(set(errors)) > 1
    assert found.best_error_ == min(errors)
    assert found.best_params_ == found.errors_[int(np.argmin(errors))][0]
    again = UDFS(k=4, **found.best_params_).fit(train)
    np.testing.assert_allclose(found.best_estimator_.reconstruct(test), again.reconstruct(test))


def test_all_combinations_are_tried_and_the_estimator_is_unchanged(digits):
    model = PFA(k=5, random_state=0)
    grid = {"n_components": (2, 5), "k": (3, 4, 5)}
    found = sweep(model, grid, digits[0][:200], digits[0][200:300])
    assert len(found.errors_) == 6
    assert not hasattr(model, "columns_")
    assert model.get_params() == PFA(k=5, random_state=0).get_params()


def test_missing_entries_do_not_count(digits):
    validation = digits[0][200:300].copy()
    validation[0, :] = np.nan
    found = sweep(MaxVariance(), {"k": (5, 10)}, digits[0][:200], validation)
    assert np.isfinite(found.best_error_)
    assert found.best_params_ == {"k": 10}


def test_bad_input(digits):
    rows = digits[0][:50]
    for same in (rows, rows.copy()):
        with pytest.raises(InputError, match="the same rows"):
            sweep(MaxVariance(), {"k": (1,)}, rows, same)
    for grid in ({}, {"k": ()}):
        with pytest.raises(InputError, match="is empty; give at least one value"):
            sweep(MaxVariance(), grid, rows, digits[1])
