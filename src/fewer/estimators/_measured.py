"""The k measured values, as users hand them over: arrays, or tables with names in any order."""

from typing import Any

import numpy as np
from sklearn.utils import check_array

from fewer.data import as_array, check_values
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
    values = check_array(measured, dtype=[np.float64, np.float32], ensure_all_finite=False)
    if values.shape[1] != k:
        wanted = columns if names is None else names[columns]
        raise InputError(
            f"measured has {values.shape[1]} columns; give the {k} chosen features, in this "
            f"order: {_some(wanted)}"
        )
    check_values(values, None if names is None else names[columns], "measured")
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
    have = {str(name): name for name in table.columns}
    missing = [name for name in wanted if name not in have]
    if missing:
        raise InputError(
            f"measured lacks {len(missing)} of the {len(wanted)} chosen features: "
            f"{_some(missing)}; add these columns, with NaN where they were not measured"
        )
    return table[[have[name] for name in wanted]]


def _some(items: Any, most: int = 8) -> str:
    shown = ", ".join(str(item) for item in list(items)[:most])
    return shown + (", ..." if len(items) > most else "")
