"""The k measured values, as users hand them over: arrays, tables, files, names in any order."""

import warnings
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from fewer.data import ColumnView, Source, as_array, check_values, is_source_like, read_all
from fewer.data import open as open_any
from fewer.errors import InputError, translate_sklearn_errors

__all__ = ["like_table", "open_measured", "read_measured"]


def read_measured(measured: Any, columns: np.ndarray, names: np.ndarray | None) -> np.ndarray:
    """An n x k float array in column order.

    Parameters
    ----------
    measured : array, sparse matrix, table, path or source
        n x k values in column order, or a table that holds the chosen columns by name; by
        number, where the model has no names and the table's labels are whole numbers.
    columns : array of int
        The chosen column numbers, ascending.
    names : array of str or None
        Names of all features, where the model has them.
    """
    k = len(columns)
    if is_source_like(measured):
        return read_all(open_measured(measured, columns, names))
    # only the wanted columns need to be numbers: tables have columns with identifiers too
    if hasattr(measured, "columns") and names is not None:
        measured = _by_name(measured, [str(name) for name in names[columns]])
    elif hasattr(measured, "columns"):
        measured = _by_number(measured, columns.tolist())
    with translate_sklearn_errors():
        values = check_array(
            as_array(measured),
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
        )
    if values.shape[1] != k:
        wanted = columns if names is None else names[columns]
        raise InputError(
            f"measured has {values.shape[1]} columns; give the {k} chosen features, in this "
            f"order: {_some(wanted)}"
        )
    if sparse.issparse(values):
        values = values.toarray()
    check_values(values, None if names is None else names[columns], "measured")
    return values


def open_measured(measured: Any, columns: np.ndarray, names: np.ndarray | None) -> Source:
    """A source of the k chosen features, in column order, from a path, a store or a source."""
    with warnings.catch_warnings():
        # other columns are welcome here, whatever they hold
        warnings.filterwarnings("ignore", ".*non-numeric columns were left out")
        source = open_any(measured)
    wanted = [str(label) for label in (columns if names is None else names[columns])]
    have = source.names
    by_name = have is not None and (names is not None or any(name in have for name in wanted))
    if not by_name and source.shape[1] == len(wanted):
        return source
    if not by_name or have is None:
        raise InputError(
            f"measured has {source.shape[1]} columns; give the {len(wanted)} chosen features, in "
            f"this order: {_some(wanted)}"
        )
    text = [name for name in wanted if name in source.left_out]
    if text:
        raise InputError(f"measured: the chosen features {_some(text)} do not hold numbers")
    at = {name: j for j, name in enumerate(have)}
    missing = [name for name in wanted if name not in at]
    if missing:
        raise _lacking(missing, len(wanted))
    return ColumnView(source, np.array([at[name] for name in wanted]))


def like_table(values: np.ndarray, names: np.ndarray | None, measured: Any) -> Any:
    """Hand the result back as the kind of table that came in: pandas, polars or an array."""
    if names is None or not hasattr(measured, "columns") or is_source_like(measured):
        return values
    library = type(measured).__module__.split(".")[0]
    if library == "pandas":
        return type(measured)(values, index=measured.index, columns=names)
    if library == "polars":
        return type(measured)(values, schema=[str(name) for name in names])
    return values


def _by_name(table: Any, wanted: list[str]) -> Any:
    have = {str(name): name for name in table.columns}
    missing = [name for name in wanted if name not in have]
    if missing:
        raise _lacking(missing, len(wanted))
    return table[[have[name] for name in wanted]]


def _lacking(missing: list[str], k: int) -> InputError:
    return InputError(
        f"measured lacks {len(missing)} of the {k} chosen features: {_some(missing)}; add these "
        "columns, with NaN where they were not measured"
    )


def _by_number(table: Any, wanted: list[int]) -> Any:
    """Columns of a table whose labels are column numbers; any other table as it is."""
    labels = [label for label in table.columns if _is_whole(label)]
    if not labels or list(table.columns) == list(range(len(wanted))):
        return table  # n x k without labels of its own: in column order, like an array
    missing = [number for number in wanted if number not in labels]
    if missing:
        raise InputError(
            f"measured has the column labels {_some(labels)}, which lack {_some(missing)} of the "
            f"{len(wanted)} chosen column numbers; label the columns by their numbers when "
            f"fitting, or give an array in this order: {_some(wanted)}"
        )
    return table[wanted]


def _is_whole(label: Any) -> bool:
    return isinstance(label, (int, np.integer)) and not isinstance(label, bool)


def _some(items: Any, most: int = 8) -> str:
    shown = ", ".join(str(item) for item in list(items)[:most])
    return shown + (", ..." if len(items) > most else "")
