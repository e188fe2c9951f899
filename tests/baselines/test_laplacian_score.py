"""The Laplacian score against the formula of the paper, and on clusters."""

import numpy as np
import pytest

from fewer.baselines import LaplacianScore
from tests.baselines.cases import planted_clusters
from tests.baselines.test_graph import dense_graph


@pytest.mark.parametrize("width", ["mean", "self-tuning", 2.0])
def test_scores_are_those_of_the_paper(width):
    X = np.random.default_rng(0).normal(size=(70, 6)) + 100.0
    S = dense_graph(X, 5, width)
    D = np.diag(S.sum(axis=1))
    ones = np.ones(70)
    expected = []
    for f in X.T:
        centred = f - (f @ D @ ones) / (ones @ D @ ones)
        expected.append((centred @ (D - S) @ centred) / (centred @ D @ centred))
    model = LaplacianScore(k=2, width=width).fit(X)
    np.testing.assert_allclose(model.scores_, expected, rtol=1e-8)
    assert set(model.columns_) == set(np.argsort(expected)[:2])


def test_features_that_separate_clusters():
    X, _ = planted_clusters()
    model = LaplacianScore(k=4).fit(X)
    assert model.columns_.tolist() == [0, 1, 2, 3]
    assert model.scores_[:4].max() < 0.1
    assert model.scores_[4:].min() > 0.5


def test_a_constant_feature_scores_infinity():
    X = np.random.default_rng(0).normal(size=(30, 4))
    X[:, 2] = 7.0
    model = LaplacianScore(k=3).fit(X)
    assert np.isinf(model.scores_).tolist() == [False, False, True, False]
    assert 2 not in model.columns_
