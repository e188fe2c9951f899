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

from fewer.data.reading import ahead, block_bytes, read_blocks, row_blocks
from fewer.data.source import DenseSource, RowView, Source, is_remote, reduce_rows, shard_of_rank
from fewer.distributed import all_or_raise, all_reduce, gather, on_rank0, shard_bounds, world_size
from fewer.errors import InputError, warn

__all__ = [
    "Covariance",
    "Moments",
    "centred_products",
    "covariance",
    "exact_dtype",
    "free_bytes",
    "moments",
    "part_covariances",
    "rows_on",
    "tf32",
]

# sums of stored values alone lose the variance of a feature whose mean is far from zero; below
# this share of its squared mean the rows are made dense and centred after all
CANCELS = 1e-7

# bytes of a block of float64 rows on the device: enough rows for a good matrix product
DEVICE_BLOCK = 512 * 2**20
MOST_ROWS = 4096
# compute capabilities whose float64 runs at half the rate of float32, or on tensor cores
FAST_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
PANELS = 8
SAMPLE_ROWS = 256  # fetched from a cluster to centre sums about

# Sums over some rows, by name: "n" rows; "count" of observed values, "first" and "second" powers
# of their differences from "shift", "low" and "high", per feature; and "products" of features,
# with "pairs" and "left_sums" where values are missing. Those of other rows can be added.
Sums = dict[str, Any]


