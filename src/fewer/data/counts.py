"""Raw counts on the way to logarithms, and rows without the differences between batches."""

from typing import Self

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from fewer.data.moments import moments
from fewer.data.source import RowView, Source, View
from fewer.errors import InputError

RUNS, RUN_ROWS = 8, 128  # rows that are looked at lie together in so many places


class NormalizedCounts(View):
    """log(1 + x * target_sum / total), where total is the sum of the row or one of ``totals``."""

    dtype = np.dtype(np.float64)

    def __init__(
        self, source: Source, target_sum: float = 1e4, totals: np.ndarray | None = None
    ) -> None:
        super().__init__(source)
        self.target_sum = float(target_sum)
        self.totals = None if totals is None else np.asarray(totals, dtype=np.float64)

    def over(self, source: Source | None, rows: np.ndarray) -> Self:
        other = super().over(source, rows)
        other.totals = None if self.totals is None else self.totals[rows]
        return other

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        x = self.source.rows(index, torch.float64)
        _refuse_negative(x.numpy())
        factor = torch.from_numpy(self._factors(index, x.nansum(1).numpy()))
        return x.mul_(factor[:, None]).log1p_().to(dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
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


class BatchCentered(View):
    """Rows moved by the mean of all rows less the mean of their batch: batches have equal means.

    With ``factors``, one for each row, rows are then moved away from that mean by as much: their
    squares about it have the squared factors as weights.
    """

    is_sparse = False
    dtype = np.dtype(np.float64)

    def __init__(
        self, source: Source, batches: np.ndarray, factors: np.ndarray | None = None
    ) -> None:
        super().__init__(source)
        labels, self._batch = np.unique(batches, return_inverse=True)
        whole = moments(source).mean
        self._whole, self._factors = torch.from_numpy(whole), factors
        parts = [
            moments(RowView(source, np.flatnonzero(self._batch == at))).mean
            for at in range(len(labels))
        ]
        self._move = torch.from_numpy(whole - np.stack(parts))

    def over(self, source: Source | None, rows: np.ndarray) -> Self:
        other = super().over(source, rows)
        other._batch = self._batch[rows]
        other._factors = None if self._factors is None else self._factors[rows]
        return other

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        found = self.source.rows(index, torch.float64)
        found.add_(self._move[torch.from_numpy(self._batch[index])])
        if self._factors is not None:
            factor = torch.from_numpy(self._factors[index])[:, None]
            found.sub_(self._whole).mul_(factor).add_(self._whole)
        return found.to(dtype)


def looks_like_counts(source: Source) -> bool:
    """Whether a thousand rows hold only whole numbers from 0 on, and not only 0 and 1."""
    n = source.shape[0]
    most = 0.0
    for start in np.unique(np.linspace(0, max(0, n - RUN_ROWS), RUNS).astype(int)).tolist():
        rows = slice(start, min(start + RUN_ROWS, n))
        part = source.sparse_rows(rows) if source.is_sparse else None
        values = source.rows(rows, torch.float64).numpy() if part is None else part.data
        values = values[~np.isnan(values)]
        if (values < 0).any() or (values != np.rint(values)).any():
            return False
        most = max(most, float(values.max(initial=0)))
    return most > 1


def _refuse_negative(values: np.ndarray) -> None:
    if values.size and np.nanmin(values, initial=0.0) < 0:
        raise InputError(
            f"counts cannot be negative, but there is {np.nanmin(values):g}; if values are "
            "already logarithms or scaled, use counts='none'"
        )
