"""Raw counts on the way to logarithms, and rows without the differences between batches."""

from functools import partial
from typing import Self

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from fewer.data.moments import moments
from fewer.data.source import RowView, Source, View, row_blocks
from fewer.errors import InputError, warn

NOISE_ROWS, NOISE_DRAWS = 20_000, 3  # from which counting noise is estimated
FEW_FRACTIONS = 0.01  # of the values of what may still be counts with mistakes
LEAST_SHARE = 1e-12  # of the counts of a row that has any
ROUNDING = 1e-5  # of totals, which may be of single precision
RUNS, RUN_ROWS = 8, 128  # rows that are looked at lie together in so many places


class NormalizedCounts(View):
    """log(1 + x * target_sum / total), where total is the sum of the row or one of ``totals``.

    With ``shares``, those of the features in the counts of a usual row, NaN where unknown, the sum
    is divided by the share of the features that have a value in the row: of all of them, 1 if
    ``whole``.
    """

    dtype = np.dtype(np.float64)

    def __init__(
        self,
        source: Source,
        target_sum: float = 1e4,
        totals: np.ndarray | None = None,
        *,
        shares: np.ndarray | None = None,
        whole: bool = True,
    ) -> None:
        super().__init__(source)
        self.target_sum = float(target_sum)
        self.totals = None if totals is None else np.asarray(totals, dtype=np.float64)
        self.shares = None if totals is not None else shares
        self.share = 1.0 if shares is None or whole else float(np.nansum(shares))

    def over(self, source: Source | None, rows: np.ndarray) -> Self:
        other = super().over(source, rows)
        other.totals = None if self.totals is None else self.totals[rows]
        return other

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        x = self.source.rows(index, torch.float64)
        _refuse_negative(x.numpy())
        if self.shares is None:
            sums = x.nansum(1)
        else:
            counted, share = (torch.from_numpy(part) for part in self._counted())
            sums = x.nan_to_num(nan=0.0) @ counted
            sums /= (self.share - torch.isnan(x).double() @ share).clamp_min(LEAST_SHARE)
        factor = torch.from_numpy(self._factors(index, sums.numpy()))
        return x.mul_(factor[:, None]).log1p_().to(dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        part = self.source.sparse_rows(index)
        if part is None:
            return None
        values = part.data.astype(np.float64)
        _refuse_negative(values)
        lengths = np.diff(part.indptr)
        places = np.repeat(np.arange(len(lengths)), lengths)
        known, n = np.nan_to_num(values), len(lengths)
        if self.shares is None:
            sums = np.bincount(places, weights=known, minlength=n)
        else:
            counted, share = (each[part.indices] for each in self._counted())
            sums = np.bincount(places, weights=known * counted, minlength=n)
            lost = np.bincount(places, weights=np.isnan(values) * share, minlength=n)
            sums = sums / np.maximum(self.share - lost, LEAST_SHARE)
        values *= np.repeat(self._factors(index, sums), lengths)
        np.log1p(values, out=values)
        return sparse.csr_array((values, part.indices, part.indptr), shape=part.shape)

    def _counted(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each feature, 1 if its share is known, else 0; and that share."""
        assert self.shares is not None
        return np.isfinite(self.shares).astype(np.float64), np.nan_to_num(self.shares)

    def _factors(self, index: np.ndarray | slice, sums: np.ndarray) -> np.ndarray:
        totals = sums if self.totals is None else self.totals[index]
        low = totals < sums * (1 - ROUNDING)
        if low.any():
            raise InputError(
                f"totals are all counts of each cell, but one is {totals[low][0]:g} where the "
                f"genes that were read have {sums[low][0]:g}; count all genes of the cell"
            )
        return self.target_sum / np.where(totals > 0, totals, np.inf)


def counting_noise(source: NormalizedCounts) -> np.ndarray | None:
    r"""Variance of each feature of normalised counts that is counting noise.

    Every count is divided at random into halves (binomial thinning), which are independent given
    the expression behind them, if counts are Poisson. The correlation r of the normalised halves
    over cells is the reliability of half the counts, and :math:`2 r / (1 + r)` that of all of them
    (Spearman and Brown, 1910); the rest of the variance is noise. That is exact where values are
    linear in counts; of logarithms of a few counts each it is within some 40%, and all genes
    together within 5%. From up to 20,000 rows; None where values are not whole numbers. Missing
    counts are left out.
    """
    n, d = source.shape
    rows = RowView(source, np.unique(np.linspace(0, n - 1, min(n, NOISE_ROWS)).astype(int)))
    draw = np.random.default_rng(0)
    single, product = np.zeros((4, d)), np.zeros(d)  # sums over rows
    seen = np.full(d, float(rows.shape[0]))  # counts of each feature
    for block in row_blocks(rows):
        at = rows.locate(block)
        part = source.source.sparse_rows(at)
        if part is None:
            part = sparse.csr_array(source.source.rows(at, torch.float64).numpy())
        _refuse_negative(part.data)
        gaps = np.isnan(part.data)
        if gaps.any():
            seen -= np.bincount(part.indices[gaps], minlength=d)
            part = sparse.csr_array(
                (np.where(gaps, 0.0, part.data), part.indices, part.indptr), part.shape
            )
        if (part.data != np.rint(part.data)).any():
            return None
        known = None if source.totals is None else source.totals[at]
        lengths = np.diff(part.indptr)
        places, counts = np.repeat(np.arange(len(lengths)), lengths), part.data.astype(np.int64)
        normalised = partial(_normalised, places=places, target_sum=source.target_sum)
        sums = np.bincount(places, weights=counts, minlength=len(lengths))
        whole = sums if known is None else known
        x = normalised(counts, whole)
        single[:2] += [np.bincount(part.indices, weights=v, minlength=d) for v in (x, x * x)]
        for _ in range(NOISE_DRAWS):
            half = draw.binomial(counts, 0.5)
            own = np.bincount(places, weights=half, minlength=len(lengths))
            if known is not None:  # counts of other features are divided as well
                own = own + draw.binomial(
                    np.maximum(np.rint(whole - sums), 0).astype(np.int64), 0.5
                )
            a, b = normalised(half, own), normalised(counts - half, whole - own)
            each = (a + b) / 2, (a * a + b * b) / 2
            single[2:] += [np.bincount(part.indices, weights=v, minlength=d) for v in each]
            product += np.bincount(part.indices, weights=a * b, minlength=d)
    m = np.maximum(seen, 1.0)
    variance = single[1] / m - (single[0] / m) ** 2
    mean, square, product = (v / (NOISE_DRAWS * m) for v in (single[2], single[3], product))
    spread = square - mean**2
    r = (product - mean**2) / np.where(spread > 0, spread, 1.0)
    r = r.clip(0.0, 1.0)
    return np.maximum(variance, 0.0) * (1 - 2 * r / (1 + r))


def _normalised(
    values: np.ndarray, totals: np.ndarray, *, places: np.ndarray, target_sum: float
) -> np.ndarray:
    """Logarithms of stored values, ``places`` the row of each, over the totals of their rows."""
    factors = target_sum / np.where(totals > 0, totals, np.inf)
    found: np.ndarray = np.log1p(values * factors[places])
    return found


class BatchCentered(View):
    """Rows moved by the mean of all rows less the mean of their batch: batches have equal means."""

    is_sparse = False
    dtype = np.dtype(np.float64)

    def __init__(self, source: Source, batches: np.ndarray) -> None:
        super().__init__(source)
        labels, self._batch = np.unique(batches, return_inverse=True)
        whole = moments(source).mean
        parts = [
            moments(RowView(source, np.flatnonzero(self._batch == at))).mean
            for at in range(len(labels))
        ]
        self._move = torch.from_numpy(whole - np.stack(parts))

    def over(self, source: Source | None, rows: np.ndarray) -> Self:
        other = super().over(source, rows)
        other._batch = self._batch[rows]
        return other

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        found = self.source.rows(index, torch.float64)
        found.add_(self._move[torch.from_numpy(self._batch[index])])
        return found.to(dtype)


def looks_like_counts(source: Source, *, binary: bool = False) -> bool:
    """Whether a thousand rows hold only whole numbers from 0 on, and not only 0 and 1.

    With ``binary``, 0 and 1 alone may be counts, too. Warns of numbers that are no counts where
    nearly all, or all but negative ones, are.
    """
    n, most, seen, fractions, negatives = source.shape[0], 0.0, 0, 0, 0
    example = None
    for start in np.unique(np.linspace(0, max(0, n - RUN_ROWS), RUNS).astype(int)).tolist():
        rows = slice(start, min(start + RUN_ROWS, n))
        part = source.sparse_rows(rows) if source.is_sparse else None
        values = source.rows(rows, torch.float64).numpy() if part is None else part.data
        values = values[~np.isnan(values) & (values != 0)]
        whole = values == np.rint(values)
        odd = ~whole | (values < 0)
        seen, fractions = seen + values.size, fractions + int((~whole).sum())
        negatives += int((odd & whole).sum())
        if fractions > FEW_FRACTIONS * seen:
            return False
        if example is None and odd.any():
            example = float(values[odd][0])
        most = max(most, float(values.max(initial=0)))
    if example is None or (most <= 1 and not binary):
        return example is None and (binary or most > 1)
    warn(
        f"all but {fractions + negatives:,} of {seen:,} values other than 0 look like counts, and "
        f"one is {example:g}, so none are normalised. If they are counts, correct this value or "
        "say counts='log1p'; if not, counts='none'"
    )
    return False


def _refuse_negative(values: np.ndarray) -> None:
    if values.size and np.nanmin(values, initial=0.0) < 0:
        raise InputError(
            f"counts cannot be negative, but there is {np.nanmin(values):g}; if values are "
            "already logarithms or scaled, use counts='none'"
        )
