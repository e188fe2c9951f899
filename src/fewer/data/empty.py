"""Columns without a single value, which nothing can be learned about."""

from dataclasses import replace

import numpy as np

from fewer.data.columns import join_names
from fewer.data.moments import Moments
from fewer.data.source import ColumnView, Source
from fewer.errors import warn

__all__ = ["without_empty"]


def without_empty(source: Source, stats: Moments) -> tuple[Source, Moments]:
    """A source and its moments without the named columns that hold no value; a warning names them.

    Columns without names are known by their numbers, which must not shift: they stay.

    Examples
    --------
    >>> import numpy as np, warnings
    >>> from fewer.data import DenseSource, moments
    >>> source = DenseSource(np.array([[1.0, np.nan], [2.0, np.nan]]), names=["a", "b"])
    >>> with warnings.catch_warnings(action="ignore"):
    ...     without_empty(source, moments(source))[0].names
    ['a']
    """
    empty = stats.observed == 0
    if source.names is None or not empty.any() or empty.all():
        return source, stats
    gone = [source.names[j] for j in np.flatnonzero(empty)]
    warn(f"columns without any value were left out ({len(gone)}): {join_names(gone)}; drop them")
    keep = np.flatnonzero(~empty)
    kept = replace(
        stats,
        observed=stats.observed[keep],
        mean=stats.mean[keep],
        variance=stats.variance[keep],
        minimum=stats.minimum[keep],
        maximum=stats.maximum[keep],
    )
    part = ColumnView(source, keep)
    part.left_out = (*source.left_out, *gone)
    return part, kept
