"""In which order rows are read: shares for many processes, and shuffling by blocks.

Rows on disk are quick to read where they lie together. So an epoch takes blocks of neighbouring
rows in random order, a window of several blocks at a time, and shuffles each window in memory:
every row comes once, and the larger the window the better the mix.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.errors import InputError

__all__ = ["shard", "windows"]

BLOCKS_A_WINDOW = 16


def shard(index: NDArray[np.int64], rank: int, world: int) -> NDArray[np.int64]:
    """The part of some rows that one of ``world`` processes reads: neighbours stay together.

    Shares differ by at most one row.

    Examples
    --------
    >>> import numpy as np
    >>> [shard(np.arange(5), rank, 2).tolist() for rank in (0, 1)]
    [[0, 1, 2], [3, 4]]
    """
    if not 0 <= rank < world:
        raise InputError(f"rank={rank} must be from 0 to {world - 1} where world={world}")
    return np.array_split(np.asarray(index), world)[rank]


def windows(
    n: int, size: int, generator: torch.Generator, chunk_rows: int = 1
) -> Iterator[tuple[list[slice], Tensor]]:
    """An epoch over n rows: which blocks to read together, and how to shuffle them then.

    Parameters
    ----------
    n : int
        Rows.
    size : int
        Rows that fit a window.
    generator : torch.Generator
        Fixes the order.
    chunk_rows : int, default=1
        Rows that are stored together.

    Yields
    ------
    blocks : list of slice
        Ascending, of neighbouring rows.
    order : Tensor of int
        A permutation of the rows of these blocks, joined.

    Examples
    --------
    >>> import torch
    >>> epoch = list(windows(6, 4, torch.Generator().manual_seed(0), chunk_rows=2))
    >>> [[(block.start, block.stop) for block in blocks] for blocks, _ in epoch]
    [[(0, 2), (4, 6)], [(2, 4)]]
    """
    if size >= n:
        yield [slice(0, n)], torch.randperm(n, generator=generator)
        return
    step = max(1, size // BLOCKS_A_WINDOW)
    if chunk_rows > 1 and chunk_rows <= size // 2:
        step = max(1, round(step / chunk_rows)) * chunk_rows
    starts = torch.arange(0, n, step)
    drawn = starts[torch.randperm(len(starts), generator=generator)]
    for part in drawn.split(max(1, size // step)):
        chosen = [slice(at, min(at + step, n)) for at in sorted(part.tolist())]
        rows = sum(block.stop - block.start for block in chosen)
        yield chosen, torch.randperm(rows, generator=generator)
