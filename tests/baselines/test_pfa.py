"""PFA: one feature of each kind."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fewer.baselines import PFA
from fewer.baselines._simple import component_count, nearest_to_centres
from tests.baselines.cases import blocks_of_copies


@pytest.mark.parametrize("seed", range(3))
def test_one_of_each_block_of_copies_the_largest_block_first(seed):
    X, block = blocks_of_copies(seed=seed)
    model = PFA(k=3, random_state=seed).fit(X)
    assert block[model.order_].tolist() == [0, 1, 2]
    assert model.score(X) > 0.999


def test_components_for_a_share_of_variance():
    values = np.array([5.0, 3.0, 1.0, 1.0])
    assert [component_count(values, 10.0, share) for share in (0.5, 0.51, 0.8, 1.0)] == [1, 2, 2, 4]
    # the leading ones hold less than the share: all that there are
    assert component_count(values[:2], 10.0, 0.9) == 2
    assert component_count(values, 10.0, 9) == 4


def test_loadings_lose_their_signs_and_only_the_leading_ones_count(digits):
    rows = digits[0]
    leading = PCA(2).fit(rows).components_.T
    varying = np.flatnonzero(rows.std(axis=0) > 0)
    expected = varying[nearest_to_centres(np.abs(leading[varying]), 5, np.random.RandomState(3))]
    model = PFA(k=5, n_components=2, random_state=np.random.RandomState(3)).fit(rows)
    assert model.order_.tolist() == expected.tolist()


def test_the_nearest_to_each_centre():
    rng = np.random.default_rng(0)
    points = np.vstack([c + 0.1 * rng.normal(size=(7, 2)) for c in ([0, 0], [5, 0], [0, 5])])
    chosen = nearest_to_centres(points, 3, np.random.RandomState(0))
    for at, part in enumerate(np.split(np.arange(21), 3)):
        away = np.linalg.norm(points[part] - points[part].mean(axis=0), axis=1)
        assert part[away.argmin()] in chosen, at


def test_fewer_clusters_than_features():
    X = np.repeat(np.random.default_rng(0).normal(size=(40, 2)), 3, axis=1)
    model = PFA(k=5, random_state=0).fit(X)
    assert len(set(model.columns_.tolist())) == 5
