"""Between Arrow's columns and rows of numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fewer._optional import import_optional
from fewer.data.columns import Columns, choose_columns

__all__ = ["arrow_columns", "arrow_dtype", "arrow_values"]


def arrow_columns(what: str, schema: Any, leave_out: Sequence[str] = ()) -> Columns:
    """Split the columns of an Arrow schema into features and others.

    Examples
    --------
    >>> import pyarrow as pa
    >>> arrow_columns("t", pa.schema({"id": pa.string(), "a": pa.float32()})).features
    ['a']
    """
    text = [field.name for field in schema if arrow_dtype(field.type) is None]
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    labels = [name for name in stored if isinstance(name, str) and name in schema.names]
    return choose_columns(what, schema.names, text, leave_out, labels)


def arrow_dtype(kind: Any) -> np.dtype | None:
    """The NumPy type of an Arrow type of numbers; None for any other.

    Examples
    --------
    >>> import pyarrow as pa
    >>> arrow_dtype(pa.int16()), arrow_dtype(pa.string()), arrow_dtype(pa.decimal128(5, 2))
    (dtype('int16'), None, dtype('float64'))
    """
    types = import_optional("pyarrow.types")
    if types.is_boolean(kind):
        return np.dtype(np.uint8)
    if types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    if types.is_decimal(kind) or types.is_null(kind):
        return np.dtype(np.float64)
    return None


def arrow_values(table: Any) -> np.ndarray:
    """All columns of a table of numbers as one array; nulls become NaN.

    Examples
    --------
    >>> import pyarrow as pa
    >>> arrow_values(pa.table({"a": [1, None], "b": [2.5, 3.5]}))
    array([[1. , 2.5],
           [nan, 3.5]])
    """
    plain = {kind: _is_plain(kind) for kind in set(table.schema.types)}
    columns = []
    for kind, column in zip(table.schema.types, table.columns, strict=True):
        simple = plain[kind] and not column.null_count  # most are, and most of the time is here
        found = column if simple else _as_float(column)
        chunked = hasattr(found, "num_chunks")
        columns.append(found.to_numpy() if chunked else found.to_numpy(zero_copy_only=False))
    dtype = np.result_type(*{column.dtype for column in columns})
    out = np.empty((table.num_rows, len(columns)), dtype=dtype)
    for j, column in enumerate(columns):
        out[:, j] = column
    return out


def _is_plain(kind: Any) -> bool:
    types = import_optional("pyarrow.types")
    return types.is_integer(kind) or types.is_floating(kind)


def _as_float(column: Any) -> Any:
    """A column with nulls, or of a type that NumPy has not."""
    pa = import_optional("pyarrow")
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if _is_plain(column.type) and not (column.null_count and pa.types.is_integer(column.type)):
        return column
    return column.cast(pa.float64(), safe=False)
