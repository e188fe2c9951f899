"""Open any supported data as a source of rows."""

import glob
import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from torch.utils.data import Dataset

from fewer._checks import join_names
from fewer._threads import entry_point
from fewer.data.arrays import HDF5, open_array, open_dataset, open_hdf5, open_npz, open_zarr
from fewer.data.columns import check_array, check_numbers, check_values
from fewer.data.csv import TEXT, csv_columns, file_form, is_number, only_member, open_csv
from fewer.data.dask import is_dask, open_dask
from fewer.data.databases import (
    DUCKDB,
    EXCEL,
    SQLITE,
    open_duckdb,
    open_excel,
    open_sqlite,
    table_columns,
)
from fewer.data.fetch import fetched, is_elsewhere
from fewer.data.h5ad import is_annotated, open_annotated, open_h5ad
from fewer.data.on_disk import open_npy, size_in_bytes
from fewer.data.source import MissingNumbers, Source, array_source, read_blocks
from fewer.data.tables import (
    FEATHER,
    PARQUET,
    as_array,
    column_names_of,
    is_table,
    open_parquet,
    open_table,
    stored_schema,
    without_text,
)
from fewer.errors import InputError, TypeInputError

TABLES = (*TEXT, *PARQUET, *FEATHER)
FINDS_COLUMNS = ("dataset", "query", "delimiter", "header")  # options of `column_names`
MANY = 20  # rows in ascending order that are no accident
FORMS: list[tuple[tuple[str, ...], str, Callable[..., Source], tuple[str, ...]]] = [
    ((".npy",), ".npy files", open_npy, ("names",)),
    ((".npz",), ".npz files", open_npz, ("dataset", "names")),
    (HDF5, "HDF5 files", open_hdf5, ("dataset", "names")),
    ((".zarr",), "zarr arrays", open_zarr, ("dataset", "names")),
    ((".h5ad",), "AnnData files", open_h5ad, ("layer", "raw", "obs")),
    (EXCEL, "Excel files", open_excel, ("dataset", "header", "ignore", "missing")),
    (SQLITE, "SQLite files", open_sqlite, ("dataset", "query", "ignore", "missing")),
    (DUCKDB, "DuckDB files", open_duckdb, ("dataset", "query", "ignore")),
]
KNOWN = (
    ".npy, .npz, .csv, .tsv (also .gz, .bz2, .zst, .zip), .parquet, .feather, .h5, .zarr, .h5ad, "
    ".xlsx, .sqlite, .db, .duckdb"
)


