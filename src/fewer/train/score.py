"""How much of the variance of some rows a decoder brings back."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fewer.data import Source, read_blocks
from fewer.data.dask import reduce_rows
from fewer.data.source import shard_of_rank
from fewer.distributed import all_or_raise, all_reduce, shard_bounds
from fewer.nn import MeasuredDecoder

__all__ = ["explained_variance"]

Visit = Callable[[slice, torch.Tensor, torch.Tensor], None]


@torch.no_grad()
def explained_variance(
    decoder: MeasuredDecoder,
    source: Source,
    columns: NDArray[np.int64],
    visit: Visit | None = None,
) -> tuple[float, NDArray[np.float64]]:
    """1 - SSE / SST over all observed entries, and the mean squared error of each feature.

    SST is about the means of these rows themselves, as in R squared. ``visit`` is called with
    each block of rows that this process reads: which rows, their values and reconstructions.
    """
    part, start = shard_of_rank(source), shard_bounds(source.shape[0])[0]
    work = partial(_sums, decoder, columns=columns, visit=visit, start=start)
    if visit is None:  # rows of a cluster stay there
        sums = all_or_raise(lambda: reduce_rows(part, work, add=_add_up))
    else:
        sums = all_or_raise(lambda: work(part))
    count, first, second, wrong = sums
    all_reduce(count, first, second, wrong)
    seen = count.clamp_min(1)
    total = float((second - first.square() / seen).sum())
    value = 1.0 - float(wrong.sum()) / total if total > 0 else float(wrong.sum() == 0)
    return value, (wrong / seen).numpy()


def _add_up(parts: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.stack(each).sum(0) for each in zip(*parts, strict=True))


@torch.no_grad()
def _sums(
    decoder: MeasuredDecoder,
    source: Source,
    columns: NDArray[np.int64],
    visit: Visit | None,
    start: int,
) -> tuple[torch.Tensor, ...]:
    """Of each feature: values, their sum and squared sum, and the sum of squared errors."""
    d = source.shape[1]
    count, first, second, wrong = (torch.zeros(d, dtype=torch.float64) for _ in range(4))
    # sums about what the decoder gives for a mean row, so that they stay accurate
    middle = torch.nan_to_num(decoder(decoder.fill[None])[0])
    for rows, x in read_blocks(source):
        seen = ~torch.isnan(x)
        output = decoder(x[:, columns])
        if visit is not None:
            visit(slice(start + rows.start, start + rows.stop), x, output)
        error = output - x
        wrong += torch.where(seen, error, 0.0).square().sum(0)
        shifted = torch.where(seen, x - middle, 0.0)
        count += seen.sum(0)
        first += shifted.sum(0)
        second += shifted.square().sum(0)
    return count, first, second, wrong
