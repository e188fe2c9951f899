"""Files that cannot be read as they are: one clear error each, and nothing left behind."""

import gzip
import os
import sys
import zlib

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch.utils.data import IterableDataset

import fewer
from fewer.data import read_all
from fewer.errors import FewerError, FileFormatError, InputError, MissingExtraError
from tests.data.test_open import FRAME, LITTLE, NAMES, D, N, X, write_h5ad

zarr = pytest.importorskip("zarr", reason="zarr is not installed")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWER_CACHE", str(tmp_path / "cache"))


def lines(path, *rows):
    path.write_text("\n".join(rows) + "\n")
    return path


# -- text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 200])
def test_a_ragged_row(tmp_path, limit):
    path = lines(tmp_path / "x.csv", "a,b,c", *["1,2,3"] * 50, "4,5", "7,8,9")
    with pytest.raises(InputError, match=r"line 52 \(row 50\) has 2 values, .* 3 columns"):
        fewer.data.open(path, memory_limit=limit)
    assert not list((tmp_path / "cache").rglob("*.*"))


@pytest.mark.parametrize("at", [3, 200, 2000])  # in the first look, after it, in a later block
@pytest.mark.parametrize("form", ["x.csv", "x.csv.gz"])
def test_a_cell_that_is_not_a_number(tmp_path, monkeypatch, at, form):
    monkeypatch.setattr(fewer.data.csv, "SAMPLE_BYTES", 512)
    monkeypatch.setattr(fewer.data.csv, "BLOCK_BYTES", 2048)
    rows = ["1,2"] * (at + 10)
    rows[at] = "1,oops"
    path = tmp_path / form
    with (gzip.open if form.endswith("gz") else open)(path, "wt") as out:
        out.write("\n".join(["a,b", *rows]))
    with pytest.raises(
        InputError, match=rf"line {at + 2} \(row {at}\), column 'b' holds 'oops', which is not"
    ):
        fewer.data.open(path)
    assert fewer.data.open(path, ignore=["b"]).shape == (at + 10, 1)


def test_infinity_in_a_file_is_placed(tmp_path):
    wrong = X.copy()
    wrong[222, 3] = np.inf
    np.save(tmp_path / "x.npy", wrong)
    pd.DataFrame(wrong, columns=NAMES).to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(InputError, match="row 222, column 3 is inf"):
        read_all(fewer.data.open(tmp_path / "x.npy", memory_limit=LITTLE))
    with pytest.raises(InputError, match="row 222, column 'gene3' is inf"):
        fewer.data.open(tmp_path / "x.csv")
    write_h5ad(tmp_path / "x.h5ad", rows=wrong)
    for limit in (None, LITTLE):
        with pytest.raises(InputError, match="row 222, column 'gene3' is inf"):
            read_all(fewer.data.open(tmp_path / "x.h5ad", memory_limit=limit))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("a,b\n", "names of columns but no rows"),
        ("a,a\n1,2\n", "1 column name occurs more than once: 'a'"),
        ("a,b\nx,y\nu,v\n", "no numeric column; its columns are 'a', 'b'"),
    ],
)
def test_text_without_rows_of_numbers(tmp_path, text, reason):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(InputError, match=reason):
        fewer.data.open(tmp_path / "x.csv")


# -- folders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_columns_that_differ_between_files(tmp_path, form):
    first, second = FRAME, FRAME.rename(columns={"gene2": "gene_2"})
    for number, frame in enumerate((first, second)):
        path = tmp_path / f"{number}.{form}"
        frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path)
    with pytest.raises(InputError, match=rf"1\.{form} .* lacks 'gene2' and also has 'gene_2'"):
        fewer.data.open(tmp_path)


def test_a_column_that_is_text_in_one_file(tmp_path):
    FRAME.to_parquet(tmp_path / "0.parquet")
    FRAME.assign(gene4="high").to_parquet(tmp_path / "1.parquet")
    with pytest.raises(InputError, match=r"1\.parquet: the columns 'gene4' are not numbers here"):
        fewer.data.open(tmp_path)


def test_folders_and_patterns_without_files(tmp_path):
    with pytest.raises(InputError, match="holds no CSV, Parquet or Feather"):
        fewer.data.open(tmp_path)
    with pytest.raises(InputError, match="no file matches"):
        fewer.data.open(tmp_path / "*.parquet")
    with pytest.raises(InputError, match="there is no file"):
        fewer.data.open(tmp_path / "x.parquet")
    FRAME.to_parquet(tmp_path / "a.parquet")
    FRAME.to_csv(tmp_path / "b.csv")
    with pytest.raises(InputError, match="files of several kinds"):
        fewer.data.open(tmp_path)


# -- truncated -------------------------------------------------------------------------------


