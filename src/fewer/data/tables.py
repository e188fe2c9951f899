"""Tables in memory with named columns: pandas, polars and Arrow."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from fewer._optional import import_optional
from fewer.data.arrow import arrow_columns, arrow_values
from fewer.data.columns import choose_columns, join_names, tell_left_out
from fewer.data.source import DenseSource, Source, SparseSource
from fewer.data.values import check_values, is_text
from fewer.errors import warn

__all__ = ["is_table", "open_table", "without_text"]


def is_table(data: Any) -> bool:
    """Whether this is a pandas, polars or Arrow table.

    Examples
    --------
    >>> import pandas as pd
    >>> is_table(pd.DataFrame({"a": [1]})), is_table([[1]])
    (True, False)
    """
    library = type(data).__module__.split(".")[0]
    named = hasattr(data, "columns") and hasattr(data, "dtypes")
    return (library == "pyarrow" and hasattr(data, "schema")) or named


def open_table(table: Any, leave_out: Sequence[str], memory_limit: int) -> Source:
    """A source of the columns of a pandas, polars or Arrow table that are numbers."""
    library = type(table).__module__.split(".")[0]
    what = f"the {library} table"
    if library == "pyarrow":
        columns = arrow_columns(what, table.schema, leave_out)
        values = arrow_values(table.select(columns.features))
    else:
        names = [str(name) for name in table.columns]
        numbers = {
            name: _numbers(table[label], library)
            for name, label in zip(names, table.columns, strict=True)
            if names.count(name) == 1 and name not in leave_out
        }
        text = [name for name, found in numbers.items() if found is None]
        columns = choose_columns(what, names, text, leave_out)
        values = _joined([numbers[name] for name in columns.features])
    tell_left_out(what, columns)
    check_values(values, np.array(columns.features, dtype=object), what)
    kind = SparseSource if sparse.issparse(values) else DenseSource
    source: Source = kind(values, columns.features)
    source.left_out, source.memory_limit = columns.left_out, memory_limit
    if columns.left_out:
        source.aside = lambda: iter([_left_out(table, columns.left_out, library)])
    return source


def without_text(table: Any) -> Any:
    """A pandas or polars table without its columns that are not numbers, which a warning names.

    A table of nothing but text stays as it is, to be refused by whoever reads it.

    Examples
    --------
    >>> import pandas as pd, warnings
    >>> with warnings.catch_warnings(action="ignore"):
    ...     list(without_text(pd.DataFrame({"who": ["x", "y"], "a": [1.0, 2.0]})))
    ['a']
    """
    library = type(table).__module__.split(".")[0]
    labels = list(table.columns)
    if len({str(label) for label in labels}) < len(labels):
        return table  # refused for its names
    text = [label for label in labels if _numbers(table[label], library) is None]
    if not text or len(text) == len(labels):
        return table
    warn(
        f"the {library} table: non-numeric columns were left out ({len(text)}): "
        f"{join_names([str(label) for label in text])}; drop them, or encode them as numbers"
    )
    return table[[label for label in labels if label not in text]]


def _left_out(table: Any, names: Sequence[str], library: str) -> Any:
    if library == "polars":
        return table.select(names).to_arrow()
    if library == "pandas":
        labels = {str(label): label for label in table.columns}
        pa = import_optional("pyarrow")
        return pa.table({name: pa.array(table[labels[name]]) for name in names})
    return table.select(list(names))


def _numbers(column: Any, library: str) -> Any:
    """A column as an array; None where it does not hold numbers."""
    if is_text(column.dtype):
        return None
    try:
        if library == "pandas" and hasattr(column, "sparse"):
            return sparse.csc_array(column.sparse.to_dense().to_numpy()[:, None])
        if library == "pandas" and not isinstance(column.dtype, np.dtype):
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        found = column.to_numpy()
        return found.astype(np.float64) if found.dtype.kind == "O" else found
    except (TypeError, ValueError):
        return None


def _joined(columns: list[Any]) -> Any:
    if all(sparse.issparse(column) for column in columns):
        return sparse.hstack(columns, format="csr")
    dense = [c.toarray()[:, 0] if sparse.issparse(c) else c for c in columns]
    return np.stack(dense, axis=1)
