"""What is said about each feature: the variance of its measurement error, and its weight."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from glob import has_magic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer.constraints import find_column
from fewer.data.columns import match_columns
from fewer.data.moments import moments
from fewer.data.open import as_source
from fewer.data.source import ColumnView, Source, read_all
from fewer.errors import InputError
from fewer.validation import LEAST_SIGNAL

__all__ = ["per_feature", "read_noise", "read_weights", "taken"]

LEAST_WEIGHT = 1e-6  # of the largest: features that count for nothing may still be measured

Vector = NDArray[np.float64]


def per_feature(given: Any, source: Source, option: str, default: float) -> Vector:
    """A number of at least 0 for each feature, from one for all, an array or a mapping.

    A mapping has names, column numbers or patterns such as "MT-*"; later entries win.
    """
    names, d = source.names, source.shape[1]
    if hasattr(given, "items") and hasattr(given, "index"):
        given = dict(given.items())  # a pandas Series
    if isinstance(given, Mapping):
        found = np.full(d, default)
        for key, value in given.items():
            pattern = isinstance(key, str) and has_magic(key) and key not in set(names or ())
            if not pattern:
                found[find_column(names, d, key, option)] = _number(value, option, key)
                continue
            at = [j for j, name in enumerate(names or ()) if fnmatchcase(str(name), key)]
            if not at:
                raise InputError(f"{option}: no feature matches {key!r}")
            found[at] = _number(value, option, key)
        return found
    if np.ndim(given) == 0:
        return np.full(d, _number(given, option, "all features"))
    try:
        found = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{option} must be numbers, one for each of {d} features") from None
    if found.shape != (d,):
        raise InputError(f"{option} has shape {found.shape}; give {d} numbers, one per feature")
    bad = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(bad):
        raise InputError(f"{option} of feature {bad[0]} is {found[bad[0]]}; give at least 0")
    return found


def _number(value: Any, option: str, key: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = np.nan
    if not 0 <= found < np.inf:
        raise InputError(f"{option} of {key!r} is {value!r}; give a finite number of at least 0")
    return found


def read_weights(
    weights: Any, source: Source, options: Mapping[str, Any], *, linear: bool
) -> Vector | None:
    """How much the error of each feature counts, on average 1; see `fewer.select`."""
    if weights is None:
        return None
    if not linear and options["target"] is None:
        raise InputError("weights are for linear decoders; use decoder='linear'")
    _refuse_others("weights", options)
    found = per_feature(weights, source, "weights", 1.0)
    if not found.any():
        raise InputError("weights are 0 for every feature; give those that count a weight")
    found = np.maximum(found, LEAST_WEIGHT * found.max())
    return found / found.mean()


def _refuse_others(name: str, options: Mapping[str, Any]) -> None:
    if options["robust_to"] or options["loss"] != "mse":
        other = "robust_to" if options["robust_to"] else f"loss={options['loss']!r}"
        raise InputError(f"{other} cannot be combined with {name}; drop one of them")


def read_noise(
    noise: Any, source: Source, options: Mapping[str, Any], *, linear: bool
) -> Vector | None:
    """Variance of the measurement error of each feature; see `fewer.select`."""
    if noise is None:
        return None
    if not linear and options["target"] is None:
        raise InputError("noise is for linear decoders; use decoder='linear'")
    _refuse_others("noise", options)
    stats = moments(source)
    if isinstance(noise, Source) or np.ndim(noise) == 2 or isinstance(noise, (str, bytes)):
        found = _from_replicates(source, noise)
    else:
        found = per_feature(noise, source, "noise", 0.0)
    if stats.has_missing:
        raise InputError("noise needs complete rows; fill in or drop missing values first")
    more = found > stats.variance
    if more.all():
        raise InputError(
            "noise is above the variance of every feature, so there is nothing to find behind it; "
            "noise= takes variances, in the squared units of the data"
        )
    return np.minimum(found, (1 - LEAST_SIGNAL) * stats.variance)


def _from_replicates(source: Source, noise: Any) -> Vector:
    """Half the variance of the differences between two measurements of the same rows."""
    other = match_columns(as_source(noise), source.names, source.shape[1], "noise")
    if other.shape != source.shape:
        raise InputError(
            f"noise has shape {other.shape} and the data {source.shape}; give a second measurement "
            "of the same rows, or the variance of the error of each feature"
        )
    found: Vector = np.var(read_all(source) - read_all(other), axis=0) / 2
    return found


def taken(values: Vector | None, part: Source) -> Vector | None:
    """The values of the features that are left in a part of a source."""
    if values is None or not isinstance(part, ColumnView):
        return values
    return values[part.columns]