@entry_point
def open(
    data: Any,
    *,
    dataset: str | None = None,
    query: str | None = None,
    layer: str | None = None,
    raw: bool = False,
    obs: Any = None,
    names: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    delimiter: str | None = None,
    header: bool | None = None,
    missing: Sequence[str | float] = (),
    memory_limit: int | str | None = None,
) -> Source:
    """Open files, arrays and tables as a source of rows.

    Data of up to a quarter of the memory limit is read into memory. Larger arrays stay where they
    are and are read in chunks, with the next chunk prefetched. Larger CSV, Parquet and Feather
    files are converted once to a binary copy in the user's cache, which is read instead.

    Parameters
    ----------
    data : path, list of paths, array, sparse matrix, table, AnnData, HDF5 dataset, zarr array, \
Dask array or table, torch tensor or Dataset
        A path is a file, a folder of files with the same columns, or a pattern such as
        ``"part-*.parquet"``: .npy, .npz, .csv, .tsv (also .gz, .bz2, .zst, .zip), .parquet,
        .feather, .h5, .zarr, .h5ad, .xlsx, .sqlite, .db, .duckdb. ``"-"`` is standard input, and
        URLs such as ``"s3://..."`` and ``"https://..."`` are fetched with fsspec.
    dataset : str, default=None
        Array in an .npz, HDF5 or zarr file, or table in a database; required if there are
        several. Sheet of an Excel file; the first if None.
    query : str, default=None
        SELECT statement for an SQLite or DuckDB file, instead of a table.
    layer : str, default=None
        Layer of an AnnData; X if None.
    raw : bool, default=False
        Whether to read ``raw`` of an AnnData.
    obs : mapping, mask or row numbers, default=None
        Rows of an AnnData, such as ``{"cell_type": ["B", "T"]}``.
    names : sequence of str, default=None
        Names of the features, for data without names.
    ignore : sequence of str, default=()
        Columns of a table that are not features, such as row labels. Non-numeric columns are
        always ignored, with a warning unless they are listed here. All ignored columns remain
        available as metadata.
    delimiter : str, default=None
        Delimiter of a CSV file; detected from its first line if None.
    header : bool, default=None
        Whether the first line of a CSV file contains column names. None detects it: a line of
        numbers is data, unless it counts 0, 1, 2, ...
    missing : sequence of str or float, default=()
        Additional codes for missing values: numbers such as 9999, or words in the cells of a text
        file. Empty cells, NA, N/A, #N/A, NaN, null, None, ``?``, ``.``, ``-``, ``--``, n/a and na
        are always missing in text files.
    memory_limit : int or str, default=None
        Memory for rows in bytes, or as text such as "2GB"; a quarter of the machine's memory if
        None.

    Returns
    -------
    Source
        With ``shape``, ``names``, ``dtype``, ``metadata_columns`` and ``rows``; accepted by every
        function of fewer that accepts X.

    Examples
    --------
    >>> import fewer, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "flowers.csv"
    >>> _ = path.write_text("id,petal,sepal\\nx1,1.5,3\\nx2,,4\\n")
    >>> source = fewer.data.open(path, ignore=["id"])
    >>> source.shape, source.names, source.metadata_columns
    ((2, 2), ['petal', 'sepal'], ('id',))
    >>> source.rows(slice(0, 2))
    tensor([[1.5000, 3.0000],
            [   nan, 4.0000]])
    """
    options = {
        "dataset": dataset,
        "query": query,
        "layer": layer,
        "raw": raw,
        "obs": obs,
        "names": None if names is None else [str(name) for name in names],
        "ignore": [ignore] if isinstance(ignore, str) else list(ignore),
        "delimiter": delimiter,
        "header": header,
        "missing": _words(missing),
    }
    limit = size_in_bytes(memory_limit)
    if isinstance(data, str) and not data.strip():
        raise InputError(
            f"data={data!r} is not a path; use a file or a folder ('.' is the current one)"
        )
    if _is_path(data) or _is_path_list(data):
        source = _open_paths(data, options, limit)
    else:
        source = _open_object(data, options, limit)
    if names is not None and source.names is not None and len(source.names) != source.shape[1]:
        raise InputError(f"names has {len(source.names)} names for {source.shape[1]} features")
    return _without_numbers(source, options["missing"])


def _words(missing: Any) -> list[str]:
    """What stands for missing values, as text."""
    given = [missing] if isinstance(missing, (str, int, float)) else list(missing)
    wrong = [
        one for one in given if isinstance(one, bool) or not isinstance(one, (str, int, float))
    ]
    if wrong:
        raise TypeInputError(f"missing={wrong[0]!r} must be a number or text such as '9999' or '-'")
    return list(dict.fromkeys(str(one).strip() for one in given))


def _without_numbers(source: Source, words: Sequence[str]) -> Source:
    """A source in which the numbers among some words are missing values."""
    numbers = [float(word) for word in words if is_number(word)]
    finite = [number for number in numbers if np.isfinite(number)]
    if not finite:
        return source
    if source.is_sparse and 0 in finite:
        raise InputError("missing=0 would make nearly all of a sparse matrix missing; omit it")
    return MissingNumbers(source, finite)


def is_source_like(data: Any) -> bool:
    """Whether this is a path, a source or a store, which scikit-learn would not understand."""
    if isinstance(data, (Source, np.memmap, Dataset)) or _is_path(data) or _is_path_list(data):
        return True
    if _is_store(data) or is_annotated(data) or is_dask(data):
        return True
    return _library(data) == "pyarrow" and is_table(data)


