"""Arrays and tables in memory: what can be used, and what must be refused."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse

from fewer.data.source import DenseSource, Source, SparseSource
from fewer.errors import InputError

__all__ = ["as_array", "check_values", "is_text", "open_source"]


def as_array(X: Any) -> Any:
    """Torch tensors become NumPy arrays; tables with text or repeated names are refused.

    Masked entries of a NumPy array become NaN, which is how missing values are marked here.

    Anything else is passed on as it is, for scikit-learn's own validation.

    Examples
    --------
    >>> import torch
    >>> as_array(torch.ones(1, 2))
    array([[1., 1.]], dtype=float32)
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
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        names = [str(name) for name in X.columns]
        repeated = sorted({name for name, times in Counter(names).items() if times > 1})
        if repeated:
            raise InputError(
                f"{len(repeated)} column names occur more than once: {_some(repeated)}; "
                "rename them, or give an array without names"
            )
        text = [str(name) for name, dtype in _column_types(X) if is_text(dtype)]
        if text:
            raise InputError(
                f"{len(text)} of {len(X.columns)} columns are not numbers: {_some(text)}; "
                "drop them or encode them as numbers first"
            )
    return X


def check_values(
    X: Any, names: Sequence[Any] | np.ndarray | None = None, what: str = "X", first_row: int = 0
) -> None:
    """Refuse infinite values, saying where the first one is.

    Examples
    --------
    >>> import numpy as np
    >>> check_values(np.array([[1.0, 2.0], [3.0, np.inf]]))
    Traceback (most recent call last):
    fewer.errors.InputError: X contains infinity: row 1, column 1 is inf; ...
    """
    values = X.data if sparse.issparse(X) else X
    if values.dtype.kind != "f" or values.size == 0:
        return
    # the sum is finite unless something is not; NaN alone gives NaN, so look again then
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()) or not np.isinf(values).any():
            return
    if sparse.issparse(X):
        entries = X.tocoo()
        at = int(np.argmax(np.isinf(entries.data)))
        row, column = (int(axis[at]) for axis in entries.coords)
        value = entries.data[at]
    else:
        row, column = (int(i) for i in np.argwhere(np.isinf(X))[0])
        value = X[row, column]
    name = f"column {column}" if names is None else f"column {str(names[column])!r}"
    raise InputError(
        f"{what} contains infinity: row {first_row + row}, {name} is {value}; "
        "replace it, or set it to NaN to mark it as missing"
    )


def open_source(X: Any) -> Source:
    """Make a source of a validated array or sparse matrix; a source stays as it is.

    Examples
    --------
    >>> import numpy as np
    >>> open_source(np.zeros((3, 2))).shape
    (3, 2)
    """
    if isinstance(X, Source):
        return X
    return SparseSource(X) if sparse.issparse(X) else DenseSource(X)


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")


def _column_types(table: Any) -> list[tuple[Any, Any]]:
    return list(zip(table.columns, table.dtypes, strict=True))


def is_text(dtype: Any) -> bool:
    kind = str(dtype).lower()
    return kind.startswith(
        ("str", "string", "utf8", "categor", "enum", "date", "time", "duration", "large_string")
    )
