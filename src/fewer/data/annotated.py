"""Annotated matrices: .h5ad files, zarr folders of the same layout, AnnData objects.

Files are read by h5py (or zarr) alone, after the layout that anndata documents: a matrix is a
dataset, or a group of ``data``, ``indices`` and ``indptr``; ``var`` and ``obs`` are groups of
columns whose attribute ``_index`` names the one with the labels.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fewer._optional import import_optional
from fewer.data.columns import join_names
from fewer.data.hdf5_zarr import damaged, open_array, open_hdf5_file
from fewer.data.source import ColumnView, DenseSource, RowView, Source, SparseSource
from fewer.data.sparse_files import open_sparse_group
from fewer.data.values import check_values
from fewer.errors import InputError

__all__ = ["is_annotated", "open_annotated", "open_annotated_group", "open_h5ad"]


def open_h5ad(path: Path, layer: str | None, raw: bool, obs: Any, memory_limit: int) -> Source:
    """A source of a matrix of an .h5ad file."""
    file = open_hdf5_file(path)
    return open_annotated_group(file, str(path), [path], layer, raw, obs, memory_limit)


def open_annotated_group(
    file: Any,
    what: str,
    watched: list[Path],
    layer: str | None,
    raw: bool,
    obs: Any,
    memory_limit: int,
) -> Source:
    """A source of a matrix of an open file or group with the layout of AnnData."""
    try:
        matrix, var = _matrix(file, what, layer, raw)
        names = _names(_labels(var), what)
        if hasattr(matrix, "dtype"):
            source = open_array(matrix, what, watched, names, memory_limit)
        else:
            source = open_sparse_group(matrix, what, watched, names, memory_limit)
        _bring_obs(source, lambda: _frame(file["obs"]), _frame_names(file["obs"]))
        if obs is None:
            return source
        return _chosen_rows(source, obs, what, lambda name: _column(file["obs"], name, what))
    except (KeyError, OSError, RuntimeError) as error:
        raise damaged(what, error) from error


def is_annotated(data: Any) -> bool:
    """Whether this is an AnnData object."""
    return type(data).__module__.split(".")[0] == "anndata" and hasattr(data, "var_names")


def open_annotated(data: Any, layer: str | None, raw: bool, obs: Any, memory_limit: int) -> Source:
    """A source of an AnnData object, in memory or backed by a file."""
    if data.isbacked:
        return _backed(data, layer, raw, obs, memory_limit)
    what = "the AnnData object"
    held: Any = data
    if raw:
        if data.raw is None:
            raise InputError(f"{what} has no raw; leave out raw=True")
        held = data.raw
    if layer is not None and layer not in data.layers:
        raise InputError(f"{what} has no layer {layer!r}; it has {join_names(list(data.layers))}")
    matrix = held.X if layer is None else data.layers[layer]
    if matrix is None:
        raise InputError(f"{what} has no X; say layer=, one of {join_names(list(data.layers))}")
    names = _names([str(name) for name in held.var_names], what)
    if not sparse.issparse(matrix):
        matrix = np.asarray(matrix)
    check_values(matrix.tocsr() if sparse.issparse(matrix) else matrix, names, what)
    kind = SparseSource if sparse.issparse(matrix) else DenseSource
    source: Source = kind(matrix, names)
    source.memory_limit = memory_limit
    _bring_obs_of(source, data)
    if obs is None:
        return source

    def column(name: str) -> np.ndarray:
        if name not in data.obs:
            raise InputError(
                f"{what} has no obs column {name!r}; it has {join_names(list(data.obs))}"
            )
        return data.obs[name].astype(object).to_numpy()

    return _chosen_rows(source, obs, what, column)


def _backed(data: Any, layer: str | None, raw: bool, obs: Any, memory_limit: int) -> Source:
    """The file behind an object; a view of it is found again by its names."""
    path = Path(data.filename)
    source = open_h5ad(path, layer, raw, obs, memory_limit)
    if obs is None:  # what the object says of its rows may be newer than the file
        _bring_obs_of(source, data)
    if not data.is_view:
        return source
    if obs is not None:
        raise InputError("obs= does not go with a view of a backed AnnData; give the whole object")
    with open_hdf5_file(path) as file:
        rows = _places(_labels(file["obs"]), data.obs_names, "obs_names")
    beside, source = source.aside, RowView(source, rows)
    source.aside = beside  # of the view already
    if raw:  # raw keeps all of its features in a view
        return source
    return ColumnView(source, _places(source.names or [], data.var_names, "var_names"))


def _places(stored: list[str], wanted: Any, what: str) -> NDArray[np.int64]:
    at = {name: j for j, name in enumerate(stored)}
    if len(at) < len(stored):
        raise InputError(f"{what} are not unique, so a view cannot be found in the file again")
    return np.array([at[str(name)] for name in wanted], dtype=np.int64)


def _matrix(file: Any, what: str, layer: str | None, raw: bool) -> tuple[Any, Any]:
    if raw and layer is not None:
        raise InputError(f"raw=True does not go with layer={layer!r}: raw has no layers")
    if raw:
        if "raw" not in file:
            raise InputError(f"{what} has no raw; leave out raw=True")
        return file["raw"]["X"], file["raw"]["var"]
    layers = list(file["layers"]) if "layers" in file else []
    if layer is not None:
        if layer not in layers:
            raise InputError(
                f"{what} has no layer {layer!r}; it has {join_names(layers) or 'none'}"
            )
        return file["layers"][layer], file["var"]
    if "X" not in file:
        raise InputError(f"{what} has no X; say layer=, one of {join_names(layers) or 'none'}")
    return file["X"], file["var"]


def _names(names: list[str], what: str) -> list[str]:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InputError(
            f"{what}: {len(repeated)} var_names occur more than once: {join_names(repeated)}; "
            "call var_names_make_unique() and save it again"
        )
    return names


def _labels(frame: Any) -> list[str]:
    """The index of obs or var."""
    if hasattr(frame, "dtype"):  # until 2019 these were arrays of records
        return _strings(frame["index" if "index" in frame.dtype.names else frame.dtype.names[0]])
    return _strings(_values(frame[frame.attrs["_index"]]))


def _column(frame: Any, name: str, what: str) -> np.ndarray:
    if hasattr(frame, "dtype"):
        held = list(frame.dtype.names)
    else:
        held = [key for key in frame if not key.startswith("__")]
    if name not in held:
        raise InputError(f"{what} has no obs column {name!r}; it has {join_names(held)}")
    values = _values(frame[name])
    if "__categories" in frame and name in frame["__categories"]:  # until 2021
        return _decoded(values, frame["__categories"][name][...])
    return values


def _values(item: Any) -> np.ndarray:
    if hasattr(item, "dtype"):
        return np.asarray(item[...])
    if "categories" in item:
        return _decoded(item["codes"][...], _values(item["categories"]))
    return np.asarray(item["values"][...])  # beside a mask of what is missing


def _decoded(codes: Any, categories: Any) -> np.ndarray:
    codes = np.asarray(codes)
    names = np.array([*_strings(categories), "NaN"], dtype=object)
    return names[np.where(codes < 0, len(names) - 1, codes)]


def _strings(values: Any) -> list[str]:
    return [v.decode() if isinstance(v, bytes) else str(v) for v in np.asarray(values).tolist()]


def _chosen_rows(source: Source, obs: Any, what: str, column: Any) -> Source:
    """Rows by a mapping from columns of obs to wanted values, by a mask, or by numbers."""
    n = source.shape[0]
    if not isinstance(obs, Mapping):
        index = np.asarray(obs)
        if index.dtype == bool and len(index) != n:
            raise InputError(f"obs is a mask of {len(index)} for {n} rows of {what}")
        if index.ndim != 1 or index.dtype.kind not in "biu":
            raise InputError(
                "obs must be a mapping such as {'cell_type': ['B', 'T']}, a mask, or row numbers"
            )
        rows = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
    else:
        keep = np.ones(n, dtype=bool)
        for name, wanted in obs.items():
            have = np.array(_strings(column(name)), dtype=object)
            single = isinstance(wanted, (str, int, float, bool))
            allowed = {str(value) for value in ([wanted] if single else wanted)}
            unknown = sorted(allowed - set(have))
            if unknown:
                raise InputError(
                    f"{what}: no row has {name} {join_names(unknown)}; there are "
                    f"{join_names(sorted(set(have)))}"
                )
            keep &= np.isin(have, list(allowed))
        rows = np.flatnonzero(keep)
    if len(rows) == 0:
        raise InputError(f"{what}: obs={obs!r} leaves no rows")
    if rows.min() < 0 or rows.max() >= n:
        raise InputError(f"obs has row numbers outside 0 to {n - 1}")
    return _some_rows(source, rows)


# -- what obs says of the rows ---------------------------------------------------------------


def _bring_obs(source: Source, frame: Callable[[], dict[str, Any]], names: list[str]) -> None:
    """Let obs come along beside the rows, its index first, as text columns of a table do."""

    def tables() -> Iterator[Any]:
        pa = import_optional("pyarrow")
        yield pa.table({name: _arrow(column) for name, column in frame().items()})

    source.aside, source.left_out = tables, tuple(names)


def _bring_obs_of(source: Source, data: Any) -> None:
    names = _obs_names(data.obs.index.name, list(data.obs))
    _bring_obs(source, lambda: _pandas_frame(data.obs), names)


def _arrow(column: Any) -> Any:
    pa = import_optional("pyarrow")
    try:
        return pa.array(column)
    except (TypeError, ValueError):  # values of several kinds
        return pa.array([None if value is None else str(value) for value in column])


def _some_rows(source: Source, rows: NDArray[np.int64]) -> Source:
    whole, part = source.aside, RowView(source, rows)
    if whole is not None:
        part.aside = lambda: (table.take(rows) for table in whole())
    return part


def _obs_names(label: Any, columns: list[Any]) -> list[str]:
    """What the columns of obs are called in a table; an index without a name is obs_names."""
    unnamed = label in (None, "_index", "index") or str(label) in map(str, columns)
    return ["obs_names" if unnamed else str(label), *map(str, columns)]


def _pandas_frame(obs: Any) -> dict[str, Any]:
    names = _obs_names(obs.index.name, list(obs))
    found = {names[0]: np.array([str(label) for label in obs.index], dtype=object)}
    for name, column in zip(names[1:], obs, strict=True):
        known = obs[column].astype(object)
        found[name] = known.where(known.notna(), None).to_numpy()
    return found


def _frame_columns(frame: Any) -> tuple[str, list[str]]:
    """The names of the index and of the columns of a stored obs or var."""
    if hasattr(frame, "dtype"):
        fields = list(frame.dtype.names)
        index = "index" if "index" in fields else fields[0]
    else:
        fields = [key for key in frame if not key.startswith("__")]
        index = str(frame.attrs["_index"])
        order = [str(name) for name in frame.attrs.get("column-order", ())]
        fields = sorted(fields, key=lambda key: order.index(key) if key in order else len(order))
    return index, [name for name in fields if name != index]


def _frame_names(frame: Any) -> list[str]:
    return _obs_names(*_frame_columns(frame))


def _frame(frame: Any) -> dict[str, Any]:
    columns = _frame_columns(frame)[1]
    values = [_labels(frame), *(_known(frame, name) for name in columns)]
    return dict(zip(_frame_names(frame), values, strict=True))


def _known(frame: Any, name: str) -> Any:
    """A column of a stored frame; None where there is no value."""
    item = frame[name]
    if not hasattr(item, "dtype"):
        coded = "categories" in item
        gaps = item["codes"][...] < 0 if coded else item["mask"][...]
        found = _values(item).astype(object)
        found[np.asarray(gaps, dtype=bool)] = None
    elif "__categories" in frame and name in frame["__categories"]:
        found = _decoded(item[...], frame["__categories"][name][...])
        found[np.asarray(item[...]) < 0] = None
    else:
        found = np.asarray(item[...])
    if found.dtype.kind not in "OS":
        return found
    return [value.decode() if isinstance(value, bytes) else value for value in found.tolist()]
