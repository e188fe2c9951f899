"""One-pass summaries of a source: mean, variance and covariance, missing values skipped.

On a GPU rows cross over block by block and sums stay there in float64. Cards made for computing
multiply float64 as fast as float32, so they do. Others take products of centred float32 blocks of
at most 4096 rows and add those up in float64: then the entry (i, j) is within 1e-6 of the root of
C_ii C_jj.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from fewer._checks import check_choice
from fewer.data.factored import SOME_COLUMNS, WIDE, FactoredCovariance, Matrix
from fewer.data.source import (
    DenseSource,
    RowView,
    Source,
    ahead,
    block_bytes,
    is_remote,
    read_all,
    read_blocks,
    reduce_rows,
    row_blocks,
    shard_of_rank,
)
from fewer.distributed import all_or_raise, all_reduce, gather, on_rank0, shard_bounds, world_size
from fewer.errors import warn

# sums of stored values alone lose the variance of a feature whose mean is far from zero; below
# this share of its squared mean the rows are made dense and centred after all
CANCELS = 1e-7
DENSE_SPEED = 250  # products of dense rows for one of stored values, in the same time
DENSE_BLOCK = 128 * 2**20
SPARSE_BLOCK = 512 * 2**20  # of stored values and places, at most

# bytes of a block of float64 rows on the device: enough rows for a good matrix product
DEVICE_BLOCK = 512 * 2**20
MOST_ROWS = 4096
# compute capabilities whose float64 runs at half the rate of float32, or on tensor cores
FAST_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
PANELS = 8
SAMPLE_ROWS = 256  # fetched from a cluster to centre sums about

# Sums over some rows, by name: "n" rows; per feature "count" of observed values, "second" powers of
# their differences from "shift", "low" and "high"; for each part of the rows "first" powers, and
# "products 0" and so on of features; "pairs" of features observed together and "left_sums" of one
# over rows in which the other is observed, where values are missing. Those of other rows can be
# added.
Sums = dict[str, Any]


@dataclass(frozen=True)
class Moments:
    """Moments of each feature over its observed values; float64 arrays of length d.

    Examples
    --------
    >>> import fewer
    >>> found = fewer.data.moments(fewer.data.open(np.array([[0.0, 1.0], [2.0, np.nan]])))
    >>> found.mean, found.has_missing, found.constant
    (array([1., 1.]), True, array([False,  True]))
    """

    n: int
    observed: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray

    def of(self, columns: np.ndarray) -> "Moments":
        """Those of some columns."""
        names = ("observed", "mean", "variance", "minimum", "maximum")
        return replace(self, **{name: getattr(self, name)[columns] for name in names})

    @property
    def has_missing(self) -> bool:
        """Whether any value is NaN."""
        return bool((self.observed < self.n).any())

    @property
    def constant(self) -> np.ndarray:
        """Which features have a single value (or none)."""
        return ~(self.maximum > self.minimum)

    @property
    def scale(self) -> float:
        """Root of the mean variance: one number for all features; 1 if all are constant."""
        total = float(np.mean(self.variance[self.observed > 0])) if self.observed.any() else 0.0
        return total**0.5 if total > 0 else 1.0


@dataclass(frozen=True)
class Summary:
    """Mean (d) and covariance of n rows, which wide data have as a factor."""

    n: int
    mean: Tensor
    matrix: Matrix


@dataclass(frozen=True)
class Covariance(Summary):
    """Mean (d) and covariance matrix (d x d, divided by n) of a source, float64.

    Examples
    --------
    >>> import fewer
    >>> found = fewer.data.covariance(fewer.data.open(np.array([[0.0, 1.0], [2.0, 5.0]])))
    >>> found.n, found.mean.tolist(), found.matrix.tolist()
    (2, [1.0, 3.0], [[1.0, 2.0], [2.0, 4.0]])
    """

    matrix: Tensor


def moments(source: Source, device: torch.device | str | None = None) -> Moments:
    """Mean, variance and range of every feature, in one pass over the rows.

    Sums are taken about the first block's means in float64, to avoid cancellation when the mean
    is large. Each rank reads its share of the rows; all get the result.

    Parameters
    ----------
    source : Source
        The rows.
    device : torch.device, default=None
        Where to compute the sums; the CPU if None or if the device has no float64.

    Examples
    --------
    >>> import fewer, numpy as np
    >>> found = fewer.data.moments(fewer.data.open(np.array([[1.0, 5.0], [3.0, np.nan]])))
    >>> found.mean, found.variance, found.observed
    (array([2., 5.]), array([1., 0.]), array([2, 1]))
    """
    n, d = source.shape
    if source.is_sparse:
        sums = _total(source, partial(_sparse_sums, parts=0))
        found = None if sums is None else _moments(n, sums)
        if found and (found.variance >= CANCELS * found.mean**2).all():
            return found
    home = _usable(None if is_remote(source) else device, d, copies=0)
    sums = _total(source, partial(_sums, parts=0, home=home, shift=_common_shift(source)))
    assert sums is not None
    return _moments(n, sums)


def _moments(n: int, sums: Sums) -> Moments:
    seen = sums["count"].clamp_min(1)
    mean = sums["first"].sum(0) / seen
    variance = (sums["second"] / seen - mean.square()).clamp_min_(0)
    found = sums["count"], sums["shift"] + mean, variance, sums["low"], sums["high"]
    return Moments(n, *(values.cpu().numpy() for values in found))


def covariance(
    source: Source, missing: str = "mean", device: torch.device | str | None = None
) -> Covariance:
    """Mean and covariance of all features in one pass, in float64: O(n d^2).

    Each rank reads its share of the rows; their sums are reduced, and all get the result.

    Parameters
    ----------
    source : Source
        The rows.
    missing : {"mean", "pairwise"}, default="mean"
        "mean": a missing value is replaced by its column's mean, as in the input of a decoder.
        "pairwise": the entry (i, j) averages the products over rows in which both are observed,
        about the means of all observed values; since such a matrix need not be positive
        semi-definite, negative eigenvalues are then set to zero.
    device : torch.device, default=None
        Where to compute and where the result stays; the CPU if None, if the device has no
        float64, and, with a warning, if its memory is too small.

    Examples
    --------
    >>> import fewer, numpy as np
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> found = fewer.data.covariance(fewer.data.open(X)).matrix.numpy()
    >>> bool(np.allclose(found, np.cov(X.T, bias=True)))
    True
    """
    check_choice("missing", missing, ("mean", "pairwise"))
    n, d = source.shape
    if source.is_sparse:
        sums = _total(source, partial(_sparse_sums, parts=1))
        if sums is not None:
            found = _covariance(sums, 0, n)
            if (found.matrix.diagonal() >= CANCELS * found.mean.square()).all():
                home = _usable(device, d, copies=1)
                return Covariance(n, found.mean.to(home), found.matrix.to(home))
    home = _usable(None if is_remote(source) else device, d)
    sums = _total(source, partial(_sums_or_cpu, home=home, shift=_common_shift(source)))
    assert sums is not None
    if "pairs" not in sums:
        return _covariance(sums, 0, n)
    pairs, left_sums = sums["pairs"], sums["left_sums"]
    mean = sums["first"][0] / pairs.diagonal().clamp_min(1)
    # sum over joint rows of (x_i - m_i)(x_j - m_j); other rows add nothing to filled values
    centred = sums["products 0"] - mean[:, None] * left_sums.T - left_sums * mean
    centred += pairs * torch.outer(mean, mean)
    if missing == "mean":
        return Covariance(n, sums["shift"] + mean, centred / n)
    matrix = torch.where(pairs > 0, centred / pairs.clamp_min(1), 0.0)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return Covariance(n, sums["shift"] + mean, (vectors * values.clamp_min(0)) @ vectors.T)


def _covariance(sums: Sums, part: int, size: int) -> Covariance:
    """Of one part of the rows, complete ones; its products are overwritten."""
    mean = sums["first"][part] / max(size, 1)
    matrix = sums[f"products {part}"].div_(max(size, 1)).addr_(mean, mean, alpha=-1)
    return Covariance(size, sums["shift"] + mean, matrix)


def part_covariances(
    source: Source, labels: np.ndarray, count: int, device: torch.device | str | None = None
) -> tuple[Moments | None, list[Covariance] | None]:
    """Moments of all rows, and the covariance of each of ``count`` parts, in one pass.

    None where values are missing, or where the device cannot hold all parts at once.
    """
    n, d = source.shape
    home = _usable(None if is_remote(source) else device, d, copies=0)
    full = home.type == "cuda" and (count + 4) * 8 * d * d > free_bytes(home)
    if source.is_sparse or full:
        return None, None
    work = partial(_sums, parts=count, home=home, shift=_common_shift(source))
    sums = _total(source, work, labels[slice(*shard_bounds(n))])
    if sums is None:
        return None, None
    sizes = np.bincount(labels, minlength=count).tolist()
    parts = [_covariance(sums, number, size) for number, size in enumerate(sizes)]
    return _moments(n, sums), parts


# -- wide data: the rows themselves ------------------------------------------------------------


def is_wide(source: Source) -> bool:
    """Whether rows stand for their covariance: with n < d / 4."""
    return WIDE * source.shape[0] < source.shape[1]


def summarize(source: Source, device: torch.device | str | None = None) -> Summary:
    """Mean and covariance of all features; of wide data, the covariance as its rows.

    As `covariance`, missing values counting as their column's mean.
    """
    if not is_wide(source):
        return covariance(source, device=device)
    x = _all_rows(source)
    return _factored(x, _row_moments(x), device)


def part_factors(
    source: Source, labels: np.ndarray, count: int, device: torch.device | str | None = None
) -> tuple[Moments, list[Summary], Summary | None]:
    """Moments of all rows of wide data, and each of ``count`` parts as its rows, in one pass.

    With missing values also all rows, since each part replaces them by its own mean.
    """
    x = _all_rows(source)
    stats = _row_moments(x)
    whole = _factored(x.clone(), stats, device) if stats.has_missing else None
    _reorder(x, np.argsort(labels, kind="stable"))  # so that parts are slices, not copies
    sizes = np.bincount(labels, minlength=count).tolist()
    parts = [_factored(own, _row_moments(own), device) for own in x.split(sizes)]
    return stats, parts, whole


def _reorder(x: Tensor, order: np.ndarray) -> None:
    """Put the rows x[order] in place of x, one at a time."""
    source = order.tolist()  # of each row, itself where that is done
    for first in range(len(source)):
        held, at = x[first].clone(), first
        while source[at] != first:
            x[at] = x[source[at]]
            source[at], at = at, source[at]
        x[at] = held
        source[at] = at


def _all_rows(source: Source) -> Tensor:
    """All rows in float64 on every rank, each of which reads its own."""
    own = all_or_raise(lambda: torch.from_numpy(read_all(shard_of_rank(source))))
    return own if world_size() == 1 else torch.cat(gather(own))


def _row_moments(x: Tensor) -> Moments:
    """Moments of rows in memory, some columns at a time."""
    found = [_column_moments(part) for part in x.split(SOME_COLUMNS, dim=1)]
    together = (torch.cat(values).numpy() for values in zip(*found, strict=True))
    return Moments(len(x), *together)


def _column_moments(x: Tensor) -> tuple[Tensor, ...]:
    low, high = x.amin(0), x.amax(0)
    gaps = torch.isnan(low)
    if gaps.any():  # the least of values with gaps is NaN
        gaps = torch.isnan(x)
        low, high = x.masked_fill(gaps, torch.inf).amin(0), x.masked_fill(gaps, -torch.inf).amax(0)
        mean, observed = x.nanmean(0).nan_to_num_(0.0), len(x) - gaps.sum(0)
    else:
        mean, observed = x.mean(0), torch.full_like(gaps, len(x), dtype=torch.long)
    # the mean of equal values may round, and then they would seem to vary
    mean = torch.where(low == high, low, mean)
    variance = (x - mean).square_().nan_to_num_(0.0).sum(0) / observed.clamp_min(1)
    return observed, mean, variance, low, high


def _factored(x: Tensor, stats: Moments, device: torch.device | str | None) -> Summary:
    """Rows and their moments as a covariance; the rows are overwritten."""
    mean = torch.from_numpy(stats.mean)
    x.sub_(mean).nan_to_num_(nan=0.0).div_(max(len(x), 1) ** 0.5)
    home = torch.device("cpu" if device is None else device)
    home = home if home.type == "cuda" else torch.device("cpu")
    return Summary(len(x), mean.to(home), FactoredCovariance(x.to(home)))


# -- sums over rows ----------------------------------------------------------------------------


def _sums(
    source: Source,
    labels: np.ndarray | None = None,
    *,
    parts: int,
    home: torch.device,
    shift: Tensor | None = None,
    exact: bool | None = None,
) -> Sums | None:
    """Sums over all rows, or None where values are missing and ``labels`` divide the rows."""
    n, d = source.shape
    if exact is None:
        exact = home.type == "cpu" or fast_float64(home)
    zeros = partial(torch.zeros, dtype=torch.float64, device=home)
    shift = None if shift is None else shift.to(home)
    count = torch.full((d,), n, device=home)
    first, second = zeros(max(parts, 1), d), zeros(d)
    low, high = zeros(d) + torch.inf, zeros(d) - torch.inf
    products = {f"products {part}": zeros(d, d) for part in range(parts)}
    where = None if labels is None else torch.from_numpy(labels).to(home)
    pairs: Sums = {}
    with tf32(False):  # whatever the caller has set
        for rows, x in rows_on(source, home):
            if shift is None:
                shift = x.nanmean(0).nan_to_num_(0.0)
            least, most = x.amin(0), x.amax(0)
            incomplete = bool(torch.isnan(least).any())  # the least of values with gaps is NaN
            if incomplete and where is not None:
                return None
            gaps = torch.isnan(x) if incomplete or pairs else None
            if incomplete and gaps is not None:
                least = x.masked_fill(gaps, torch.inf).amin(0)
                most = x.masked_fill(gaps, -torch.inf).amax(0)
                count -= gaps.sum(0)
            low, high = torch.minimum(low, least), torch.maximum(high, most)
            x.sub_(shift)
            if gaps is not None:
                x.nan_to_num_(nan=0.0)
                if parts:
                    pairs = pairs or _pairs({"n": rows.start, "first": first, **products})
                    seen = (~gaps).double()
                    pairs["pairs"].addmm_(seen.T, seen)
                    pairs["left_sums"].addmm_(x.T, seen)
            for part in range(max(parts, 1)):
                own = x if where is None else x[where[rows] == part]
                first[part] += own.sum(0)
                if parts and len(own):
                    add_products(products[f"products {part}"], own if exact else own.float())
            second += x.square_().sum(0)
    for matrix in products.values():
        mirror(matrix)
    found = {"n": n, "shift": shift, "count": count, "first": first, "second": second}
    return {**found, "low": low, "high": high, **products, **pairs}


def _sums_or_cpu(source: Source, home: torch.device, shift: Tensor | None) -> Sums | None:
    try:
        return _sums(source, parts=1, home=home, shift=shift)
    except torch.OutOfMemoryError:
        pass  # outside the handler, which would keep the tensors alive
    torch.cuda.empty_cache()
    _warn_too_small(home)
    return _sums(source, parts=1, home=torch.device("cpu"), shift=shift)


# -- sums of several ranks, or of the workers of a cluster ------------------------------------


def _total(source: Source, work: Callable[..., Sums | None], *aligned: Any) -> Sums | None:
    """What ``work`` sums up over all rows, on every rank; None where it gives that anywhere."""
    part = shard_of_rank(source)
    sums = all_or_raise(lambda: reduce_rows(part, work, *aligned, add=_add))
    if not all(gather(sums is not None)) or sums is None:
        return None
    if world_size() == 1:
        return sums
    if not all(gather(sums["first"].is_cuda)):  # one of them had to fall back
        sums = {name: value.cpu() if name != "n" else value for name, value in sums.items()}
    if any(gather("pairs" in sums)):  # gaps may be in the rows of others
        sums = {**_pairs(sums), **sums}
    for name, value in sums.items():
        if name not in ("n", "shift"):
            all_reduce(value, op={"low": "min", "high": "max"}.get(name, "sum"))
    return sums


def _add(parts: list[Sums | None]) -> Sums | None:
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    if any("pairs" in part for part in found):
        found = [{**_pairs(part), **part} for part in found]
    ways = {"shift": lambda one, _: one, "low": torch.minimum, "high": torch.maximum}
    return {
        name: reduce(ways.get(name, operator.add), [part[name] for part in found])
        for name in found[0]
    }


def _pairs(sums: Sums) -> Sums:
    """How often pairs were observed, and sums over those rows, where nothing is missing."""
    pairs = torch.full_like(sums["products 0"], float(sums["n"]))
    return {"pairs": pairs, "left_sums": sums["first"][0][:, None].expand_as(pairs).clone()}


def _common_shift(source: Source) -> Tensor | None:
    """The means of the first rows, about which all take their sums; None where one sums alone."""
    remote = is_remote(source)
    if world_size() == 1 and not remote:
        return None
    first = slice(0, SAMPLE_ROWS) if remote else next(row_blocks(source))
    return on_rank0(lambda: source.rows(first, torch.float64).nanmean(0)).nan_to_num_(0.0)


def _usable(device: torch.device | str | None, d: int, copies: int = 4) -> torch.device:
    """The device, or the CPU where it cannot hold so many d x d matrices of float64."""
    home = torch.device("cpu" if device is None else device)
    if home.type != "cuda":
        return torch.device("cpu")
    if copies * 8 * d * d > free_bytes(home):
        _warn_too_small(home)
        return torch.device("cpu")
    return home


def _warn_too_small(device: torch.device) -> None:
    warn(f"the covariance does not fit into the memory of {device}; using the CPU")


# -- sparse rows, of which only stored values are summed up -----------------------------------


def _sparse_blocks(source: Source) -> Iterator[sparse.csr_array | None]:
    """Rows in order, as many at a time as their stored values allow; None if not sparse."""
    # every block costs a d x d product, so blocks are large, but more than one is alive at a time
    n, d = source.shape
    target = max(block_bytes(source), min((source.memory_limit or 0) // 5, SPARSE_BLOCK))
    start, size = 0, max(1, block_bytes(source) // d)
    while start < n:
        part = source.sparse_rows(slice(start, min(start + size, n)))
        yield part
        if part is None:
            return
        start += size
        row_bytes = (part.data.nbytes + part.indices.nbytes) / part.shape[0]
        size = max(1, int(target / max(row_bytes, 1.0)))


def _sparse_sums(source: Source, parts: int) -> Sums | None:
    """Sums of stored values; None where rows are not sparse, and of products with gaps."""
    n, d = source.shape
    count, (first, second) = np.full(d, n), np.zeros((2, d))
    low, high = np.full(d, np.inf), np.full(d, -np.inf)
    products = {f"products {part}": torch.zeros(d, d, dtype=torch.float64) for part in range(parts)}
    blocks = _sparse_blocks(source)
    for block in ahead(blocks) if source.on_disk else blocks:
        if block is None or (parts and np.isnan(block.data).any()):
            return None
        block.sum_duplicates()
        gaps = np.isnan(block.data)
        at, values = block.indices[~gaps], block.data[~gaps].astype(np.float64)
        count -= np.bincount(block.indices[gaps], minlength=d)
        first += np.bincount(at, weights=values, minlength=d)
        second += np.bincount(at, weights=values**2, minlength=d)
        low = np.fmin(low, block.nanmin(axis=0).toarray().ravel())
        high = np.fmax(high, block.nanmax(axis=0).toarray().ravel())
        for matrix in products.values():
            _add_sparse_products(matrix, block)
    found = {"count": count, "first": first[None], "second": second, "low": low, "high": high}
    tensors = {name: torch.from_numpy(values) for name, values in found.items()}
    return {"n": n, "shift": torch.zeros(d, dtype=torch.float64), **tensors, **products}


def _add_sparse_products(products: Tensor, block: sparse.csr_array) -> None:
    """Add x' x. SciPy multiplies some hundred times slower than dense code does."""
    d = len(products)
    if float((np.diff(block.indptr).astype(np.float64) ** 2).mean()) * DENSE_SPEED < float(d) ** 2:
        wide = block.astype(np.float64)
        products.add_(torch.from_numpy((wide.T @ wide).toarray()))
        return
    size = max(256, DENSE_BLOCK // (8 * d))
    for start in range(0, block.shape[0], size):
        x = torch.from_numpy(block[start : start + size].toarray().astype(np.float64, copy=False))
        products.addmm_(x.T, x)


def chosen_products(source: Source, chosen: np.ndarray) -> tuple[Tensor, Tensor] | None:
    """Sums of products of some columns with each other and with all, from stored values.

    None where rows are not sparse, where values are missing, and where means are so large that
    nothing would be left of a covariance.
    """
    own = torch.zeros(len(chosen), len(chosen), dtype=torch.float64)
    both = torch.zeros(len(chosen), source.shape[1], dtype=torch.float64)
    first = np.zeros(len(chosen))
    blocks = _sparse_blocks(source)
    for block in ahead(blocks) if source.on_disk else blocks:
        if block is None or np.isnan(block.data).any():
            return None
        z = block[:, chosen]
        own += torch.from_numpy((z.T @ z).toarray())
        both += torch.from_numpy((z.T @ block).toarray())
        first += np.asarray(z.sum(axis=0)).ravel()
    second = own.diagonal().numpy() * source.shape[0]
    return (own, both) if (second - first**2 >= CANCELS * first**2).all() else None


# -- rows on a device ------------------------------------------------------------------------


def exact_dtype(source: Source) -> torch.dtype:
    """float32 where the values fit it without rounding, else float64."""
    return torch.float32 if np.can_cast(source.dtype, np.float32) else torch.float64


def fast_float64(device: torch.device) -> bool:
    """Whether a CUDA device multiplies float64 at a good part of its speed in float32."""
    return torch.cuda.get_device_capability(device) in FAST_FLOAT64


def free_bytes(device: torch.device) -> int:
    """Memory that a CUDA device has left, what torch holds in reserve included."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


def rows_on(source: Source, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """Which rows, and their values as float64 on a device, moved there as they are stored."""
    if device.type == "cpu":
        yield from read_blocks(source)
        return
    n, d = source.shape
    most = min(DEVICE_BLOCK, free_bytes(device) // 8)
    if source.memory_limit is not None:
        most = min(most, block_bytes(source))
    size = max(1, min(MOST_ROWS, most // (8 * d)))
    dtype = exact_dtype(source)
    parts = (slice(start, min(start + size, n)) for start in range(0, n, size))
    read = ((rows, _host_rows(source, rows, dtype)) for rows in parts)
    for rows, x in ahead(read) if source.on_disk else read:
        yield rows, x.to(device, non_blocking=True).double()


def _host_rows(source: Source, rows: slice, dtype: torch.dtype) -> Tensor:
    if isinstance(source, RowView) and isinstance(source.index, slice):
        start = source.index.start
        return _host_rows(source.source, slice(start + rows.start, start + rows.stop), dtype)
    if isinstance(source, DenseSource) and dtype == torch.float32:
        part = source.array[rows]
        if part.dtype == np.float32 and part.flags.c_contiguous and part.flags.writeable:
            return torch.from_numpy(part)
    return source.rows(rows, dtype)


def _panels(d: int) -> list[tuple[int, int]]:
    width = max(512, -(-d // PANELS))
    return [(start, min(start + width, d)) for start in range(0, d, width)]


def add_products(products: Tensor, x: Tensor) -> None:
    """Add x' x, block columns on and above the diagonal only: half of the work."""
    for start, end in _panels(len(products)):
        left, right, out = x[:, start:end].T, x[:, start:], products[start:end, start:]
        if x.dtype == torch.float64:
            out.addmm_(left, right)
        else:
            out += left @ right


def mirror(products: Tensor) -> None:
    for start, end in _panels(len(products)):
        products[end:, start:end] = products[start:end, end:].T


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Whether CUDA may round float32 to tf32 in products, inside the block."""
    switches: Any = torch.backends.cuda.matmul
    value: bool | str = allowed
    try:
        name, before = "allow_tf32", switches.allow_tf32
    except RuntimeError:  # the caller has set the newer of torch's two switches
        name, before = "fp32_precision", switches.fp32_precision
        value = "tf32" if allowed else "ieee"
    setattr(switches, name, value)
    try:
        yield
    finally:
        setattr(switches, name, before)
