"""Bad input gets one clear error that names the value and the remedy."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

from fewer import ConcreteAutoencoder, ConcreteClassifier, ConcreteRegressor
from fewer.errors import FewerError, InputError, NotFittedError
from fewer.nn import MeasuredDecoder

GOOD = np.random.default_rng(0).normal(size=(40, 6))
QUICK = {"epochs": 10, "tries": 1, "stop_probability": 0.05, "refit_epochs": 2, "device": "cpu"}
QUICK["refine"] = None


def with_value(row, column, value):
    X = GOOD.copy()
    X[row, column] = value
    return X


def infinite_sparse():
    return sparse.csr_array(with_value(3, 2, np.inf))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k=0 must be a whole number of at least 1"),
        ({"k": -3}, "k=-3 must be"),
        ({"k": 2.5}, r"k=2\.5 must be a whole number"),
        ({"k": "ten"}, "k='ten' must be a whole number"),
        ({"k": True}, "k=True must be a whole number"),
        ({"k": 7}, "k=7 is more than the n_features=6 of X; choose k from 1 to 6"),
        ({"start_temperature": 0}, "start_temperature=0 must be a number above 0"),
        ({"end_temperature": -1}, "end_temperature=-1 must be a number above 0"),
        ({"start_temperature": 1, "end_temperature": 2}, "would rise from 1 to 2"),
        ({"schedule": "wave"}, "schedule='wave' is not valid"),
        (
            {"decoder": lambda k, d: torch.nn.Linear(k, 3)},
            r"must give \(2, 6\): make its last layer",
        ),
        ({"decoder": "deep"}, "decoder='deep' is not valid"),
        ({"loss": "rmse"}, "loss='rmse' is not valid"),
        ({"loss": "cross_entropy"}, "cross_entropy is for ConcreteClassifier"),
        ({"loss": "bce"}, "loss='bce' needs values from 0 to 1; X goes from -"),
        ({"loss": "poisson"}, "loss='poisson' needs counts; X goes from -"),
        ({"epochs": 0}, "epochs=0 must be a whole number of at least 1"),
        ({"epochs": "many"}, "epochs='many' must be a whole number of at least 1 or 'auto'"),
        ({"batch_size": 1.5}, r"batch_size=1\.5 must be a whole number"),
        ({"learning_rate": 0}, "learning_rate=0 must be a number above 0"),
        ({"selector_learning_rate": -1}, "selector_learning_rate=-1 must be a number above 0"),
        ({"learning_rate": "fast"}, "learning_rate='fast' must be a number"),
        (
            {"validation_fraction": 1.0},
            r"validation_fraction=1\.0 must be a number of at least 0 and at most 0\.9",
        ),
        ({"refit": "maybe"}, "refit='maybe' is not valid; use 'scratch' or 'finetune' or 'none'"),
        ({"ridge": -1}, "ridge=-1 must be a number of at least 0"),
        ({"device": "abacus"}, "device='abacus' cannot be used here"),
        ({"precision": "float8"}, "precision='float8' is not valid"),
    ],
)
def test_options(options, message):
    with pytest.raises(InputError, match=message):
        ConcreteAutoencoder(**{"k": 2, **QUICK, **options}).fit(GOOD)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.empty((0, 6)), "0 sample"),
        (np.empty((6, 0)), "0 feature"),
        (GOOD[:1], "1 sample.*minimum of 2 is required"),
        (GOOD[0], "Expected 2D array, got 1D array"),
        (with_value(3, 2, np.inf), "X contains infinity: row 3, column 2 is inf; replace it"),
        (with_value(3, 2, -np.inf), "row 3, column 2 is -inf"),
        (infinite_sparse(), "X contains infinity: row 3, column 2 is inf"),
        (with_value(slice(None), 4, np.nan), r"columns without any value, only NaN \(1\): 4; drop"),
        (GOOD.astype(complex), "Complex data not supported"),
        (np.full((9, 3), "a"), "could not convert|not compatible|dtype"),
        (
            pd.DataFrame(GOOD, columns=list("abcdef")).assign(b="text", date="2020"),
            "2 of 7 columns are not numbers: 'b', 'date'; drop them or encode them",
        ),
        (
            pd.DataFrame(with_value(1, 1, np.inf), columns=list("abcdef")),
            "row 1, column 'b' is inf",
        ),
        (
            pl.DataFrame({"a": [1.0, 2.0], "who": ["x", "y"]}),
            "1 of 2 columns are not numbers: 'who'",
        ),
    ],
)
def test_rows(X, message):
    with pytest.raises(ValueError, match=message):
        ConcreteAutoencoder(k=1, **QUICK).fit(X)


def test_targets():
    y = np.arange(40) % 2
    for model in (ConcreteClassifier(k=2, **QUICK), ConcreteRegressor(k=2, **QUICK)):
        with pytest.raises(ValueError, match="y has 39 values for the 40 rows of X"):
            model.fit(GOOD, y[:39])
        with pytest.raises(InputError, match="requires y to be passed, but the target y is None"):
            model.fit(GOOD, None)
        with pytest.raises(ValueError, match="y contains NaN"):
            model.fit(GOOD, np.where(y, np.nan, 1.0))
    with pytest.raises(
        InputError, match=r"y has one class only, .*1.*; a classifier needs at least 2"
    ):
        ConcreteClassifier(k=2, **QUICK).fit(GOOD, np.ones(40, dtype=int))
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        ConcreteClassifier(k=2, **QUICK).fit(GOOD, GOOD[:, 0])


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
@pytest.mark.parametrize("library", [pd, pl])
def test_text_labels_may_come_in_a_table(library):
    species = np.where(GOOD[:, 0] > 0, "setosa", "virginica")
    table = library.DataFrame({"species": species})
    with pytest.warns(DataConversionWarning, match="column-vector y was passed"):
        model = ConcreteClassifier(k=2, **QUICK).fit(GOOD, table)
    assert model.classes_.tolist() == ["setosa", "virginica"]
    assert set(model.predict(GOOD)) <= {"setosa", "virginica"}
    torch_labels = ConcreteClassifier(k=2, **QUICK).fit(GOOD, torch.arange(40) % 2)
    assert torch_labels.classes_.tolist() == [0, 1]


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_an_interrupted_fit_leaves_nothing_of_the_one_before():
    y = np.arange(40) % 2
    first = pd.DataFrame(GOOD, columns=list("abcdef"))
    for model, target in (
        (ConcreteAutoencoder(k=2, include=["f"], **QUICK), None),
        (ConcreteRegressor(k=2, include=["f"], **QUICK), y),
        (ConcreteClassifier(k=2, include=["f"], **QUICK), y),
    ):
        model.fit(first, target)
        with pytest.raises(InputError, match="'f', which is not a feature"):
            model.fit(first[["a", "b", "c"]], target)
        for use in (model.get_support, model.get_feature_names_out, model.feature_groups):
            with pytest.raises(NotFittedError, match="not fitted yet"):
                use()


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_transform_checks_rows_as_score_does():
    frame = pd.DataFrame(GOOD, columns=list("abcdef"))
    model = ConcreteAutoencoder(k=2, random_state=0, **QUICK).fit(frame)
    bad = pd.DataFrame(with_value(3, 2, np.inf), columns=list("abcdef"))
    for output in ("default", "pandas"):
        model.set_output(transform=output)
        for method in (model.transform, model.score, model.reconstruct):
            with pytest.raises(InputError, match="X contains infinity: row 3, column 'c' is inf"):
                method(bad)
    kept = model.transform(frame)
    pd.testing.assert_frame_equal(kept, frame[list(model.get_feature_names_out())])
    unnamed = ConcreteAutoencoder(k=2, random_state=0, **QUICK).fit(GOOD)
    for row in (np.array([1.0, np.inf]), [1.0, np.inf], torch.tensor([1.0, torch.inf])):
        with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
            unnamed.transform(row)
    with pytest.raises(InputError, match="X contains infinity: row 3, column 2"):
        unnamed.transform(infinite_sparse())


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_other_columns_after_fitting():
    frame = pd.DataFrame(GOOD, columns=list("abcdef"))
    model = ConcreteAutoencoder(k=2, random_state=0, **QUICK).fit(frame)
    unnamed = ConcreteAutoencoder(k=2, random_state=0, **QUICK).fit(GOOD)
    with pytest.raises(
        ValueError, match="X has 5 features, but ConcreteAutoencoder is expecting 6"
    ):
        unnamed.transform(GOOD[:, :5])
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame.rename(columns={"a": "z"}))
    with pytest.raises(ValueError, match="feature names should match"):
        model.score(frame.rename(columns={"a": "z"}))
    chosen = list(model.get_feature_names_out())
    with pytest.raises(InputError, match=f"lacks 1 of the 2 chosen features: {chosen[1]!r}; add"):
        model.inverse_transform(frame.drop(columns=chosen[1]))
    with pytest.raises(InputError, match=f"has 3 columns; give the 2 chosen.*{chosen[0]}, "):
        model.inverse_transform(GOOD[:, :3])
    with pytest.raises(
        InputError, match=f"measured contains infinity: row 0, column '{chosen[1]}'"
    ):
        model.inverse_transform([[0.0, np.inf]])
    with pytest.raises(InputError, match="m=0 must be a whole number from 1 to 6"):
        model.feature_groups(m=0)
    with pytest.raises(InputError, match="X contains infinity"):
        ConcreteAutoencoder(k=2, **QUICK).fit(GOOD).transform(with_value(0, 0, np.inf))


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.transform(GOOD),
        lambda m: m.inverse_transform(GOOD[:, :2]),
        lambda m: m.get_support(),
        lambda m: m.get_feature_names_out(),
        lambda m: m.feature_groups(),
        lambda m: m.score(GOOD),
    ],
)
def test_use_before_fit(call):
    with pytest.raises(NotFittedError, match=r"not fitted yet; call fit\(X\) first"):
        call(ConcreteAutoencoder(k=2))


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (ConcreteClassifier(k=2), "predict_measured"),
        (ConcreteClassifier(k=2), "predict_proba_measured"),
        (ConcreteRegressor(k=2), "predict_measured"),
        (ConcreteClassifier(k=2), "predict"),
        (ConcreteRegressor(k=2), "predict"),
    ],
)
def test_prediction_before_fit(model, method):
    with pytest.raises(NotFittedError, match=r"not fitted yet; call fit\(X\) first"):
        getattr(model, method)(GOOD[:, :2])


class Plain(torch.nn.Module):
    """Its plain tensor does not follow .double()."""

    def __init__(self, k, out):
        super().__init__()
        self.layer = torch.nn.Linear(k, out)
        self.fixed = torch.eye(k)

    def forward(self, x):
        return self.layer(x @ self.fixed)


@pytest.mark.filterwarnings("ignore::fewer.errors.NotConvergedWarning")
def test_a_decoder_that_cannot_run_in_float64_says_what_to_do():
    remedy = r"in float64 .*register its tensors as buffers"
    with pytest.raises(InputError, match=remedy):  # before training
        ConcreteAutoencoder(k=2, decoder=Plain, **QUICK).fit(GOOD)
    decoder = MeasuredDecoder(Plain(2, 3), fill=torch.zeros(2)).double().eval()
    model = ConcreteAutoencoder(k=2, **QUICK).fit(GOOD)
    model.decoder_ = decoder
    with pytest.raises(InputError, match=remedy):
        model.inverse_transform(GOOD[:, :2])


def test_repeated_names_are_refused():
    frame = pd.DataFrame(GOOD, columns=["a", "a", "b", "b", "b", "c"])
    message = "2 column names occur more than once: 'a', 'b'; rename them"
    with pytest.raises(InputError, match=message):
        ConcreteAutoencoder(k=5, **QUICK).fit(frame)


def test_every_error_of_ours_has_one_base():
    assert issubclass(InputError, FewerError)
    assert issubclass(NotFittedError, FewerError)
