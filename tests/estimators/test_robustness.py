"""Data and circumstances that break careless code."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fewer import (
    ColumnSubset,
    ConcreteAutoencoder,
    ConcreteClassifier,
    ConcreteRegressor,
    select,
)
from fewer.baselines import Greedy
from fewer.data.tables import as_array
from fewer.datasets import load
from fewer.errors import FewerWarning, InputError, NotConvergedWarning, NotFittedError

CPU = {"random_state": 0, "device": "cpu"}


def rows(n=200, d=8, rank=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, rank)) @ rng.normal(size=(rank, d)) + 0.1 * rng.normal(size=(n, d))


@pytest.mark.parametrize("factor", [1e3, 1e6])
def test_one_column_dwarfs_the_others(factor):
    X = np.random.default_rng(0).normal(size=(100, 300))
    X[:, 0] *= factor
    model = ConcreteAutoencoder(k=20, epochs=25, tries=2, refine=None, **CPU)
    with pytest.warns(NotConvergedWarning, match="after 2 tries, the last of 50 steps"):
        model.fit(X)
    assert 0 in model.columns_


def test_variances_over_ten_orders_of_magnitude():
    """The selector by itself, and what swaps make of it; greedy selection is 1."""
    X = load("gas-sensors", rows=2400, sensors=6).X
    train, test = X[:1200], X[1200:]

    def error(model):
        return np.square(model.fit(train).reconstruct(test) - test).mean()

    for k in (5, 12):
        base = error(Greedy(k))
        assert error(ConcreteAutoencoder(k, refine=None, **CPU)) < 1.1 * base
        assert error(ConcreteAutoencoder(k, **CPU)) < 1.02 * base
        assert error(ColumnSubset(k, **CPU)) < 1.02 * base


def test_least_squares_does_not_drop_small_features():
    X = np.random.default_rng(0).normal(size=(200, 4))
    X[:, 0] *= 1e8
    for model in (ConcreteAutoencoder(k=4, **CPU), ColumnSubset(k=4, **CPU)):
        np.testing.assert_allclose(model.fit(X).reconstruct(X)[:, 1:], X[:, 1:], atol=1e-4)
    linear = ConcreteRegressor(k=4, decoder="linear", epochs=5, stop_probability=0.1, **CPU)
    assert linear.fit(X, X[:, 1]).score(X, X[:, 1]) > 0.999


def test_a_large_offset_costs_nothing():
    X = rows(150)
    y = X[:, 0]
    options = {"k": 3, "decoder": (16,), "refit_epochs": 20, "refine": None, **CPU}
    model, predictor = ConcreteAutoencoder(**options), ConcreteRegressor(**options)
    plain, known = model.fit(X).score(X), predictor.fit(X, y).score(X, y)
    for offset in (1e6, 1e9):
        moved = model.fit(X + offset).score(X + offset)
        assert moved == pytest.approx(plain, abs=0.02)
        assert predictor.fit(X, y + offset).score(X, y + offset) > known - 0.02


@pytest.mark.parametrize("solver", ["closed_form", "gradient"])
@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_features_that_are_mostly_missing_are_not_relied_on(solver):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(600, 2))
    X = np.c_[z[:, 0], z[:, 0], z[:, 1], z[:, 1], z @ rng.normal(size=(2, 4))]
    X += 0.1 * rng.normal(size=X.shape)
    X[rng.random(600) < 0.95, 0] = np.nan
    X[rng.random(600) < 0.95, 2] = np.nan
    model = ConcreteAutoencoder(k=2, solver=solver, **CPU).fit(X)
    assert not {0, 2} & {*model.columns_.tolist()}
    assert model.score(X) > 0.9


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_a_single_row_left_over_counts():
    seen = []
    ConcreteAutoencoder(
        k=3,
        validation_fraction=0,
        epochs=40,
        tries=1,
        stop_probability=1.0,
        on_epoch=lambda row: seen.append(row["temperature"]),
        **CPU,
    ).fit(rows(257))
    assert seen[-1] == pytest.approx(3 * (0.1 / 3) ** (39 / 40), rel=1e-5)
    with pytest.raises(InputError, match="norm='batch' needs batch_size of at least 2"):
        ConcreteAutoencoder(k=2, decoder=(4,), norm="batch", batch_size=1).fit(rows())


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_custom_loss_at_any_scale(scale):
    X = np.exp(rows(800)) * scale
    model = ConcreteAutoencoder(k=4, loss=lambda o, t: (o - t).abs() ** 1.5, refit_epochs=60, **CPU)
    model.set_params(refine=None)
    assert model.fit(X).score(X) > 0.5


def test_counts_on_few_rows():
    rng = np.random.default_rng(0)
    rate = np.exp(rows(200) * 0.4 + 2)
    X = rng.poisson(rate)
    for options in ({}, {"decoder": (32,)}):
        model = ConcreteAutoencoder(k=4, loss="poisson", refine=None, **options, **CPU).fit(X)
        assert model.score(X) > 0.3
        assert model.reconstruct(X).min() >= 0


def test_options_of_the_gradient_are_never_ignored():
    X = rows()
    model = ConcreteAutoencoder(k=3, schedule="linear", epochs=50, **CPU).fit(X)
    temperatures = [row["temperature"] for row in model.history_]
    assert temperatures[0] - temperatures[1] == pytest.approx(2.9 / 50, rel=1e-3)
    with pytest.raises(InputError, match="draw='row' has no effect with solver='closed_form'"):
        ConcreteAutoencoder(k=3, solver="closed_form", draw="row").fit(X)
    with pytest.raises(InputError, match="solver='magic' is not valid"):
        ConcreteAutoencoder(k=3, solver="magic").fit(X)
    with pytest.raises(InputError, match="needs loss='mse' and no target"):
        ConcreteAutoencoder(k=3, solver="closed_form", loss="mae").fit(X)
    with pytest.raises(InputError, match=r"cost_weight=1\.0 needs costs="):
        ConcreteAutoencoder(k=3, cost_weight=1.0).fit(X)


def test_a_loss_is_identified_by_the_function_not_by_its_name():
    calls = []

    def mse(output, target):
        calls.append(1)
        return (output - target).abs() ** 3

    ConcreteAutoencoder(k=2, loss=mse, epochs=5, tries=1, stop_probability=0.1, **CPU).fit(rows())
    assert calls
    X, y = load_digits(n_class=4, return_X_y=True)
    model = ConcreteClassifier(
        k=5, loss=torch.nn.functional.cross_entropy, refit_epochs=20, refine=None, **CPU
    ).fit(X[:300], y[:300])
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1, atol=1e-6)
    assert model.score(X, y) > 0.6
    with pytest.raises(InputError, match="returned float; return a tensor"):
        ConcreteAutoencoder(k=2, loss=lambda o, t: 1.0).fit(rows())


def test_targets_are_checked_like_rows():
    X = rows()
    with pytest.raises(InputError, match="needs counts; y goes from -"):
        ConcreteRegressor(k=2, loss="poisson").fit(X, X[:, 0])
    with pytest.raises(InputError, match="needs values from 0 to 1; y goes from"):
        ConcreteRegressor(k=2, loss="bce").fit(X, X[:, 0])


@pytest.mark.parametrize(
    "model",
    [
        ConcreteAutoencoder(k=2, **CPU),
        ConcreteAutoencoder(k=2, solver="gradient", epochs=10, stop_probability=0.1, **CPU),
        ColumnSubset(k=2, **CPU),
    ],
)
def test_global_torch_settings_are_unchanged(model):
    X = rows()
    reference = model.fit(X).columns_.tolist()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    model.fit(X)
    assert torch.rand(1) == expected
    try:
        torch.set_default_dtype(torch.float64)
        with torch.no_grad():
            assert model.fit(X).columns_.tolist() == reference
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_threads_do_not_interfere():
    def fit(seed):
        model = ConcreteAutoencoder(
            k=3, solver="gradient", epochs=20, stop_probability=0.3, device="cpu", random_state=seed
        )
        return model.fit(rows()).logits_

    alone = [fit(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(fit, range(3)))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_groups_are_chosen_for_what_they_bring():
    z = np.random.default_rng(0).normal(size=(500, 6))
    X = z * [5, 5, 3, 2, 0.5, 0.5]
    for solver in ("closed_form", "gradient"):
        model = ConcreteAutoencoder(k=2, groups=[[0, 1]], solver=solver, **CPU).fit(X)
        assert model.columns_.tolist() == [0, 1, 2]


def test_a_warning_points_at_the_users_line():
    with pytest.warns(NotConvergedWarning) as caught:
        ConcreteAutoencoder(k=2, epochs=2, tries=1, **CPU).fit(rows())
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_temperature": "hot"}, "start_temperature='hot' must be a number"),
        ({"on_epoch": 3}, "on_epoch=3 must be a function"),
        ({"device": None}, "device='None' cannot be used here"),
        ({"loss": ["mse"]}, r"loss=\['mse'\] is not valid"),
    ],
)
def test_odd_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        ConcreteAutoencoder(k=2, **options).fit(rows())


def test_more_features_than_rows_are_warned_of_and_still_chosen():
    X = rows(12, d=30, rank=5)
    with pytest.warns(FewerWarning, match=r"k=15 features from 12 rows.*use ridge='auto'"):
        assert len(ColumnSubset(k=15, ridge=0.0, stall=0, **CPU).fit(X).columns_) == 15
    with pytest.warns(FewerWarning, match="k=15 features from 12 rows: the rank is at most 11"):
        assert select(X, 15, strategies=["search"], validation=0.2, random_state=0).k == 15
    assert len(ColumnSubset(k=15, stall=0, **CPU).fit(X).columns_) == 15


def test_a_network_trained_through_random_features():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 2))
    X = np.c_[z, np.sin(2 * z), z[:, [0]] * z[:, [1]], z**2, 0.3 * rng.normal(size=(400, 3))]
    model = ConcreteAutoencoder(k=2, solver="closed_form", decoder=(64,), refine=None, **CPU).fit(X)
    assert model.columns_.tolist() == [0, 1]
    assert model.score(X) > 0.8
    assert model.history_[-1]["mean_max_probability"] > 0.8
    assert model.refit_history_


@pytest.mark.parametrize(
    ("options", "words"),
    [({"norm": "group"}, "norm='group'"), ({"activation": "step"}, "activation='step'")],
)
def test_options_of_layers_are_checked_though_a_linear_decoder_has_none(options, words):
    with pytest.raises(InputError, match=f"{words} is not valid"):
        ConcreteAutoencoder(k=2, **options).fit(rows())


def test_masked_entries_are_missing_values():
    X = np.array(rows(), dtype=float)
    hidden = np.zeros(X.shape, dtype=bool)
    hidden[3, 1] = True
    X[3, 1] = 1e6
    gap = np.where(hidden, np.nan, X)
    masked = ColumnSubset(2, random_state=0).fit(np.ma.masked_array(X, hidden))
    known = ColumnSubset(2, random_state=0).fit(gap)
    assert masked.columns_.tolist() == known.columns_.tolist()
    assert masked.residual_ == known.residual_
    whole = np.ma.masked_array(np.arange(12).reshape(4, 3), np.eye(4, 3, dtype=bool))
    assert np.isnan(as_array(whole)).sum() == 3


def test_an_interrupted_fit_does_not_count_as_fitted(monkeypatch):

    def interrupted(*given, **options):
        raise KeyboardInterrupt

    model = ColumnSubset(2, random_state=0)
    monkeypatch.setattr("fewer.estimators.selector.fit_linear", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(rows())
    with pytest.raises(NotFittedError):
        model.transform(rows())
