"""Measured values as users hand them over: sparse, tables in any order, with other columns."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_digits

from fewer import ColumnSubset, select
from fewer.data import read_all
from fewer.data.source import array_source
from fewer.errors import InputError
from fewer.nn.decoder import MeasuredDecoder
from fewer.reconstructor import (
    QUANTILE_LEVELS,
    Filling,
    Imputed,
    Reconstructor,
    bound_paths,
    impute,
    interpolated,
    run_decoder,
    sample_size,
)

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
    weights = np.linalg.lstsq(inputs, rows, rcond=None)[0]
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


# -- by hand -----------------------------------------------------------------------------------

LEVELS = np.array(QUANTILE_LEVELS)


class Broken(torch.nn.Module):
    """A decoder that fails as torch does."""

    def __init__(self, message):
        super().__init__()
        self.message = message

    def forward(self, x):
        raise RuntimeError(self.message)


def linear(columns, names=None, d=5, **more):
    """A reconstructor of d features, each the sum of the chosen ones times its number."""
    net = torch.nn.Linear(len(columns), d)
    with torch.no_grad():
        net.weight.copy_(torch.arange(d)[:, None].float().expand(d, len(columns)))
        net.bias.zero_()
    decoder = MeasuredDecoder(net, fill=torch.full((len(columns),), 0.5)).double().eval()
    decoder.known = torch.tensor(columns)
    names = None if names is None else np.array(names, dtype=object)
    return Reconstructor(np.array(columns), decoder, d, names, **more)


def test_bounds_are_interpolated_quantiles():
    quantiles = np.sort(np.random.default_rng(0).normal(size=(len(LEVELS), 5)), axis=0)
    model = linear([1, 3], quantiles=quantiles)
    measured = np.array([[1.0, 2.0], [0.0, 4.0]])
    for interval in (0.01, 0.5, 0.6, 0.9, 0.99):
        found, low, high = model.reconstruct(measured, interval=interval)
        tail = (1 - interval) / 2
        for j in (0, 2, 4):
            np.testing.assert_allclose(found[:, j], j * measured.sum(axis=1))
            wanted = np.interp([tail, 1 - tail], LEVELS, quantiles[:, j])
            np.testing.assert_allclose(low[:, j] - found[:, j], wanted[0])
            np.testing.assert_allclose(high[:, j] - found[:, j], wanted[1])
        for bound in (low, high):
            np.testing.assert_array_equal(bound[:, [1, 3]], measured)
    for interval in (0.0, 0.991, 1.0, -0.5, "0.5"):
        with pytest.raises(InputError, match=r"must be above 0 and at most 0\.99"):
            model.reconstruct(measured, interval=interval)


def test_bounds_are_as_wide_as_the_difficulty_of_a_row_says(panel):
    assert interpolated(np.array([[0.0, 10.0], [2.0, 30.0]]), np.array([1.0, -5, 9])).tolist() == [
        20,
        10,
        30,
    ]
    gappy = X[:6, panel.indices].copy()
    gappy[3:, 1] = np.nan
    widths = {}
    for factor in (None, 1.0, 2.0):
        table = None if factor is None else np.array([[0.0, factor], [1.0, factor]])
        model = replace(panel.reconstructor, difficulty=table)
        _, low, high = model.reconstruct(gappy, interval=0.8)
        widths[factor] = high - low
        np.testing.assert_allclose(model.difficulty_of(gappy), 1.0 if factor is None else factor)
    np.testing.assert_allclose(widths[2.0], 2 * widths[1.0], atol=1e-9)
    np.testing.assert_allclose(widths[None], widths[1.0], atol=1e-9)
    alone = replace(panel.reconstructor, joint=None)
    assert alone.difficulty_of(gappy).tolist() == [1.0] * 6
    # nearer rows are expected to have smaller errors
    table = np.array([[-10.0, 1.0], [10.0, 2.0]])
    model = replace(panel.reconstructor, difficulty=table)
    mean = X[:, panel.indices].mean(axis=0)
    near, far = model.difficulty_of(np.stack([mean, mean + 30]))
    assert near < far


@pytest.mark.parametrize("message", ["mat1 and mat2 must have the same dtype", "scalar type Float"])
def test_decoders_that_do_not_work_in_float64_are_named(message):
    decoder = MeasuredDecoder(Broken(message), fill=torch.zeros(2))
    with pytest.raises(InputError, match="does not work in float64"):
        run_decoder(decoder, np.zeros((3, 2)))
    other = MeasuredDecoder(Broken("out of memory"), fill=torch.zeros(2))
    with pytest.raises(RuntimeError, match="out of memory"):
        run_decoder(other, np.zeros((3, 2)))


def test_files_without_names_of_features_are_taken_by_position(tmp_path):
    rows = np.array([[1.0, 2.0], [3.0, 5.0]])
    names = list("abcde")
    pd.DataFrame(rows, columns=["u", "v"]).to_csv(tmp_path / "two.csv", index=False)
    pd.DataFrame(rows, columns=["3", "1"]).to_parquet(tmp_path / "numbers.parquet")
    pd.DataFrame(rows, columns=["d", "b"]).to_csv(tmp_path / "names.csv", index=False)
    unnamed, named = linear([1, 3]), linear([1, 3], names)
    for how in (unnamed.read, lambda path: impute(unnamed, path, None).values[0][:, [1, 3]]):
        np.testing.assert_array_equal(how(tmp_path / "two.csv"), rows)
        np.testing.assert_array_equal(how(tmp_path / "numbers.parquet"), rows[:, ::-1])
    for how in (named.read, lambda path: impute(named, path, None).values[0][:, [1, 3]]):
        np.testing.assert_array_equal(how(tmp_path / "names.csv"), rows[:, ::-1])
        with pytest.raises(InputError, match="lacks 2 of the 2 chosen features"):
            how(tmp_path / "two.csv")
    with pytest.raises(InputError, match="measured has 2 columns; give the 3 chosen"):
        linear([0, 1, 3]).read(tmp_path / "two.csv")
    with pytest.raises(InputError, match="measured has 2 columns; give the 3 chosen"):
        impute(linear([0, 1, 3]), tmp_path / "two.csv", None)


def test_whole_rows_are_matched_by_name_or_position():
    names = list("abcde")
    rows = np.arange(10.0).reshape(2, 5)
    frame = pd.DataFrame(rows, columns=names)
    named, unnamed = linear([1, 3], names), linear([1, 3])
    shuffled = frame[list("ecabd")].assign(patient="p")
    np.testing.assert_array_equal(named.match(shuffled), rows)
    for model in (named, unnamed):
        np.testing.assert_array_equal(model.match(rows), rows)
        with pytest.raises(InputError, match="X has 4 columns; the panel was made for 5"):
            model.match(rows[:, :4])
    np.testing.assert_array_equal(unnamed.match(frame), rows)
    np.testing.assert_array_equal(unnamed.take(sparse.csr_array(rows)), rows[:, [1, 3]])
    np.testing.assert_array_equal(unnamed.take(array_source(rows)), rows[:, [1, 3]])


def test_what_was_filled_in_is_counted(tmp_path):
    nan = np.nan
    frame = pd.DataFrame(
        {"a": [1, nan, 3], "b": [nan, 5, nan], "d": [2, 6, nan], "year": [1999, 2000, 2001]}
    )
    model, seen, fractions = linear([1, 3], list("abcde")), [], []
    done = impute(model, frame, None, check=seen.append, progress=fractions.append)
    assert (done.rows, done.missing, done.incomplete_rows, done.empty_rows) == (3, 3, 2, 1)
    assert (done.kept, done.absent, done.predicted) == (2, [], False)
    np.testing.assert_array_equal(np.concatenate(seen), frame[["b", "d"]])
    assert fractions == [1.0]
    # inputs that are missing are the training mean of 0.5, and measured values are kept
    total = np.array([2.5, 11, 1])
    wanted = np.stack([[1, 0, 3], [2.5, 5, 1], 2 * total, [2, 6, 3], 4 * total], axis=1)
    np.testing.assert_allclose(done.values[0], wanted)
    # columns that are not features are copied, numbers too
    frame.to_csv(tmp_path / "in.csv", index=False)
    impute(model, tmp_path / "in.csv", tmp_path / "out.csv")
    written = pd.read_csv(tmp_path / "out.csv")
    assert written["year"].tolist() == [1999, 2000, 2001]
    np.testing.assert_allclose(written[list("abcde")], wanted)
    with pytest.raises(InputError, match="measured lacks 1 of the 2 chosen features: 'd'"):
        impute(model, frame.drop(columns="d"), None)
    part = impute(model, frame.drop(columns="d"), None, Filling(allow_absent=True))
    assert (part.absent, part.missing, part.empty_rows) == (["d"], 5, 2)
    again = impute(model, frame, None, Filling(replace_measured=True))
    assert again.kept == 0
    np.testing.assert_allclose(again.values[0][:, 0], 0.0)
    with pytest.raises(InputError, match="use_all needs the covariances"):
        impute(model, frame, None, Filling(use_all=True))


def test_what_was_filled_in_is_said():
    some = Imputed(10, (), 3, 2, 1, ["a"], 0, predicted=True)
    assert some.describe(4) == (
        "3 of 40 values of the panel's features were missing, in 2 rows, and predicted from the "
        "values present; not in the data: 'a'; 1 row has none"
    )
    older = replace(some, absent=[], empty_rows=0, predicted=False).describe(4)
    assert older.endswith(
        "set to the training mean (an older panel: make it again to have them predicted)"
    )
    assert replace(some, missing=0).describe(4) == ""


def test_noisy_values_are_kept_only_where_asked():
    model = linear([1, 3], noise=np.full(5, 0.1), quantiles=np.repeat(LEVELS[:, None], 5, 1))
    model.decoder.known = None
    values = np.array([[1.0, 2.0], [np.nan, 2.0]])
    for denoise in (True, False):
        found = model.decode(values, denoise=denoise)
        sums = np.array([3.0, 2.5])
        np.testing.assert_allclose(found[:, 2], 2 * sums)
        np.testing.assert_allclose(found[:, 1], sums if denoise else [1.0, sums[1]])
        np.testing.assert_allclose(found[:, 3], 3 * sums if denoise else 2.0)
    found, low, high = model.parts(values[:1], 0.5)
    np.testing.assert_allclose(low - found, 0.25)  # of noisy features, too
    np.testing.assert_allclose(high - found, 0.75)


def test_the_bounds_of_a_file_have_its_ending():
    low, high = bound_paths("folder/all.csv.gz")
    assert (low.as_posix(), high.as_posix()) == (
        "folder/all.lower.csv.gz",
        "folder/all.upper.csv.gz",
    )


def test_chosen_features_that_hold_text_or_none_at_all_are_never_predicted():
    model, allowed = linear([1, 3], list("abcde")), Filling(allow_absent=True)
    frame = pd.DataFrame({"a": [1.0, 2], "b": [2.0, 4], "d": ["low", "high"]})
    with pytest.raises(InputError, match="the chosen features 'd' do not hold numbers"):
        impute(model, frame, None, allowed)
    with pytest.raises(InputError, match="lacks 2 of the 2 chosen features"):
        impute(model, frame[["a"]], None, allowed)


def test_all_measured_features_are_used_only_with_the_covariances_of_the_panel(panel):
    refused = pytest.raises(InputError, match="use_all needs the covariances")
    with refused:
        Filling(use_all=True).check(panel.reconstructor)
    with refused:
        Filling(use_all=True, factors=np.ones((5, 1))).check(linear([1, 3]))
    Filling(use_all=True, factors=np.ones((5, 1))).check(panel.reconstructor)


def test_columns_are_taken_by_name_wherever_there_is_one():
    rows = np.random.default_rng(0).normal(size=(4, 5))
    with pytest.raises(InputError, match="lacks 2 of the 2 chosen features"):
        impute(linear([1, 3], list("abcde")), pd.DataFrame(rows, columns=list("vwxyz")), None)
    model, whole = linear([1, 3]), Filling(replace_measured=True)
    numbered = pd.DataFrame(rows[:, ::-1], columns=list("43210"))
    other = pd.DataFrame(rows, columns=list("vwxyz"))  # without names: by position
    for frame in (numbered, other):
        found = impute(model, frame, None, whole).values[0]
        np.testing.assert_allclose(found, model.decode(rows[:, [1, 3]]))


@pytest.mark.parametrize(("d", "wanted"), [(10, 200), (4000, 100), (10**6, 20)])
def test_so_many_rows_are_examples(d, wanted):
    assert sample_size(d) == wanted


def test_the_first_rows_are_checked(monkeypatch):
    def in_blocks(source):
        whole = torch.from_numpy(read_all(source))
        return [(slice(at, at + 64), whole[at : at + 64]) for at in range(0, 256, 64)]

    monkeypatch.setattr("fewer.reconstructor.CHECKED_ROWS", 64)
    monkeypatch.setattr("fewer.reconstructor.read_blocks", in_blocks)
    monkeypatch.setattr("fewer.reconstructor.read_metadata", lambda source: [None] * 4)
    seen = []
    rows = np.random.default_rng(0).normal(size=(256, 5))
    impute(linear([1, 3], list("abcde")), pd.DataFrame(rows, columns=list("abcde")), None,
           check=seen.append)  # fmt: skip
    np.testing.assert_allclose(seen[0], rows[:64, [1, 3]])


def test_scores_of_noisy_features_do_not_depend_on_the_size_of_all_weights():
    model = linear([1, 3], noise=np.linspace(0.1, 0.3, 5))
    rows = np.random.default_rng(0).normal(size=(30, 5)) * [9, 1, 5, 1, 5]
    plain, doubled = model.score(rows), model.score(rows, np.full(5, 2.0))
    assert float(doubled) == pytest.approx(float(plain))
    assert float(plain) != pytest.approx(float(replace(model, noise=None).score(rows)))
