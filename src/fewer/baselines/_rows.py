"""Rows as the methods from the literature expect them: dense, without gaps, centred."""

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.data import Moments, Source, blocks

__all__ = ["varying_rows"]


def varying_rows(source: Source, stats: Moments) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Centred rows of the columns that vary, gaps filled with the column's mean, and which.

    A constant column tells nothing, but has every graph score undefined (0 / 0) and is a
    perfect direction for methods that look for small variance within neighbourhoods.

    Examples
    --------
    >>> from fewer.data import moments, open_source
    >>> source = open_source(np.array([[1.0, 7.0, 0.0], [np.nan, 7.0, 4.0], [3.0, 7.0, 8.0]]))
    >>> varying_rows(source, moments(source))
    (array([[-1., -4.], [ 0.,  0.], [ 1.,  4.]]), array([0, 2]))
    """
    varying = np.flatnonzero(~stats.constant)
    n, d = source.shape
    rows = np.empty((n, len(varying)))
    for part in blocks(n, d):
        x = source.rows(part, torch.float64).numpy()[:, varying]
        rows[part] = np.nan_to_num(x - stats.mean[varying], nan=0.0)
    return rows, varying