def whole_file(form, path):
    if form == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("X", data=X, chunks=(16, D), compression="gzip")
    elif form == "h5ad":
        write_h5ad(path)
    elif form == "npz":
        np.savez_compressed(path, X=X)
    elif form == "csv.gz":
        FRAME.to_csv(path, index=False)
    elif form == "npy":
        np.save(path, X)
    else:
        getattr(FRAME, f"to_{form}")(path)
    return path


@pytest.mark.parametrize("limit", [None, LITTLE])
@pytest.mark.parametrize("kept", [0.9, 0.5, 0.01])
@pytest.mark.parametrize("form", ["npy", "npz", "parquet", "feather", "h5", "h5ad", "csv.gz"])
def test_truncated_files(tmp_path, form, kept, limit):
    path = whole_file(form, tmp_path / f"x.{form}")
    os.truncate(path, int(path.stat().st_size * kept))
    with pytest.raises(FewerError, match=r"x\.\S+ .*(truncated|damaged|not a whole)"):
        read_all(fewer.data.open(path, memory_limit=limit))
    assert not list((tmp_path / "cache").rglob("*.*"))


def test_a_damaged_chunk_of_hdf5(tmp_path):
    path = whole_file("h5", tmp_path / "x.h5")
    with h5py.File(path) as file:
        chunk = file["X"].id.get_chunk_info(10)
    with path.open("r+b") as file:
        file.seek(chunk.byte_offset + 20)
        file.write(b"\xff" * 40)
    with pytest.raises(
        FileFormatError, match=r"x\.h5 is damaged or truncated \(X: .*(filter|inflate)"
    ):
        read_all(fewer.data.open(path, memory_limit=LITTLE))


def test_a_chunk_of_hdf5_that_claims_gigabytes(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset(
            "X", (10, 5), "f8", chunks=(2**24, 5), maxshape=(None, 5), compression="gzip"
        )
        made.id.write_direct_chunk((0, 0), zlib.compress(np.zeros((10, 5)).tobytes()))
        file.create_dataset("other", data=np.zeros((3, 2)))
    with pytest.raises(FileFormatError, match="claims more than"):
        fewer.data.open(tmp_path / "x.h5", dataset="other")


def test_parts_of_hdf5_that_nobody_can_read_do_no_harm(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk((4,))
        made.set_filter(32999, h5py.h5z.FLAG_OPTIONAL, ())  # a filter that is not installed
        space = h5py.h5s.create_simple((8,))
        other = h5py.h5d.create(file.id, b"other", h5py.h5t.IEEE_F64LE, space, made)
        other.write_direct_chunk((0,), b"unreadable")
        h5py.h5d.create(file.id, b"time", h5py.h5t.UNIX_D32LE, space)  # NumPy has no such type
    np.testing.assert_allclose(read_all(fewer.data.open(tmp_path / "x.h5", dataset="X")), X)


def test_a_damaged_copy_is_recreated(tmp_path):
    FRAME.to_csv(tmp_path / "x.csv", index=False)
    for _ in range(2):
        with pytest.warns(UserWarning, match="converted once"):
            source = fewer.data.open(tmp_path / "x.csv", memory_limit=LITTLE)
        np.testing.assert_allclose(read_all(source), X, rtol=1e-6)
        copy = next((tmp_path / "cache").rglob("*.npy"))
        os.truncate(copy, 1000)


# -- change while reading ----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["npy", "h5", "h5ad"])
def test_a_file_that_changes_while_it_is_read(tmp_path, form):
    path = tmp_path / f"x.{form}"
    whole_file(form, path)
    source = fewer.data.open(path, memory_limit=LITTLE)
    assert source.on_disk
    source.rows(slice(0, 10))
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"more")
    with pytest.raises(InputError, match=rf"x\.{form} changed while it was read"):
        source.rows(slice(200, 210))
    path.unlink()
    with pytest.raises(InputError, match="vanished while it was read"):
        source.rows(slice(100, 110))


@pytest.mark.parametrize("form", ["csv", "parquet", "feather"])
def test_metadata_of_a_file_that_has_changed(tmp_path, form):
    path, frame = tmp_path / f"x.{form}", pd.DataFrame({"a": [1.0, 2.0], "note": ["x", "y"]})
    write = getattr(frame, f"to_{form}")
    write(path)
    source = fewer.data.open(path, ignore=["note"])
    frame["note"] = ["longer", "text"]
    write(path)
    with pytest.raises(InputError, match=rf"x\.{form} changed while it was read"):
        list(source.metadata())


# -- wrong kinds and options -------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.zeros(2)])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (np.zeros((2, 3, 4)), r"has the shape \(2, 3, 4\); rows of features need two"),
        (np.zeros((0, 3)), "is empty: 0 rows"),
        (np.array([["a", "b"]]), "rows cannot be read from ndarray"),
        (np.zeros((2, 2), dtype=complex), "rows cannot be read from ndarray of complex"),
        ([[1, 2], [3]], "rows cannot be read from list of object"),
        (object(), "rows cannot be read from object"),
        (Stream(), "Stream has no indexable rows"),
        ("rows.docx", "there is no file"),
    ],
)
def test_what_is_not_rows(data, reason):
    with pytest.raises(InputError, match=reason):
        fewer.data.open(data)


