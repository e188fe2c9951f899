"""The covariance of a source on a GPU: rows go there block by block, sums stay there in float64.

Cards made for computing multiply float64 as fast as float32, so they do. Others take products of
centred float32 blocks of at most 4096 rows and add those up in float64: then the entry (i, j) is
within 1e-6 of the root of C_ii C_jj.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewer.data.reading import ahead, block_bytes
from fewer.data.source import (
    DenseSource,
    Log1pSource,
    RowRange,
    RowView,
    ScaledSource,
    Source,
)

__all__ = [
    "add_products",
    "centred_products",
    "exact_dtype",
    "fast_float64",
    "free_bytes",
    "mirror",
    "rows_on",
    "tf32",
]

# bytes of a block of float64 rows on the device: enough rows for a good matrix product
DEVICE_BLOCK = 512 * 2**20
MOST_ROWS = 4096
# compute capabilities whose float64 runs at half the rate of float32, or on tensor cores
FAST_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
PANELS = 8


def exact_dtype(source: Source) -> torch.dtype:
    """float32 where the stored values fit it without rounding, else float64.

    Examples
    --------
    >>> import numpy as np
    >>> exact_dtype(DenseSource(np.zeros((1, 1), np.uint8))), exact_dtype(DenseSource(np.eye(1)))
    (torch.float32, torch.float64)
    """
    if isinstance(source, RowView | RowRange):
        return exact_dtype(source.source)
    if isinstance(source, ScaledSource | Log1pSource):  # these compute
        return torch.float64
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

    Rows cross over in the precision in which they are stored, and are not copied before.
    """
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
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """What a covariance is made of, summed over all rows, missing values left out.

    Parameters
    ----------
    source : Source
        The rows.
    device : torch.device
        Where to add up, and where the results stay.
    exact : bool, default=None
        Multiply in float64; if None, where the device is fast at it.
    shift : Tensor (d), default=None
        About what to take the sums; the means of the first block if None.

    Returns
    -------
    shift : Tensor (d)
    sums : Tensor (d)
    products : Tensor (d, d)
    pairs, left_sums : Tensor (d, d) or None
        Rows in which both features are observed, and sums of feature i over rows in which j
        is; None where nothing is missing.
    """
    d = source.shape[1]
    exact = fast_float64(device) if exact is None else exact
    sums = torch.zeros(d, dtype=torch.float64, device=device)
    products = torch.zeros(d, d, dtype=torch.float64, device=device)
    pairs: Tensor | None = None
    left_sums: Tensor | None = None
    shift = None if shift is None else shift.to(device)
    with tf32(False):  # whatever the caller has set
        for rows, x in rows_on(source, device):
            if shift is None:
                shift = x.nanmean(0).nan_to_num_(0.0)
            x.sub_(shift)
            total = x.sum(0)
            if pairs is None and torch.isnan(total).any():  # waits, once a block
                pairs = torch.full((d, d), float(rows.start), dtype=torch.float64, device=device)
                left_sums = sums[:, None].expand(d, d).clone()
            if pairs is not None and left_sums is not None:
                seen = (~torch.isnan(x)).to(torch.float64)
                x.nan_to_num_(nan=0.0)
                total = x.sum(0)
                pairs.addmm_(seen.T, seen)
                left_sums.addmm_(x.T, seen)
            sums += total
            add_products(products, x if exact else x.float())
    assert shift is not None
    mirror(products)
    return shift, sums, products, pairs, left_sums


def _host_rows(source: Source, rows: slice, dtype: torch.dtype) -> Tensor:
    if isinstance(source, RowRange):
        start = source.start
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
    """Whether CUDA may round float32 to tf32 in products, inside the block.

    Examples
    --------
    >>> with tf32(True):
    ...     torch.backends.cuda.matmul.allow_tf32
    True
    """
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
