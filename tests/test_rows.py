"""Single rows in every form that people hold them in."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_iris

from fewer import Panel, select
from fewer.errors import FewerWarning, InputError, TypeInputError
from fewer.nn.completion import complete

FRAME = load_breast_cancer(as_frame=True).data
QUICK = {"strategies": ["search"], "validation": 0.2, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def panel():
    return select(FRAME[:300], 5, **QUICK)


@pytest.fixture(scope="module")
def unnamed():
    return select(FRAME.to_numpy()[:300], 5, **QUICK)


@pytest.fixture(scope="module")
def network():
    with pytest.warns(FewerWarning, match="does not clearly beat a linear decoder"):
        return select(FRAME[:200], 3, decoder=(4,), time_limit=1, **QUICK)


@pytest.fixture(scope="module")
def classes():
    X, y = load_iris(return_X_y=True, as_frame=True)
    return select(X, 2, target=y, **QUICK), X


def rows_with_gaps(panel, seed=0, n=60):
    rng = np.random.default_rng(seed)
    rows = FRAME[panel.features].to_numpy()[300 : 300 + n].copy()
    rows[rng.random(rows.shape) < rng.random((n, 1))] = np.nan  # from none to all of a row
    assert np.isnan(rows).all(axis=1).any()
    return rows


@pytest.mark.parametrize("kind", ["panel", "network"])
def test_a_row_alone_is_reconstructed_as_among_others(request, kind):
    panel = request.getfixturevalue(kind)
    rows = rows_with_gaps(panel)
    together = panel.reconstruct(rows)
    alone = np.stack([panel.reconstruct(row) for row in rows])
    size = np.abs(together).max(axis=0)
    np.testing.assert_allclose(alone / size, together / size, rtol=0, atol=1e-12)
    # what was measured comes back to the last bit
    np.testing.assert_array_equal(np.where(np.isnan(rows), np.nan, alone[:, panel.indices]), rows)


def test_the_short_way_gives_what_torch_gives(panel):
    decoder = panel.reconstructor.decoder
    for row in rows_with_gaps(panel, seed=1):
        with torch.no_grad():
            expected = decoder(torch.from_numpy(row[None]))[0].numpy()
        found = decoder.decode_row(row)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12 * np.abs(expected).max())


def test_networks_counts_and_single_precision_do_not_take_the_short_way(panel, network):
    row = FRAME[network.features].to_numpy()[0]
    assert network.reconstructor.decoder.decode_row(row) is None
    short = FRAME[panel.features].to_numpy(dtype=np.float32)[0]
    assert panel.reconstructor.decoder.decode_row(short) is None
    assert panel.reconstruct(short).dtype == np.float32


def test_completing_one_row_is_completing_it_among_others(panel):
    joint = panel.reconstructor.joint
    rows = torch.from_numpy(rows_with_gaps(panel, seed=2))
    mean = torch.from_numpy(joint.mean[joint.columns])
    together = complete(rows, mean, joint.precision)
    for row, expected in zip(rows, together, strict=True):
        found = complete(row[None], mean, joint.precision)[0]
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_results_have_the_form_of_what_was_given(panel):
    rows = FRAME[panel.features].to_numpy()[300:303]
    expected = panel.reconstruct(rows)
    names = list(FRAME.columns)
    records = [dict(zip(panel.features, row, strict=True)) | {"id": "x"} for row in rows.tolist()]

    found = panel.reconstruct(records[0])
    assert list(found) == names
    assert all(type(value) is float for value in found.values())
    np.testing.assert_allclose(list(found.values()), expected[0], rtol=1e-12)

    found = panel.reconstruct(records)
    np.testing.assert_allclose([list(one.values()) for one in found], expected, rtol=1e-12)

    series = FRAME.iloc[300]
    found = panel.reconstruct(series)
    assert isinstance(found, pd.Series)
    assert list(found.index) == names
    np.testing.assert_allclose(found, expected[0], rtol=1e-12)

    for row in (rows[0], rows[0].tolist(), tuple(rows[0]), torch.from_numpy(rows[0])):
        found = panel.reconstruct(row)
        assert found.shape == (panel.d,)
        np.testing.assert_allclose(found, expected[0], rtol=1e-12)
    np.testing.assert_allclose(panel.reconstruct(pl.Series(rows[0])), expected[0], rtol=1e-12)
    assert isinstance(panel.reconstruct(FRAME[300:301]), pd.DataFrame)  # a table stays one


def test_bounds_have_the_form_of_what_was_given(panel):
    row = dict(zip(panel.features, FRAME[panel.features].to_numpy()[300], strict=True))
    row[panel.features[1]] = None
    found, lower, upper = panel.reconstruct(row, interval=0.9)
    assert all(lower[name] <= found[name] <= upper[name] for name in FRAME.columns)
    assert lower[panel.features[0]] == row[panel.features[0]]
    assert lower[panel.features[1]] < upper[panel.features[1]]


def test_missing_values_are_none_nan_or_pandas_na(panel):
    row = FRAME[panel.features].iloc[300]
    name = panel.features[2]
    wanted = panel.reconstruct(row.to_dict() | {name: None})
    assert panel.reconstruct(row.to_dict() | {name: float("nan")}) == wanted
    nullable = row.astype("Float64")
    nullable[name] = pd.NA
    np.testing.assert_allclose(panel.reconstruct(nullable), list(wanted.values()), rtol=1e-12)
    values = [None if key == name else value for key, value in row.items()]
    np.testing.assert_allclose(panel.reconstruct(values), list(wanted.values()), rtol=1e-12)


def test_column_numbers_are_keys_where_there_are_no_names(unnamed):
    row = FRAME.to_numpy()[300]
    expected = unnamed.reconstruct(row[unnamed.indices])
    by_number = {int(j): float(row[j]) for j in unnamed.indices}
    found = unnamed.reconstruct(by_number)
    assert list(found) == list(range(30))
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-12)
    as_text = {str(j): value for j, value in by_number.items()}  # as in JSON
    assert unnamed.reconstruct(as_text) == found
    whole = unnamed.reconstruct(pd.Series(row))  # labels are column numbers
    np.testing.assert_allclose(whole, expected, rtol=1e-12)
    np.testing.assert_allclose(
        unnamed.reconstruct(pd.Series(row[unnamed.indices])), expected, rtol=1e-12
    )


def test_predictions_of_one_row_are_not_wrapped(classes):
    panel, X = classes
    rows = X[panel.features]
    row = rows.iloc[0].to_dict()
    assert panel.predict(row) == panel.predict(rows)[0]
    assert np.ndim(panel.predict(row)) == 0
    np.testing.assert_allclose(panel.predict_proba(row), panel.predict_proba(rows)[0], rtol=1e-9)
    assert panel.predict_set(row).tolist() == panel.predict_set(rows)[0].tolist()
    assert panel.predict([row, row]).shape == (2,)


def test_numbers_are_predicted_with_bounds():
    X = load_iris().data
    panel = select(X[:, :3], 2, target=X[:, 3], **QUICK)
    rows = X[:, :3][:, panel.indices]
    found = panel.predict(rows[7], interval=0.8)
    expected = [part[7] for part in panel.predict(rows, interval=0.8)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert np.ndim(found[0]) == 0


def test_one_row_is_checked(panel):
    row = FRAME[panel.features].iloc[300]
    rows = panel.check(FRAME[300:320])
    one = panel.check(row)
    assert one.rows == 1
    np.testing.assert_allclose([one.p[0], one.distance[0]], [rows.p[0], rows.distance[0]])
    far = panel.check((row * 1000).to_dict())
    assert far.p[0] < 0.02 < one.p[0]


def test_rows_are_imputed_from_whatever_is_there(panel, unnamed):
    names = list(FRAME.columns)
    new = FRAME[300:303].copy()
    new.iloc[:, ::4] = np.nan
    expected = panel.impute(new, use_all=True)
    records = [
        {name: None if np.isnan(x) else x for name, x in row.items()}
        for row in new.to_dict("records")
    ]
    found = panel.impute(records, use_all=True)
    np.testing.assert_allclose([list(row.values()) for row in found], expected, rtol=1e-9)
    one = panel.impute(new.iloc[0], use_all=True)
    assert isinstance(one, pd.Series)
    np.testing.assert_allclose(one[names], expected.iloc[0], rtol=1e-9)
    few = {panel.features[0]: 0.1, names[1]: 20.0}
    with pytest.raises(InputError, match="measured lacks 4 of the 5 chosen features"):
        panel.impute(few)
    found, lower, upper = panel.impute(few, allow_absent=True, interval=0.9)
    assert (found[names[1]], lower[names[1]], upper[names[1]]) == (20.0, 20.0, 20.0)
    assert lower[panel.features[1]] < found[panel.features[1]] < upper[panel.features[1]]
    row = dict(enumerate(FRAME.to_numpy()[300].tolist()))
    assert unnamed.impute(row) == row
    with pytest.raises(TypeInputError, match="is 'much', not a number"):
        panel.impute(few | {names[3]: "much"}, allow_absent=True)


def test_a_loaded_panel_takes_single_rows(panel, tmp_path):
    panel.save(tmp_path / "p")
    row = FRAME[panel.features].to_numpy()[300]
    np.testing.assert_array_equal(
        Panel.load(tmp_path / "p").reconstruct(row), panel.reconstruct(row)
    )


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda row: row.popitem(), InputError, "measured lacks 1 of the 5 chosen features.*null"),
        (lambda row: row.clear(), InputError, "measured lacks 5 of the 5 chosen features"),
        (lambda row: row.update({next(iter(row)): "high"}), TypeInputError, "is 'high', not a n"),
        (lambda row: row.update({next(iter(row)): [1]}), TypeInputError, r"is \[1\], not a num"),
        (lambda row: row.update({next(iter(row)): 1e400}), InputError, "infinity: row 0, column"),
        (lambda row: row.update({next(iter(row)): 10**5000}), TypeInputError, "beyond the range"),
    ],
)
def test_bad_mappings_are_refused(panel, change, kind, message):
    row = FRAME[panel.features].iloc[0].to_dict()
    change(row)
    with pytest.raises(kind, match=message):
        panel.reconstruct(row)


def test_bad_rows_of_a_list_are_named(panel):
    row = FRAME[panel.features].iloc[0].to_dict()
    bad = row | {panel.features[0]: "?"}
    with pytest.raises(TypeInputError, match=r"is '\?' in row 1, not a number"):
        panel.reconstruct([row, bad])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (np.zeros(4), "measured has 4 values; give the 5 chosen features"),
        (np.zeros((2, 4)), "measured has 4 columns; give the 5 chosen features"),
        (np.zeros((0, 5)), "measured has no rows"),
        (np.array([1, 2, 3, 4, np.inf]), "infinity: row 0, column"),
        ([], "measured has 0 values"),
        (np.array(list("abcde")), "something other than numbers"),
        (np.array([1j, 2, 3, 4, 5]), "something other than numbers .*complex128"),
        (np.array(["2026-11-19"] * 5, "M8[s]"), "something other than numbers .*datetime64"),
        ([10**400, 2, 3, 4, 5], "something other than numbers .*too large"),
        ([1.0, 2.0, 3.0, 4.0, "x"], "Expected 2D array|text"),
    ],
)
def test_bad_arrays_are_refused(panel, row, message):
    with pytest.raises(InputError, match=message):
        panel.reconstruct(row)
