"""Files that are whole or not there, and .h5ad files that keep what is known of the rows."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fewer
from fewer.data.write import write_rows
from fewer.errors import InputError

anndata = pytest.importorskip("anndata", reason="anndata is not installed")

pytestmark = [
    # what anndata does inside is not ours to mend
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'mode.chained_assignment' option"),
]


@pytest.fixture(autouse=True)
def _plain_text():
    """The pinned anndata cannot write the text of pandas 3; that of pandas 2 it can."""
    with warnings.catch_warnings(action="ignore"):
        kept = pd.get_option("future.infer_string")
        pd.set_option("future.infer_string", False)
    yield
    with warnings.catch_warnings(action="ignore"):
        pd.set_option("future.infer_string", kept)


FORMS = [
    "x.npy",
    "x.csv",
    "x.tsv.gz",
    "x.csv.bz2",
    "x.csv.zip",
    "x.parquet",
    "x.feather",
    "x.h5",
    "x.h5ad",
]


def read_back(path):
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".h5ad":
        return anndata.read_h5ad(path).X
    if path.suffix == ".h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path) as file:
            return file["X"][...]
    if path.suffix == ".parquet":
        return pd.read_parquet(path).to_numpy()
    if path.suffix == ".feather":
        return pd.read_feather(path).to_numpy()
    return pd.read_csv(path, sep="\t" if ".tsv" in path.name else ",").to_numpy(dtype=float)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_what_was_written_is_read_back(tmp_path, form, rows):
    values = np.random.default_rng(0).normal(size=(rows, 3))
    with write_rows(tmp_path / form, rows, ["a", "b", "c"]) as write:
        for start in range(0, rows, 2):
            write(values[start : start + 2])
    found = read_back(tmp_path / form)
    assert found.shape == (rows, 3)
    np.testing.assert_allclose(found, values)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", [0, 2, 4])
def test_too_few_or_too_many_rows_leave_no_file(tmp_path, form, given):
    def attempt():
        with write_rows(tmp_path / form, 3, ["a"]) as write:
            write(np.zeros((given, 1)))

    with pytest.raises(
        InputError, match=f"should have had 3 rows but got {given}; it was not written"
    ):
        attempt()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / form).write_text("older")
    with pytest.raises(InputError):
        attempt()
    assert (tmp_path / form).read_text() == "older"


@pytest.mark.parametrize("form", FORMS)
def test_repeated_names_are_refused_before_anything_is_written(tmp_path, form):
    with (
        pytest.raises(InputError, match="1 name occurs more than once: 'a'; one of each"),
        write_rows(tmp_path / form, 1, ["a", "b", "a"]) as write,
    ):
        write(np.zeros((1, 3)))
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_caller_leaves_no_file(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        write_rows(tmp_path / "x.h5ad", 2, ["a"]) as write,
    ):
        write(np.full((1, 1), 1 / 0))
    assert list(tmp_path.iterdir()) == []


def cells(n=30):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2)) @ rng.normal(size=(2, 6)) + 0.1 * rng.normal(size=(n, 6))
    obs = pd.DataFrame(
        {
            "kind": pd.Categorical(rng.choice(["T", "B", "NK"], n)),
            "note": [f"seen {i}" for i in range(n)],
            "age": rng.normal(size=n),
            "plate": rng.integers(0, 5, n),
            "good": rng.random(n) < 0.5,
        },
        index=pd.Index([f"cell-{i}" for i in range(n)], name=None),
    )
    obs.iloc[3, 0] = np.nan
    data = anndata.AnnData(X=X, obs=obs)
    data.var_names = [f"gene{j}" for j in range(6)]
    return data


@pytest.mark.parametrize("index", [None, "barcode"])
def test_obs_is_copied_from_h5ad_to_h5ad(tmp_path, index):
    data = cells()
    data.obs.index.name = index
    data.write_h5ad(tmp_path / "all.h5ad")
    panel = fewer.select(tmp_path / "all.h5ad", k=2, strategies=["search"], random_state=0)
    data[:, panel.features].copy().write_h5ad(tmp_path / "measured.h5ad")
    panel.reconstruct(tmp_path / "measured.h5ad", out=tmp_path / "out.h5ad")
    found = anndata.read_h5ad(tmp_path / "out.h5ad")
    pd.testing.assert_frame_equal(found.obs, data.obs, check_names=False, check_dtype=False)
    assert found.obs["kind"].dtype == "category"
    assert found.obs["kind"].isna().tolist() == data.obs["kind"].isna().tolist()
    assert found.obs.index.name == index
    assert found.var_names.tolist() == data.var_names.tolist()
    np.testing.assert_allclose(found.X, panel.reconstruct(data.X[:, panel.indices]))


def test_identifiers_of_a_table_label_the_rows(tmp_path):
    table = pa.table(
        {
            "sample": ["a", "b", "c"],
            "site": ["x", "x", None],
            "visits": pa.array([1, None, 3]),
            "done": pa.array([True, None, False]),
            "when": pa.array([0, 1, 2], pa.date32()),
        }
    )
    with write_rows(tmp_path / "x.h5ad", 3, ["g"]) as write:
        write(np.zeros((2, 1)), table.slice(0, 2))
        write(np.ones((1, 1)), table.slice(2))
    found = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert found.obs_names.tolist() == ["a", "b", "c"]
    assert list(found.obs) == ["site", "visits", "done", "when"]
    assert found.obs["site"].tolist()[:2] == ["x", "x"]
    assert found.obs["site"].isna().tolist() == [False, False, True]
    assert found.obs["visits"].isna().tolist() == [False, True, False]
    assert found.obs["visits"].tolist()[2] == 3
    assert found.obs["done"].tolist()[0] is True
    assert found.obs["when"].tolist() == ["1970-01-01", "1970-01-02", "1970-01-03"]
    assert found.X.ravel().tolist() == [0, 0, 1]


def test_without_identifiers_rows_have_numbers(tmp_path):
    table = pa.table({"site": ["x", "x"]})
    with write_rows(tmp_path / "x.h5ad", 2, ["g"]) as write:
        write(np.zeros((2, 1)), table)
    found = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert found.obs_names.tolist() == ["0", "1"]
    assert found.obs["site"].tolist() == ["x", "x"]


@pytest.fixture(scope="module")
def small_panel():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=["a", "b", "c"])
    X["d"] = X.a - X.b + 0.1 * X.c
    options = {"strategies": ["search"], "validation": 0.2, "random_state": 0, "device": "cpu"}
    return fewer.select(X, 2, **options), X


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"sep": ";", "decimal": ","}, {"sep": ";", "decimal": ","}),
        ({"sep": ";"}, {"sep": ";"}),
        ({"sep": "\t"}, {"sep": "\t"}),
        ({}, {}),
    ],
)
def test_text_keeps_the_dialect_of_the_input(tmp_path, small_panel, written, read):
    panel, X = small_panel
    odd = ["plain", "with;semicolon", 'with "quotes"', "1,5", "007"]
    measured = X[panel.features][:5].assign(note=odd)
    measured.to_csv(tmp_path / "in.csv", index=False, **written)
    for name in ("out.csv", "out.csv.zip"):
        panel.reconstruct(tmp_path / "in.csv", out=tmp_path / name)
        found = pd.read_csv(tmp_path / name, dtype={"note": str}, **read)
        assert list(found.columns) == ["note", *X.columns]
        assert found["note"].tolist() == odd
        expected = panel.reconstruct(X[panel.features][:5])
        np.testing.assert_allclose(found[list(X.columns)], expected, rtol=1e-9)
        again = fewer.data.open(tmp_path / name, ignore=["note"])
        assert again.shape == (5, 4)


def test_a_name_that_says_tabs_is_written_with_tabs(tmp_path, small_panel):
    panel, X = small_panel
    X[panel.features][:5].to_csv(tmp_path / "in.csv", index=False, sep=";", decimal=",")
    panel.reconstruct(tmp_path / "in.csv", out=tmp_path / "out.tsv")
    assert pd.read_csv(tmp_path / "out.tsv", sep="\t").shape == (5, 4)
    X[panel.features][:5].to_csv(tmp_path / "in.tsv", index=False, sep="\t")
    panel.reconstruct(tmp_path / "in.tsv", out=tmp_path / "out.csv")
    assert pd.read_csv(tmp_path / "out.csv").shape == (5, 4)


def test_carried_columns_keep_their_types(tmp_path, small_panel):
    panel, X = small_panel
    more = {"number": np.arange(5, dtype="int16"), "when": pd.Timestamp("2026-01-01"), "id": "x"}
    measured = X[panel.features][:5].assign(**more)
    measured.to_parquet(tmp_path / "in.parquet")
    panel.reconstruct(tmp_path / "in.parquet", out=tmp_path / "out.parquet")
    found = pd.read_parquet(tmp_path / "out.parquet")
    kept = list(more)
    assert found[kept].dtypes.equals(pd.read_parquet(tmp_path / "in.parquet")[kept].dtypes)
    measured.to_excel(tmp_path / "in.xlsx", index=False)
    panel.reconstruct(tmp_path / "in.xlsx", out=tmp_path / "out.parquet")
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert found["number"].tolist() == list(range(5))
    assert found["number"].dtype == "int64"
    assert found["when"].iloc[0] == more["when"]


def test_only_text_that_needs_quotes_has_them(tmp_path):
    path = tmp_path / "rows.csv"
    with write_rows(path, 3, ["a, b", "c"]) as write:
        write(np.array([[1.5, 2.0]]), pa.table({"id": ["r1"]}))
        write(np.array([[2.5, 3.0], [0.5, 1.0]]), pa.table({"id": ["x, y", 'say "no"']}))
    lines = path.read_text().splitlines()
    assert lines[:3] == ['id,"a, b",c', "r1,1.5,2", '"x, y",2.5,3']
    assert lines[3] == '"say ""no""",0.5,1'
