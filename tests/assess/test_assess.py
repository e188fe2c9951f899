"""Choices scored on held-out rows, against plain scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

import fewer
from fewer.assess import compare, curve, inspect
from fewer.assess.scoring import Rows
from fewer.baselines import MaxVariance, PivotedQR
from fewer.errors import FewerWarning, InputError

X = load_digits().data[:, 16:48] + 0.01 * np.random.default_rng(0).normal(size=(1797, 32))
GROUPS = np.arange(len(X)) // 10


@pytest.fixture(scope="module")
def rows():
    return Rows(X, "standard", None, 0, "cpu")


@pytest.fixture(scope="module")
def split(rows):
    return rows.splits(5, 0.25, 1)[0]


def first_split(k=5):
    """The split that `compare` makes with random_state=0."""
    return Rows(X, "standard", None, 0, "cpu").splits(k, 0.25, 1)[0]


def parts(split):
    scaler = StandardScaler().fit(X[split.fold.train_rows])
    return scaler.transform(X[split.fold.train_rows]), scaler.transform(X[split.fold.held_rows])


def test_explained_variance_is_that_of_plain_regression(split):
    train, held = parts(split)
    columns = np.array([1, 5, 12, 20, 30])
    model = LinearRegression().fit(train[:, columns], train)
    left = ((model.predict(held[:, columns]) - held) ** 2).sum()
    assert split.explained_variance(columns) == pytest.approx(1 - left / (held**2).sum(), abs=1e-9)
    errors = ((model.predict(held[:, columns]) - held) ** 2).mean(axis=0)
    scale = X[split.fold.train_rows].var(axis=0)
    np.testing.assert_allclose(split.errors(columns), errors * scale, rtol=1e-6, atol=1e-9)


def test_the_reference_is_plain_pca(split):
    train, held = parts(split)
    found = split.pca_explained_variance(6)
    for k in (1, 6):
        pca = PCA(k).fit(train)
        left = ((pca.inverse_transform(pca.transform(held)) - held) ** 2).sum()
        assert found[k - 1] == pytest.approx(1 - left / (held**2).sum(), abs=1e-9)


def test_rows_of_a_group_stay_on_one_side():
    grouped = Rows(X, "none", GROUPS, 0, "cpu")
    for split in grouped.splits(3, 0.3, 4):
        held, train = split.fold.held_rows, split.fold.train_rows
        assert len(np.intersect1d(GROUPS[held], GROUPS[train])) == 0
        assert len(held) + len(train) == len(X)


def test_pivots_of_the_covariance_are_those_of_the_rows():
    found = compare(
        X, 5, methods=["pivoted QR", "variance"], scale="none", random_state=0, device="cpu"
    )
    chosen = {row["method"]: row["features"] for row in found.rows}
    train = X[first_split().fold.train_rows]
    assert chosen["pivoted QR"] == PivotedQR(5).fit(train).columns_.tolist()
    assert chosen["variance"] == MaxVariance(5).fit(train).columns_.tolist()


def test_more_splits_tell_how_stable_a_choice_is():
    twins = np.hstack([X, X + 1e-9 * np.random.default_rng(1).normal(size=X.shape)])
    found = compare(twins, 4, methods=["search", "random"], repeats=3, scale="none",
                    random_state=0, device="cpu")  # fmt: skip
    by = {row["method"]: row for row in found.rows}
    assert by["search"]["overlap"] < 1  # either twin will do
    assert by["random"]["overlap"] < 0.5
    assert by["search"]["std"] > 0
    assert by["search"]["explained_variance"] > by["random"]["explained_variance"]


def test_a_choice_is_made_without_the_held_out_rows():
    """Rows that are held out can be anything: what is chosen stays the same."""
    held = first_split(3).fold.held_rows
    other = X.copy()
    other[held] = np.random.default_rng(3).permuted(X[held], axis=1)
    pair = [
        compare(data, 3, methods=["search", "select"], random_state=0, device="cpu")
        for data in (X, other)
    ]
    one, two = ({row["method"]: row["features"] for row in found.rows} for found in pair)
    assert one == two


def test_a_curve_is_nested_and_honest():
    found = curve(X, [2, 4, 8, 16], random_state=0, device="cpu")
    assert np.diff(found.explained_variance).min() > 0
    assert found.smallest_k(0.99) is None
    assert found.splits == 5
    assert all(0 < error < 0.05 for error in found.standard_error)
    assert found.r2.shape == (4, 32)
    noise = np.random.default_rng(0).normal(size=(60, 40))
    flat = curve(noise, [10, 20], random_state=0, device="cpu")
    assert flat.splits == 5
    assert (
        flat.explained_variance[1] < 0.6
    )  # twenty of forty unrelated features explain only themselves
    assert flat.noise == 0  # and permuted columns would do as well


def test_missing_and_empty_columns(tmp_path):
    table = pd.DataFrame(X, columns=[f"p{j}" for j in range(32)])
    table.iloc[::5, 3] = np.nan
    table["blank"] = np.nan
    with pytest.warns(FewerWarning, match=r"without any value were ignored \(1\): 'blank'"):
        found = curve(table, [4], random_state=0, device="cpu")
    assert 0.2 < found.explained_variance[0] < 1
    assert found.write(tmp_path / "c.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: curve(X, []), "give at least one number of features"),
        (
            lambda: curve(X, [99]),
            "k=99 must be a whole number from 1 to 32, the number",
        ),
        (lambda: curve(X, [3], folds=1), "folds=1 must be a whole number of at least 2"),
        (lambda: compare(X, 3, test_size=2), "test_size=2 must be a number above 0 and below 1"),
        (lambda: curve(X, [3], scale="big"), "scale='big' is not known"),
        (lambda: curve(X, [3], row_groups=[1, 2]), "row_groups has 2 labels for 1797 rows"),
        (lambda: curve(X, [3], row_groups=np.ones(len(X))), "row_groups has a single label"),
        (lambda: compare(X, 3, methods=["luck"]), "methods='luck' is not known; use 'select' or"),
        (lambda: compare(X, 3, panels={"mine": []}), "the list of features is empty"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_wide_data_are_inspected_without_a_covariance(monkeypatch):
    source = fewer.data.open(X)
    whole = inspect(source)
    monkeypatch.setattr("fewer.assess.inspection.MAX_FEATURES", 10)
    monkeypatch.setattr("fewer.assess.inspection.WIDE_ROWS", 5000)
    wide = inspect(source)
    for level, size in wide.sizes.items():
        assert size["greedy"] is None
        assert size["pca"] == whole.sizes[level]["pca"]
    assert wide.suggested_k == wide.sizes[0.9]["pca"]


def test_an_inspection_finds_what_a_user_should_know(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 5)), columns=list("abcde"))
    frame.insert(0, "row", np.arange(7, 47))
    frame["label"] = "x"
    frame.loc[3:12, "b"] = np.nan
    frame["c"], frame["d"] = 1.0, np.nan
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=10)
    for limit in (None, 10_000):
        found = inspect(tmp_path / "x.parquet", ignore=["label"], memory_limit=limit)
        assert (found.rows, found.features) == (40, 4)
        assert list(found.ignored) == ["label", "row", "d"]
        assert found.missing == {"b": 0.25}
        assert found.constant == ["c"]
        assert found.values == (frame[["a", "b", "e"]].min().min(), frame[list("abce")].max().max())
        assert (found.memory, found.covariance_memory) == (40 * 4 * 4, 16 * 8)
    assert "6.2% missing" in str(found)
    assert "1 constant (never chosen): c" in str(found)


def test_an_inspection_of_sparse_and_streamed_rows(tmp_path):
    matrix = sparse.random_array((50, 4), density=0.2, rng=np.random.default_rng(0), format="csr")
    assert inspect(matrix).sparse
    np.save(tmp_path / "x.npy", matrix.toarray())
    found = inspect(tmp_path / "x.npy", memory_limit=1000)
    assert (found.streamed, found.dtype, found.values[0]) == (True, "float64", 0.0)
    assert "50 rows, 4 features (float64), read in blocks" in str(found)
