"""Measured values as users hand them over: sparse, tables in any order, with other columns."""

from copy import deepcopy
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


def least_squares(rows, chosen, new):
    """All columns of new rows from the chosen ones, by regression on other rows."""
    inputs = np.column_stack([np.ones(len(rows)), rows[:, chosen]])
    weights = np.linalg.lstsq(inputs, rows)[0]
    return np.column_stack([np.ones(len(new)), new[:, chosen]]) @ weights


@pytest.mark.parametrize("gone", [[2], [0, 3], [0, 1, 2], [0, 1, 2, 3]])
def test_any_subset_reconstructs_as_a_refit_on_it_would(panel, gone):
    measured = X[:5, panel.indices].copy()
    measured[1:, gone] = np.nan
    left = np.delete(panel.indices, gone)
    expected = least_squares(X, left, X[:5])
    expected[:, left] = X[:5, left]
    found = panel.reconstruct(measured)
    np.testing.assert_allclose(found[1:], expected[1:], atol=1e-6)
    np.testing.assert_allclose(found[0], panel.reconstruct(X[:1, panel.indices])[0], atol=1e-12)


def test_rows_with_patterns_of_their_own_are_completed_together(panel):
    gappy = X[:64, panel.indices].copy()
    gappy[np.random.default_rng(0).random(gappy.shape) < 0.4] = np.nan
    together = panel.reconstruct(gappy, interval=0.9)
    for row in range(len(gappy)):
        one = panel.reconstruct(gappy[[row]], interval=0.9)
        for found, part in zip(together, one, strict=True):
            np.testing.assert_allclose(found[row], part[0], atol=1e-9)
    assert not np.isnan(np.stack(together)).any()


def test_panels_of_earlier_versions_take_the_training_mean(panel):
    bare = replace(panel.reconstructor, joint=None, decoder=deepcopy(panel.reconstructor.decoder))
    bare.decoder.precision = None
    gappy = X[:5, panel.indices].copy()
    gappy[1, 2] = np.nan
    filled = np.where(np.isnan(gappy), X[:, panel.indices].mean(axis=0), gappy)
    np.testing.assert_allclose(bare.reconstruct(gappy), bare.reconstruct(filled))
    assert np.isnan(bare.reconstruct(gappy, interval=0.5)[1][1, panel.indices[2]])


def test_intervals_cover_with_features_missing():
    # of every feature that is not measured, also of the chosen ones
    random = np.random.default_rng(0)
    hidden = random.standard_t(6, size=(3000, 3))
    rows = hidden @ random.normal(size=(3, 12)) + 0.3 * random.normal(size=(3000, 12))
    panel = select(rows[:1500], 4, strategies=["search"], validation=5, random_state=0)
    test = rows[1500:]
    for gone in ([0], [1], [2], [3], [0, 1], [2, 3]):
        measured = test[:, panel.indices].copy()
        measured[:, gone] = np.nan
        _, low, high = panel.reconstruct(measured, interval=0.9)
        asked = np.setdiff1d(np.arange(12), np.delete(panel.indices, gone))
        inside = ((low <= test) & (test <= high))[:, asked]
        assert 0.88 < inside.mean() < 0.92
        assert 0.85 < inside[:, np.isin(asked, panel.indices)].mean() < 0.95


def test_a_network_gets_completed_inputs():
    panel = select(X, 4, decoder=(8,), strategies=["search"], validation=0.2, random_state=0)
    whole = X[:5, panel.indices]
    gappy = whole.copy()
    gappy[:, 1] = np.nan
    found = panel.reconstruct(gappy)
    filled = whole.copy()
    filled[:, 1] = found[:, panel.indices[1]]
    np.testing.assert_allclose(panel.reconstruct(filled), found)
    expected = least_squares(X, np.delete(panel.indices, 1), X[:5])[:, panel.indices[1]]
    np.testing.assert_allclose(filled[:, 1], expected, atol=0.5 * X[:, panel.indices[1]].std())


def test_measured_values_are_kept_and_used():
    frame = pd.DataFrame(X, columns=[f"gene{j}" for j in range(16)])
    panel = select(frame[:200], 4, strategies=["search"], validation=0.2, random_state=0)
    new = frame[200:].copy()
    others = [name for name in panel.names if name not in panel.features]
    hidden = [name for name in others[::2] if frame[name].var() > 1]
    truth = new[hidden].to_numpy()
    new[hidden] = np.nan
    plain, used = panel.impute(new), panel.impute(new, use_all=True)
    for table in (plain, used):
        assert list(table.columns) == panel.names
        pd.testing.assert_frame_equal(table.drop(columns=hidden), new.drop(columns=hidden))
    pd.testing.assert_frame_equal(plain[hidden], panel.reconstruct(new)[hidden])
    errors = [((table[hidden] - truth) ** 2).to_numpy().mean() for table in (plain, used)]
    assert errors[1] < 0.9 * errors[0]
    again = panel.impute(new, replace_measured=True)
    pd.testing.assert_frame_equal(again, panel.reconstruct(new))
    middle, low, high = panel.impute(new, interval=0.9, use_all=True)
    narrow, wide = (high - low)[hidden], np.subtract(*panel.reconstruct(new, interval=0.9)[:0:-1])
    assert (narrow.to_numpy() <= wide[hidden].to_numpy()).all()
    assert narrow.to_numpy().sum() < 0.97 * wide[hidden].to_numpy().sum()
    measured = new.drop(columns=hidden).columns
    pd.testing.assert_frame_equal(low[measured], middle[measured])
    inside = (low[hidden].to_numpy() <= truth) & (truth <= high[hidden].to_numpy())
    assert 0.8 < inside.mean() < 0.97


def test_absent_features_are_predicted_only_if_asked(panel):
    frame = pd.DataFrame(X, columns=[f"gene{j}" for j in range(16)])
    named = select(frame, 4, strategies=["search"], validation=0.2, random_state=0)
    rest = frame.drop(columns=named.features[0])
    with pytest.raises(InputError, match="measured lacks 1 of the 4 chosen features"):
        named.impute(rest)
    found = named.impute(rest, allow_absent=True)
    gappy = frame.assign(**{named.features[0]: np.nan})
    pd.testing.assert_frame_equal(found, named.impute(gappy))
    # without names: rows of all features, or of the chosen ones
    np.testing.assert_array_equal(panel.impute(X[:5]), X[:5])
    measured = X[:5, panel.indices]
    np.testing.assert_array_equal(panel.impute(measured), panel.reconstruct(measured))


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
