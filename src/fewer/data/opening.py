"""The one entrance: from whatever a user has to a source of rows."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_array
from torch.utils.data import Dataset

from fewer._checks import find_names
from fewer._optional import import_optional
from fewer.data.annotated import is_annotated, open_annotated, open_annotated_group, open_h5ad
from fewer.data.arrays import check_numbers, open_memmap, open_npy, open_npz
from fewer.data.columns import join_names
from fewer.data.csv import COMPRESSED, TEXT, open_text, text_columns
from fewer.data.hdf5_zarr import HDF5, open_array, open_hdf5, open_zarr
from fewer.data.memory import size_in_bytes
from fewer.data.source import ColumnView, Source
from fewer.data.table_files import FEATHER, PARQUET, open_table_files, stored_columns
from fewer.data.tables import is_table, open_table, without_text
from fewer.data.torch_dataset import open_dataset
from fewer.data.values import as_array, check_values, open_source
from fewer.errors import InputError, TypeInputError, translate_sklearn_errors

__all__ = ["as_source", "column_names", "is_source_like", "match_columns", "open", "open_beside"]

TABLES = (*TEXT, *PARQUET, *FEATHER)
KNOWN = ".npy, .npz, .csv, .tsv (also .gz, .zst), .parquet, .feather, .h5, .zarr, .h5ad"


def open(
    data: Any,
    *,
    dataset: str | None = None,
    layer: str | None = None,
    raw: bool = False,
    obs: Any = None,
    names: Sequence[str] | None = None,
    leave_out: Sequence[str] = (),
    delimiter: str | None = None,
    header: bool | None = None,
    memory_limit: int | str | None = None,
) -> Source:
    """Make a source of rows of almost anything.

    What takes at most a quarter of the memory limit is read into memory. Anything larger stays
    where it is and is read in blocks, the next while one is worked on. CSV, and Parquet with
    pieces too large to hold, are converted once to a binary copy in the user's cache then; other
    Parquet when it is read for the third time, if the copy takes at most a tenth of the free disk.

    Parameters
    ----------
    data : path, list of paths, array, sparse matrix, table, AnnData, HDF5 dataset, zarr array, \
