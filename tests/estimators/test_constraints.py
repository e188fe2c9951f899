"""Include, exclude, costs, budget and groups mean the same in every estimator and solver."""

import numpy as np
import pandas as pd
import pytest

from fewer import ColumnSubset, ConcreteAutoencoder, ConcreteClassifier, ConcreteRegressor
from fewer.constraints import resolve
from fewer.errors import InputError

NAMES = [f"f{j}" for j in range(12)]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 4)) @ RNG.normal(size=(4, 12)) + 0.4 * RNG.normal(size=(150, 12))
FRAME = pd.DataFrame(X, columns=NAMES)
Y = (X[:, 0] > 0).astype(int)
SHORT = {"epochs": 30, "tries": 1, "stop_probability": 0.5, "refit_epochs": 5}


def closed(**options):
    return ConcreteAutoencoder(solver="closed_form", epochs=60, random_state=0, **options)


def gradient(**options):
    return ConcreteAutoencoder(solver="gradient", random_state=0, **SHORT, **options)


def network(**options):
    return ConcreteAutoencoder(decoder=(8,), random_state=0, **SHORT, **options)


def classifier(**options):
    return ConcreteClassifier(random_state=0, **SHORT, **options)


def regressor(**options):
    return ConcreteRegressor(random_state=0, **SHORT, **options)


def subset(**options):
    return ColumnSubset(random_state=0, **options)


EVERY = pytest.mark.parametrize(
    "make",
    [subset, closed, gradient, network, classifier, regressor],
    ids=lambda make: make.__name__,
)
pytestmark = pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")


@EVERY
def test_include_and_exclude_by_name_or_number(make):
    for include, exclude in ((["f7", "f2"], ["f0"]), ([7, 2], [0])):
        model = make(k=4, include=include, exclude=exclude).fit(FRAME, Y)
        chosen = model.columns_.tolist()
        assert {2, 7} <= {*chosen}
        assert 0 not in chosen
        assert len(chosen) == 4
        assert model.inverse_transform(model.transform(FRAME)).shape == (150, 12)


@EVERY
def test_the_whole_panel_can_be_given(make):
    model = make(k=2, include=["f7", "f2"]).fit(FRAME, Y)
    assert model.columns_.tolist() == [2, 7]


@EVERY
def test_a_budget_with_and_without_k(make):
    costs = {name: 1 + j % 4 for j, name in enumerate(NAMES)}
    for k in (3, None):
        model = make(k=k, costs=costs, budget=6).fit(FRAME, Y)
        constraints = resolve(NAMES, 12, k, costs=costs, budget=6)
        constraints.check(model.columns_)
        assert len(model.columns_) == 3 or k is None
        assert len(model.feature_groups(2)) == len(model.columns_)


@EVERY
def test_groups_are_measured_whole_and_count_once(make):
    groups = [["f0", "f1", "f2"], ["f5", "f6"]]
    model = make(k=3, groups=groups, include=["f6"]).fit(FRAME, Y)
    resolve(NAMES, 12, 3, include=["f6"], groups=groups).check(model.columns_)
    assert {5, 6} <= {*model.columns_.tolist()}
    assert model.inverse_transform(model.transform(FRAME)).shape == (150, 12)


@pytest.mark.parametrize("make", [closed, gradient, subset])
def test_cost_weight_trades_error_for_cost(make):
    costs = np.ones(12)
    free = make(k=3, costs=costs).fit(X)
    costs[free.columns_] = 50.0
    dear = make(k=3, costs=costs, cost_weight=1.0).fit(X)
    assert costs[dear.columns_].sum() < costs[free.columns_].sum()


@EVERY
def test_constraints_survive_saving(make, tmp_path):
    model = make(k=3, include=["f7"], groups=[["f0", "f1"]], costs=dict.fromkeys(NAMES, 1.0))
    model.fit(FRAME, Y).save(tmp_path / "m")
    again = type(model).load(tmp_path / "m")
    assert again.get_params()["include"] in (["f7"], ("f7",))
    np.testing.assert_array_equal(again.transform(FRAME), model.transform(FRAME))


@EVERY
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 2, "include": ["f1"], "exclude": ["f1"]}, "include and exclude overlap"),
        ({"k": 1, "include": ["f1", "f2"]}, "include"),
        ({"k": 2, "include": ["f11x"]}, "f11"),
        ({"k": 2, "exclude": [99]}, "99"),
        ({"k": None}, "k and budget are both None"),
        ({"k": None, "costs": np.ones(12), "budget": 0.5}, "budget"),
        ({"k": 2, "costs": -np.ones(12), "budget": 3}, "costs?"),
        ({"k": 2, "costs": {"f0": 1}, "budget": 3}, "costs?"),
    ],
)
def test_bad_constraints_are_named(make, options, message):
    with pytest.raises(InputError, match=message):
        make(**options).fit(FRAME, Y)