def as_source(data: Any, *, least_rows: int = 1) -> Source:
    """A source of X: arrays and tables are checked as scikit-learn does, the rest is opened."""
    if is_source_like(data):
        source = open(data)
        if source.shape[0] < least_rows:
            raise InputError(f"{source.shape[0]} rows are too few; give at least {least_rows}")
        return source
    X = as_array(without_text(data) if is_table(data) else data)
    names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
    X = check_array(X, accept_sparse=("csr", "csc"), dtype="numeric", ensure_min_samples=least_rows)
    check_values(X, names)
    return array_source(X, names)


def open_with_metadata(data: Any, names: Sequence[str], **options: Any) -> Source:
    """A source that has these columns as metadata; those of an AnnData are in its ``obs``."""
    if isinstance(data, Source):
        source = data
    elif _is_annotated(data):
        source = open(data, **options)
    else:
        _check_columns(data, names, options)
        ignored = [*options.pop("ignore", ()), *names]
        source = open(data, ignore=list(dict.fromkeys(ignored)), **options)
    lacking = [name for name in names if name not in source.metadata_columns]
    if lacking:
        where = "obs columns" if _is_annotated(data) else "metadata columns"
        raise InputError(
            f"there is no column {join_names(lacking)}; the {where} are "
            f"{join_names(source.metadata_columns, 12) or 'none'}"
        )
    return source


def _check_columns(data: Any, names: Sequence[str], options: dict[str, Any]) -> None:
    """Refuse names that are not columns of a table or of a file of one."""
    which = {name: options.get(name) for name in FINDS_COLUMNS}
    have: list[str] | None = [str(name) for name in column_names_of(data)]
    if not is_table(data):
        have = column_names(data, **which)
    if have is None:
        return
    lacking = [name for name in names if name not in have]
    if lacking:
        close = get_close_matches(lacking[0], have, n=3)
        hint = f"did you mean {join_names(close)}?" if close else f"there are {join_names(have)}"
        raise InputError(f"there is no column {join_names(lacking)}; {hint}")


def column_names(
    data: Any,
    dataset: str | None = None,
    query: str | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
) -> list[str] | None:
    """All columns of a file that holds a table, features or not; None of anything else."""
    if not _is_path(data) and not _is_path_list(data):
        return None
    first = _files(data)[0]
    form = _form(first)
    if form in TEXT:
        return csv_columns(first, delimiter, header)
    if form in (*EXCEL, *SQLITE, *DUCKDB):
        found: list[str] | None = table_columns(first, form, dataset, query)
        return found
    return list(stored_schema(first).names) if form in TABLES else None


def counts_rows(source: Source, minimum: np.ndarray, maximum: np.ndarray) -> np.ndarray:
    """Which features go up by one from row to row; or by any whole number, over many rows."""
    n = source.shape[0]
    reach = maximum - minimum + 1
    counts = reach >= n if n >= MANY else reach == n
    if n < 3 or not counts.any():
        return np.zeros_like(counts)
    last: np.ndarray | None = None
    for _, x in read_blocks(source):
        values = x.numpy()
        steps = np.diff(values if last is None else np.vstack([last, values]), axis=0)
        counts &= (steps >= 1).all(axis=0) & (values == np.round(values)).all(axis=0)
        last = values[-1]
        if not counts.any():
            break
    return counts


# -- objects ---------------------------------------------------------------------------------


def _open_object(data: Any, options: dict[str, Any], limit: int) -> Source:
    if isinstance(data, Source):
        _chosen(options, "a source")
        return data
    if is_annotated(data):
        chosen = _chosen(options, "an AnnData", "layer", "raw", "obs")
        return open_annotated(data, **chosen, memory_limit=limit)
    if is_dask(data):
        _chosen(options, "Dask data", "ignore" if hasattr(data, "columns") else "names")
        return open_dask(data, options["names"], options["ignore"], limit)
    if is_table(data):
        return open_table(data, **_chosen(options, "a table", "ignore"), memory_limit=limit)
    return _open_nameless(
        data, **_chosen(options, f"a {type(data).__name__}", "names"), limit=limit
    )