torch tensor or Dataset
        A path is a file, a folder of files with the same columns, or a pattern such as
        ``"part-*.parquet"``: .npy, .npz, .csv, .tsv (also .gz, .zst), .parquet, .feather, .h5,
        .zarr, .h5ad.
    dataset : str, default=None
        Which array of an .npz, HDF5 or zarr file; needed where there are several.
    layer : str, default=None
        Which layer of an AnnData; X if None.
    raw : bool, default=False
        Whether to read ``raw`` of an AnnData.
    obs : mapping, mask or row numbers, default=None
        Which rows of an AnnData, such as ``{"cell_type": ["B", "T"]}``.
    names : sequence of str, default=None
        Names of the features, where the data have none of their own.
    leave_out : sequence of str, default=()
        Columns of a table that are no features. Columns that do not hold numbers are left out
        in any case, with a warning unless they are named here.
    delimiter : str, default=None
        Between the values of a CSV file; found from its first line if None.
    header : bool, default=None
        Whether the first line of a CSV file names its columns; if None, it does unless it holds
        numbers only (those of a count, 0, 1, 2, ..., are names).
    memory_limit : int or str, default=None
        Bytes that rows may take in memory, or text such as "2GB"; a quarter of the machine's
        memory if None.

    Returns
    -------
    Source
        With ``shape``, ``names``, ``dtype``, ``left_out`` and ``rows``; every function of fewer
        that takes X takes it too.

    Examples
    --------
    >>> import fewer, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "flowers.csv"
    >>> _ = path.write_text("id,petal,sepal\\nx1,1.5,3\\nx2,,4\\n")
    >>> source = fewer.data.open(path, leave_out=["id"])
    >>> source.shape, source.names, source.left_out
    ((2, 2), ['petal', 'sepal'], ('id',))
    >>> source.rows(slice(0, 2))
    tensor([[1.5000, 3.0000],
            [   nan, 4.0000]])
    """
    options = {
        "dataset": dataset,
        "layer": layer,
        "raw": raw,
        "obs": obs,
        "names": None if names is None else [str(name) for name in names],
        "leave_out": [leave_out] if isinstance(leave_out, str) else list(leave_out),
        "delimiter": delimiter,
        "header": header,
    }
    limit = size_in_bytes(memory_limit)
    if isinstance(data, str) and not data.strip():
        raise InputError(
            f"data={data!r} is no path; name a file or a folder ('.' is the current one)"
        )
    if _is_path(data) or _is_path_list(data):
        source = _open_paths(data, options, limit)
    else:
        source = _open_object(data, options, limit)
    if names is not None and source.names is not None and len(source.names) != source.shape[1]:
        raise InputError(f"names has {len(source.names)} names for {source.shape[1]} features")
    return source


def is_source_like(data: Any) -> bool:
    """Whether this is a path, a source or a store, which scikit-learn would not understand.

    Examples
    --------
    >>> is_source_like("rows.npy"), is_source_like([[1.0]])
    (True, False)
    """
    if isinstance(data, (Source, np.memmap, Dataset)) or _is_path(data) or _is_path_list(data):
        return True
    if _is_store(data) or is_annotated(data):
        return True
    return type(data).__module__.split(".")[0] == "pyarrow" and is_table(data)


def as_source(data: Any, *, least_rows: int = 1) -> Source:
    """A source of whatever a public function was given as X.

    Arrays and tables in memory are checked as scikit-learn does; columns of tables that do not
    hold numbers are left out with a warning. Anything else goes through `open`.

    Examples
    --------
    >>> import pandas as pd
    >>> as_source(pd.DataFrame({"a": [1.0, 2.0]})).names
    ['a']
    """
    if is_source_like(data):
        source = open(data)
        if source.shape[0] < least_rows:
            raise InputError(f"{source.shape[0]} rows are too few; give at least {least_rows}")
        return source
    X = as_array(without_text(data) if is_table(data) else data)
    names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
    with translate_sklearn_errors():
        X = check_array(
            X,
            accept_sparse=("csr", "csc"),
            dtype="numeric",
            ensure_all_finite=False,
            ensure_min_samples=least_rows,
        )
    check_values(X, names)
    source = open_source(X)
    source.names = names
    return source


def open_beside(data: Any, names: Sequence[str], **options: Any) -> Source:
    """A source that has these columns beside its features, in ``aside``.

    Columns of a table are no features then; those of an AnnData are found in its ``obs``.

    Parameters
    ----------
    data : whatever `open` takes
        A source must have been opened with the columns left out.
    names : sequence of str
        The columns.
    **options
        As for `open`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> source = open_beside(pa.table({"a": [1.0, 2.0], "kind": [3, 4]}), ["kind"])
    >>> source.names, next(source.aside()).column_names
    (['a'], ['kind'])
    """
    if isinstance(data, Source):
        source = data
    elif _is_annotated(data):
        source = open(data, **options)
    else:
        left_out = [*options.pop("leave_out", ()), *names]
        source = open(data, leave_out=list(dict.fromkeys(left_out)), **options)
    lacking = [name for name in names if name not in source.left_out]
    if lacking:
        where = "obs columns" if _is_annotated(data) else "columns beside the features"
        raise InputError(
            f"there is no column {join_names(lacking)}; the {where} are "
            f"{join_names(source.left_out, 12) or 'none'}"
        )
    return source


def column_names(data: Any) -> list[str] | None:
    """All columns of a text, Parquet or Feather file, features or not; None of anything else.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "flowers.csv"
    >>> _ = path.write_text("id,petal\\nx1,1.5\\n")
    >>> column_names(path)
    ['id', 'petal']
    """
    if not _is_path(data) and not _is_path_list(data):
        return None
    first = _files(data)[0]
    form = _form(first)
    if form in TEXT:
        return text_columns(first)
    return stored_columns(first) if form in TABLES else None


def match_columns(
    source: Source, names: Sequence[Any] | np.ndarray | None, d: int, what: str
) -> Source:
    """The features that were fitted, found in a source by name, else by their number.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = as_source(pd.DataFrame({"b": [1.0], "a": [2.0], "c": [3.0]}))
    >>> match_columns(rows, ["a", "b"], 2, "the panel").rows(slice(1))
    tensor([[2., 1.]])
    """
    if names is None or source.names is None:
        if source.shape[1] != d:
            raise InputError(
                f"X has {source.shape[1]} features, but {what} is expecting {d} features as input"
            )
        return source
    wanted = [str(name) for name in names]
    if source.names == wanted:
        return source
    return ColumnView(source, np.array(find_names(wanted, source.names, "X lacks {} features")))


# -- objects ---------------------------------------------------------------------------------


def _open_object(data: Any, options: dict[str, Any], limit: int) -> Source:
    if isinstance(data, Source):
        _only_allowed("a source", options, ())
        return data
    if is_annotated(data):
        _only_allowed("an AnnData", options, ("layer", "raw", "obs"))
        return open_annotated(data, options["layer"], options["raw"], options["obs"], limit)
    if is_table(data):
        _only_allowed("a table", options, ("leave_out",))
        return open_table(data, options["leave_out"], limit)
    _only_allowed(f"a {type(data).__name__}", options, ("names",))
    return _open_nameless(data, options["names"], limit)


def _open_nameless(data: Any, names: list[str] | None, limit: int) -> Source:
    if isinstance(data, np.memmap):
        return open_memmap(data, names, limit)
    if _is_store(data):
        what = f"the {type(data).__module__.split('.')[0]} array"
        return open_array(data, what, [], names, limit)
    if isinstance(data, Dataset):
        return open_dataset(data, names, limit)
    array = as_array(data)
    if isinstance(array, np.ma.MaskedArray):
        array = np.ma.filled(array.astype(np.float64), np.nan)
    try:
        array = array.tocsr() if sparse.issparse(array) else np.asarray(array)
    except ValueError:  # rows of several lengths
        array = np.array(data, dtype=object)
    if array.dtype.kind not in "biuf":
        raise TypeInputError(
            f"rows cannot be read from {type(data).__name__} of {array.dtype}; give a path, an "
            "array of numbers, a table, or what else `help(fewer.data.open)` lists"
        )
    check_numbers("the array", array.shape, array.dtype)
    check_values(array, names, "the array")
    source = open_source(array)
    source.names, source.memory_limit = names, limit
    return source


def _is_store(data: Any) -> bool:
    library = type(data).__module__.split(".")[0]
    return library in ("h5py", "zarr") and hasattr(data, "shape") and hasattr(data, "chunks")


def _is_annotated(data: Any) -> bool:
    """Whether rows are described by ``obs``."""
    if not _is_path(data):
        return is_annotated(data)
    path = Path(data).expanduser()
    return path.suffix.lower() == ".h5ad" or (_is_zarr(path) and _holds_anndata(path))


def _only_allowed(what: str, options: dict[str, Any], allowed: Sequence[str]) -> None:
    for name, value in options.items():
        if name not in allowed and value is not None and value is not False and value != []:
            known = ", ".join(f"{option}=" for option in allowed) or "none"
            raise InputError(f"{name}={value!r} does not apply to {what}; options that do: {known}")


# -- paths -----------------------------------------------------------------------------------


def _is_path(data: Any) -> bool:
    return isinstance(data, (str, os.PathLike))


def _is_path_list(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and len(data) > 0 and all(map(_is_path, data))


def _open_paths(data: Any, options: dict[str, Any], limit: int) -> Source:
    what = str(data[0] if _is_path_list(data) else data)
    paths = _files(data)
    form = _form(paths[0])
    if form in TABLES:
        other = next((path for path in paths if not _alike(_form(path), form)), None)
        if other is not None:
            raise InputError(
                f"{what} holds files of several kinds, such as {paths[0].name} and {other.name}; "
                f"give a pattern such as '*{form}'"
            )
        if form in TEXT:
            _only_allowed("text files", options, ("leave_out", "delimiter", "header"))
            how = options["delimiter"], options["header"]
            return open_text(paths, options["leave_out"], how, limit, what)
        _only_allowed("Parquet and Feather files", options, ("leave_out",))
        return open_table_files(paths, options["leave_out"], limit, what)
    if len(paths) > 1:
        raise InputError(f"{what}: only tables (CSV, Parquet, Feather) can be in several files")
    return _open_single(paths[0], form, options, limit)


def _open_single(path: Path, form: str, options: dict[str, Any], limit: int) -> Source:
    dataset, names = options["dataset"], options["names"]
    if form == ".npy":
        _only_allowed(".npy files", options, ("names",))
        return open_npy(path, names, limit)
    if form == ".npz":
        _only_allowed(".npz files", options, ("dataset", "names"))
        return open_npz(path, dataset, names, limit)
    if form in HDF5:
        _only_allowed("HDF5 files", options, ("dataset", "names"))
        return open_hdf5(path, dataset, names, limit)
    layer, raw, obs = options["layer"], options["raw"], options["obs"]
    if form == ".h5ad":
        _only_allowed(".h5ad files", options, ("layer", "raw", "obs"))
        return open_h5ad(path, layer, raw, obs, limit)
    if form == ".zarr" and _holds_anndata(path) and dataset is None:
        _only_allowed("AnnData folders", options, ("layer", "raw", "obs"))
        group = import_optional("zarr").open_group(str(path), mode="r")
        return open_annotated_group(group, str(path), [], layer, raw, obs, limit)
    if form == ".zarr":
        _only_allowed("zarr arrays", options, ("dataset", "names"))
        return open_zarr(path, dataset, names, limit)
    raise InputError(f"{path} ends in {form or 'nothing'!r}, which is not known; use {KNOWN}")


def _files(data: Any) -> list[Path]:
    """The files that a path, a pattern, a folder or a list of these stands for."""
    if _is_path_list(data):
        return [path for item in data for path in _files(item)]
    path = Path(data).expanduser()
    if path.is_dir() and not _is_zarr(path):
        found = sorted(
            file
            for file in path.rglob("*")
            if _form(file) in TABLES and file.is_file() and not file.name.startswith(("_", "."))
        )
        if not found:
            raise InputError(f"the folder {path} holds no CSV, Parquet or Feather files")
        return found
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        matched = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
        if matched:
            return matched
        raise InputError(f"no file matches {str(data)!r}")
    raise InputError(f"there is no file {str(data)!r}")


def _form(path: Path) -> str:
    if _is_zarr(path):
        return ".zarr"
    if path.suffix.lower() in COMPRESSED:
        inner = path.with_suffix("").suffix.lower()
        return inner if inner in TEXT else path.suffix.lower()
    return path.suffix.lower()


def _alike(one: str, other: str) -> bool:
    kinds = (TEXT, PARQUET, FEATHER)
    return any(one in kind and other in kind for kind in kinds)


def _is_zarr(path: Path) -> bool:
    marks = ("zarr.json", ".zarray", ".zgroup")
    return path.is_dir() and (
        path.suffix.lower() == ".zarr" or any((path / mark).exists() for mark in marks)
    )


def _holds_anndata(path: Path) -> bool:
    return all((path / part).is_dir() for part in ("obs", "var"))
