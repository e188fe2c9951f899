"""AnnData: objects, in memory and backed, and a file that anndata itself wrote."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import fewer
from fewer.data import read_all
from fewer.data.open import open_with_metadata
from fewer.errors import FileFormatError, InputError

anndata = pytest.importorskip("anndata", reason="anndata is not installed")

# anndata 0.12.19 with pandas 2.3 wrote it: X 30 x 5 (CSR), layer "counts" (CSC, 10 X), raw 30 x 6
FILE = Path(__file__).parent / "files" / "written_by_anndata.h5ad"
RAW = sparse.random(30, 6, density=0.4, format="csr", random_state=0, dtype=np.float32).toarray()
X = RAW[:, :5]

pytestmark = [
    # what anndata does inside is not ours to mend
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'mode.chained_assignment' option"),
]


@pytest.fixture(params=["path", "in memory", "backed"])
def data(request):
    if request.param == "path":
        return FILE
    return anndata.read_h5ad(FILE, backed="r" if request.param == "backed" else None)


@pytest.mark.parametrize("limit", [None, 500])
def test_all_parts(data, limit):
    whole = fewer.data.open(data, memory_limit=limit)
    assert whole.names == [f"gene{j}" for j in range(5)]
    np.testing.assert_array_equal(read_all(whole), X)
    np.testing.assert_array_equal(read_all(fewer.data.open(data, raw=True)), RAW)
    np.testing.assert_allclose(read_all(fewer.data.open(data, layer="counts")), 10 * X)
    some = fewer.data.open(data, obs={"kind": ["NK", "B"]}, memory_limit=limit)
    np.testing.assert_array_equal(read_all(some), np.delete(X, np.arange(1, 30, 3), axis=0))


def test_what_is_not_there(data):
    with pytest.raises(InputError, match="no layer 'spliced'; it has 'counts'"):
        fewer.data.open(data, layer="spliced")
    with pytest.raises(InputError, match=r"no obs column 'batch'; it has .*'kind'"):
        fewer.data.open(data, obs={"batch": "1"})
    with pytest.raises(InputError, match="no row has kind 'Q'; there are 'B', 'NK', 'T'"):
        fewer.data.open(data, obs={"kind": "Q"})


@pytest.mark.parametrize("backed", [None, "r"])
def test_views(backed):
    view = anndata.read_h5ad(FILE, backed=backed)[3:9, ["gene2", "gene0"]]
    source = fewer.data.open(view)
    assert source.names == ["gene2", "gene0"]
    np.testing.assert_array_equal(read_all(source), X[3:9][:, [2, 0]])


def test_select_from_an_object_keeps_its_names():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 8))
    names = pd.DataFrame(index=pd.Index([f"g{j}" for j in range(8)], dtype=object))
    subset = fewer.ColumnSubset(k=3, random_state=0).fit(anndata.AnnData(X=rows, var=names))
    plain = fewer.ColumnSubset(k=3, random_state=0).fit(rows)
    assert subset.get_feature_names_out().tolist() == [f"g{j}" for j in plain.columns_]


def test_repeated_names():
    data = anndata.AnnData(X=np.eye(3))
    data.var_names = ["a", "b", "a"]
    with pytest.raises(InputError, match="1 var_name occurs more than once: 'a'; call var_names_"):
        fewer.data.open(data)


@pytest.mark.filterwarnings("ignore::UserWarning")  # anndata's own, of coming defaults
@pytest.mark.parametrize("limit", [None, 500])
def test_the_same_layout_in_zarr(tmp_path, limit):
    with anndata.settings.override(zarr_write_format=3):
        anndata.read_h5ad(FILE).write_zarr(tmp_path / "cells.zarr")
    source = fewer.data.open(tmp_path / "cells.zarr", memory_limit=limit)
    assert source.names == [f"gene{j}" for j in range(5)]
    np.testing.assert_array_equal(read_all(source), X)


def test_obs_is_the_metadata_of_the_rows(data):
    source = open_with_metadata(data, ["kind"])
    (table,) = source.metadata()
    assert source.metadata_columns == tuple(table.column_names)
    assert table.column_names[0] == "obs_names"
    whole = anndata.read_h5ad(FILE).obs
    assert table["obs_names"].to_pylist() == whole.index.tolist()
    assert table["kind"].to_pylist() == whole["kind"].astype(str).tolist()
    (some,) = fewer.data.open(FILE, obs={"kind": ["B"]}).metadata()
    assert set(some["kind"].to_pylist()) == {"B"}
    with pytest.raises(InputError, match=r"no column 'batch'; the obs columns are .*'kind'"):
        open_with_metadata(data, ["batch"])


@pytest.mark.parametrize("backed", [None, "r"])
def test_a_view_has_its_own_obs(backed):
    view = anndata.read_h5ad(FILE, backed=backed)[3:9]
    (table,) = fewer.data.open(view).metadata()
    assert table["obs_names"].to_pylist() == view.obs_names.tolist()


def test_gaps_in_obs_are_gaps(tmp_path):
    obs = pd.DataFrame(
        {
            "kind": pd.Categorical(["a", None, "b"]),
            "age": pd.array([1, None, 3], dtype="Int64"),
            "part": [1.5, np.nan, 2.0],
        },
        index=pd.Index(["x", "y", "z"], name="cell"),
    )
    cells = anndata.AnnData(np.eye(3), obs=obs)
    cells.write_h5ad(tmp_path / "gaps.h5ad")
    for held in (cells, tmp_path / "gaps.h5ad"):
        (table,) = fewer.data.open(held).metadata()
        assert table.column_names == ["cell", "kind", "age", "part"]
        assert table["cell"].to_pylist() == ["x", "y", "z"]
        assert table["kind"].to_pylist() == ["a", None, "b"]
        assert table["age"].to_pylist() == [1, None, 3]
        np.testing.assert_array_equal(table["part"].to_numpy().astype(float), [1.5, np.nan, 2.0])


def test_raw_has_no_layers(tmp_path):
    cells = anndata.AnnData(X=np.ones((3, 2)), layers={"counts": np.ones((3, 2))})
    cells.raw = cells.copy()
    cells.write_h5ad(tmp_path / "x.h5ad")
    for data in (cells, tmp_path / "x.h5ad"):
        with pytest.raises(InputError, match="raw=True cannot be combined with layer='counts'"):
            fewer.data.open(data, raw=True, layer="counts")


def short_pointers(file):
    pointers = file["X/indptr"][:-1]
    del file["X/indptr"]
    file["X/indptr"] = pointers


def dense(file):
    del file["X"]
    file["X"] = np.ones((30, 4), np.float32)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (short_pointers, "indptr does not fit 30 rows"),
        (lambda file: file["X/indptr"].write_direct(-file["X/indptr"][:]), "indptr does not fit"),
        (lambda file: file["X"].attrs.update(shape=(30, 4)), "4 columns, but 5 names"),
        (dense, "4 columns, but 5 names"),
        (lambda file: file["var"].attrs.pop("_index"), "was written by an anndata older than 0.7"),
    ],
)
def test_parts_that_do_not_fit(tmp_path, spoil, reason):
    shutil.copy(FILE, tmp_path / "x.h5ad")
    with h5py.File(tmp_path / "x.h5ad", "r+") as file:
        spoil(file)
    with pytest.raises(FileFormatError, match=reason):
        fewer.data.open(tmp_path / "x.h5ad")


def test_files_and_objects_without_a_matrix(tmp_path):
    shutil.copy(FILE, tmp_path / "x.h5ad")
    with h5py.File(tmp_path / "x.h5ad", "r+") as file:
        del file["X"], file["raw"]
    whole = anndata.read_h5ad(FILE)
    held = anndata.AnnData(obs=whole.obs, var=whole.var, layers={"counts": whole.X})
    for data in (tmp_path / "x.h5ad", held):
        with pytest.raises(InputError, match="has no raw; drop raw=True"):
            fewer.data.open(data, raw=True)
        with pytest.raises(InputError, match="has no X; set layer= to one of 'counts'"):
            fewer.data.open(data)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (np.ones(29, dtype=bool), "obs is a mask of length 29, but .* has 30 rows"),
        (np.ones((2, 2), dtype=int), "obs must be a mapping such as"),
        ([0.5], "obs must be a mapping such as"),
        ([], "obs must be a mapping such as"),
        (np.zeros(30, dtype=bool), "no rows match obs="),
        ([3, 30], "obs has row numbers outside 0 to 29"),
    ],
)
def test_rows_that_are_not_there(data, rows, reason):
    with pytest.raises(InputError, match=reason):
        fewer.data.open(data, obs=rows)


def test_rows_by_a_mask_and_by_numbers(data):
    mask = np.arange(30) % 4 == 1
    for rows in (mask, np.flatnonzero(mask)):
        np.testing.assert_array_equal(read_all(fewer.data.open(data, obs=rows)), X[mask])


@pytest.mark.filterwarnings("ignore:Observation names are not unique")
def test_views_of_files(tmp_path):
    view = anndata.read_h5ad(FILE, backed="r")[3:9, ["gene2"]]
    np.testing.assert_array_equal(read_all(fewer.data.open(view, raw=True)), RAW[3:9])
    with pytest.raises(InputError, match="obs= cannot be combined with a view of a backed"):
        fewer.data.open(view, obs={"kind": "B"})
    shutil.copy(FILE, tmp_path / "x.h5ad")
    with h5py.File(tmp_path / "x.h5ad", "r+") as file:
        names = file["obs"][file["obs"].attrs["_index"]]
        names[1] = names[0]
    view = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r")[3:9]
    with pytest.raises(InputError, match="obs_names are not unique, so the rows of a view cannot"):
        fewer.data.open(view)


def test_no_rows_and_steps_of_a_file_on_disk():
    source = fewer.data.open(FILE, memory_limit=500)
    assert source.on_disk
    assert source.rows(slice(4, 4)).shape == (0, 5)
    assert source.rows(np.array([], dtype=int)).shape == (0, 5)
    np.testing.assert_array_equal(source.rows(slice(1, 20, 7)), X[1:20:7])


def test_values_of_several_kinds_in_obs_are_text():
    obs = pd.DataFrame({"note": [1, "a", None]}, index=list("xyz"))
    (table,) = fewer.data.open(anndata.AnnData(np.eye(3), obs=obs)).metadata()
    assert table["note"].to_pylist() == ["1", "a", None]