def _open_nameless(data: Any, names: list[str] | None, limit: int) -> Source:
    if isinstance(data, np.memmap):
        what = "the memory map" if data.filename is None else str(data.filename)
        # looked at before each piece: a map of a file that has shrunk ends the process
        watched = [] if data.filename is None else [Path(data.filename)]
        return open_array(data, what, watched, names, limit)
    if _is_store(data):
        return open_array(data, f"the {_library(data)} array", [], names, limit)
    if isinstance(data, Dataset):
        return open_dataset(data, names, limit)
    array = as_array(data)
    try:
        array = array.tocsr() if sparse.issparse(array) else np.asarray(array)
    except ValueError:  # rows of several lengths
        array = np.array(data, dtype=object)
    if array.dtype.kind not in "biuf":
        raise TypeInputError(
            f"rows cannot be read from {type(data).__name__} of {array.dtype}; give a path, an "
            "array of numbers, a table, or anything listed in `help(fewer.data.open)`"
        )
    check_numbers("the array", array.shape, array.dtype)
    check_values(array, names, "the array")
    return array_source(array, names, limit)


def _library(data: Any) -> str:
    return type(data).__module__.split(".")[0]


def _is_store(data: Any) -> bool:
    return _library(data) in ("h5py", "zarr") and hasattr(data, "shape") and hasattr(data, "chunks")


def _is_annotated(data: Any) -> bool:
    """Whether rows are described by ``obs``."""
    if not _is_path(data):
        return is_annotated(data)
    path = Path(data).expanduser()
    return path.suffix.lower() == ".h5ad" or (_is_zarr(path) and _holds_anndata(path))


def _chosen(options: dict[str, Any], what: str, *allowed: str) -> dict[str, Any]:
    """The options that apply; any other that is given is refused."""
    for name, value in options.items():
        if name == "missing":  # its numbers apply to anything
            continue
        if name not in allowed and value is not None and value is not False and value != []:
            known = ", ".join(f"{option}=" for option in allowed) or "none"
            raise InputError(f"{name}={value!r} does not apply to {what}; valid options: {known}")
    return {name: options[name] for name in allowed}


# -- paths -----------------------------------------------------------------------------------


def _is_path(data: Any) -> bool:
    return isinstance(data, (str, os.PathLike))


def _is_path_list(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and len(data) > 0 and all(map(_is_path, data))


def _open_paths(data: Any, options: dict[str, Any], limit: int) -> Source:
    what = str(data[0] if _is_path_list(data) else data)
    paths = _files(data)
    path, form = paths[0], _form(paths[0])
    kind = next((kind for kind in (TEXT, PARQUET, FEATHER) if form in kind), None)
    if kind is None and len(paths) > 1:
        raise InputError(
            f"{what}: only tables (CSV, Parquet, Feather) can be split over several files"
        )
    other = next((path for path in paths if kind and _form(path) not in kind), None)
    if other is not None:
        raise InputError(
            f"{what} holds files of several kinds, such as {path.name} and {other.name}; "
            f"give a pattern such as '*{form}'"
        )
    if kind == TEXT:
        chosen = _chosen(options, "text files", "ignore", "delimiter", "header", "missing")
        return open_csv(paths, **chosen, memory_limit=limit, what=what)
    if kind is not None:
        chosen = _chosen(options, "Parquet and Feather files", "ignore")
        return open_parquet(paths, **chosen, memory_limit=limit, what=what)
    if form == ".zarr" and _holds_anndata(path) and options["dataset"] is None:
        form = ".h5ad"
    for forms, name, opener, allowed in FORMS:
        if form in forms:
            return opener(path, **_chosen(options, name, *allowed), memory_limit=limit)
    if form == ".zip":
        only_member(path)  # which says why not
    raise InputError(f"{path} ends in {form or 'nothing'!r}; use {KNOWN}")


def _files(data: Any) -> list[Path]:
    """The files that a path, a pattern, a folder or a list of these stands for."""
    if _is_path_list(data):
        return [path for item in data for path in _files(item)]
    path = fetched(data) if is_elsewhere(data) else Path(data).expanduser()
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
    return ".zarr" if _is_zarr(path) else file_form(path)


def _is_zarr(path: Path) -> bool:
    marks = ("zarr.json", ".zarray", ".zgroup")
    return path.is_dir() and (
        path.suffix.lower() == ".zarr" or any((path / mark).exists() for mark in marks)
    )


def _holds_anndata(path: Path) -> bool:
    return all((path / part).is_dir() for part in ("obs", "var"))
