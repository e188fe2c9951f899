"""Rows on their way into an .h5ad file: X, the names of the features, and what is known of rows.

Written by h5py alone, after the layout that anndata documents.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fewer._optional import import_optional

__all__ = ["H5adWriter", "write_h5ad"]

CHUNK_BYTES = 2**20


def write_h5ad(path: Path, rows: int, names: Sequence[str], stack: ExitStack) -> "H5adWriter":
    """Begin an .h5ad file that is closed with the stack."""
    file = stack.enter_context(import_optional("h5py").File(path, "w"))
    return H5adWriter(file, rows, names)


class H5adWriter:
    """Takes rows in order; columns that come beside them become ``obs``.

    The rows are labelled by the first of these columns that holds text without repeats or gaps,
    such as the ``obs_names`` of another AnnData, or the identifiers of a table; where there is
    none, by their numbers.
    """

    def __init__(self, file: Any, rows: int, names: Sequence[str]) -> None:
        self.file, self.rows, self.at = file, rows, 0
        self.beside: list[Any] = []
        _encoded(file, "anndata", "0.1.0")
        _write_frame(file.create_group("var"), "_index", list(names), {})
        width = len(names)
        tall = max(1, min(rows, CHUNK_BYTES // (8 * max(1, width))))
        chunks = (tall, width) if rows and width else None
        self.matrix = file.create_dataset("X", shape=(rows, width), dtype=np.float64, chunks=chunks)
        _encoded(self.matrix, "array", "0.2.0")

    def __call__(self, values: np.ndarray, aside: Any = None) -> None:
        """Write some rows."""
        self.matrix[self.at : self.at + len(values)] = values
        self.at += len(values)
        if aside is not None:
            self.beside.append(aside)

    def finish(self) -> None:
        """Write what is known of the rows."""
        columns: dict[str, Any] = {}
        if self.beside:
            whole = import_optional("pyarrow").concat_tables(self.beside)
            columns = {name: whole.column(name) for name in whole.column_names}
        label = next((name for name, column in columns.items() if _labels_rows(column)), None)
        frame = self.file.create_group("obs")
        if label is None:
            _write_frame(frame, "_index", [str(row) for row in range(self.rows)], columns)
        else:
            labels = columns.pop(label).to_pylist()
            free = label == "obs_names"  # as data/annotated.py calls an index without a name
            _write_frame(frame, "_index" if free else label, labels, columns)


def _labels_rows(column: Any) -> bool:
    if not _is_text(column.type) or column.null_count:
        return False
    return len(column.unique()) == len(column)


def _is_text(kind: Any) -> bool:
    types = import_optional("pyarrow").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind)


def _write_frame(frame: Any, index: str, labels: list[str], columns: dict[str, Any]) -> None:
    _encoded(frame, "dataframe", "0.2.0")
    kept = {name.replace("/", "_"): column for name, column in columns.items() if name != index}
    frame.attrs["_index"] = index
    # an empty list of names must be an array of numbers: HDF5 has no empty text
    frame.attrs["column-order"] = np.array(list(kept), dtype=object) if kept else np.array([])
    _write_strings(frame, index, labels)
    for name, column in kept.items():
        _write_column(frame, name, column)


def _write_column(frame: Any, name: str, column: Any) -> None:
    types = import_optional("pyarrow").types
    kind = column.type
    if types.is_floating(kind):
        _encoded_array(frame, name, np.asarray(column.to_numpy(), dtype=np.float64))
    elif types.is_integer(kind) or types.is_boolean(kind):
        _write_whole(frame, name, column, np.bool_ if types.is_boolean(kind) else np.int64)
    else:
        values = [None if value is None else str(value) for value in column.to_pylist()]
        _write_text(frame, name, values)


def _write_whole(frame: Any, name: str, column: Any, dtype: Any) -> None:
    """Whole numbers or booleans; beside a mask of what is missing, where something is."""
    if not column.null_count:
        _encoded_array(frame, name, np.asarray(column.to_pylist(), dtype=dtype))
        return
    group = frame.create_group(name)
    _encoded(group, "nullable-boolean" if dtype is np.bool_ else "nullable-integer", "0.1.0")
    known = column.to_pylist()
    _encoded_array(group, "values", np.array([value or 0 for value in known], dtype=dtype))
    _encoded_array(group, "mask", np.array([value is None for value in known]))


def _write_text(frame: Any, name: str, values: list[str | None]) -> None:
    """Text; as categories where it repeats, as anndata itself does, or where some is missing."""
    known = sorted({value for value in values if value is not None})
    if len(known) == len(values):
        _write_strings(frame, name, [str(value) for value in values])
        return
    group = frame.create_group(name)
    _encoded(group, "categorical", "0.2.0")
    group.attrs["ordered"] = False
    _write_strings(group, "categories", known)
    place = {value: code for code, value in enumerate(known)}
    codes = [-1 if value is None else place[value] for value in values]
    small = np.int8 if len(known) < 2**7 else np.int16 if len(known) < 2**15 else np.int32
    _encoded_array(group, "codes", np.array(codes, dtype=small))


def _write_strings(group: Any, name: str, values: list[str]) -> None:
    text = import_optional("h5py").string_dtype()
    group.create_dataset(name, data=np.array(values, dtype=object), dtype=text)
    _encoded(group[name], "string-array", "0.2.0")


def _encoded_array(group: Any, name: str, values: np.ndarray) -> None:
    group.create_dataset(name, data=values)
    _encoded(group[name], "array", "0.2.0")


def _encoded(item: Any, kind: str, version: str) -> None:
    item.attrs.update({"encoding-type": kind, "encoding-version": version})
