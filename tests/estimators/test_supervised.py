"""ConcreteClassifier and ConcreteRegressor."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_digits, make_regression
from sklearn.linear_model import LinearRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score

from fewer import PAPER, ConcreteClassifier, ConcreteRegressor
from fewer.errors import InputError, NotFittedError

QUICK = {"refit_epochs": 60, "refine": None, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def labelled():
    X, y = load_digits(return_X_y=True)
    return X[:1400], y[:1400], X[1400:], y[1400:]


@pytest.fixture(scope="module")
def classifier(labelled):
    return ConcreteClassifier(k=15, **QUICK).fit(*labelled[:2])


def test_classifies_from_fifteen_pixels(labelled, classifier):
    _, _, X, y = labelled
    assert classifier.score(X, y) > 0.8  # other writers than those in training
    probabilities = classifier.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(
        classifier.predict(X), classifier.classes_[probabilities.argmax(1)]
    )


def test_only_the_chosen_pixels_are_read(labelled, classifier):
    X = labelled[2].copy()
    before = classifier.predict_proba(X)
    X[:, ~classifier.get_support()] = 99
    np.testing.assert_array_equal(classifier.predict_proba(X), before)
    measured = classifier.transform(X)
    np.testing.assert_allclose(classifier.predict_proba_measured(measured), before)
    np.testing.assert_array_equal(classifier.predict_measured(measured), classifier.predict(X))


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_labels_may_be_strings(labelled):
    X, y = labelled[0][:300], np.where(labelled[1][:300] > 4, "high", "low")
    model = ConcreteClassifier(k=8, epochs=20, tries=1, **QUICK | {"refit_epochs": 10}).fit(X, y)
    assert model.classes_.tolist() == ["high", "low"]
    assert set(model.predict(X)) == {"high", "low"}


def test_a_classifier_reconstructs_by_least_squares(labelled, classifier):
    X = labelled[0]
    chosen = classifier.get_support()
    reference = LinearRegression().fit(X[:, chosen], X).predict(X[:, chosen])
    np.testing.assert_allclose(classifier.inverse_transform(X[:, chosen]), reference, atol=1e-8)


def test_the_informative_features_are_found():
    X, y, weights = make_regression(400, 30, n_informative=4, noise=1.0, coef=True, random_state=1)
    model = ConcreteRegressor(k=4, decoder="linear", **QUICK).fit(X[:300], y[:300])
    assert model.get_support(indices=True).tolist() == np.flatnonzero(weights).tolist()
    assert model.score(X[300:], y[300:]) > 0.99
    assert model.predict(X).shape == (400,)
    np.testing.assert_allclose(model.predict_measured(model.transform(X)), model.predict(X))


def test_many_targets_and_a_network():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 12))
    Y = np.stack([np.sin(2 * X[:, 3]), X[:, 7] ** 2, X[:, 3] * X[:, 7]], axis=1)
    model = ConcreteRegressor(k=2, decoder=(64, 64), **{**QUICK, "refit_epochs": 200})
    model.fit(X[:600], Y[:600])
    assert model.get_support(indices=True).tolist() == [3, 7]
    assert model.predict(X).shape == (800, 3)
    assert model.score(X[600:], Y[600:]) > 0.85


def test_in_cross_validation():
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    assert isinstance(X, pd.DataFrame)
    scores = cross_val_score(ConcreteRegressor(k=5, decoder="linear", **QUICK), X, y, cv=3)
    assert scores.mean() > 0.4


def test_missing_inputs_take_their_mean(labelled):
    X, y = labelled[0][:800].copy(), labelled[1][:800]
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    model = ConcreteClassifier(k=15, norm=None, **QUICK).fit(X, y)
    assert model.score(labelled[2], labelled[3]) > 0.75


def test_k_distinct_features_where_nodes_repeat_one_another(data_folder):
    """HAR has 21 copies of columns, and a dozen nodes want what another has."""
    with np.load(data_folder / "har.npz", allow_pickle=False) as stored:
        X, y, is_test = stored["X"], stored["y"], stored["is_test"]
    options = {"decoder": (67,), "norm": None, "refine": None, "random_state": 0}
    model = ConcreteClassifier(k=50, device="cpu", **options)
    model.fit(X[~is_test][::3], y[~is_test][::3])
    wanted = model.logits_.argmax(axis=1)
    assert len(set(wanted)) < 50
    assert model.n_conflicts_ > 0
    assert len(set(model.nodes_)) == 50
    assert model.transform(X[:2]).shape == (2, 50)
    assert model.score(X[is_test], y[is_test]) > 0.85


def test_an_interrupted_fit_does_not_count(labelled, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    model = ConcreteClassifier(k=3, decoder="linear", epochs=2, tries=1, random_state=0)
    monkeypatch.setattr("fewer.estimators.selector.fit_linear", interrupted)
    monkeypatch.setattr("fewer.train.gradient.warn", lambda message, category: None)
    with pytest.raises(KeyboardInterrupt):
        model.fit(labelled[0][:100], labelled[1][:100])
    with pytest.raises(NotFittedError, match="not fitted yet"):
        model.predict(labelled[0][:3])


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_weights_of_rows_and_classes():
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 4))
    y = (X[:, 0] + 0.7 * random.normal(size=400) > 1.5).astype(int)
    options = {"decoder": "linear", "epochs": 15, "tries": 1, "include": [0], **QUICK}
    plain = ConcreteClassifier(k=2, **options).fit(X, y)
    balanced = ConcreteClassifier(k=2, class_weight="balanced", **options).fit(X, y)
    by_hand = ConcreteClassifier(k=2, **options).fit(X, y, np.where(y == 1, 1 / y.mean(), 1.0))
    rare = y == 1
    assert balanced.predict(X)[rare].mean() > plain.predict(X)[rare].mean() + 0.2
    assert by_hand.predict(X)[rare].mean() > plain.predict(X)[rare].mean() + 0.2
    assert balanced.get_params()["class_weight"] == "balanced"
    numbers = ConcreteRegressor(k=2, **options)
    weights = (np.arange(400) < 200).astype(float)
    noisy = np.r_[X[:200, 0], random.normal(size=200)]
    assert numbers.fit(X, noisy, weights).score(X[:200], noisy[:200]) > 0.99
    with pytest.raises(InputError, match="sample_weight of row 0 is nan"):
        numbers.fit(X, noisy, np.full(400, np.nan))
    with pytest.raises(InputError, match="class_weight='even'"):
        ConcreteClassifier(k=2, class_weight="even", **options).fit(X, y)


def test_classes_are_trained_as_select_trains_them(labelled, classifier, tmp_path):
    """Batch norm, smoothed labels and calibration, unless something else is asked for."""
    X, y, new, truth = labelled
    plain = ConcreteClassifier(k=15, norm=None, **QUICK).fit(X, y)
    assert classifier.score(new, truth) > plain.score(new, truth) + 0.02
    layers = [type(layer).__name__ for layer in classifier.decoder_.net]
    assert layers == ["Linear", "BatchNorm1d", "LeakyReLU", "Dropout", "Linear"]
    chances = [model.predict_proba(new) for model in (classifier, plain)]
    ours, theirs = (log_loss(truth, found) for found in chances)
    assert ours < 0.8 * theirs
    classifier.save(tmp_path / "model")
    again = ConcreteClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(new), classifier.predict_proba(new))


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
@pytest.mark.parametrize(
    "options", [{"decoder": "linear"}, {"norm": "layer"}, {"loss": "cross_entropy"}, PAPER]
)
def test_other_classifiers_are_as_they_were(labelled, options):
    model = ConcreteClassifier(
        k=4, **QUICK | {"epochs": 2, "tries": 1, "refit_epochs": 2} | options
    )
    model.set_params(epochs=2, tries=1).fit(labelled[0][:200], labelled[1][:200])
    names = [type(layer).__name__ for layer in model.decoder_.net.modules()]
    assert "BatchNorm1d" not in names
    assert "Dropout" not in names
