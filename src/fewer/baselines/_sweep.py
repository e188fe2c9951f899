"""Choose an option on rows that the fit does not see."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from fewer.data.tables import as_array
from fewer.errors import InputError

__all__ = ["Sweep", "sweep"]


@dataclass(frozen=True, eq=False)
class Sweep:
    """What `sweep` returns.

    Attributes
    ----------
    best_params_ : dict
        The options with the lowest error on the validation rows; of equal ones, the first.
    best_error_ : float
        That error.
    best_estimator_ : estimator
        Fitted with those options on the training rows.
    errors_ : list of tuples (options, error)
        All that were tried, in order.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fewer.baselines import PFA
    >>> X = load_digits().data
    >>> found = sweep(PFA(k=5, random_state=0), {"n_components": (2, 5)}, X[:500], X[500:700])
    >>> len(found.errors_), list(found.best_params_)
    (2, ['n_components'])
    """

    best_params_: dict[str, Any]
    best_error_: float
    best_estimator_: Any
    errors_: list[tuple[dict[str, Any], float]]


def sweep(estimator: Any, grid: Mapping[str, Iterable[Any]], train: Any, validation: Any) -> Sweep:
    """Fit an estimator with every combination of options; keep the lowest held-out error.

    The error is the mean squared residual over all observed entries of the validation rows, each
    reconstructed from its chosen features by the decoder that was fitted on the training rows.

    Parameters
    ----------
    estimator : selector or bound of `fewer.baselines`, or of `fewer`
        Left as it is; copies of it are fitted.
    grid : mapping from option to values
        All combinations are tried.
    train, validation : arrays, sparse matrices or tables of shape (n, n_features)
        Rows to fit on, and other rows to compare on.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fewer.baselines import UDFS
    >>> X = load_digits().data / 16
    >>> found = sweep(UDFS(k=10), {"gamma": (1e-3, 1.0)}, X[:600], X[600:800])
    >>> found.best_error_ == min(error for _, error in found.errors_)
    True
    >>> found.best_estimator_.set_params(**found.best_params_).fit(X[:800]).columns_.shape
    (10,)
    """
    if not grid or any(not tuple(values) for values in grid.values()):
        raise InputError(f"grid={dict(grid)!r} is empty; give at least one value for each option")
    held = _dense(validation)
    if np.shape(train) == held.shape and np.array_equal(_dense(train), held, equal_nan=True):
        raise InputError(
            "train and validation are the same rows, so every option would look better than it "
            "is; hold some rows out"
        )
    seen = ~np.isnan(held)
    tried: list[tuple[dict[str, Any], float]] = []
    best: Any = None
    for options in ParameterGrid({name: tuple(values) for name, values in grid.items()}):
        model = clone(estimator).set_params(**options).fit(train)
        error = float(np.square((model.reconstruct(validation) - held)[seen]).mean())
        if best is None or error < min(before for _, before in tried):
            best = model
        tried.append((dict(options), error))
    params, error = min(tried, key=lambda row: row[1])
    return Sweep(params, error, best, tried)


def _dense(X: Any) -> np.ndarray:
    X = as_array(X)
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)
