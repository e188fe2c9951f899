"""The k measured values, as users hand them over: arrays, or tables with names in any order."""

from typing import Any

import numpy as np
from sklearn.utils import check_array

from fewer.data import as_array
from fewer.errors import InputError

__all__ = ["like_table", "read_measured"]


def read_measured(measured: Any, columns: np.ndarray, names: np.ndarray | None) -> np.ndarray:
    """An n x k float array in column order.

    Parameters
    ----------
    measured : array or table
        n x k values in column order, or a table that holds the chosen columns by name.
    columns : array of int
        The chosen column numbers, ascending.
    names : array of str or None
        Names of all features, where the model has them.
    """
    k = len(columns)
    measured = as_array(measured)
    if hasattr(measured, "columns") and names is not None:
        measured = _by_name(measured, [str(name) for name in names[columns]])
    values = check_array(
        measured,
        dtype=[np.float64, np.float32],
        ensure_all_finite="allow-nan",
        input_name="measured",
    )
    if np.isinf(values).any():
        row, column = (int(i) for i in np.argwhere(np.isinf(values))[0])
        raise InputError(
            f"measured contains infinity: row {row}, column {column}; "
            "set it to NaN if it was not measured"
        )
    if values.shape[1] != k:
        wanted = columns if names is None else names[columns]
        raise InputError(
            f"measured has {values.shape[1]} columns; give the {k} chosen features, in this "
            f"order: {_some(wanted)}"
        )
    return values


def like_table(values: np.ndarray, names: np.ndarray | None, measured: Any) -> Any:
    """Hand the result back as the kind of table that came in: pandas, polars or an array."""
    if names is None or not hasattr(measured, "columns"):
        return values
    library = type(measured).__module__.split(".")[0]
    if library == "pandas":
        return type(measured)(values, index=measured.index, columns=names)
    if library == "polars":
        return type(measured)(values, schema=[str(name) for name in names])
    return values


def _by_name(table: Any, wanted: list[str]) -> Any:
    have = [str(name) for name in table.columns]
    if have == wanted:  # also right where names repeat
        return table
    missing = [name for name in wanted if name not in have]
    if missing:
        raise InputError(
            f"measured lacks {len(missing)} of the {len(wanted)} chosen features: "
            f"{_some(missing)}; add these columns, with NaN where they were not measured"
        )
    if len(set(wanted)) < len(wanted) or any(have.count(name) > 1 for name in wanted):
        raise InputError(
            "some of the chosen features share a name, so they cannot be found by name; "
            "give the chosen columns alone, in column order"
        )
    return table[[column for name in wanted for column in table.columns if str(column) == name]]


def _some(items: Any, most: int = 8) -> str:
    shown = ", ".join(str(item) for item in list(items)[:most])
    return shown + (", ..." if len(items) > most else "")
