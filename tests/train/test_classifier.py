"""Linear classifiers against scikit-learn's, which solves the same problem."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import fewer
from fewer.data import moments
from fewer.data.source import array_source
from fewer.nn import make_loss
from fewer.train.linear import fit_likelihood, fits

SETS = {
    "iris": (load_iris, 2),
    "breast cancer": (load_breast_cancer, 8),
    "digits": (load_digits, 10),
}

LOSS = make_loss("cross_entropy")


def halves(name):
    load, k = SETS[name]
    X, y = load(return_X_y=True)
    columns = np.sort(np.random.default_rng(0).choice(X.shape[1], k, replace=False))
    return columns, *train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)


def fitted(X, y, columns, **options):
    source = array_source(X)
    return fit_likelihood(
        source, columns, moments(source), torch.tensor(y), int(y.max()) + 1, LOSS, **options
    )


def chances(line, X):
    with torch.no_grad():
        return torch.softmax(line(torch.tensor(X)), dim=1).numpy()


@pytest.mark.parametrize("name", ["iris", "digits"])
def test_the_minimum_is_that_of_scikit_learn(name):
    columns, X, _, y, _ = halves(name)
    line = fitted(X, y, columns, ridge=0.5 / len(X))
    scaler = StandardScaler().fit(X[:, columns])
    theirs = LogisticRegression(C=2.0, tol=1e-8, max_iter=5000)
    theirs.fit(scaler.transform(X[:, columns]), y)
    expected = theirs.predict_proba(scaler.transform(X[:, columns]))
    np.testing.assert_allclose(chances(line, X[:, columns]), expected, atol=1e-4)


@pytest.mark.parametrize("name", SETS)
def test_held_out_loss_is_about_that_of_the_best_penalty(name):
    columns, X, X_test, y, y_test = halves(name)
    ours = log_loss(y_test, chances(fitted(X, y, columns), X_test[:, columns]))
    scaler = StandardScaler().fit(X[:, columns])
    theirs = []
    for C in (0.01, 0.1, 1, 10, 100):
        model = LogisticRegression(C=C, max_iter=5000).fit(scaler.transform(X[:, columns]), y)
        theirs.append(log_loss(y_test, model.predict_proba(scaler.transform(X_test[:, columns]))))
    assert ours < 1.1 * sorted(theirs)[1]  # the best is luck on so few rows


def test_separable_classes_get_finite_weights():
    X = np.r_[np.zeros((10, 1)), np.ones((10, 1))]
    y = np.repeat([0, 1], 10)
    line = fitted(X, y, np.array([0]))
    assert torch.isfinite(line.weight).all()
    assert (chances(line, X).argmax(1) == y).all()


def test_gaps_take_the_mean_and_groups_stay_together():
    rng = np.random.default_rng(0)
    animals = np.repeat(np.arange(12), 10)
    X = np.repeat(rng.normal(size=(12, 6)), 10, axis=0) + 0.01 * rng.normal(size=(120, 6))
    y = np.repeat(rng.integers(0, 2, size=12), 10)
    X[3, 2] = np.nan
    columns = np.arange(6)
    known = fitted(X, y, columns, groups=animals)
    unknown = fitted(X, y, columns)
    # copies of a row on both sides of a split make any fit look good
    assert known.weight.norm() < unknown.weight.norm()


def test_rows_that_do_not_fit_are_left_to_batches():
    source = array_source(np.zeros((100, 3)))
    assert fits(source, 3)
    source.memory_limit = 1000
    assert not fits(source, 3)


def test_a_linear_concrete_classifier_is_solved():
    X, y = load_iris(return_X_y=True)
    model = fewer.ConcreteClassifier(2, decoder="linear", n_init=2, random_state=0).fit(X, y)
    assert log_loss(y, model.predict_proba(X)) < 0.16
    assert len(model.refit_history_) == 1


def test_select_for_a_target_predicts_better_than_guessing_scikit_learns_default():
    X, y = load_iris(return_X_y=True)
    panel = fewer.select(X, 2, target=y, random_state=0, strategies=["search"])
    assert panel.target.held_out > 0.93
    assert panel.leaderboard[0]["error"] < 0.2
