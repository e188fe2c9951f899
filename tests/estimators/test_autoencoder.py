"""ConcreteAutoencoder as a user meets it."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fewer
from fewer import ConcreteAutoencoder

QUICK = {"random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def fitted(digits):
    return ConcreteAutoencoder(k=10, **QUICK).fit(digits[0])


def test_beats_random_pixels_by_far(digits, fitted):
    train, test = digits
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(20):
        chosen = rng.choice(64, 10, replace=False)
        reference = LinearRegression().fit(train[:, chosen], train)
        errors.append(((reference.predict(test[:, chosen]) - test) ** 2).mean())
    ours = ((fitted.inverse_transform(fitted.transform(test)) - test) ** 2).mean()
    assert ours < 0.031 < np.mean(errors)


def test_the_decoder_is_least_squares_on_the_choice(digits, fitted):
    train, test = digits
    chosen = fitted.get_support(indices=True)
    reference = LinearRegression().fit(train[:, chosen], train)
    np.testing.assert_allclose(
        fitted.inverse_transform(test[:, chosen]), reference.predict(test[:, chosen]), atol=1e-9
    )


def test_score_is_explained_variance_over_all_entries(digits, fitted):
    test = digits[1]
    predicted = fitted.inverse_transform(fitted.transform(test))
    informative = test.var(axis=0) > 0
    expected = 1 - ((predicted - test) ** 2).sum() / ((test - test.mean(axis=0)) ** 2).sum()
    assert fitted.score(test) == pytest.approx(expected)
    inside = r2_score(
        test[:, informative], predicted[:, informative], multioutput="variance_weighted"
    )
    assert fitted.score(test) == pytest.approx(inside, abs=1e-3)


def test_the_selection_in_all_its_forms(digits, fitted):
    indices = fitted.get_support(indices=True)
    assert len(indices) == 10
    assert sorted(fitted.nodes_) == indices.tolist()
    assert fitted.get_support().sum() == 10
    assert fitted.get_feature_names_out().tolist() == [f"x{j}" for j in indices]
    np.testing.assert_array_equal(fitted.transform(digits[1]), digits[1][:, indices])


def test_groups_belong_to_the_chosen_features(digits, fitted):
    plain = ConcreteAutoencoder(k=10, refine=None, **QUICK).fit(digits[0])
    for model in (fitted, plain):
        groups = model.feature_groups(m=4)
        assert [group[0] for group in groups] == model.get_support(indices=True).tolist()
        assert all(len(set(group)) == 4 for group in groups)
        # neighbours on the 8 x 8 image are correlated: a node's second choice tends to be near
        node = int(np.argmax(model.nodes_ == groups[0][0]))
        likely = [j for j in np.argsort(-model.logits_[node]) if j != groups[0][0]]
        assert groups[0][1:] == likely[:3]
    assert plain.feature_groups(1) != fitted.feature_groups(1)


def test_names_survive_pandas_and_polars(digits):
    names = [f"pixel {j}" for j in range(64)]
    frame = pd.DataFrame(digits[0], columns=names, index=np.arange(1437) + 7)
    model = ConcreteAutoencoder(k=5, refine=None, **QUICK).fit(frame)
    chosen = model.get_feature_names_out()
    assert list(model.feature_groups(1)) == [[name] for name in chosen]
    assert set(chosen) <= set(names)
    measured = model.set_output(transform="pandas").transform(frame)
    assert list(measured.columns) == list(chosen)

    whole = model.inverse_transform(measured)
    assert list(whole.columns) == names
    assert whole.index.equals(frame.index)
    shuffled = frame[list(chosen[::-1])].assign(other=1.0)
    pd.testing.assert_frame_equal(model.inverse_transform(shuffled), whole)
    np.testing.assert_array_equal(model.inverse_transform(measured.to_numpy()), whole.to_numpy())

    table = pl.DataFrame(digits[0], schema=names)
    twin = ConcreteAutoencoder(k=5, refine=None, **QUICK).fit(table)
    assert twin.get_feature_names_out().tolist() == chosen.tolist()
    back = twin.inverse_transform(table.select(list(chosen[::-1])))
    assert isinstance(back, pl.DataFrame)
    np.testing.assert_array_equal(back.to_numpy(), whole.to_numpy())
    assert isinstance(twin.set_output(transform="polars").transform(table), pl.DataFrame)


def trained(rows):
    options = {**QUICK, "solver": "gradient", "epochs": 30, "stop_probability": 0.5}
    return ConcreteAutoencoder(k=4, **options).fit(rows)


@pytest.fixture(scope="module")
def plain(digits):
    """Rows, and an estimator that was fitted to them as an array."""
    rows = digits[0][:400, 16:48]  # multiples of 1/16: exact in every dtype
    return rows, trained(rows)


@pytest.mark.parametrize(
    "convert",
    [
        torch.tensor,
        lambda X: torch.tensor(X, dtype=torch.bfloat16),
        sparse.csr_array,
        sparse.csc_matrix,
        lambda X: torch.tensor(X).to_sparse(),
        pd.DataFrame,
        lambda X: X.astype(np.float16),
        lambda X: X.astype(np.float32),
        lambda X: (X * 16).astype(np.uint8),
        lambda X: (X * 16).astype(np.int64),
        np.asfortranarray,
        lambda X: X.tolist(),
    ],
)
def test_the_same_rows_in_any_form_give_the_same_choice(plain, convert):
    rows, model = plain
    other = trained(convert(rows))
    assert model.get_support(indices=True).tolist() == other.get_support(indices=True).tolist()
    assert other.score(convert(rows)) == pytest.approx(model.score(rows), abs=1e-6)
    assert other.transform(convert(rows)).shape == (400, 4)


def test_missing_values(digits):
    train, test = (part.copy() for part in digits)
    train[np.random.default_rng(0).random(train.shape) < 0.2] = np.nan
    model = ConcreteAutoencoder(k=10, **QUICK).fit(train)
    measured = model.transform(test)
    error = ((model.inverse_transform(measured) - test) ** 2).mean()
    assert error < 0.037  # 0.029 with nothing missing; column means alone give 0.075
    # a value that was not measured takes the training mean
    means = np.nanmean(train, axis=0)[model.get_support()]
    filled = measured.copy()
    measured[:, 2] = np.nan
    filled[:, 2] = means[2]
    np.testing.assert_allclose(model.inverse_transform(measured), model.inverse_transform(filled))
    assert 0.3 < model.score(train) < 1


def test_missing_entries_never_reach_the_loss(digits):
    """A filler under the NaN mask must not matter: garbage there changes nothing."""
    rows = digits[0][:300].copy()
    rows[:, 20] = np.nan
    rows[:30, 20] = 0.5  # nearly never observed, and constant then
    model = ConcreteAutoencoder(k=5, decoder=(16,), refit_epochs=60, refine=None, tries=1, **QUICK)
    model.fit(rows)
    np.testing.assert_allclose(model.inverse_transform(model.transform(rows))[:, 20], 0.5, atol=0.2)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_same_seed_same_bits(digits, seed):
    options = {**QUICK, "random_state": seed, "decoder": (12,), "dropout": 0.1, "epochs": 15}
    rows = digits[0][:200, 18:34]
    first, second = (
        ConcreteAutoencoder(k=3, tries=1, refit_epochs=10, **options).fit(rows) for _ in range(2)
    )
    np.testing.assert_array_equal(first.logits_, second.logits_)
    test = digits[1][:, 18:34]
    np.testing.assert_array_equal(first.reconstruct(test), second.reconstruct(test))


def test_seeds_differ(digits):
    models = [
        ConcreteAutoencoder(6, device="cpu", epochs=50, refine=None, random_state=seed).fit(
            digits[0]
        )
        for seed in range(2)
    ]
    assert not np.array_equal(models[0].logits_, models[1].logits_)


def test_in_a_pipeline_and_a_grid_search(digits):
    pipeline = make_pipeline(StandardScaler(), ConcreteAutoencoder(refine=None, **QUICK))
    search = GridSearchCV(
        pipeline, {"concreteautoencoder__k": [3, 12]}, cv=2, error_score="raise"
    ).fit(digits[0][:600])
    assert search.best_params_ == {"concreteautoencoder__k": 12}
    best = search.best_estimator_
    back = best.inverse_transform(best.transform(digits[1]))
    assert back.shape == digits[1].shape
    assert ((back - digits[1]) ** 2).mean() < 0.04  # in the units of the data


def test_clone_keeps_the_options(fitted):
    twin = clone(fitted)
    assert twin.get_params() == fitted.get_params()
    assert not hasattr(twin, "nodes_")


@pytest.mark.parametrize("loss", ["mae", "huber", "bce", "poisson"])
def test_other_losses(digits, loss):
    train, test = digits[0][:600], digits[1]
    options = {**QUICK, "learning_rate": 0.02, "tries": 1}
    if loss == "poisson":
        train, test = np.round(train * 16), np.round(test * 16)
    model = ConcreteAutoencoder(k=10, loss=loss, refit_epochs=40, refine=None, **options)
    model.fit(train)
    back = model.reconstruct(test)
    assert model.score(test) > 0.4
    if loss == "bce":
        assert back.min() >= 0
        assert back.max() <= 1
    if loss == "poisson":
        assert back.min() >= 0
    assert len(model.refit_history_) > 0


def test_a_custom_loss_and_decoder(digits):
    calls = []

    def decoder(k, out):
        calls.append((k, out))
        return torch.nn.Sequential(torch.nn.Linear(k, 20), torch.nn.ELU(), torch.nn.Linear(20, out))

    def quartic(output, target):
        return (output - target) ** 4

    model = ConcreteAutoencoder(
        k=8,
        decoder=decoder,
        loss=quartic,
        refit_epochs=60,
        learning_rate=0.01,
        refine=None,
        **QUICK,
    ).fit(digits[0][:600])
    assert set(calls) == {(8, 64)}
    assert model.score(digits[1]) > 0.3


def test_a_hidden_layer_beats_linear_on_digits(digits, fitted):
    train, test = digits
    deep = ConcreteAutoencoder(k=10, decoder=(128,), refit_epochs=60, refine=None, **QUICK)
    assert deep.fit(train).score(test) > fitted.score(test)


def test_the_paper_preset_is_the_papers():
    from fewer import PAPER

    model = ConcreteAutoencoder(k=50, **PAPER)
    assert (model.start_temperature, model.end_temperature) == (10, 0.01)
    assert model.learning_rate == model.selector_learning_rate == 1e-3
    assert (model.tries, model.stop_probability, model.schedule) == (5, 0.99, "exponential")
    assert not model.normalize


def test_progress_shows_what_matters(digits, capsys):
    ConcreteAutoencoder(k=4, solver="gradient", progress=True, **QUICK).fit(digits[0][:400])
    shown = capsys.readouterr().out
    for word in ("try 1", "T 0.", "loss", "held out", "max p 0.99", "4 distinct"):
        assert word in shown
    ConcreteAutoencoder(k=4, **QUICK).fit(digits[0][:400])
    assert capsys.readouterr().out == ""


def test_networks_return_measured_features_as_they_are(digits, tmp_path):
    train, test = (x[:300] for x in digits)
    options = {"decoder": (16,), "include": range(0, 60, 4), "refit_epochs": 10} | QUICK
    keeps = ConcreteAutoencoder(15, solver="gradient", **options).fit(train)
    paper = ConcreteAutoencoder(15, **options | fewer.PAPER | {"epochs": 1}).fit(train)
    measured = keeps.transform(test)
    found, decoded = (model.inverse_transform(measured) for model in (keeps, paper))
    np.testing.assert_array_equal(found[:, keeps.columns_], measured)
    assert np.abs(decoded[:, paper.columns_] - measured).max() > 0.01
    assert keeps.score(test) > paper.score(test)

    missing = np.full((1, 15), np.nan)  # what is not measured is reconstructed
    assert np.isfinite(keeps.inverse_transform(missing)).all()

    for model, expected in ((keeps, found), (paper, decoded)):
        model.save(tmp_path / "model")
        again = ConcreteAutoencoder.load(tmp_path / "model")
        np.testing.assert_array_equal(again.inverse_transform(measured), expected)


def test_an_autoencoder_of_an_earlier_build_decodes_as_it_did(digits, tmp_path):
    train, test = (x[:300] for x in digits)
    options = {"decoder": (8,), "include": range(0, 60, 6), "refit_epochs": 5} | QUICK
    model = ConcreteAutoencoder(10, solver="gradient", keep_measured=False, **options).fit(train)
    model.save(tmp_path / "model")
    about = tmp_path / "model" / "estimator.json"
    meta = json.loads(about.read_text())
    del meta["parameters"]["keep_measured"]  # which that build did not know
    about.write_text(json.dumps(meta))
    again = ConcreteAutoencoder.load(tmp_path / "model")
    assert again.keep_measured is False
    np.testing.assert_array_equal(again.score(test), model.score(test))
