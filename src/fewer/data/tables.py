"""Objects in memory: tensors, masked arrays, and tables of any library that narwhals knows."""

from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np
import torch
from narwhals.exceptions import NarwhalsError
from scipy import sparse

from fewer._checks import join_names
from fewer._optional import import_optional
from fewer.data.columns import check_values, choose_columns, repeated_names, warn_of_metadata
from fewer.data.parquet import row_labels
from fewer.data.source import Source, array_source
from fewer.errors import InputError, warn

__all__ = ["as_array", "is_table", "open_table", "without_text"]


def is_table(data: Any) -> bool:
    """Whether this is a table in memory: pandas, polars, Arrow, Modin, cuDF."""
    return bool(nw.dependencies.is_into_dataframe(data))


def open_table(table: Any, ignore: Sequence[str], memory_limit: int) -> Source:
    """A source of the numeric columns of a table."""
    what = _what(table)
    frame = _frame(table)
    values = {
        str(column.name): None if str(column.name) in ignore else _numbers(column)
        for column in frame.iter_columns()
    }
    names = [str(name) for name in frame.columns]
    text = [name for name in names if values[name] is None and name not in ignore]
    schema = getattr(table, "schema", None)
    labels = row_labels(schema) if hasattr(schema, "pandas_metadata") else []
    columns = choose_columns(what, names, text, ignore, labels)
    warn_of_metadata(what, columns)
    matrix = _joined([values[name] for name in columns.features])
    check_values(matrix, columns.features, what)
    source = array_source(matrix, columns.features, memory_limit)
    source.metadata_columns = columns.metadata
    if columns.metadata:
        others = frame.select([name for name in frame.columns if str(name) in columns.metadata])
        source.metadata = lambda: iter([_arrow(others)])
    return source


def without_text(table: Any) -> Any:
    """A table without its columns that are not numbers, which a warning names.

    A table of nothing but text stays as it is, to be refused by whoever reads it.
    """
    frame = _frame(table)
    text = [column.name for column in frame.iter_columns() if _numbers(column) is None]
    if not text or len(text) == len(frame.columns):
        return table
    warn(
        f"{_what(table)}: non-numeric columns were ignored ({len(text)}): "
        f"{join_names([str(label) for label in text])}; drop them, or encode them as numbers"
    )
    return frame.select([label for label in frame.columns if label not in text]).to_native()


def as_array(X: Any) -> Any:
    """Torch tensors become NumPy arrays; tables with text or repeated names are refused.

    Masked entries of a NumPy array become NaN, which is how missing values are marked here.
    Anything else is passed on as it is, for scikit-learn's own validation.
    """
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu()
        if X.layout != torch.strided:
            X = X.to_sparse().coalesce()
            entries = (X.values().numpy(), tuple(X.indices().numpy()))
            return sparse.coo_array(entries, shape=tuple(X.shape)).tocsr()
        return (X.float() if X.dtype == torch.bfloat16 else X).numpy()
    if isinstance(X, np.ma.MaskedArray):
        return np.ma.filled(X.astype(np.result_type(X.dtype, np.float32)), np.nan)
    if is_table(X):
        frame = _frame(X)
        text = [
            str(name)
            for name, dtype in frame.schema.items()
            if not (dtype.is_numeric() or dtype in (nw.Boolean, nw.Object, nw.Unknown))
        ]
        if text:
            raise InputError(
                f"{len(text)} of {len(frame.columns)} columns are not numbers: {join_names(text)}; "
                "drop them or encode them as numbers first"
            )
    return X


def _frame(table: Any) -> Any:
    """The table for narwhals; one with repeated names is refused."""
    names = getattr(table, "column_names", None) or table.columns
    repeated = repeated_names([str(name) for name in names])
    if repeated:
        raise InputError(
            f"{_what(table)}: {len(repeated)} column names occur more than once: "
            f"{join_names(repeated)}; rename them, or give an array without names"
        )
    return nw.from_native(table, eager_only=True)


def _what(table: Any) -> str:
    return f"the {type(table).__module__.split('.')[0]} table"


def _numbers(column: Any) -> Any:
    """A column as an array; None where it does not hold numbers."""
    dtype = column.dtype
    if dtype.is_numeric() or dtype == nw.Boolean:
        whole = dtype.is_float() or (dtype != nw.Decimal and not column.null_count())
        return (column if whole else column.cast(nw.Float64)).to_numpy()
    if dtype not in (nw.Object, nw.Unknown):
        return None
    native = column.to_native()
    if hasattr(native, "sparse"):  # pandas
        return sparse.csc_array(native.sparse.to_dense().to_numpy()[:, None])
    try:
        return column.cast(nw.Float64).to_numpy()
    except (TypeError, ValueError, NarwhalsError):
        return None


def _joined(columns: list[Any]) -> Any:
    if all(sparse.issparse(column) for column in columns):
        return sparse.hstack(columns, format="csr")
    dense = [c.toarray()[:, 0] if sparse.issparse(c) else c for c in columns]
    return np.stack(dense, axis=1)


def _arrow(frame: Any) -> Any:
    import_optional("pyarrow")
    table = frame.to_arrow()
    return table.rename_columns([str(name) for name in table.column_names])
