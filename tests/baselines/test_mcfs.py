"""MCFS: regression of smooth functions on few features."""

import numpy as np
import pytest
from sklearn.linear_model import lars_path

from fewer.baselines import MCFS, LaplacianScore
from fewer.baselines._graph import sparse_weights
from tests.baselines.cases import planted_clusters


def test_weights_are_those_of_least_angle_regression():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 12))
    y = X[:, [2, 5, 9]] @ np.array([[3.0, 0.0], [1.0, -2.0], [0.0, 1.0]])
    weights = sparse_weights(X, y, 3)
    for at in range(2):
        path = lars_path(X, y[:, at], max_iter=3)[2]
        np.testing.assert_allclose(weights[:, at], path[:, -1], atol=1e-10)
    assert ((weights != 0).sum(axis=0) <= 3).all()
    # a target that two features make up exactly needs no third
    np.testing.assert_allclose(weights[[5, 9], 1], [-2, 1], atol=0.15)


def test_features_that_separate_clusters():
    X, _ = planted_clusters()
    model = MCFS(k=3, n_clusters=2, random_state=0).fit(X)
    assert set(model.columns_) <= {0, 1, 2, 3}


def test_copies_do_not_crowd_out_other_features():
    X, _ = planted_clusters(n_clusters=4, informative=2, noise=6, per_cluster=40)
    X = np.hstack([X[:, :1] + np.zeros((1, 5)), X[:, 1:]])  # five copies of the first column
    model = MCFS(k=2, n_clusters=3, random_state=0).fit(X)
    assert 5 in model.columns_
    assert len(set(model.columns_) & {0, 1, 2, 3, 4}) == 1
    alone = LaplacianScore(k=5).fit(X)  # which judges features one by one
    assert len(set(alone.columns_) & {0, 1, 2, 3, 4}) >= 4


def test_the_seed_of_the_eigensolver_does_not_matter(digits):
    rows = digits[0]
    scores = [MCFS(k=8, random_state=seed).fit(rows).scores_ for seed in range(2)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("n_clusters", [1, 30])
def test_any_number_of_clusters(n_clusters, digits):
    model = MCFS(k=5, n_clusters=n_clusters, random_state=0).fit(digits[0][:200])
    assert model.score(digits[1]) > 0.1
