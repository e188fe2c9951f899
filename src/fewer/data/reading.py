"""Rows in order, a block at a time; the next block is read while this one is worked on."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fewer._optional import import_optional
from fewer.data.source import Source
from fewer.errors import InputError

__all__ = [
    "ahead",
    "block_bytes",
    "blocks",
    "read_all",
    "read_blocks",
    "read_metadata",
    "row_blocks",
]

BLOCK_BYTES = 32 * 2**20
LEAST_BYTES = 64 * 2**10

T = TypeVar("T")


def blocks(n: int, d: int, chunk_rows: int = 1) -> Iterator[slice]:
    """Consecutive row ranges that stay small when made dense."""
    return _ranges(n, max(1, BLOCK_BYTES // (8 * d)), chunk_rows)


def row_blocks(source: Source) -> Iterator[slice]:
    """Row ranges of a source: as `blocks`, within its memory limit, in whole stored chunks."""
    n, d = source.shape
    width = max(d, source.row_width)
    return _ranges(n, max(1, block_bytes(source) // (8 * width)), source.chunk_rows)


def block_bytes(source: Source) -> int:
    """Bytes of one block of float64 rows; a sixth of the memory limit at most.

    Two blocks are alive at a time (one is read, one in use), and the work on one takes copies.
    """
    if source.memory_limit is None:
        return BLOCK_BYTES
    return min(BLOCK_BYTES, max(LEAST_BYTES, source.memory_limit // 6))


def _ranges(n: int, size: int, chunk_rows: int) -> Iterator[slice]:
    if 1 < chunk_rows <= size:
        size -= size % chunk_rows
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def read_blocks(
    source: Source, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[slice, Tensor]]:
    """Every row once, in order: which rows, and their values.

    Examples
    --------
    >>> import numpy as np
    >>> import fewer
    >>> [(rows.stop, x.sum().item()) for rows, x in read_blocks(fewer.data.open(np.ones((3, 2))))]
    [(3, 6.0)]
    """
    found = ((rows, source.rows(rows, dtype)) for rows in row_blocks(source))
    return ahead(found) if source.on_disk else found


def read_all(source: Source, columns: np.ndarray | None = None) -> np.ndarray:
    """All rows as one float64 array, or only some of their columns.

    Examples
    --------
    >>> import numpy as np
    >>> import fewer
    >>> read_all(fewer.data.open(np.arange(6).reshape(2, 3)), np.array([2]))
    array([[2.],
           [5.]])
    """
    out = np.empty((source.shape[0], source.shape[1] if columns is None else len(columns)))
    for rows, x in read_blocks(source):
        out[rows] = x if columns is None else x.numpy()[:, columns]
    return out


def read_metadata(source: Source) -> Iterator[Any]:
    """Metadata of the rows of each block of `read_blocks`, as Arrow tables, or None."""
    if source.metadata is None:
        yield from (None for _ in row_blocks(source))
        return
    pa = import_optional("pyarrow")
    tables = iter(source.metadata())
    held: list[Any] = []
    for rows in row_blocks(source):
        need = rows.stop - rows.start
        while sum(table.num_rows for table in held) < need:
            table = next(tables, None)
            if table is None:
                raise InputError("the metadata columns have fewer rows than the features")
            held.append(table)
        whole = pa.concat_tables(held)
        yield whole.slice(0, need)
        held = [whole.slice(need)]


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, each made in a background thread while the one before it is used."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "fewer-reads-ahead") as reader:
        waiting = reader.submit(next, source, end)
        while (item := waiting.result()) is not end:
            waiting = reader.submit(next, source, end)
            yield item  # type: ignore[misc]
            del item  # no second reference while the next one is awaited