def test_options_that_do_not_apply(tmp_path):
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(InputError, match=r"layer='counts' does not apply to .npy files"):
        fewer.data.open(tmp_path / "x.npy", layer="counts")
    with pytest.raises(InputError, match=r"delimiter=';' does not apply .* valid options: names="):
        fewer.data.open(X, delimiter=";")
    with pytest.raises(InputError, match="names has 2 names for 12 features"):
        fewer.data.open(X, names=["a", "b"])
    FRAME.to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(InputError, match="no columns 'id' to ignore; it has 'gene0'"):
        fewer.data.open(tmp_path / "x.csv", ignore=["id"])
    (tmp_path / "x.docx").touch()
    with pytest.raises(InputError, match=r"ends in '.docx'; use .npy"):
        fewer.data.open(tmp_path / "x.docx")
    with pytest.raises(InputError, match="memory_limit='lots' is not a size"):
        fewer.data.open(X, memory_limit="lots")


@pytest.mark.parametrize("name", ["x.npy.gz", "x.parquet.gz"])
def test_only_text_may_be_compressed(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    with pytest.raises(InputError, match=r"ends in '.gz'; use .npy, .npz, .csv, .tsv \(also .gz"):
        fewer.data.open(tmp_path / name)


def test_which_array(tmp_path):
    np.savez(tmp_path / "x.npz", a=X, b=X)
    with pytest.raises(InputError, match="holds 'a', 'b'; choose one with dataset="):
        fewer.data.open(tmp_path / "x.npz")
    with pytest.raises(InputError, match="no array 'c'; it has 'a', 'b'"):
        fewer.data.open(tmp_path / "x.npz", dataset="c")
    assert fewer.data.open(tmp_path / "x.npz", dataset="b").shape == (N, D)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"], file["g/b"] = X, X
    with pytest.raises(InputError, match="holds 'a', 'g/b'; choose one with dataset="):
        fewer.data.open(tmp_path / "x.h5")
    assert fewer.data.open(tmp_path / "x.h5", dataset="g/b").shape == (N, D)
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w")
    group.create_array("a", data=X)
    group.create_array("b", data=X)
    with pytest.raises(InputError, match="choose one with dataset="):
        fewer.data.open(tmp_path / "x.zarr")
    assert fewer.data.open(tmp_path / "x.zarr", dataset="b").shape == (N, D)


def test_no_pickle_is_read(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(FileFormatError, match=r"not a whole \.npy file of numbers"):
        fewer.data.open(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", X=np.array([[{}]], dtype=object))
    with pytest.raises(FileFormatError, match=r"not a whole \.npz file"):
        fewer.data.open(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("library", "extra", "name"),
    [("pyarrow", "tables", "x.csv"), ("h5py", "stores", "x.h5"), ("zarr", "stores", "x.zarr")],
)
def test_a_library_that_is_not_installed(tmp_path, monkeypatch, library, extra, name):
    path = tmp_path / name
    path.mkdir() if name.endswith("zarr") else path.write_text("a\n1\n")
    for module in [m for m in sys.modules if m.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [_Hide(library), *sys.meta_path])
    with pytest.raises(MissingExtraError, match=rf"need {library}.*pip install 'fewer\[{extra}\]'"):
        fewer.data.open(path)


class _Hide:
    """As if a library were not there."""

    def __init__(self, library):
        self.library = library

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_cache_that_cannot_be_written(tmp_path):
    FRAME.to_csv(tmp_path / "x.csv", index=False)
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"copy of .*x\.csv cannot be written to .*FEWER_CACHE"):
        fewer.data.open(tmp_path / "x.csv", memory_limit=LITTLE)


def test_columns_first_matrices_that_do_not_fit(tmp_path):
    path = write_h5ad(tmp_path / "x.h5ad", "csc")
    with pytest.raises(InputError, match=r"column by column \(CSC.*save it as CSR"):
        fewer.data.open(path, memory_limit=LITTLE)
    assert sparse.issparse(fewer.data.open(path).sparse_rows(slice(0, 3)))


@pytest.mark.parametrize(
    ("encoding", "message"),
    [("latin1", r"byte 0xe9 in line 1\); .* iconv -f latin1"), ("utf-16", "it is UTF-16")],
)
def test_text_that_is_not_utf8_is_refused(tmp_path, encoding, message):
    path = tmp_path / "old.csv"
    path.write_bytes("hauteur,décès\n1,2\n3,4\n".encode(encoding))
    with pytest.raises(InputError, match=message):
        fewer.data.open(path)
    path.write_text("hauteur,décès\n1,2\n3,4\n", encoding="utf-8")
    assert fewer.data.open(path).names == ["hauteur", "décès"]
