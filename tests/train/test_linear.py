"""Exact linear decoders against scikit-learn and against brute force."""

import numpy as np
import torch
from sklearn.linear_model import LinearRegression, Ridge

from fewer.data import moments
from fewer.data.source import array_source
from fewer.train import fit_linear

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 7)) @ RNG.normal(size=(7, 7)) + 5
COLUMNS = np.array([1, 4, 5])


def predictions(linear, Z):
    return linear(torch.from_numpy(Z)).detach().numpy()


def fitted(rows, **options):
    source = array_source(rows)
    return fit_linear(source, COLUMNS, moments(source), **options)


def test_equals_linear_regression():
    expected = LinearRegression().fit(X[:, COLUMNS], X).predict(X[:, COLUMNS])
    np.testing.assert_allclose(predictions(fitted(X), X[:, COLUMNS]), expected, atol=1e-9)


def test_equals_ridge():
    reference = Ridge(alpha=0.3 * len(X)).fit(X[:, COLUMNS], X)  # theirs sums, ours averages
    found = predictions(fitted(X, ridge=0.3), X[:, COLUMNS])
    np.testing.assert_allclose(found, reference.predict(X[:, COLUMNS]), atol=1e-9)


def test_other_targets():
    targets = RNG.normal(size=(80, 2))
    expected = LinearRegression().fit(X[:, COLUMNS], targets).predict(X[:, COLUMNS])
    found = predictions(fitted(X, targets=torch.from_numpy(targets)), X[:, COLUMNS])
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_each_target_uses_the_rows_that_have_it():
    rows = X.copy()
    gaps = RNG.random(rows.shape) < 0.2
    gaps[:, [1, 4, 5]] = False
    rows[gaps] = np.nan
    found = fitted(rows)
    for j in range(7):
        seen = ~np.isnan(rows[:, j])
        reference = LinearRegression().fit(rows[seen][:, COLUMNS], rows[seen, j])
        np.testing.assert_allclose(found.weight[j].detach(), reference.coef_, atol=1e-8)
        np.testing.assert_allclose(found.bias[j].item(), reference.intercept_, atol=1e-8)


def test_missing_inputs_take_their_mean():
    rows = X.copy()
    rows[:10, 1] = np.nan
    filled = rows.copy()
    filled[:10, 1] = np.nanmean(rows[:, 1])
    seen = np.arange(10, 80)
    reference = LinearRegression().fit(filled[:, COLUMNS], X[:, 0])
    np.testing.assert_allclose(fitted(rows).weight[0].detach(), reference.coef_, atol=1e-8)
    own = LinearRegression().fit(filled[seen][:, COLUMNS], X[seen, 1])
    np.testing.assert_allclose(fitted(rows).weight[1].detach(), own.coef_, atol=1e-8)


def test_copies_and_constants_among_the_inputs():
    rows = X.copy()
    rows[:, 4] = rows[:, 1]
    rows[:, 5] = 2.0
    expected = LinearRegression().fit(rows[:, [1]], rows).predict(rows[:, [1]])
    np.testing.assert_allclose(predictions(fitted(rows), rows[:, COLUMNS]), expected, atol=1e-8)
