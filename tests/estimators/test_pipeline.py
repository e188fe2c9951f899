"""Estimators as steps of scikit-learn's own tools: pipelines, searches, tables of either kind."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import StandardScaler

import fewer
from fewer import ColumnSubset, ConcreteAutoencoder, ConcreteClassifier, ConcreteRegressor

pytestmark = pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")

QUICK = {"k": 3, "random_state": 0, "epochs": 20, "tries": 1, "device": "cpu"}
FAST = {**QUICK, "refit_epochs": 5, "refine": None}
ESTIMATORS = {
    "ColumnSubset": ColumnSubset(k=3, random_state=0),
    "ConcreteAutoencoder": ConcreteAutoencoder(**QUICK),
    "ConcreteClassifier": ConcreteClassifier(**FAST),
    "ConcreteRegressor": ConcreteRegressor(**FAST),
}
for name in fewer.baselines.__all__:
    kind = getattr(fewer.baselines, name)
    if hasattr(kind, "get_support"):
        ESTIMATORS[name] = kind(k=3)
        if "epochs" in ESTIMATORS[name].get_params():
            ESTIMATORS[name].set_params(epochs=20)
        if "random_state" in ESTIMATORS[name].get_params():
            ESTIMATORS[name].set_params(random_state=0)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True, as_frame=True)
    scaled = (X - X.mean()) / X.std()
    return train_test_split(scaled, y, test_size=60, random_state=0, stratify=y)


def target(name, y):
    return y.astype(float) if name == "ConcreteRegressor" else y


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_output_tables_have_the_requested_type(wine, name, library):
    train, test, y, _ = wine
    model = clone(ESTIMATORS[name]).set_output(transform=library).fit(train, target(name, y))
    found = model.transform(test)
    assert type(found).__module__.split(".")[0] == library
    names = model.get_feature_names_out().tolist()
    assert list(found.columns) == names
    assert len(names) == 3
    np.testing.assert_array_equal(np.asarray(found), test[names].to_numpy())
    # a polars table as input gives the same, by the same names
    again = clone(model).fit(pl.from_pandas(train), target(name, y))
    assert again.get_feature_names_out().tolist() == names
    np.testing.assert_array_equal(
        np.asarray(again.transform(pl.from_pandas(test))), test[names].to_numpy()
    )
    if library == "pandas":
        assert found.index.equals(test.index)


@pytest.mark.parametrize("library", ["default", "pandas", "polars"])
def test_scaler_choice_and_classifier(wine, library):
    train, test, y, wanted = wine
    pipe = make_pipeline(StandardScaler(), ColumnSubset(k=5, random_state=0), LogisticRegression())
    pipe.set_output(transform=library)
    pipe.fit(train, y)
    assert pipe.score(test, wanted) > 0.9
    chosen = pipe[:-1].get_feature_names_out().tolist()
    if library != "default":
        assert {*chosen} < {*train.columns}
        assert list(pipe[:-1].transform(test).columns) == chosen
    assert pipe[-1].n_features_in_ == 5


def test_search_over_k(wine):
    train, test, y, wanted = wine
    pipe = make_pipeline(StandardScaler(), ColumnSubset(stall=0), LogisticRegression())
    search = GridSearchCV(pipe, {"columnsubset__k": [1, 3, 6]}, cv=3).fit(train, y)
    scores = search.cv_results_["mean_test_score"]
    assert search.best_params_["columnsubset__k"] == [1, 3, 6][int(scores.argmax())]
    assert scores[2] > scores[0]
    kept = search.best_estimator_[1].get_support().sum()
    assert kept == search.best_params_["columnsubset__k"]
    assert search.score(test, wanted) > 0.9


def test_search_over_k_by_reconstruction(wine):
    train, *_ = wine
    search = GridSearchCV(ColumnSubset(stall=0), {"k": [1, 4, 8]}, cv=3).fit(train)
    # without a target the score is the explained variance
    assert search.best_params_ == {"k": 8}
    assert np.all(np.diff(search.cv_results_["mean_test_score"]) > 0)


def test_in_a_column_transformer(wine):
    train, test, y, _ = wine
    few = [*train.columns[:8]]
    parts = ColumnTransformer(
        [("chosen", ColumnSubset(k=2, random_state=0), few), ("rest", "passthrough", ["proline"])],
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    found = parts.fit(train, y).transform(test)
    assert found.shape == (60, 3)
    assert {*found.columns[:2]} < {*few}
    union = FeatureUnion([("a", ColumnSubset(k=2)), ("b", StandardScaler())])
    assert union.fit(train).transform(test).shape == (60, 15)


@pytest.mark.parametrize("name", ["ConcreteClassifier", "ConcreteRegressor"])
def test_predictors_can_be_cross_validated(wine, name):
    train, _, y, _ = wine
    scores = cross_val_score(clone(ESTIMATORS[name]), train, target(name, y), cv=2)
    assert np.isfinite(scores).all()
    pipe = make_pipeline(StandardScaler(), clone(ESTIMATORS[name]))
    assert len(pipe.fit(train, target(name, y)).predict(train)) == len(train)


def test_a_pipeline_reconstructs_all_features(wine):
    train, test, *_ = wine
    frame = test * 100 + 7
    pipe = make_pipeline(StandardScaler(), ColumnSubset(k=6, random_state=0))
    pipe.fit(train * 100 + 7)
    back = pipe.inverse_transform(pipe.transform(frame))
    assert back.shape == frame.shape
    error = ((back - frame) ** 2).to_numpy().sum()
    assert error < 0.5 * ((frame - frame.mean()) ** 2).to_numpy().sum()


def test_pandas_names_survive_to_the_end(wine):
    train, *_ = wine
    model = ColumnSubset(k=3, random_state=0).set_output(transform="pandas").fit(train)
    rebuilt = model.inverse_transform(model.transform(train))
    assert isinstance(rebuilt, pd.DataFrame)
    assert list(rebuilt.columns) == list(train.columns)
