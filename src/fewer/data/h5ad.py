"""Annotated matrices: .h5ad files, zarr folders of the same layout, AnnData objects.

Everything is read and written by anndata's own functions for single elements, so that a matrix
stays on disk until its rows are asked for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from fewer._checks import find_names, join_names
from fewer._optional import import_optional
from fewer.data.arrays import (
    check_zarr_array,
    checked_sparse,
    folder_size,
    hdf5_to_write,
    open_array,
    open_hdf5_file,
)
from fewer.data.columns import check_unique, check_values
from fewer.data.dask import is_dask, open_dask
from fewer.data.on_disk import (
    SMALL_SHARE,
    OnDiskSource,
    damaged,
    damaged_where_unreadable,
    readable_size,
)
from fewer.data.source import ColumnView, RowView, Source, array_source, numpy_dtype
from fewer.errors import FileFormatError, InputError

CHUNK_BYTES = 2**20


def is_annotated(data: Any) -> bool:
    """Whether this is an AnnData object."""
    return type(data).__module__.split(".")[0] == "anndata" and hasattr(data, "var_names")


def open_annotated(data: Any, layer: str | None, raw: bool, obs: Any, memory_limit: int) -> Source:
    """A source of an AnnData object, in memory or backed by a file."""
    if data.isbacked:
        return _backed(data, layer, raw, obs, memory_limit)
    what = "the AnnData object"
    parts = {"layers": data.layers, "var": data.var_names}
    if data.X is not None:
        parts["X"] = data.X
    if data.raw is not None:
        parts["raw"] = {"X": data.raw.X, "var": data.raw.var_names}
    matrix, labels = _matrix(parts, what, layer, raw)
    names = _unique(labels, what)
    if is_dask(matrix):
        source = open_dask(matrix, names, (), memory_limit)
        _attach_obs(source, list(data.obs), data.obs.index.name, lambda: data.obs)
        return source if obs is None else _chosen_rows(source, obs, what, lambda: data.obs)
    matrix = matrix.tocsr() if sparse.issparse(matrix) else np.asarray(matrix)
    check_values(matrix, names, what)
    source = array_source(matrix, names, memory_limit)
    _attach_obs(source, list(data.obs), data.obs.index.name, lambda: data.obs)
    return source if obs is None else _chosen_rows(source, obs, what, lambda: data.obs)


def _backed(data: Any, layer: str | None, raw: bool, obs: Any, memory_limit: int) -> Source:
    """The file behind an object; a view of it is found again by its names."""
    path = Path(data.filename)
    source = open_h5ad(path, layer, raw, obs, memory_limit)
    if data.is_view:
        if obs is not None:
            raise InputError(
                "obs= cannot be combined with a view of a backed AnnData; pass the whole object"
            )
        with open_hdf5_file(path, "h5ad") as file:
            rows = _positions(_labels(file["obs"]), data.obs_names, "obs_names")
        source = RowView(source, rows)
        if not raw:  # a view has all features of raw
            columns = _positions(source.names or [], data.var_names, "var_names")
            source = ColumnView(source, columns)
    if obs is None:  # what the object says of its rows may be newer than the file
        _attach_obs(source, list(data.obs), data.obs.index.name, lambda: data.obs)
    return source


def _positions(stored: list[str], wanted: Any, what: str) -> NDArray[np.int64]:
    if len(set(stored)) < len(stored):
        raise InputError(
            f"{what} are not unique, so the rows of a view cannot be identified in the file"
        )
    return np.array(find_names(wanted, stored, f"the file lacks {{}} {what}"), dtype=np.int64)


def _matrix(parts: Any, what: str, layer: str | None, raw: bool) -> tuple[Any, Any]:
    """The matrix that is asked for, and the var that belongs to it."""
    if raw and layer is not None:
        raise InputError(f"raw=True cannot be combined with layer={layer!r}: raw has no layers")
    if raw:
        if "raw" not in parts:
            raise InputError(f"{what} has no raw; drop raw=True")
        return parts["raw"]["X"], parts["raw"]["var"]
    layers = parts.get("layers", {})
    known = join_names(list(layers)) or "none"
    if layer is None:
        if "X" not in parts:
            raise InputError(f"{what} has no X; set layer= to one of {known}")
        return parts["X"], parts["var"]
    if layer not in layers:
        raise InputError(f"{what} has no layer {layer!r}; it has {known}")
    return layers[layer], parts["var"]


def _unique(labels: Any, what: str) -> list[str]:
    names = [str(label) for label in labels]
    check_unique(what, names, "call var_names_make_unique() and save it again", "var_names")
    return names


# -- files -----------------------------------------------------------------------------------


def open_h5ad(path: Path, layer: str | None, raw: bool, obs: Any, memory_limit: int) -> Source:
    """A source of a matrix of an .h5ad file, or of a zarr folder of the same layout."""
    what, watched = str(path), [] if path.is_dir() else [path]
    read_elem = import_optional("anndata.io").read_elem
    if not watched:
        _check_zarr_group(path)
    with damaged_where_unreadable(what):
        if watched:
            file = open_hdf5_file(path, "h5ad")
        else:
            file = import_optional("zarr").open_group(what, mode="r")
        matrix, var = _matrix(file, what, layer, raw)
        names = _unique(_labels(var), what)
        if hasattr(matrix, "dtype"):
            if matrix.shape[-1] != len(names):
                raise damaged(what, f"{matrix.shape[-1]} columns, but {len(names)} names")
            source = open_array(matrix, what, watched, names, memory_limit)
        else:
            source = _open_sparse(matrix, what, watched, names, memory_limit)
        frame = file["obs"]
        columns = [str(name) for name in frame.attrs["column-order"]]

        def read_obs() -> Any:
            with damaged_where_unreadable(what):
                return read_elem(frame)

        _attach_obs(source, columns, frame.attrs["_index"], read_obs)
        return source if obs is None else _chosen_rows(source, obs, what, read_obs)


def _check_zarr_group(path: Path) -> None:
    """Refuse a zarr folder with links out of it, or with arrays that it merely claims."""
    size = folder_size(path)
    with damaged_where_unreadable(path):
        groups = [import_optional("zarr").open_group(str(path), mode="r")]
        while groups:
            group = groups.pop()
            groups += [part for _, part in group.groups()]
            for _, array in group.arrays():
                check_zarr_array(path, array, size)


def _labels(frame: Any) -> list[str]:
    """The index of a stored obs or var."""
    if "_index" not in frame.attrs:
        raise FileFormatError(
            f"{frame.name} was written by an anndata older than 0.7; read the file with "
            "anndata.read_h5ad and write it again"
        )
    return list(map(str, import_optional("anndata.io").read_elem(frame[frame.attrs["_index"]])))


class SparseOnDisk(OnDiskSource):
    """Rows of a stored CSR matrix; they stay sparse until they are used."""

    is_sparse = True

    def __init__(
        self, matrix: Any, indptr: NDArray, what: str, memory_limit: int, **more: Any
    ) -> None:
        data, indices = matrix.group["data"], matrix.group["indices"]

        def read(start: int, stop: int) -> sparse.csr_array:
            part = slice(int(indptr[start]), int(indptr[stop]))
            places = indptr[start : stop + 1] - indptr[start]
            shape = (stop - start, matrix.shape[1])
            return checked_sparse(
                sparse.csr_array((data[part], indices[part], places), shape=shape)
            )

        super().__init__(read, what, matrix, memory_limit, **more)
        stored = matrix.group["data"].nbytes + matrix.group["indices"].nbytes
        self.row_bytes = max(1.0, stored / self.shape[0])

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        part = self.sparse_rows(index).astype(numpy_dtype(dtype))
        return torch.from_numpy(part.toarray()).to(dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array:
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step == 1:
                return self._checked(start, max(start, stop))
            index = np.arange(start, stop, step)
        if not len(index):
            return self._checked(0, 0)
        found = [
            (places, self._checked(first, stop)[offsets])
            for places, first, stop, offsets in self.runs(np.asarray(index))
        ]
        joined = sparse.vstack([part for _, part in found], format="csr")
        return joined[np.argsort(np.concatenate([places for places, _ in found]))]

    def _checked(self, start: int, stop: int) -> sparse.csr_array:
        if start == stop:
            return sparse.csr_array((0, self.shape[1]), dtype=self.dtype)
        part = self.fetch(start, stop)
        check_values(part, self.names, self.what, first_row=start)
        return part


def _open_sparse(
    group: Any, what: str, watched: list[Path], names: list[str], memory_limit: int
) -> Source:
    """A source of a sparse matrix; in memory where it is small, or stored column by column."""
    matrix = import_optional("anndata.io").sparse_dataset(group)
    rows, columns = matrix.shape
    stored = group["data"].shape[0]
    if columns != len(names):
        raise damaged(what, f"{columns} columns, but {len(names)} names")
    if group["indptr"].shape[0] != (columns if matrix.format == "csc" else rows) + 1:
        raise damaged(what, f"indptr does not fit {rows} rows of {stored} entries")
    # SciPy and anndata trust index arrays in C++, where wrong ones spoil memory
    indptr = np.asarray(group["indptr"][:])
    whole = indptr.dtype.kind in "iu" and group["indices"].dtype.kind in "iu"
    ascending = whole and indptr[0] == 0 and not (indptr[1:] < indptr[:-1]).any()
    if not ascending or indptr[-1] != stored or group["indices"].shape != (stored,):
        raise damaged(what, f"indptr does not fit {rows} rows of {stored} entries")
    size = stored * (group["data"].dtype.itemsize + group["indices"].dtype.itemsize)
    by_column = matrix.format == "csc"
    if by_column and size > memory_limit // 3:
        raise InputError(
            f"{what} is stored column by column (CSC, {readable_size(size)}), so its rows cannot "
            f"be read in pieces within memory_limit={readable_size(memory_limit)}; save it as CSR "
            "(adata.X = adata.X.tocsr()), or raise the limit"
        )
    if not by_column and size > memory_limit // SMALL_SHARE:
        return SparseOnDisk(matrix, indptr, what, memory_limit, names=names, watched=watched)
    with damaged_where_unreadable(what):
        kind = sparse.csc_array if by_column else sparse.csr_array
        parts = (group["data"][:], group["indices"][:], indptr)
        loaded = checked_sparse(kind(parts, shape=matrix.shape)).tocsr()
    check_values(loaded, names, what)
    return array_source(loaded, names, memory_limit)


# -- what obs says of the rows ---------------------------------------------------------------


def _attach_obs(source: Source, columns: list[Any], index: Any, frame: Callable[[], Any]) -> None:
    """Let obs be the metadata of the rows, its index first (obs_names if it has no name)."""
    unnamed = index in (None, "_index", "index") or str(index) in map(str, columns)
    names = ["obs_names" if unnamed else str(index), *map(str, columns)]

    def tables() -> Iterator[Any]:
        pa = import_optional("pyarrow")
        obs = frame()
        values = [[str(label) for label in obs.index], *(known_values(obs[name]) for name in obs)]
        yield pa.table({name: _arrow(column) for name, column in zip(names, values, strict=True)})

    source.metadata, source.metadata_columns = tables, tuple(names)


def known_values(column: Any) -> np.ndarray:
    """Values of a pandas column, None where one is missing."""
    known = column.astype(object)
    return known.where(known.notna(), None).to_numpy()


def _arrow(column: Any) -> Any:
    pa = import_optional("pyarrow")
    try:
        return pa.array(column)
    except (TypeError, ValueError):  # values of several kinds
        return pa.array([None if value is None else str(value) for value in column])


def _chosen_rows(source: Source, obs: Any, what: str, frame: Callable[[], Any]) -> Source:
    """Rows by a mapping from columns of obs to their values, by a mask, or by numbers."""
    n = source.shape[0]
    if isinstance(obs, Mapping):
        rows = np.flatnonzero(_matching(frame(), obs, what))
    else:
        index = np.asarray(obs)
        if index.dtype == bool and len(index) != n:
            raise InputError(f"obs is a mask of length {len(index)}, but {what} has {n} rows")
        if index.ndim != 1 or index.dtype.kind not in "biu":
            raise InputError(
                "obs must be a mapping such as {'cell_type': ['B', 'T']}, a mask, or row numbers"
            )
        rows = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
    if len(rows) == 0:
        raise InputError(f"{what}: no rows match obs={obs!r}")
    if rows.min() < 0 or rows.max() >= n:
        raise InputError(f"obs has row numbers outside 0 to {n - 1}")
    return RowView(source, rows)


def _matching(frame: Any, wanted: Mapping[str, Any], what: str) -> NDArray[np.bool_]:
    keep = np.ones(len(frame), dtype=bool)
    for name, values in wanted.items():
        if name not in frame:
            raise InputError(f"{what} has no obs column {name!r}; it has {join_names(list(frame))}")
        have = np.array([str(value) for value in known_values(frame[name])], dtype=object)
        single = isinstance(values, (str, int, float, bool))
        allowed = {str(value) for value in ([values] if single else values)}
        unknown = sorted(allowed - set(have))
        if unknown:
            raise InputError(
                f"{what}: no row has {name} {join_names(unknown)}; there are "
                f"{join_names(sorted(set(have)))}"
            )
        keep &= np.isin(have, list(allowed))
    return keep


# -- writing ---------------------------------------------------------------------------------


@contextmanager
def h5ad_writer(path: Path, rows: int, names: Sequence[str]) -> Iterator[Callable[..., None]]:
    """Write rows in order; metadata become ``obs``, labelled by its first column of unique text."""
    tables: list[Any] = []
    with hdf5_to_write(path) as (file, check):
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        _write_frame(file, "var", list(names), None, {})
        matrix = create_matrix(file, "X", (rows, len(names)), np.float64)

        def put(at: slice, values: np.ndarray, metadata: Any) -> None:
            matrix[at] = values
            check()
            if metadata is not None:
                tables.append(metadata)

        yield put
        columns: dict[str, Any] = {}
        if tables:
            whole = import_optional("pyarrow").concat_tables(tables)
            columns = {name: whole.column(name) for name in whole.column_names}
        index = next((name for name, column in columns.items() if _labels_rows(column)), None)
        numbers = [str(row) for row in range(rows)]
        labels = numbers if index is None else columns.pop(index).to_pylist()
        _write_frame(file, "obs", labels, None if index == "obs_names" else index, columns)


def create_matrix(group: Any, name: str, shape: tuple[int, int], dtype: Any) -> Any:
    """An empty dense matrix for blocks of rows, which anndata has no function for."""
    tall = CHUNK_BYTES // (np.dtype(dtype).itemsize * max(1, shape[1]))
    chunks = (max(1, min(shape[0], tall)), shape[1]) if all(shape) else None
    matrix = group.create_dataset(name, shape=shape, dtype=dtype, chunks=chunks)
    matrix.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    return matrix


def _labels_rows(column: Any) -> bool:
    types = import_optional("pyarrow").types
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if not (types.is_string(kind) or types.is_large_string(kind)) or column.null_count:
        return False
    return len(column.unique()) == len(column)


def _write_frame(
    file: Any, key: str, labels: list[str], index: str | None, columns: dict[str, Any]
) -> None:
    pd = import_optional("pandas")
    # text stays of dtype object: anndata cannot write the strings of pandas 3 on every version
    frame = pd.DataFrame(
        {name.replace("/", "_"): _pandas(column) for name, column in columns.items()},
        index=pd.RangeIndex(len(labels)),
    )
    frame.index = pd.Index(labels, dtype=object, name=index)
    import_optional("anndata.io").write_elem(file, key, frame)


def _pandas(column: Any) -> Any:
    pd, types = import_optional("pandas"), import_optional("pyarrow").types
    kind = column.type
    if types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind):
        if types.is_floating(kind) or not column.null_count:
            return column.to_numpy()
        return pd.array(column.to_pylist(), "boolean" if types.is_boolean(kind) else "Int64")
    values = [None if value is None else str(value) for value in column.to_pylist()]
    known = sorted({value for value in values if value is not None})
    if len(known) == len(values):
        return pd.Series(values, dtype=object)
    # repeated or missing text as categories, as anndata itself does
    return pd.Categorical(values, categories=pd.Index(known, dtype=object))
