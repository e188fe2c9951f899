"""Measured values as users hand them over: sparse, tables in any order, with other columns."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from fewer import ColumnSubset, select
from fewer.errors import InputError

X = load_digits().data[:300, 8:24]


def fitted(rows):
    return ColumnSubset(k=4, stall=0, random_state=0, device="cpu").fit(rows)


@pytest.fixture(scope="module")
def unnamed():
    return fitted(X)


@pytest.fixture(scope="module")
def panel():
    return select(X, 4, strategies=["search"], validation=0.2, random_state=0, device="cpu")


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_rows_round_trip(unnamed, panel, kind):
    S = kind(X)
    measured = unnamed.transform(S)
    assert sparse.issparse(measured)
    np.testing.assert_array_equal(
        unnamed.inverse_transform(measured), unnamed.inverse_transform(unnamed.transform(X))
    )
    np.testing.assert_array_equal(
        panel.reconstruct(kind(X[:, panel.indices])), panel.reconstruct(X[:, panel.indices])
    )
    with pytest.raises(InputError, match="measured has 16 columns; give the 4 chosen"):
        unnamed.inverse_transform(S)


@pytest.mark.parametrize("order", [[3, 1, 0, 2], [0, 1, 2, 3]])
def test_integer_labels_are_column_numbers(order):
    frame = pd.DataFrame(X)
    model = fitted(frame)
    chosen = model.get_support(indices=True)
    expected = model.inverse_transform(X[:, chosen])
    np.testing.assert_array_equal(model.inverse_transform(frame[chosen[order]]), expected)
    np.testing.assert_array_equal(model.inverse_transform(frame), expected)
    with_text = frame[chosen[order]].assign(patient="p1")
    np.testing.assert_array_equal(model.inverse_transform(with_text), expected)


def test_a_frame_without_labels_of_its_own_is_taken_by_position(unnamed, panel):
    values = X[:, unnamed.columns_]
    expected = unnamed.inverse_transform(values)
    np.testing.assert_array_equal(unnamed.inverse_transform(pd.DataFrame(values)), expected)
    named = pd.DataFrame(values, columns=list("abcd"))
    np.testing.assert_array_equal(unnamed.inverse_transform(named), expected)
    values = X[:, panel.indices]
    np.testing.assert_array_equal(
        panel.reconstruct(pd.DataFrame(values)), panel.reconstruct(values)
    )


def test_integer_labels_that_lack_a_chosen_column_are_refused(unnamed):
    chosen = unnamed.columns_
    frame = pd.DataFrame(X).drop(columns=chosen[1])
    with pytest.raises(InputError, match=f"which lack {chosen[1]} of the 4 chosen column numbers"):
        unnamed.inverse_transform(frame)
    years = pd.DataFrame(X[:, chosen], columns=[1990, 1995, 1998, 2004])
    with pytest.raises(InputError, match=r"labels 1990, 1995.*give an array in this order"):
        unnamed.inverse_transform(years)


@pytest.mark.parametrize("library", [pd, pl])
def test_columns_that_are_not_measured_may_hold_anything(library):
    names = [f"gene{j}" for j in range(16)]
    table = library.DataFrame(dict(zip(names, X.T, strict=True)))
    model = fitted(table)
    chosen = list(model.get_feature_names_out())
    measured = table[chosen[::-1]]
    text = ["p"] * len(X)
    with_text = (
        measured.assign(patient=text)
        if library is pd
        else measured.with_columns(pl.Series("patient", text))
    )
    found = model.inverse_transform(with_text)
    assert list(found.columns) == names
    np.testing.assert_array_equal(found.to_numpy(), model.inverse_transform(measured).to_numpy())


def test_text_in_a_chosen_column_is_still_refused():
    frame = pd.DataFrame(X, columns=[f"gene{j}" for j in range(16)])
    model = fitted(frame)
    name = model.get_feature_names_out()[0]
    with pytest.raises(InputError, match=f"1 of 4 columns are not numbers: '{name}'"):
        model.inverse_transform(frame.assign(**{name: "high"}))


def test_missing_values_take_the_training_mean(unnamed, panel):
    gappy = X[:5, panel.indices].copy()
    gappy[1, 2] = np.nan
    filled = np.where(np.isnan(gappy), X[:, panel.indices].mean(axis=0), gappy)
    found, expected = panel.reconstruct(gappy), panel.reconstruct(filled)
    np.testing.assert_allclose(found, expected)
    assert not np.isnan(found).any()


def test_measured_values_are_returned_unchanged(panel):
    measured = X[:5, panel.indices]
    np.testing.assert_array_equal(panel.reconstruct(measured)[:, panel.indices], measured)


def test_single_precision_stays_single(panel):
    measured = X[:5, panel.indices].astype(np.float32)
    assert panel.reconstruct(measured).dtype == np.float32


def test_intervals_widen_and_need_held_out_residuals(panel):
    measured = X[:5, panel.indices]
    found, low, high = panel.reconstruct(measured, interval=0.5)
    _, lower, higher = panel.reconstruct(measured, interval=0.9)
    assert (lower <= low).all()
    assert (high <= higher).all()
    assert (low <= high).all()
    np.testing.assert_array_equal(low[:, panel.indices], found[:, panel.indices])
    bare = replace(panel.reconstructor, quantiles=None)
    with pytest.raises(InputError, match="no held-out residuals"):
        bare.reconstruct(measured, interval=0.5)


def test_every_place_names_what_is_missing_in_the_same_words():
    frame = pd.DataFrame(X, columns=[f"gene{j}" for j in range(16)])
    panel = select(frame, 4, strategies=["search"], validation=0.2, random_state=0)
    gone = panel.features[0]
    rest = frame.drop(columns=gone)
    for call in (panel.score, panel.transform, panel.examine):
        with pytest.raises(InputError, match=f"X lacks 1 of the 16 features: '{gone}'"):
            call(rest)
    with pytest.raises(InputError, match=f"measured lacks 1 of the 4 chosen features: '{gone}'"):
        panel.reconstruct(rest)


def test_the_output_has_the_type_of_the_input_table():
    names = [f"gene{j}" for j in range(16)]
    frame = pd.DataFrame(X, columns=names, index=[f"row{i}" for i in range(len(X))])
    panel = select(frame, 4, strategies=["search"], validation=0.2, random_state=0)
    found = panel.reconstruct(frame[panel.features])
    assert found.index.equals(frame.index)
    assert list(found.columns) == names
    for library, table in (("polars", pl.from_pandas(frame)), ("pyarrow", pa.table(frame))):
        again = panel.reconstruct(table)
        assert type(again).__module__.split(".")[0] == library
        values = pl.from_arrow(again) if library == "pyarrow" else again
        np.testing.assert_allclose(values.to_numpy(), found.to_numpy())
    assert isinstance(panel.reconstruct(frame[panel.features].to_numpy()), np.ndarray)
