"""Simple rankings of features by their relation with a target."""

import numpy as np
import pytest
from sklearn.feature_selection import f_classif, f_regression, mutual_info_classif

import fewer
from fewer.constraints import resolve
from fewer.errors import InputError
from fewer.selection.filters import FILTERS, _obeying, rank_features


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 8))
    X[:, 5] = X[:, 0] + 0.05 * random.normal(size=400)  # a twin of the best
    score = 2 * X[:, 0] + X[:, 1] + 0.5 * X[:, 2] + 0.5 * random.normal(size=400)
    return X - X.mean(axis=0), score


def test_anova_is_that_of_scikit_learn(rows):
    X, score = rows
    codes = np.digitize(score, [-1, 1])
    np.testing.assert_allclose(FILTERS["ANOVA"](X, codes, 0), f_classif(X, codes)[0], rtol=1e-9)
    found = FILTERS["ANOVA"](X, score[:, None], 0) * (len(X) - 2)
    np.testing.assert_allclose(found, f_regression(X, score)[0], rtol=1e-6)


def test_information_of_bins_ranks_as_that_of_neighbours(rows):
    X, score = rows
    codes = np.digitize(score, [-1, 1])
    found = FILTERS["mutual information"](X, codes, 0)
    other = mutual_info_classif(X, codes, random_state=0)
    assert set(np.argsort(-found)[:3]) == set(np.argsort(-other)[:3]) == {0, 1, 5}
    numbers = FILTERS["mutual information"](X, np.c_[score, -score], 0)
    assert set(np.argsort(-numbers)[:2]) == {0, 5}


def test_trees_and_least_redundancy(rows):
    X, score = rows
    codes = np.digitize(score, [-1, 1])
    assert set(np.argsort(-FILTERS["tree importance"](X, codes, 0))[:3]) == {0, 1, 5}
    assert set(np.argsort(-FILTERS["tree importance"](X, score[:, None], 0))[:3]) == {0, 1, 5}
    order = rank_features("mRMR", X, codes, most=3)
    assert len({0, 5} & set(order[:2])) == 1  # one of the twins is enough
    assert order[1] == 1
    assert sorted(order) == list(range(8))


def test_coefficients_under_a_penalty_do_without_twins_and_noise(rows):
    X, score = rows
    codes = np.digitize(score, [-1, 1])
    for target in (codes, score[:, None], np.c_[score, -score]):
        found = FILTERS["L1 penalty"](X * [1, 100, 1, 1, 1, 1, 1, 1], target, 0)
        twins, others = found[[0, 5]], found[[3, 4, 6, 7]]
        assert twins.min() < 0.1 * twins.max()  # one of them is enough
        assert others.max() < 0.1 * found[1] < 0.1 * twins.max()


def test_panels_obey_the_constraints():
    order = np.array([3, 0, 1, 2, 4, 5])
    costs = np.array([1.0, 1, 1, 5, 2, 2])
    for rules in (
        {"k": 3, "include": [5], "exclude": [0]},
        {"k": 3, "costs": costs, "budget": 7.0},
        {"k": None, "costs": costs, "budget": 6.5},
        {"k": 2, "groups": [[0, 3], [4, 5]]},
    ):
        constraints = resolve(None, 6, rules.pop("k"), **rules)
        constraints.check(_obeying(order, constraints))
    assert _obeying(order, resolve(None, 6, 3, costs=costs, budget=7.0)).tolist() == [0, 1, 3]


def test_the_panel_without_the_target_is_always_compared(rows):
    X, score = rows
    options = {"validation": 3, "random_state": 0, "device": "cpu"}
    panel = fewer.select(X, 2, target=score, strategies=["filters"], **options)
    names = [row["strategy"] for row in panel.leaderboard]
    assert set(names) == {*FILTERS, "search, without target"}
    best = panel.leaderboard[0]["error"]
    free = next(row for row in panel.leaderboard if row["strategy"] == "search, without target")
    assert best < free["error"]
    assert {0, 1} == set(panel.indices) or {1, 5} == set(panel.indices)
    with pytest.raises(InputError, match="'filters' require a target"):
        fewer.select(X, 2, strategies=["filters"])
