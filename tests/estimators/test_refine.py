"""Swaps after the training of a selector: `refine`."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

import fewer
from fewer import ColumnSubset, ConcreteAutoencoder, ConcreteClassifier, ConcreteRegressor
from fewer.constraints import resolve
from fewer.data.moments import summarize
from fewer.data.source import array_source
from fewer.datasets import load
from fewer.errors import InputError
from fewer.search import residual
from fewer.search.objective import worth

pytestmark = pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")

CPU = {"random_state": 0, "device": "cpu"}
SHORT = {"solver": "gradient", "epochs": 10, "tries": 1, "stop_probability": 0.1}


def factors(n=150, d=16, rank=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, rank)) @ rng.normal(size=(rank, d)) + 0.5 * rng.normal(size=(n, d))


def with_gaps(X):
    return np.where(np.random.default_rng(1).random(X.shape) < 0.1, np.nan, X)


COSTS = 1.0 + np.arange(16) % 4


LIMITS = {
    "k": {"k": 5},
    "include": {"k": 5, "include": [3], "exclude": [0, 1]},
    "budget and k": {"k": 5, "costs": COSTS, "budget": 8},
    "budget": {"k": None, "costs": COSTS, "budget": 11},
    "cost weight": {"k": 4, "costs": COSTS, "cost_weight": 0.2},
    "groups": {"k": 3, "groups": np.arange(16) // 2},
}


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {"epochs": 100}) for name in LIMITS), ("k", SHORT), ("budget", SHORT)],
)
def test_never_above_the_search_whatever_the_constraints(name, options):
    limits = LIMITS[name]
    X = with_gaps(factors())
    options = {"ridge": 0.0, **options, **CPU}
    model = ConcreteAutoencoder(**limits, **options).fit(X)
    best = ColumnSubset(**limits, ridge=0.0, **CPU).fit(X)
    constraints = resolve(None, 16, **limits)
    constraints.check(model.columns_)
    C = summarize(array_source(X)).matrix
    ours, theirs = (worth(C, one.columns_, constraints, 0.0) for one in (model, best))
    assert ours <= theirs * (1 + 1e-9)
    plain = ConcreteAutoencoder(**limits, **options, refine=None).fit(X)
    assert ours <= worth(C, plain.columns_, constraints, 0.0) * (1 + 1e-9)
    assert plain.n_swapped_ == 0
    assert model.n_swapped_ == len(np.setdiff1d(model.columns_, plain.columns_))
    assert model.n_conflicts_ == plain.n_conflicts_ or limits["k"] is None
    assert model.converged_ == plain.converged_
    # every unit has one node, which has logits of its own unless the budget bought more
    np.testing.assert_array_equal(constraints.complete(model.nodes_), model.columns_)
    assert len(set(constraints.unit_of[model.nodes_])) == len(model.nodes_)
    assert len(model.logits_) <= len(model.nodes_)
    assert [group[0] for group in model.feature_groups(2)] == sorted(model.nodes_)


def test_what_folds_say_of_the_search_holds_for_swaps(tmp_path):
    X = factors(40)
    model, best = ConcreteAutoencoder(6, **CPU).fit(X), ColumnSubset(6, **CPU).fit(X)
    assert model.ridge_ == best.ridge_ > 0
    assert model.columns_.tolist() == best.columns_.tolist()
    found, others = model.reconstruct(X), ~best.get_support()
    np.testing.assert_allclose(found[:, others], best.reconstruct(X)[:, others])
    np.testing.assert_array_equal(found[:, ~others], X[:, ~others])  # not shrunk by the penalty
    model.save(tmp_path / "model")
    assert ConcreteAutoencoder.load(tmp_path / "model").ridge_ == model.ridge_
    assert ConcreteAutoencoder(6, ridge=0.0, **CPU).fit(X).ridge_ == 0


def test_a_node_keeps_its_feature_and_gets_a_likely_one_otherwise():
    X = factors()
    plain, model = (
        ConcreteAutoencoder(5, refine=one, **SHORT, **CPU).fit(X) for one in (None, "swaps")
    )
    assert model.n_swapped_ > 0
    np.testing.assert_array_equal(model.logits_, plain.logits_)
    free = [node for node in range(5) if model.nodes_[node] != plain.nodes_[node]]
    # no exchange of two nodes would be more likely
    scores = model.logits_ - np.log(np.exp(model.logits_).sum(axis=1, keepdims=True))
    for one in free:
        for other in range(5):
            a, b = model.nodes_[[one, other]]
            assert scores[one, a] + scores[other, b] >= scores[one, b] + scores[other, a] - 1e-6


def test_products_that_no_linear_view_shows():
    data = load("planted-products", rows=800, features=20, factors=3)
    options = {"decoder": (32,), "refit_epochs": 20, **SHORT, **CPU}
    assert data.planted[ConcreteAutoencoder(3, **options).fit(data.X).columns_].all()
    plain = ConcreteAutoencoder(3, refine=None, **options).fit(data.X)
    assert data.planted[plain.columns_].sum() < 3


@pytest.mark.slow
def test_all_eight_factors_of_the_planted_products():
    data = load("planted-products", rows=4000, features=100, factors=8)
    model = ConcreteAutoencoder(8, decoder=(256, 256), **CPU).fit(data.X)
    assert data.planted[model.columns_].all()


def test_a_target_that_is_a_product():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 10))
    y = X[:, 3] * X[:, 7] + 0.3 * X[:, 3]  # nothing linear points at 7
    model = ConcreteRegressor(2, decoder=(32,), refit_epochs=40, **SHORT, **CPU).fit(X, y)
    assert model.columns_.tolist() == [3, 7]
    assert model.score(X, y) > 0.8
    labels = np.where(y > 0, "above", "below")
    classes = ConcreteClassifier(2, decoder=(32,), refit_epochs=40, **SHORT, **CPU).fit(X, labels)
    assert classes.columns_.tolist() == [3, 7]


def test_a_linear_target_is_searched_exactly():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 20)) @ rng.normal(size=(20, 20))
    y = X[:, [2, 9, 14]] @ [1.0, -2.0, 0.5]
    options = {"decoder": "linear", **SHORT, **CPU}
    assert ConcreteRegressor(3, **options).fit(X, y).columns_.tolist() == [2, 9, 14]
    assert ConcreteRegressor(3, refine=None, **options).fit(X, y).columns_.tolist() != [2, 9, 14]
    paid = ConcreteRegressor(3, costs=np.arange(20.0), cost_weight=100.0, **options).fit(X, y)
    assert paid.columns_.tolist() == [0, 1, 2]


@pytest.mark.parametrize("loss", ["mae", "poisson"])
def test_other_losses_keep_what_held_out_rows_prefer(loss):
    X = np.random.default_rng(0).poisson(np.exp(factors(300) / 3)).astype(float)
    options = {"loss": loss, "refit_epochs": 15, **SHORT, **CPU}
    fits = {one: ConcreteAutoencoder(4, refine=one, **options).fit(X) for one in ("swaps", None)}
    lowest = {one: min(row["val_loss"] for row in m.refit_history_) for one, m in fits.items()}
    assert lowest["swaps"] <= lowest[None]
    if fits["swaps"].n_swapped_ == 0:
        assert lowest["swaps"] == lowest[None]
    # without held-out rows nothing can tell
    blind = ConcreteAutoencoder(4, validation_fraction=0.0, **options).fit(X)
    assert blind.n_swapped_ == 0


def test_a_trained_decoder_is_kept():
    X = factors()
    for refit in ("finetune", "none"):
        assert ConcreteAutoencoder(5, refit=refit, **SHORT, **CPU).fit(X).n_swapped_ == 0


def test_few_rows_of_many_features_and_too_many_features(monkeypatch):
    X = factors(20, d=120)
    model = ConcreteAutoencoder(3, ridge=0.0, **SHORT, **CPU).fit(X)
    C = summarize(array_source(X)).matrix
    best = ColumnSubset(3, ridge=0.0, **CPU).fit(X)
    assert residual(C, model.columns_) <= residual(C, best.columns_) * (1 + 1e-9)
    monkeypatch.setattr("fewer.train.refine.MOST_FOR_COVARIANCE", 8)
    assert ConcreteAutoencoder(3, **SHORT, **CPU).fit(factors()).n_swapped_ == 0
    assert ConcreteAutoencoder(3, **SHORT, **CPU).fit(X).n_swapped_ > 0  # its rows are enough


def test_saved_with_and_without(tmp_path):
    X, y = load_wine(return_X_y=True)
    model = ConcreteClassifier(3, decoder=(8,), refit_epochs=5, **SHORT, **CPU).fit(X, y)
    model.save(tmp_path / "model")
    again = ConcreteClassifier.load(tmp_path / "model")
    assert again.n_swapped_ == model.n_swapped_
    assert again.refine == "swaps"
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert "refine" in fewer.PAPER
    assert fewer.PAPER["refine"] is None


def test_an_unknown_refinement_is_named():
    with pytest.raises(InputError, match="refine='tabu' is not valid; use 'swaps' or None"):
        ConcreteAutoencoder(3, refine="tabu").fit(factors())
