"""Suspicious columns of data: values that may stand for missing ones, copies, clipping, outliers.

Everything is looked for in a sample of the rows; what was found is then counted in all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.checks import SENTINELS, Finding
from fewer.data import RowView, Source, read_blocks
from fewer.data.source import View, read_all

__all__ = ["WithoutOutliers", "find_suspicious"]

Values = NDArray[np.float64]

MOST_ROWS, LEAST_ROWS, MOST_VALUES = 20_000, 1000, 2 * 10**7  # of the sample
FEW_ROWS = 20  # fewer tell nothing about a column
FEW_DISTINCT = 20  # values of a scale or a count, which repeat
LEAST_REPEATS = 3
UNUSUAL_REPEATS = 20  # times as often as other values
KNOWN_REPEATS = 5  # the same, of a number that is often used as a code
CLIPPED_SHARE = 0.005  # of the rows at one end of the range
GAP = 3.0  # standard deviations between a spike and all other values
FAR = 10.0  # standard deviations of an outlier
TRIMMED = 0.001  # of the rows at each end, for a standard deviation that outliers do not spoil
COPY = 0.01  # standard deviations by which an affine copy may differ, after rounding
FINGERPRINTS = 4
COPY_ROWS = 2000
ROUNDING = 1e-6  # relative error of float32


@dataclass(frozen=True)
class _Spike:
    """A value of one column that occurs suspiciously often."""

    column: int
    value: float
    kind: str
    others: tuple[float, float]  # the range of all other values


class WithoutOutliers(View):
    """Rows of another source in which values far from the mean of their column are missing."""

    dtype = np.dtype(np.float64)

    def __init__(self, source: Source, center: Values, spread: Values) -> None:
        super().__init__(source)
        self.center, self.reach = torch.from_numpy(center), FAR * torch.from_numpy(spread)

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        rows = self.source.rows(index, torch.float64)
        rows[(rows - self.center).abs() > self.reach] = torch.nan
        return rows.to(dtype)


def find_suspicious(
    source: Source, labels: Any, skip: NDArray[np.bool_]
) -> tuple[list[Finding], Source]:
    """What is suspicious about columns, other than those to skip, and the rows without outliers."""
    n, d = source.shape
    if n < FEW_ROWS or not d:
        return [], source
    most = min(n, MOST_ROWS, max(LEAST_ROWS, MOST_VALUES // d))
    rows = source
    if most < n:
        rows = RowView(source, np.unique(np.linspace(0, n - 1, most).astype(np.int64)))
    x = read_all(rows)
    center, spread = np.zeros(d), np.full(d, np.inf)
    # bounds that most columns share are those of a scale, such as 0 and 255
    shared = {_most_frequent(bound.reduce(x, axis=0)) for bound in (np.fmin, np.fmax)}
    spikes: list[_Spike] = []
    varied = np.zeros(d, dtype=bool)
    for j in np.flatnonzero(~skip):
        column = np.sort(x[:, j][~np.isnan(x[:, j])])
        values, counts = np.unique(column, return_counts=True)
        varied[j] = len(column) >= FEW_ROWS and len(values) > FEW_DISTINCT
        if not varied[j]:
            continue
        found = list(_spikes(int(j), column, values, counts, shared))
        spikes += found
        rest = column[~np.isin(column, [one.value for one in found if one.kind == "sentinel"])]
        if counts.max() < len(column) / 2:
            center[j], spread[j] = _without_tails(rest)
    counted, elsewhere, outliers, farthest = _count(source, spikes, center, spread, skip)
    findings = [
        _finding(one, labels[one.column], int(count), int(others), n)
        for one, count, others in zip(spikes, counted, elsewhere, strict=True)
    ]
    for j in np.flatnonzero(outliers):
        what = "1 value is" if outliers[j] == 1 else f"{outliers[j]:,} values are"
        message = (
            f"{what} more than {FAR:g} standard deviations from the mean {center[j]:.4g}, such as "
            f"{farthest[j]:g}"
        )
        findings.append(Finding(labels[j], "outliers", message))
    for b, a, slope, start, off in _copies(x[:: max(1, len(x) // COPY_ROWS)], varied):
        message = f"{slope:.6g} × {labels[a]}"
        message += f" {'-' if start < 0 else '+'} {abs(start):.6g}" if start else ""
        message += f", to within {off:.2%} of its standard deviation" if off > ROUNDING else ""
        findings.append(Finding(labels[b], "copy", message))
    # a sparse matrix stays sparse
    far = outliers.any() and not source.is_sparse
    return findings, WithoutOutliers(source, center, spread) if far else source


def _most_frequent(values: Values) -> float:
    found, counts = np.unique(values, return_counts=True)
    return float(found[counts.argmax()]) if counts.max() > len(values) / 2 else np.nan


def _without_tails(values: Values) -> tuple[float, float]:
    """Mean and standard deviation of sorted values without outliers."""
    cut = max(1, int(TRIMMED * len(values)))
    inner = values[cut:-cut]
    for _ in range(2):
        if len(inner) < 2 or inner[-1] == inner[0]:
            return 0.0, np.inf
        mean, spread = float(inner.mean()), float(inner.std())
        inner = values[np.abs(values - mean) <= FAR * spread]
    return float(inner.mean()), float(inner.std())


def _finding(spike: _Spike, label: Any, count: int, elsewhere: int, n: int) -> Finding:
    low, high = spike.others
    if spike.kind == "clipped":
        end = "largest" if spike.value > low else "smallest"
        message = f"{count / n:.1%} of the values are {spike.value:g}, the {end}: clipped there?"
    else:
        message = (
            f"{spike.value:g} occurs {count:,} times; all other values are between {low:g} and "
            f"{high:g}"
        )
        if elsewhere:
            where = "another feature" if elsewhere == 1 else f"{elsewhere:,} other features"
            message += f" (also in {where}, where it may be valid)"
    return Finding(label, spike.kind, message, value=spike.value, elsewhere=elsewhere)


def _spikes(
    j: int, column: Values, values: Values, counts: NDArray[np.int64], shared: set[float]
) -> Iterator[_Spike]:
    """Spikes of one column: its sorted values, the distinct ones, and how often they occur."""
    n, last = len(column), len(values) - 1
    usual = float(np.quantile(counts, 0.95))
    often = counts >= max(LEAST_REPEATS, UNUSUAL_REPEATS * usual)
    whole = bool((values == np.round(values)).all())
    inner = column[(column > values[0]) & (column < values[-1])]
    spread = float(inner.std())
    # whatever most values are cannot stand for missing ones
    for at in np.flatnonzero((counts >= LEAST_REPEATS) & (counts < n / 2)):
        value, end = float(values[at]), at in (0, last)
        rest = np.delete(values, at)
        others = float(rest[0]), float(rest[-1])
        known = value in SENTINELS
        gap = float(np.abs(rest - value).min()) if end else 0.0
        apart = end and gap > GAP * spread and gap > UNUSUAL_REPEATS * _typical_step(rest)
        # the only negative value among others that are not
        alone = known and value < 0 <= others[0]
        repeated = counts[at] >= KNOWN_REPEATS * usual
        inside = known and value != 0 and repeated and not whole and not end
        if apart or alone or inside:
            yield _Spike(j, value, "sentinel", others)
        elif end and often[at] and value not in {0, *shared} and counts[at] >= CLIPPED_SHARE * n:
            yield _Spike(j, value, "clipped", others)


def _typical_step(values: Values) -> float:
    return float(np.median(np.diff(values))) if len(values) > 1 else 0.0


def _count(
    source: Source,
    spikes: list[_Spike],
    center: Values,
    spread: Values,
    skip: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Values]:
    """How often each spike occurs in all rows, and in how many features where it is no spike;
    how many other values of a column are far, and the farthest."""
    columns = torch.tensor([one.column for one in spikes], dtype=torch.int64)
    values = torch.tensor([one.value for one in spikes], dtype=torch.float64)
    counts = torch.zeros(len(spikes), dtype=torch.int64)
    distinct, which = torch.unique(values, return_inverse=True)
    seen = torch.zeros((len(distinct), len(center)), dtype=torch.bool)
    outliers = torch.zeros(len(center), dtype=torch.int64)
    largest = torch.zeros(len(center), dtype=torch.float64)
    middle, unit = torch.from_numpy(center), torch.from_numpy(spread)
    for _, x in read_blocks(source):
        hit = x[:, columns] == values
        counts += hit.sum(0)
        for at, value in enumerate(distinct):
            seen[at] |= (x == value).any(0)
        z = (x - middle) / unit
        for at, one in enumerate(spikes):
            if one.kind == "sentinel":
                z[hit[:, at], one.column] = 0
        z = torch.nan_to_num(z, nan=0.0)
        outliers += (z.abs() > FAR).sum(0)
        far = z.gather(0, z.abs().argmax(0, keepdim=True))[0]
        largest = torch.where(far.abs() > largest.abs(), far, largest)
    seen[which, columns] = False
    seen[:, torch.from_numpy(skip)] = False
    elsewhere = seen.sum(1)[which]
    with np.errstate(invalid="ignore"):
        farthest = center + largest.numpy() * spread
    return counts.numpy(), elsewhere.numpy(), outliers.numpy(), farthest


def _copies(x: Values, use: NDArray[np.bool_]) -> list[tuple[int, int, float, float, float]]:
    """Columns that are an affine map of an earlier one: copy, original, slope, intercept, error.

    Standardised columns that are equal up to their sign have the same products with random vectors,
    up to sign and rounding; pairs that agree in these are compared value by value.
    """
    columns = np.flatnonzero(use)
    if not len(columns):
        return []
    x = x[:, columns]
    whole = x[~np.isnan(x).any(axis=1)]
    some = whole if len(whole) >= FEW_ROWS else x
    z = np.nan_to_num(some - np.nanmean(some, axis=0))
    z /= np.maximum(np.sqrt((z**2).mean(axis=0)), 1e-300)
    weights = np.random.default_rng(0).normal(size=(FINGERPRINTS, len(z))) / np.sqrt(len(z))
    marks = np.abs(weights @ z)
    order = np.argsort(marks[0], kind="stable")
    near = 5 * COPY
    found: dict[int, tuple[int, float, float, float]] = {}
    for offset in range(1, len(order)):
        one, other = order[:-offset], order[offset:]
        close = marks[0, other] - marks[0, one] < near
        if not close.any():
            break
        close &= (np.abs(marks[:, other] - marks[:, one]) < near).all(axis=0)
        for a, b in zip(one[close].tolist(), other[close].tolist(), strict=True):
            first, second = min(a, b), max(a, b)
            fit = _affine(x[:, first], x[:, second])
            if fit is not None and (second not in found or first < found[second][0]):
                found[second] = first, *fit
    return [
        (int(columns[b]), int(columns[a]), slope, start, error)
        for b, (a, slope, start, error) in sorted(found.items())
    ]


def _affine(a: Values, b: Values) -> tuple[float, float, float] | None:
    """Slope, intercept and relative error of b as a map of a, if it is one."""
    both = ~np.isnan(a) & ~np.isnan(b)
    u, v = a[both], b[both]
    if len(u) < max(FEW_ROWS, len(a) / 2):
        return None
    du, dv = u - u.mean(), v - v.mean()
    power, spread = float(du @ du), float(dv.std())
    if not power or not spread:
        return None
    slope = float(du @ dv) / power
    error = float((dv - slope * du).std()) / spread
    start = float(v.mean() - slope * u.mean())
    if abs(start) < ROUNDING * spread:
        start = 0.0
    return (slope, start, error) if error < COPY else None
