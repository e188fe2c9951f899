"""Raw counts on the way to logarithms: each row by its own total, sparse rows stay sparse."""

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from fewer.data.source import Source
from fewer.errors import InputError

__all__ = ["NormalizedCounts", "looks_like_counts"]

RUNS, RUN_ROWS = 8, 128  # rows that are looked at lie together in so many places


class NormalizedCounts(Source):
    """log(1 + x * target_sum / total), where total is the sum of the row that x is in.

    Nothing becomes of nothing, so sparse rows stay sparse. A row without any counts stays empty.

    Parameters
    ----------
    source : Source
        Counts; NaN marks missing values.
    target_sum : float, default=1e4
        What each row sums to before the logarithm.
    totals : array of length n, default=None
        Of all counts of each row, where the source has only some of its features.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.data import DenseSource
    >>> counts = DenseSource(np.array([[1, 3], [0, 0]]))
    >>> NormalizedCounts(counts, target_sum=4).rows(slice(2)).expm1()
    tensor([[1., 3.],
            [0., 0.]])
    """

    def __init__(
        self, source: Source, target_sum: float = 1e4, totals: np.ndarray | None = None
    ) -> None:
        self.source, self.target_sum = source, float(target_sum)
        self.totals = None if totals is None else np.asarray(totals, dtype=np.float64)
        self.is_sparse, self.on_disk = source.is_sparse, source.on_disk
        self.names, self.left_out, self.aside = source.names, source.left_out, source.aside
        self.memory_limit, self.dtype = source.memory_limit, np.dtype(np.float64)
        self.chunk_rows, self.chunk_starts = source.chunk_rows, source.chunk_starts
        self.row_width = source.row_width

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.source.shape

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        x = self.source.rows(index, torch.float64)
        _refuse_negative(x.numpy())
        factor = torch.from_numpy(self._factors(index, x.nansum(1).numpy()))
        return x.mul_(factor[:, None]).log1p_().to(dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        """The same rows, sparse."""
        part = self.source.sparse_rows(index)
        if part is None:
            return None
        values = part.data.astype(np.float64)
        _refuse_negative(values)
        lengths = np.diff(part.indptr)
        places = np.repeat(np.arange(len(lengths)), lengths)
        sums = np.bincount(places, weights=np.nan_to_num(values), minlength=len(lengths))
        values *= np.repeat(self._factors(index, sums), lengths)
        np.log1p(values, out=values)
        return sparse.csr_array((values, part.indices, part.indptr), shape=part.shape)

    def _factors(self, index: np.ndarray | slice, sums: np.ndarray) -> np.ndarray:
        totals = sums if self.totals is None else self.totals[index]
        return self.target_sum / np.where(totals > 0, totals, np.inf)


def looks_like_counts(source: Source) -> bool:
    """Whether all values of some rows are whole numbers from 0 on, and not only 0 and 1.

    Logarithms, scaled values and yes-or-no data are none. A thousand rows are looked at.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.data import DenseSource
    >>> counts = np.array([[0, 7], [2, 0]])
    >>> looks_like_counts(DenseSource(counts)), looks_like_counts(DenseSource(np.log1p(counts)))
    (True, False)
    """
    n = source.shape[0]
    most = 0.0
    for start in np.unique(np.linspace(0, max(0, n - RUN_ROWS), RUNS).astype(int)).tolist():
        values = _values(source, slice(start, min(start + RUN_ROWS, n)))
        values = values[~np.isnan(values)]
        if (values < 0).any() or (values != np.rint(values)).any():
            return False
        most = max(most, float(values.max(initial=0)))
    return most > 1


def _values(source: Source, rows: slice) -> Any:
    part = source.sparse_rows(rows) if source.is_sparse else None
    return source.rows(rows, torch.float64).numpy().ravel() if part is None else part.data


def _refuse_negative(values: np.ndarray) -> None:
    if values.size and np.nanmin(values, initial=0.0) < 0:
        raise InputError(
            f"counts cannot be negative, but there is {np.nanmin(values):g}; for values that are "
            "logarithms or scaled already say counts='none'"
        )
