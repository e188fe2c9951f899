"""Errors on held-out rows with the splits and the scaling that earlier measurements used."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from fewer.search import greedy, search


def rows(folder, name):
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        X = stored["X"].astype(np.float64)
    X = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    low, high = X.min(axis=0), X.max(axis=0)
    X = (X - low) / np.where(high > low, high - low, 1)
    order = np.random.default_rng(0).permutation(len(X))
    cut = int(0.8 * len(X))
    return X[order[:cut]], X[order[cut:]]


def held_out_error(train, test, chosen):
    decoder = LinearRegression().fit(train[:, chosen], train)
    return float(((decoder.predict(test[:, chosen]) - test) ** 2).mean())


def both(train, test, k):
    C = np.cov(train.T)
    found = search(C, k)
    assert found.objective < 0.98 * greedy(C, k).errors[-1]
    return held_out_error(train, test, found.indices)


def test_mnist(mnist):
    assert both(*mnist, 50) <= 0.01750


@pytest.mark.parametrize(
    ("name", "k", "most"), [("isolet", 50, 0.01230), ("mice_protein", 10, 0.00549)]
)
def test_others(data_folder, name, k, most):
    assert both(*rows(data_folder, name), k) <= most
