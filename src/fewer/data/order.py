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
    n: int, size: int, generator: torch.Generator, chunk_starts: NDArray[np.int64] | None = None
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
    chunk_starts : array of int, default=None
        Where rows begin that are stored together: blocks are made of whole chunks, as far as
        these fit a window.

    Yields
    ------
    blocks : list of slice
        Ascending, of neighbouring rows.
    order : Tensor of int
        A permutation of the rows of these blocks, joined.

    Examples
    --------
    >>> import torch
    >>> epoch = list(windows(6, 4, torch.Generator().manual_seed(0), np.array([0, 2, 4])))
    >>> [[(block.start, block.stop) for block in blocks] for blocks, _ in epoch]
    [[(0, 2), (4, 6)], [(2, 4)]]
    """
    if size >= n:
        yield [slice(0, n)], torch.randperm(n, generator=generator)
        return
    edges = [*_block_starts(n, size, chunk_starts), n]
    chosen: list[slice] = []
    held = 0
    for at in torch.randperm(len(edges) - 1, generator=generator).tolist():
        block = slice(edges[at], edges[at + 1])
        length = block.stop - block.start
        if held + length > size:
            yield sorted(chosen, key=_first), torch.randperm(held, generator=generator)
            chosen, held = [], 0
        chosen.append(block)
        held += length
    yield sorted(chosen, key=_first), torch.randperm(held, generator=generator)


def _block_starts(n: int, size: int, chunk_starts: NDArray[np.int64] | None) -> list[int]:
    step = max(1, size // BLOCKS_A_WINDOW)
    if chunk_starts is None:
        return list(range(0, n, step))
    starts = [0]
    for edge in [*chunk_starts.tolist(), n]:
        if edge - starts[-1] > size:  # a chunk that fits no window is taken in parts
            starts += range(starts[-1] + step, edge, step)
        if edge - starts[-1] >= step and edge < n:
            starts.append(edge)
    return starts


def _first(block: slice) -> int:
    return block.start
