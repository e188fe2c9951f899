"""Rows in order, a block at a time; the next block is read while this one is worked on."""

import queue
import threading
from collections.abc import Iterable, Iterator
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


def blocks(n: int, d: int, itemsize: int = 8, chunk_rows: int = 1) -> Iterator[slice]:
    """Consecutive row ranges that stay small when made dense."""
    return _ranges(n, max(1, BLOCK_BYTES // (d * itemsize)), chunk_rows)


def row_blocks(source: Source, itemsize: int = 8) -> Iterator[slice]:
    """Row ranges of a source: as `blocks`, within its memory limit, in whole stored chunks."""
    n, d = source.shape
    width = max(d, source.row_width)
    return _ranges(n, max(1, block_bytes(source) // (width * itemsize)), source.chunk_rows)


def block_bytes(source: Source) -> int:
    """Bytes of one block of float64 rows; a sixth of the memory limit at most.

    Three blocks are alive at a time (one read, one waiting, one in use), and the work on one
    takes copies.
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
    wanted = None if columns is None else torch.from_numpy(np.asarray(columns))
    out = np.empty((source.shape[0], source.shape[1] if wanted is None else len(wanted)))
    for rows, x in read_blocks(source):
        out[rows] = x if wanted is None else x[:, wanted]
    return out


def read_metadata(source: Source) -> Iterator[Any]:
    """Metadata of the rows of each block of `read_blocks`, as Arrow tables, or None."""
    held: list[Any] = []
    tables = None if source.metadata is None else iter(source.metadata())
    for rows in row_blocks(source):
        if tables is None:
            yield None
            continue
        pa = import_optional("pyarrow")
        need = rows.stop - rows.start
        while sum(table.num_rows for table in held) < need:
            table = next(tables, None)
            if table is None:
                raise InputError("the metadata columns have fewer rows than the features")
            held.append(table if isinstance(table, pa.Table) else pa.Table.from_batches([table]))
        whole = pa.concat_tables(held)
        yield whole.slice(0, need)
        held = [whole.slice(need)]


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, each made in a background thread while the one before it is used."""
    ready: queue.Queue[tuple[str, T | BaseException | None]] = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def offer(kind: str, item: T | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put((kind, item), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not offer("item", item):
                    return
                del item  # the queue holds it now: no second copy while the next one is read
            offer("end", None)
        except BaseException as error:  # whatever went wrong is raised where items are used
            offer("error", error)

    worker = threading.Thread(target=work, name="fewer-reads-ahead", daemon=True)
    worker.start()
    try:
        while True:
            kind, item = ready.get()
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(item, BaseException)
                raise item
            yield item  # type: ignore[misc]
            del item
    finally:
        stopped.set()
        worker.join()