@dataclass(frozen=True)
class Moments:
    """What each feature looks like over its observed values; float64 arrays of length d.

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
class Covariance:
    """Mean (d) and covariance matrix (d x d, divided by n) of a source, float64.

    Examples
    --------
    >>> import fewer
    >>> found = fewer.data.covariance(fewer.data.open(np.array([[0.0, 1.0], [2.0, 5.0]])))
    >>> found.n, found.mean.tolist(), found.matrix.tolist()
    (2, [1.0, 3.0], [[1.0, 2.0], [2.0, 4.0]])
    """

    n: int
    mean: Tensor
    matrix: Tensor


def moments(source: Source, device: torch.device | str | None = None) -> Moments:
    """Mean, variance and range of every feature, in one pass over the rows.

    Sums are taken about the first block's means in float64, so that a large mean does not
    swallow a small variance. Each rank reads its share of the rows; all get the result.

    Parameters
    ----------
    source : Source
        The rows.
    device : torch.device, default=None
        Where to add up; the CPU if None or if the device has no float64.

    Examples
    --------
    >>> import fewer, numpy as np
    >>> found = fewer.data.moments(fewer.data.open(np.array([[1.0, 5.0], [3.0, np.nan]])))
    >>> found.mean, found.variance, found.observed
    (array([2., 5.]), array([1., 0.]), array([2, 1]))
    """
    n, d = source.shape
    if source.is_sparse:
        sums = _total(source, _sparse_sums)
        found = None if sums is None else _moments(n, sums)
        if found and (found.variance >= CANCELS * found.mean**2).all():
            return found
    home = _usable(None if is_remote(source) else device, d, copies=0)
    sums = _total(source, partial(_sums, home=home, shift=_common_shift(source)))
    assert sums is not None
    return _moments(n, sums)


def _moments(n: int, sums: Sums) -> Moments:
    seen = sums["count"].clamp_min(1)
    mean = sums["first"] / seen
    variance = (sums["second"] / seen - mean.square()).clamp_min_(0)
    found = sums["count"], sums["shift"] + mean, variance, sums["low"], sums["high"]
    return Moments(n, *(values.cpu().numpy() for values in found))


def _sums(source: Source, home: torch.device, shift: Tensor | None) -> Sums:
    n, d = source.shape
    shift = None if shift is None else shift.to(home)
    count = torch.zeros(d, dtype=torch.int64, device=home)
    first, second, low, high = _empty_sums(d, home)
    for _, x in rows_on(source, home):
        if shift is None:
            shift = x.nanmean(0).nan_to_num_(0.0)
        least = x.amin(0)
        if torch.isnan(least).any():  # the least of values with gaps is NaN
            gaps = torch.isnan(x)
            low = torch.minimum(low, x.masked_fill(gaps, torch.inf).amin(0))
            high = torch.maximum(high, x.masked_fill(gaps, -torch.inf).amax(0))
            count += (~gaps).sum(0)
            x.sub_(shift).nan_to_num_(nan=0.0)
        else:
            low, high = torch.minimum(low, least), torch.maximum(high, x.amax(0))
            count += len(x)
            x.sub_(shift)
        first += x.sum(0)
        second += x.square_().sum(0)
    found = {"shift": shift, "count": count, "first": first, "second": second}
    return {"n": n, **found, "low": low, "high": high}


def _empty_sums(d: int, home: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    zeros = torch.zeros(2, d, dtype=torch.float64, device=home)
    return zeros[0], zeros[1], zeros[0] + torch.inf, zeros[0] - torch.inf


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
        "mean": a missing value counts as its column's mean, which is what a decoder sees of it.
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
    if missing not in ("mean", "pairwise"):
        raise InputError(f"missing={missing!r} is not known; use 'mean' or 'pairwise'")
    n, d = source.shape
    if source.is_sparse:
        sums = _total(source, _sparse_products)
        if sums is not None:
            mean = sums["first"] / n
            matrix = sums["products"] / n - torch.outer(mean, mean)
            if (matrix.diagonal() >= CANCELS * mean.square()).all():
                home = _usable(device, d, copies=1)
                return Covariance(n, mean.to(home), matrix.to(home))
    home = _usable(None if is_remote(source) else device, d)
    sums = _total(source, partial(_centred, home=home, shift=_common_shift(source)))
    assert sums is not None
    shift, first, products = sums["shift"], sums["first"], sums["products"]
    if "pairs" not in sums:
        mean = first / n
        return Covariance(n, shift + mean, products / n - torch.outer(mean, mean))
    pairs, left_sums = sums["pairs"], sums["left_sums"]
    mean = first / pairs.diagonal().clamp_min(1)
    # sum over joint rows of (x_i - m_i)(x_j - m_j); other rows add nothing to filled values
    centred = (
        products - mean[:, None] * left_sums.T - left_sums * mean + pairs * torch.outer(mean, mean)
    )
    if missing == "mean":
        return Covariance(n, shift + mean, centred / n)
    matrix = torch.where(pairs > 0, centred / pairs.clamp_min(1), 0.0)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return Covariance(n, shift + mean, (vectors * values.clamp_min(0)) @ vectors.T)


def part_covariances(
    source: Source,
    labels: np.ndarray,
    count: int,
    device: torch.device | str | None = None,
) -> tuple[Moments | None, list[Covariance] | None]:
    """Moments of all rows, and the covariance of each part of them, in one pass.

    ``labels`` are the numbers, below ``count``, of the parts that rows belong to. None where
    values are missing, so that the parts need passes of their own, or where the device cannot
    hold all parts at once.
    """
    n, d = source.shape
    home = torch.device("cpu" if device is None or is_remote(source) else device)
    room = home.type != "cuda" or (count + 4) * 8 * d * d <= free_bytes(home)
    if source.is_sparse or not room:
        return None, None
    home = home if home.type == "cuda" else torch.device("cpu")
    work = partial(_part_sums, count=count, home=home, shift=_common_shift(source))
    sums = _total(source, work, labels[slice(*shard_bounds(n))])
    if sums is None:
        return None, None
    stats = _moments(n, {**sums, "first": sums["first"].sum(0)})
    parts = []
    for number, size in enumerate(np.bincount(labels, minlength=count).tolist()):
        own = sums["first"][number] / max(size, 1)
        matrix = sums[f"products {number}"]
        matrix.div_(max(size, 1)).addr_(own, own, alpha=-1)
        parts.append(Covariance(size, sums["shift"] + own, matrix))
    return stats, parts


def _part_sums(
    source: Source, labels: np.ndarray, count: int, home: torch.device, shift: Tensor | None
) -> Sums | None:
    """Sums, with "first" and products of each part; None where values are missing."""
    n, d = source.shape
    shift = None if shift is None else shift.to(home)
    _, second, low, high = _empty_sums(d, home)
    first = torch.zeros(count, d, dtype=torch.float64, device=home)
    products = [torch.zeros(d, d, dtype=torch.float64, device=home) for _ in range(count)]
    where = torch.from_numpy(labels).to(home)
    exact = home.type == "cpu" or fast_float64(home)
    with tf32(False):
        for rows, x in rows_on(source, home):
            least = x.amin(0)
            if torch.isnan(least).any():
                return None
            low, high = torch.minimum(low, least), torch.maximum(high, x.amax(0))
            if shift is None:
                shift = x.mean(0)
            x.sub_(shift)
            second += x.square().sum(0)
            for number in range(count):
                part = x[where[rows] == number]
                if len(part):
                    first[number] += part.sum(0)
                    add_products(products[number], part if exact else part.float())
    found = {"n": n, "shift": shift, "count": torch.full((d,), n, device=home), "first": first}
    for number, matrix in enumerate(products):
        mirror(matrix)
        found[f"products {number}"] = matrix
    return {**found, "second": second, "low": low, "high": high}


def _centred(source: Source, home: torch.device, shift: Tensor | None) -> Sums:
    try:
        return centred_products(source, home, shift=shift)
    except torch.OutOfMemoryError:
        pass  # outside the handler, which would keep the tensors alive
    torch.cuda.empty_cache()
    _warn_too_small(home)
    return centred_products(source, torch.device("cpu"), shift=shift)


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
        sums = _with_pairs(sums)
    for name, value in sums.items():
        if name not in ("n", "shift"):
            all_reduce(value, op={"low": "min", "high": "max"}.get(name, "sum"))
    return sums


def _add(parts: list[Sums | None]) -> Sums | None:
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    if any("pairs" in part for part in found):
        found = [_with_pairs(part) for part in found]
    ways = {"shift": lambda one, _: one, "low": torch.minimum, "high": torch.maximum}
    return {
        name: reduce(ways.get(name, operator.add), [part[name] for part in found])
        for name in found[0]
    }


def _with_pairs(sums: Sums) -> Sums:
    """Sums that say how often pairs were observed, also where nothing is missing."""
    if "pairs" in sums:
        return sums
    pairs = torch.full_like(sums["products"], float(sums["n"]))
    left_sums = sums["first"][:, None].expand_as(pairs).clone()
    return {**sums, "pairs": pairs, "left_sums": left_sums}


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
    warn(f"the covariance does not fit the memory of {device}; computing it on the CPU")


# -- sparse rows, of which only stored values are summed up -----------------------------------


def _sparse_blocks(source: Source) -> Iterator[sparse.csr_array | None]:
    """Rows in order, as many at a time as their stored values allow; None if they are not sparse.

    Every block costs a d x d product, so blocks are large: a fifth of the memory limit, since
    more than one is alive at a time.
    """
    n, d = source.shape
    target = max(block_bytes(source), (source.memory_limit or 0) // 5)
    start, size = 0, max(1, block_bytes(source) // d)
    while start < n:
        part = source.sparse_rows(slice(start, min(start + size, n)))
        yield part
        if part is None:
            return
        start += size
        row_bytes = (part.data.nbytes + part.indices.nbytes) / part.shape[0]
        size = max(1, int(target / max(row_bytes, 1.0)))


def _sparse_sums(source: Source) -> Sums | None:
    n, d = source.shape
    count = np.full(d, n)
    first, second = np.zeros(d), np.zeros(d)
    low, high = np.full(d, np.inf), np.full(d, -np.inf)
    parts = _sparse_blocks(source)
    for part in ahead(parts) if source.on_disk else parts:
        if part is None:
            return None
        part.sum_duplicates()
        at, values = part.indices, part.data.astype(np.float64)
        gaps = np.isnan(values)
        if gaps.any():
            count -= np.bincount(at[gaps], minlength=d)
            at, values = at[~gaps], values[~gaps]
        first += np.bincount(at, weights=values, minlength=d)
        second += np.bincount(at, weights=values**2, minlength=d)
        low = np.fmin(low, part.nanmin(axis=0).toarray().ravel())
        high = np.fmax(high, part.nanmax(axis=0).toarray().ravel())
    found = {"count": count, "first": first, "second": second, "low": low, "high": high}
    tensors = {name: torch.from_numpy(values) for name, values in found.items()}
    return {"n": n, "shift": torch.zeros(d, dtype=torch.float64), **tensors}


def _sparse_products(source: Source) -> Sums | None:
    n, d = source.shape
    products = torch.zeros(d, d, dtype=torch.float64)
    first = torch.zeros(d, dtype=torch.float64)
    parts = _sparse_blocks(source)
    for stored in ahead(parts) if source.on_disk else parts:
        if stored is None or np.isnan(stored.data).any():
            return None
        part = stored.astype(np.float64)
        first += torch.from_numpy(np.asarray(part.sum(axis=0)).ravel())
        products += torch.from_numpy((part.T @ part).toarray())
    return {"n": n, "first": first, "products": products}


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
    """Every row once, in order, as float64 on a device; which rows, and their values.

    Rows cross over to a GPU in the precision in which they are stored, and are not copied before.
    """
    if device.type == "cpu":
        yield from read_blocks(source)
        return
    n, d = source.shape
    free = free_bytes(device) if device.type == "cuda" else 8 * DEVICE_BLOCK
    most = min(DEVICE_BLOCK, free // 8)
    if source.memory_limit is not None:
        most = min(most, block_bytes(source))
    size = max(1, min(MOST_ROWS, most // (8 * d)))
    dtype = exact_dtype(source)
    parts = (slice(start, min(start + size, n)) for start in range(0, n, size))
    read = ((rows, _host_rows(source, rows, dtype)) for rows in parts)
    for rows, x in ahead(read) if source.on_disk else read:
        yield rows, x.to(device, non_blocking=True).double()


def centred_products(
    source: Source,
    device: torch.device,
    exact: bool | None = None,
    shift: Tensor | None = None,
) -> Sums:
    """Sums and products of features over all rows, missing values skipped.

    "pairs" are rows in which both features are observed, "left_sums" those of feature i over rows
    in which j is. ``exact``: multiply in float64; if None, where the device is fast at it.
    """
    n, d = source.shape
    if exact is None:
        exact = device.type == "cpu" or fast_float64(device)
    sums = torch.zeros(d, dtype=torch.float64, device=device)
    products = torch.zeros(d, d, dtype=torch.float64, device=device)
    gaps: dict[str, Tensor] = {}
    shift = None if shift is None else shift.to(device)
    with tf32(False):  # whatever the caller has set
        for rows, x in rows_on(source, device):
            if shift is None:
                shift = x.nanmean(0).nan_to_num_(0.0)
            x.sub_(shift)
            total = x.sum(0)
            if not gaps and torch.isnan(total).any():  # waits, once a block
                before = {"n": rows.start, "first": sums, "products": products}
                gaps = {name: _with_pairs(before)[name] for name in ("pairs", "left_sums")}
            if gaps:
                seen = (~torch.isnan(x)).to(torch.float64)
                x.nan_to_num_(nan=0.0)
                total = x.sum(0)
                gaps["pairs"].addmm_(seen.T, seen)
                gaps["left_sums"].addmm_(x.T, seen)
            sums += total
            add_products(products, x if exact else x.float())
    mirror(products)
    return {"n": n, "shift": shift, "first": sums, "products": products, **gaps}


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
