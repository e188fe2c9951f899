"""Every kind of data gives the same rows, names and choice as the array it was made from."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, feather, parquet
from scipy import sparse
from torch.utils.data import Dataset, TensorDataset

import fewer
from fewer import ColumnSubset
from fewer.data import covariance, moments, read_all
from fewer.data.open import as_source, column_names
from fewer.errors import FewerWarning, FileFormatError, InputError, TypeInputError

anndata = pytest.importorskip("anndata", reason="anndata is not installed")
zarr = pytest.importorskip("zarr", reason="zarr is not installed")
duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")

N, D = 300, 12
NAMES = [f"gene{j}" for j in range(D)]
LITTLE = 6000  # bytes: nothing fits, so every file is streamed


def make_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4)) @ rng.normal(size=(4, D)) + 0.3 * rng.normal(size=(N, D))
    X[rng.random(X.shape) < 0.3] = 0.0
    return X.astype(np.float32)


X = make_rows()
FRAME = pd.DataFrame(X, columns=NAMES)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))


class Pairs(Dataset):
    """Images with labels, as torchvision has them."""

    def __len__(self):
        return N

    def __getitem__(self, number):
        return torch.from_numpy(X[number].reshape(3, 4)), number % 10


def write_h5ad(path, form="csr", rows=X, names=NAMES):
    """As anndata writes it: X, a layer, raw, and what is known of the rows."""
    convert = {"csr": sparse.csr_array, "csc": sparse.csc_array, "dense": np.asarray}[form]
    number = np.arange(len(rows))
    kind = pd.Categorical.from_codes(number % 3, ["B", "T", "NK"])
    obs = pd.DataFrame(
        {"kind": kind, "plate": number // 100}, index=[f"cell{i}" for i in number.tolist()]
    )
    data = anndata.AnnData(
        convert(rows),
        obs=obs,
        var=pd.DataFrame(index=list(names)),
        layers={"doubled": convert(2 * rows)},
    )
    more = pd.DataFrame(index=[*names, *(f"more{j}" for j in range(rows.shape[1]))])
    data.raw = anndata.AnnData(convert(np.hstack([rows, rows])), var=more)
    data.write_h5ad(path, compression="gzip")
    return path


def save(path, write):
    write(path)
    return path


def npy(folder, array=X, name="x.npy"):
    return save(folder / name, lambda path: np.save(path, array))


def npz(folder, **arrays):
    return save(folder / "x.npz", lambda path: np.savez_compressed(path, **arrays))


def text(folder, name="x.csv", **options):
    return save(folder / name, lambda path: FRAME.to_csv(path, index=False, **options))


def zstd_text(folder):
    path = folder / "x.csv.zst"
    with pa.output_stream(str(path), compression="zstd") as out:
        csv.write_csv(pa.Table.from_pandas(FRAME), out)
    return path


def parquet_folder(folder):
    for part in range(3):
        rows = FRAME.iloc[part * 100 : part * 100 + 100]
        target = folder / "parts" / f"day={part}"
        target.mkdir(parents=True)
        rows.iloc[:, :: (-1) ** part].to_parquet(target / "rows.parquet", row_group_size=32)
    return folder / "parts"


def parquet_pattern(folder):
    return str(parquet_folder(folder) / "*" / "*.parquet")


def feather_file(folder):
    return save(
        folder / "x.feather",
        lambda path: feather.write_feather(FRAME, path, chunksize=50, compression="lz4"),
    )


def hdf5(folder):
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("a/rows", data=X, chunks=(50, 4), compression="gzip")
        file["labels"] = np.arange(N)
    return folder / "x.h5"


def zarr_array(folder):
    array = zarr.create_array(str(folder / "x.zarr"), shape=X.shape, chunks=(50, 4), dtype="f4")
    array[:] = X
    return folder / "x.zarr"


def memory_map(folder):
    return np.load(npy(folder), mmap_mode="r")


def sqlite(folder):
    with closing(sqlite3.connect(folder / "x.sqlite")) as database:
        FRAME.to_sql("rows", database, index=False)
        database.commit()
    return folder / "x.sqlite"


def duckdb_file(folder):
    with closing(duckdb.connect(folder / "x.duckdb")) as database:
        database.register("frame", FRAME)
        database.execute("CREATE TABLE rows AS SELECT * FROM frame")
    return folder / "x.duckdb"


NAMELESS = {
    "array": lambda folder: X,
    "list": lambda folder: X.tolist(),
    "tensor": lambda folder: torch.from_numpy(X),
    "sparse": lambda folder: sparse.csr_array(X),
    "csc": lambda folder: sparse.csc_matrix(X),
    "npy": npy,
    "npy, columns first": lambda folder: npy(folder, np.asfortranarray(X)),
    "npy, other byte order": lambda folder: npy(folder, X.astype(">f4")),
    "memory map": memory_map,
    "part of a memory map": lambda folder: np.load(npy(folder, np.vstack([X, X])), mmap_mode="r")[
        :N
    ],
    "npz": lambda folder: npz(folder, X=X, y=np.arange(N)),
    "npz, sparse": lambda folder: save(
        folder / "s.npz", lambda path: sparse.save_npz(path, sparse.csr_array(X))
    ),
    "HDF5": hdf5,
    "zarr": zarr_array,
    "zarr object": lambda folder: zarr.open(str(zarr_array(folder)), mode="r"),
    "HDF5 object": lambda folder: h5py.File(hdf5(folder))["a/rows"],
    "torch pairs": lambda folder: Pairs(),
    "torch tensors": lambda folder: TensorDataset(torch.from_numpy(X), torch.arange(N)),
    "CSV without header": lambda folder: text(folder, header=False),
}
NAMED = {
    "pandas": lambda folder: FRAME,
    "polars": lambda folder: pl.DataFrame(FRAME),
    "Arrow": lambda folder: pa.Table.from_pandas(FRAME),
    "CSV": text,
    "TSV": lambda folder: text(folder, "x.tsv", sep="\t"),
    "CSV with semicolons": lambda folder: text(folder, sep=";", decimal=","),
    "CSV, gz": lambda folder: text(folder, "x.csv.gz"),
    "CSV, zst": zstd_text,
    "CSV, bz2": lambda folder: text(folder, "x.csv.bz2"),
    "CSV, zip": lambda folder: text(folder, "x.csv.zip"),
    "Excel": lambda folder: save(folder / "x.xlsx", lambda path: FRAME.to_excel(path, index=False)),
    "SQLite": sqlite,
    "DuckDB": duckdb_file,
    "Parquet": lambda folder: save(
        folder / "x.parquet", lambda path: FRAME.to_parquet(path, row_group_size=40)
    ),
    "Parquet, one piece": lambda folder: save(folder / "x.parquet", FRAME.to_parquet),
    "Parquet folder": parquet_folder,
    "Parquet pattern": parquet_pattern,
    "Feather": feather_file,
    "h5ad, CSR": lambda folder: write_h5ad(folder / "x.h5ad"),
    "h5ad, dense": lambda folder: write_h5ad(folder / "x.h5ad", "dense"),
}


@pytest.fixture(scope="module")
def chosen():
    """What the plain array leads to."""
    return ColumnSubset(k=3, random_state=0).fit(X)


@pytest.mark.filterwarnings("ignore:.*(converted|unpacked) once")
@pytest.mark.parametrize("limit", [None, LITTLE])
@pytest.mark.parametrize("kind", [*NAMELESS, *NAMED])
def test_same_rows_names_and_choice(kind, limit, tmp_path, chosen):
    data = (NAMELESS | NAMED)[kind](tmp_path)
    source = fewer.data.open(data, memory_limit=limit)
    assert source.shape == (N, D)
    assert source.names == (NAMES if kind in NAMED else None)
    np.testing.assert_allclose(read_all(source), X, rtol=1e-6)
    mixed = np.random.default_rng(1).permutation(N)[:77]
    np.testing.assert_allclose(source.rows(mixed).numpy(), X[mixed], rtol=1e-6)
    np.testing.assert_allclose(moments(source).variance, X.var(axis=0, dtype=float), rtol=1e-6)
    np.testing.assert_allclose(
        covariance(source).matrix, np.cov(X.T.astype(float), bias=True), rtol=1e-6, atol=1e-9
    )
    fitted = ColumnSubset(k=3, random_state=0).fit(source)
    assert fitted.columns_.tolist() == chosen.columns_.tolist()
    if kind in NAMED:
        assert fitted.get_feature_names_out().tolist() == [NAMES[j] for j in chosen.columns_]


@pytest.mark.parametrize("kind", ["npy", "npy, columns first", "HDF5", "zarr", "h5ad, CSR"])
def test_a_file_larger_than_memory_stays_on_disk(kind, tmp_path):
    path = (NAMELESS | NAMED)[kind](tmp_path)
    source = fewer.data.open(path, memory_limit=LITTLE)
    assert source.on_disk
    assert source.memory_limit == LITTLE
    assert source.dtype == np.float32
    assert not fewer.data.open(path).on_disk


def test_a_memory_map_is_read_through_its_file(tmp_path):
    source = fewer.data.open(memory_map(tmp_path))
    assert source.on_disk
    assert not hasattr(source, "array")


# -- columns that are no features ------------------------------------------------------------


def with_text():
    frame = FRAME.head(20).copy()
    frame.insert(0, "sample", [f"s{i}" for i in range(20)])
    frame["when"] = pd.date_range("2020-01-01", periods=20)
    return frame


@pytest.mark.parametrize("form", ["pandas", "polars", "arrow", "csv", "parquet", "feather"])
def test_text_is_left_out_by_name(form, tmp_path):
    frame = with_text()
    data = {
        "pandas": lambda: frame,
        "polars": lambda: pl.DataFrame(frame),
        "arrow": lambda: pa.Table.from_pandas(frame),
        "csv": lambda: save(tmp_path / "x.csv", lambda path: frame.to_csv(path, index=False)),
        "parquet": lambda: save(tmp_path / "x.parquet", frame.to_parquet),
        "feather": lambda: save(tmp_path / "x.feather", frame.to_feather),
    }[form]()
    with pytest.warns(FewerWarning, match=r"columns were ignored \(2\): 'sample', 'when'"):
        source = fewer.data.open(data)
    assert source.names == NAMES
    assert source.metadata_columns == ("sample", "when")
    named = fewer.data.open(data, ignore=["sample", "when", "gene3"])
    assert named.names == [name for name in NAMES if name != "gene3"]


def test_row_labels_are_not_a_feature(tmp_path):
    labelled = FRAME.head(9).set_index(pd.Index(range(100, 109)))
    labelled.to_csv(tmp_path / "pandas.csv")
    lines = (tmp_path / "pandas.csv").read_text().splitlines()
    (tmp_path / "r.csv").write_text("\n".join([lines[0].removeprefix(","), *lines[1:]]))
    labelled.rename_axis("row").to_parquet(tmp_path / "x.parquet")
    for name in ("pandas.csv", "r.csv", "x.parquet"):
        source = fewer.data.open(tmp_path / name)
        assert source.names == NAMES
        np.testing.assert_allclose(read_all(source), X[:9], rtol=1e-6)


def test_headers_of_numbers(tmp_path):
    path = tmp_path / "x.csv"
    pd.DataFrame(X[:5]).to_csv(path, index=False)  # 0, 1, 2, ...
    assert fewer.data.open(path).names == [str(j) for j in range(D)]
    assert fewer.data.open(path, header=False).shape == (6, D)
    path.write_text("1.5,2\n3,4\n")
    assert fewer.data.open(path).shape == (2, 2)
    assert fewer.data.open(path, header=True).names == ["1.5", "2"]
    path.write_text("3,7\n1.5,0.5\n")
    with pytest.warns(FewerWarning, match="use header=True"):
        assert fewer.data.open(path).shape == (2, 2)


def test_lines_longer_than_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(fewer.data.csv, "SAMPLE_BYTES", 64)
    monkeypatch.setattr(fewer.data.csv, "BLOCK_BYTES", 128)
    np.testing.assert_allclose(read_all(fewer.data.open(text(tmp_path))), X, rtol=1e-6)


def test_masked_values_are_missing():
    masked = np.ma.masked_less(X[:4].astype(np.float32), 0)
    rows = read_all(fewer.data.open(masked))
    np.testing.assert_array_equal(rows, np.where(X[:4] < 0, np.nan, X[:4]))


def test_gaps_and_logical_columns(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b,c\n1,true,\n,false,2\nNA,true,3.5\n")
    rows = read_all(fewer.data.open(path))
    np.testing.assert_array_equal(rows, [[1, 1, np.nan], [np.nan, 0, 2], [np.nan, 1, 3.5]])
    whole = pa.table({"a": pa.array([1, None], pa.int64()), "b": [True, None], "c": [1.5, 2]})
    parquet.write_table(whole, tmp_path / "x.parquet")
    rows = read_all(fewer.data.open(tmp_path / "x.parquet"))
    np.testing.assert_array_equal(rows, [[1, 1, 1.5], [np.nan, np.nan, 2]])
    nullable = pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": [0.5, 1]})
    np.testing.assert_array_equal(read_all(fewer.data.open(nullable)), [[1, 0.5], [np.nan, 1]])


def test_numbers_that_turn_from_whole_to_decimal_late_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(fewer.data.csv, "SAMPLE_BYTES", 512)
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "1,2\n" * 3000 + "1.5,2\n")
    source = fewer.data.open(path)
    assert source.rows(slice(3000, 3001)).tolist() == [[1.5, 2.0]]


# -- annotated data --------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csr", "csc", "dense"])
@pytest.mark.parametrize("limit", [None, LITTLE])
def test_parts_of_an_h5ad(form, limit, tmp_path):
    if limit and form == "csc":
        limit = 200_000  # columns cannot be read in pieces
    path = write_h5ad(tmp_path / "x.h5ad", form)
    layer = fewer.data.open(path, layer="doubled", memory_limit=limit)
    np.testing.assert_allclose(read_all(layer), 2 * X)
    raw = fewer.data.open(path, raw=True, memory_limit=limit)
    assert raw.names[D] == "more0"
    np.testing.assert_allclose(read_all(raw), np.hstack([X, X]))
    some = fewer.data.open(path, obs={"kind": ["B", "NK"], "plate": 1}, memory_limit=limit)
    rows = [i for i in range(100, 200) if i % 3 != 1]
    np.testing.assert_allclose(read_all(some), X[rows])
    np.testing.assert_allclose(
        covariance(some).matrix, np.cov(X[rows].T.astype(float), bias=True), atol=1e-6
    )
    first = fewer.data.open(path, obs=np.arange(N) < 5, memory_limit=limit)
    np.testing.assert_allclose(read_all(first), X[:5])


def test_sparse_rows_stay_sparse(tmp_path):
    source = fewer.data.open(write_h5ad(tmp_path / "x.h5ad"), memory_limit=LITTLE)
    for index in (slice(10, 200), slice(5, 50, 3), np.array([250, 3, 4, 120])):
        part = source.sparse_rows(index)
        assert sparse.issparse(part)
        np.testing.assert_array_equal(part.toarray(), X[index])


# -- CSV once ----------------------------------------------------------------------------------


def test_a_large_csv_is_converted_once(tmp_path):
    path = text(tmp_path)
    with pytest.warns(FewerWarning, match=r"converted once to .*\.npy"):
        first = fewer.data.open(path, memory_limit=LITTLE)
    again = fewer.data.open(path, memory_limit=LITTLE)  # without a word
    np.testing.assert_array_equal(read_all(first), read_all(again))
    kept = sorted(file.suffix for file in (tmp_path / "cache").rglob("*.*"))
    assert kept == [".npy"]
    FRAME.iloc[:100].to_csv(path, index=False)
    with pytest.warns(FewerWarning, match="converted once"):
        assert fewer.data.open(path, memory_limit=LITTLE).shape == (100, D)
    assert fewer.data.clear_cache() > 0
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_a_gzip_that_grows_beyond_memory_is_converted(tmp_path):
    path = tmp_path / "x.csv.gz"
    with gzip.open(path, "wt") as out:
        out.write("a,b\n" + "0,1\n" * 5000)
    assert path.stat().st_size < 1000
    with pytest.warns(FewerWarning, match="converted once"):
        source = fewer.data.open(path, memory_limit=LITTLE)
    assert source.shape == (5000, 2)


def test_paths_as_text_and_lists(tmp_path):
    paths = [tmp_path / f"{part}.parquet" for part in range(2)]
    for part, path in enumerate(paths):
        FRAME.iloc[part * 150 : part * 150 + 150].to_parquet(path)
    np.testing.assert_array_equal(read_all(fewer.data.open(list(map(str, paths)))), X)
    assert fewer.data.open(str(paths[0])).shape == (150, D)
    assert isinstance(paths[0], Path)


def test_names_of_all_columns_without_reading_them_all(tmp_path):
    table = pd.DataFrame({"who": ["x", "y"], "a": [1.0, 2.0]})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    np.save(tmp_path / "t.npy", np.ones((2, 2)))
    assert column_names(tmp_path / "t.csv") == ["who", "a"]
    assert column_names(tmp_path / "t.parquet") == ["who", "a"]
    assert column_names(tmp_path / "t.npy") is None


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_text_columns_of_a_table_are_left_out_by_name(library):
    table = library({"who": ["x", "y", "z"], "a": [1.0, 2.0, 3.0], "b": [3, 5, 4]})
    with pytest.warns(FewerWarning, match=r"non-numeric columns were ignored \(1\): 'who'"):
        source = as_source(table)
    assert source.names == ["a", "b"]
    np.testing.assert_array_equal(read_all(source), [[1, 3], [2, 5], [3, 4]])
    with pytest.raises(InputError, match="1 of 1 columns are not numbers: 'who'"):
        as_source(library({"who": ["x", "y"]}))


@pytest.mark.parametrize("odd", [np.array([1j, 2j, 3j]), pd.Series([10**400, 1, 2], dtype=object)])
def test_columns_that_are_no_real_numbers_are_left_out(odd):
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [3, 5, 4], "odd": odd})
    with pytest.warns(FewerWarning, match=r"non-numeric columns were ignored \(1\): 'odd'"):
        assert as_source(table).names == ["a", "b"]


@pytest.mark.parametrize(
    "rows", [torch.zeros(3, 2).to(torch.float8_e4m3fn), torch.empty(3, 2, device="meta")]
)
def test_tensors_that_numpy_cannot_hold_are_refused(rows):
    with pytest.raises(TypeInputError, match=r"a tensor of torch.float.* cannot be read"):
        as_source(rows)


@pytest.mark.parametrize("nothing", ["", "  "])
def test_an_empty_path_is_not_the_current_folder(nothing):
    with pytest.raises(InputError, match="is not a path; use a file or a folder"):
        fewer.data.open(nothing)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_numbers_stand_for_missing_values_in_any_data(tmp_path, dtype):
    rows = np.array([[1, -99, 3], [4, 5, 9999]], dtype)
    wanted = [[1, np.nan, 3], [4, 5, np.nan]]
    np.save(tmp_path / "rows.npy", rows)
    for data in (rows, tmp_path / "rows.npy", pd.DataFrame(rows, columns=list("abc"))):
        found = fewer.data.open(data, missing=["-99", 9999, "n/a"])
        np.testing.assert_array_equal(read_all(found), wanted)


def test_a_number_is_compared_as_it_is_stored():
    rows = np.array([[0.1, -99.9], [0.2, 0.3]], np.float32)
    assert np.isnan(read_all(fewer.data.open(rows, missing=[-99.9]))).sum() == 1


def test_stored_values_of_a_sparse_matrix_can_stand_for_missing_ones():
    rows = sparse.csr_array(np.array([[0, 9.0], [1, 0]]))
    source = fewer.data.open(rows, missing=[9])
    np.testing.assert_array_equal(read_all(source), [[0, np.nan], [1, 0]])
    assert np.isnan(source.sparse_rows(slice(2)).data).sum() == 1
    with pytest.raises(InputError, match="missing=0 would make nearly all"):
        fewer.data.open(rows, missing=0)


def test_missing_must_be_numbers_or_words():
    with pytest.raises(TypeInputError, match="missing=None must be a number or text"):
        fewer.data.open(np.eye(3), missing=[None])


# -- what arrays in files and datasets may not be -------------------------------------------------


def bsr_npz(path):
    sparse.save_npz(path, sparse.bsr_array(X))


def zarr_group(path):
    group = zarr.open_group(str(path), mode="w")
    group.create_array("X", data=X)
    group.create_group("more")


def linked_zarr(path):
    zarr_group(path)
    (path.parent / "other").write_bytes(b"x")
    (path / "X" / "link").symlink_to(path.parent / "other")


def hdf5_group(path):
    with h5py.File(path, "w") as file:
        file["X"] = X
        file.create_group("more")


@pytest.mark.parametrize(
    ("name", "write", "dataset", "reason"),
    [
        ("x.npz", bsr_npz, None, "sparse matrix of format 'bsr'; save it as csr or csc"),
        ("x.h5", hdf5_group, "Y", "has no dataset 'Y'; choose another"),
        ("x.h5", hdf5_group, "more", "has no dataset 'more'; choose another"),
        ("x.zarr", zarr_group, "more", "has no array 'more'; choose another"),
        (
            "x.zarr",
            lambda path: zarr.save_array(str(path), X),
            "X",
            "is a single array; drop dataset='X'",
        ),
        ("x.zarr", linked_zarr, "X", "is a link out of its folder, which is not followed"),
    ],
)
def test_parts_of_files_that_are_not_arrays(tmp_path, name, write, dataset, reason):
    write(tmp_path / name)
    with pytest.raises((InputError, FileFormatError), match=reason):
        fewer.data.open(tmp_path / name, **{} if dataset is None else {"dataset": dataset})


class Items(Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


def test_items_of_datasets_that_are_no_rows():
    with pytest.raises(InputError, match="the dataset is empty"):
        fewer.data.open(Items())
    with pytest.raises(InputError, match="item 0 of the dataset holds <U1, not numbers"):
        fewer.data.open(Items("a", "b"))
    source = fewer.data.open(Items(*map(np.array, ([1.0, 2.0], [3.0], [np.inf, 0.0]))))
    np.testing.assert_array_equal(source.rows(slice(1)), [[1, 2]])
    with pytest.raises(InputError, match="item 1 of the dataset has 1 values, item 0 has 2"):
        source.rows(slice(2))
    with pytest.raises(InputError, match="row 2"):
        source.rows(np.array([2]))


def test_columns_of_an_arrow_table_can_be_named():
    pa = pytest.importorskip("pyarrow")
    random = np.random.default_rng(0)
    X = random.normal(size=(90, 4))
    columns = {f"x{j}": X[:, j] for j in range(4)}
    table = pa.table(columns | {"y": np.where(X[:, 2] > 0, "up", "down"), "w": np.ones(90)})
    options = {"random_state": 0, "validation": 0.2, "strategies": ["search"], "device": "cpu"}
    panel = fewer.select(table, 1, target="y", sample_weight="w", **options)
    assert panel.features == ["x2"]
    assert panel.score_target(table, "y") > 0.9
    with pytest.raises(InputError, match="there is no column 'z'; there are 'x0', 'x1'"):
        fewer.select(table, 1, target="z")
