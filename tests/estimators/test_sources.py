"""Estimators take paths and sources wherever they take X."""

import numpy as np
import pandas as pd
import pytest

import fewer
from fewer import ColumnSubset, ConcreteAutoencoder, ConcreteClassifier, ConcreteRegressor
from fewer.errors import InputError

NAMES = [f"pixel{j}" for j in range(64)]


@pytest.fixture
def files(digits, tmp_path):
    """Training and test rows of the digits as files."""
    for name, rows in zip(("train", "test"), digits, strict=True):
        np.save(tmp_path / f"{name}.npy", rows)
        frame = pd.DataFrame(rows, columns=NAMES)
        frame.to_parquet(tmp_path / f"{name}.parquet", row_group_size=40)
    return tmp_path


def test_every_method_of_a_path_agrees_with_the_array(digits, files):
    train, test = digits
    plain = ColumnSubset(k=8, stall=0, random_state=0).fit(train)
    subset = ColumnSubset(k=8, stall=0, random_state=0).fit(str(files / "train.npy"))
    assert subset.n_features_in_ == 64
    assert not hasattr(subset, "feature_names_in_")
    assert subset.columns_.tolist() == plain.columns_.tolist()
    path = files / "test.npy"
    assert subset.score(path) == pytest.approx(plain.score(test))
    np.testing.assert_array_equal(subset.transform(path), plain.transform(test))
    np.testing.assert_allclose(subset.reconstruct(path), plain.reconstruct(test))
    np.save(files / "measured.npy", plain.transform(test))
    np.testing.assert_allclose(
        subset.inverse_transform(files / "measured.npy"),
        plain.inverse_transform(plain.transform(test)),
    )


def test_names_come_from_the_file_and_find_their_columns(digits, files):
    subset = ColumnSubset(k=8, stall=0, random_state=0).fit(files / "train.parquet")
    assert subset.feature_names_in_.tolist() == NAMES
    mixed = pd.DataFrame(digits[1], columns=NAMES).iloc[:, ::-1].assign(extra=1.0)
    mixed.to_parquet(files / "mixed.parquet")
    assert subset.score(files / "mixed.parquet") == pytest.approx(
        subset.score(files / "test.parquet")
    )
    np.testing.assert_allclose(
        subset.inverse_transform(files / "mixed.parquet"),
        subset.reconstruct(files / "test.parquet"),
    )


def test_a_gradient_fit_from_a_file_that_fits_is_that_of_the_array(digits, files):
    options = {"solver": "gradient", "epochs": 3, "tries": 1, "random_state": 0}
    with pytest.warns(fewer.errors.NotConvergedWarning):
        plain = ConcreteAutoencoder(k=6, **options).fit(digits[0])
    with pytest.warns(fewer.errors.NotConvergedWarning):
        filed = ConcreteAutoencoder(k=6, **options).fit(files / "train.npy")
    np.testing.assert_array_equal(plain.logits_, filed.logits_)


@pytest.mark.filterwarnings("ignore:the selector has not converged")
def test_a_gradient_fit_in_little_memory_is_as_good(digits, files):
    source = fewer.data.open(files / "train.npy", memory_limit="200kB")
    assert source.on_disk
    options = {"solver": "gradient", "epochs": 12, "tries": 1, "random_state": 0}
    streamed = ConcreteAutoencoder(k=8, **options).fit(source)
    again = ConcreteAutoencoder(k=8, **options).fit(source)
    plain = ConcreteAutoencoder(k=8, **options).fit(digits[0])
    assert streamed.columns_.tolist() == again.columns_.tolist()
    assert streamed.score(files / "test.npy") > plain.score(digits[1]) - 0.05


@pytest.mark.filterwarnings("ignore:the selector has not converged")
def test_targets_passed_with_a_source(digits, files):
    source = fewer.data.open(files / "train.npy", memory_limit="200kB")
    bright = digits[0].mean(axis=1)
    options = {"k": 6, "epochs": 15, "tries": 1, "refit_epochs": 15, "random_state": 0}
    options["refine"] = None
    model = ConcreteRegressor(decoder="linear", **options).fit(source, bright)
    assert model.predict(files / "test.npy").shape == (len(digits[1]),)
    plain = ConcreteRegressor(decoder="linear", **options).fit(digits[0], bright)
    wanted = digits[1].mean(axis=1)
    assert model.score(digits[1], wanted) > plain.score(digits[1], wanted) - 0.1 > 0
    labels = np.where(bright > np.median(bright), "light", "dark")
    classes = ConcreteClassifier(**options).fit(files / "train.parquet", labels)
    assert set(classes.predict(files / "test.parquet")) == {"light", "dark"}
    assert classes.feature_names_in_.tolist() == fewer.data.open(files / "train.parquet").names
    with pytest.raises(InputError, match="y has 3 values for the 1437 rows of X"):
        ConcreteRegressor(**options).fit(source, [1.0, 2.0, 3.0])


def test_files_that_do_not_fit_the_estimator(files):
    subset = ColumnSubset(k=4, stall=0, random_state=0).fit(files / "train.parquet")
    np.save(files / "narrow.npy", np.zeros((5, 3)))
    with pytest.raises(InputError, match="X has 3 features, but ColumnSubset is expecting 64"):
        subset.score(files / "narrow.npy")
    pd.DataFrame({"pixel0": [1.0, 2.0]}).to_parquet(files / "narrow.parquet")
    with pytest.raises(InputError, match="X lacks 63 of the 64 features: 'pixel1', 'pixel2'"):
        subset.score(files / "narrow.parquet")
    pd.DataFrame({"other": [1.0, 2.0]}).to_parquet(files / "other.parquet")
    with pytest.raises(InputError, match="measured lacks 4 of the 4 chosen features"):
        subset.inverse_transform(files / "other.parquet")
    np.save(files / "one.npy", np.zeros((1, 3)))
    with pytest.raises(InputError, match="1 rows are too few; give at least 2"):
        ColumnSubset(k=1).fit(files / "one.npy")


def test_columns_without_values_are_refused_from_a_file(files):
    rows = np.random.default_rng(0).normal(size=(20, 3))
    rows[:, 1] = np.nan
    np.save(files / "gaps.npy", rows)
    with pytest.raises(InputError, match=r"without any value, only NaN \(1\): 1"):
        ColumnSubset(k=1).fit(files / "gaps.npy")
