"""Swaps by held-out error: the formulas against fitting every decoder."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from fewer.search import search
from fewer.train.swaps import HeldOut, held_out_swaps
from fewer.validation import split_rows


@pytest.fixture(scope="module")
def rows():
    X = load_breast_cancer().data[:90]
    return (X - X.mean(axis=0)) / X.std(axis=0)


@pytest.fixture(scope="module")
def folds(rows):
    return HeldOut.of(rows, split_rows(len(rows), 3, seed=0).parts, ridge=0.2)


def test_the_error_is_that_of_ridge_regression(rows, folds):
    panel = np.array([0, 4, 9])
    total = 0.0
    for held in split_rows(len(rows), 3, seed=0).parts:
        train = np.delete(rows, held, axis=0)
        mean = train.mean(axis=0)
        x, y = train - mean, rows[held] - mean
        gram = x[:, panel].T @ x[:, panel] / len(x) + 0.2 * np.eye(3)
        weights = np.linalg.solve(gram, x[:, panel].T @ x / len(x))
        total += np.mean((y - y[:, panel] @ weights) ** 2)
    assert folds.error(panel) == pytest.approx(total / 3, rel=1e-4)


def test_every_swap_is_scored_as_if_it_were_made(folds):
    panel = np.array([1, 7, 12, 20])
    base = folds.error(panel)
    change = folds.swaps(panel)
    assert np.isinf(change[:, panel]).all()
    for i in range(4):
        for j in np.setdiff1d(np.arange(30), panel):
            swapped = panel.copy()
            swapped[i] = j
            assert change[i, j] == pytest.approx(folds.error(swapped) - base, abs=1e-5)


def test_every_drop_is_scored_as_if_it_were_made(folds):
    panel = np.array([1, 7, 12, 20])
    base = folds.error(panel)
    for i, rise in enumerate(folds.drops(panel)):
        assert rise == pytest.approx(folds.error(np.delete(panel, i)) - base, abs=1e-5)


def test_folds_share_one_table_and_score_some_features_at_a_time(rows, monkeypatch):
    few = rows[:24]
    folds = HeldOut.of(few, split_rows(24, 3, seed=0).parts, ridge=0.2)
    tables = [side.table for part in folds.parts for side in (part.train, part.held)]
    assert all(table is tables[0] for table in tables)
    panel, some = np.array([1, 7, 12]), np.array([28, 3, 9, 14, 2])
    wanted = folds.swaps(panel), folds.swaps(panel, some)
    monkeypatch.setattr("fewer.train.swaps.SOME", 4)
    np.testing.assert_allclose(folds.swaps(panel), wanted[0], rtol=1e-4)
    np.testing.assert_allclose(folds.swaps(panel, some), wanted[1], rtol=1e-4)
    np.testing.assert_allclose(wanted[1], wanted[0][:, some], rtol=1e-4)


def test_it_ends_where_no_swap_helps(rows, folds):
    C = rows.T @ rows / len(rows)
    start = search(C, 5, stall=0).indices
    found = held_out_swaps(folds, start, rounds=50)
    assert len(np.unique(found)) == 5
    assert folds.error(found) <= folds.error(start)
    assert folds.swaps(found).min() > -1e-5
    worst = np.array([2, 3, 22, 23, 20])  # nearly the same thing five times
    assert folds.error(held_out_swaps(folds, worst, rounds=50)) < 0.9 * folds.error(worst)


def test_nearly_dependent_panels_are_judged_in_float64():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 100)) + 1e-3 * rng.normal(size=(60, 100))
    held = split_rows(60, 3, seed=0).parts
    folds = HeldOut.of(rows, held, ridge=1e-6)
    panel = np.arange(30)
    total = 0.0
    for index in held:
        train = np.delete(rows, index, axis=0)
        mean = train.mean(axis=0)
        x, y = train - mean, rows[index] - mean
        gram = x[:, panel].T @ x[:, panel] / len(x) + 1e-6 * np.eye(30)
        weights = np.linalg.solve(gram, x[:, panel].T @ x / len(x))
        total += np.mean((y - y[:, panel] @ weights) ** 2)
    assert folds.error(panel) == pytest.approx(total / 3, rel=0.05)
