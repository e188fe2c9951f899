"""Methods of the comparisons choose as their estimators do."""

import numpy as np
import pytest

from fewer.baselines import GAMMAS, UDFS, sweep
from fewer.datasets import load
from paper.case import make_case
from paper.methods import METHODS, SWEEP_ROWS, choose


@pytest.mark.parametrize("k", [5, 20])
def test_options_are_swept_as_the_library_does(k):
    case = make_case(load("digits"))
    rows = np.random.default_rng(3).permutation(len(case.train))[:SWEEP_ROWS]
    estimator = UDFS(k, n_clusters=10)
    found = sweep(estimator, {"gamma": GAMMAS}, case.train[rows], case.validation)
    expected = estimator.set_params(**found.best_params_).fit(case.fit)
    choice = choose(METHODS["udfs"], case, k, seed=3)
    assert choice.settings == found.best_params_
    np.testing.assert_array_equal(choice.columns, expected.columns_)


def test_a_ranking_is_made_once_for_all_sizes(monkeypatch):
    fits = []
    fit = UDFS.fit
    monkeypatch.setattr(UDFS, "fit", lambda self, X: fits.append(len(X)) or fit(self, X))
    case = make_case(load("digits"))
    choose(METHODS["udfs"], case, 5, seed=0)
    made = len(fits)
    assert len(GAMMAS) < made
    choose(METHODS["udfs"], case, 5, seed=0)
    assert len(fits) == made
    choose(METHODS["udfs"], case, 20, seed=0)
    assert len(fits) <= made + 1  # another penalty may be best there
