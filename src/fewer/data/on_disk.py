"""What all sources on disk share: contiguous reading, noticing change, refusing infinity."""

import os
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data.memory import size_in_bytes
from fewer.data.source import DenseSource, Source
from fewer.data.values import check_values
from fewer.errors import InputError

__all__ = ["StoredSource", "Watch", "in_memory_if_small"]

GAP_BYTES = 256 * 2**10  # reading this much for nothing costs no more than another request
PIECE_BYTES = 32 * 2**20
CHUNK_SHARE = 8  # of the memory limit: most that a chunk kept for the next call may take
SMALL_SHARE = 4  # of the memory limit: what takes no more than this part is kept in memory


class Watch:
    """Notices that a file became another one while it was read.

    Examples
    --------
    >>> import tempfile
    >>> file = tempfile.NamedTemporaryFile()
    >>> watch = Watch(file.name)
    >>> watch.check()
    >>> _ = file.write(b"more"), file.flush()
    >>> watch.check()
    Traceback (most recent call last):
    fewer.errors.InputError: ... changed while it was read; ...
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen = self._state()

    def check(self) -> None:
        """Raise if the file is no longer what it was."""
        try:
            same = self._state() == self._seen
        except FileNotFoundError as error:
            raise InputError(f"{self.path} vanished while it was read; start again") from error
        if not same:
            raise InputError(
                f"{self.path} changed while it was read; start again when nothing writes to it"
            )

    def _state(self) -> tuple[int, int, int]:
        found = os.stat(self.path)
        return found.st_size, found.st_mtime_ns, found.st_ino


class StoredSource(Source):
    """Rows outside memory; subclasses read ``start`` to ``stop`` in `_read`."""

    on_disk = True

    def __init__(
        self,
        what: str,
        shape: tuple[int, int],
        dtype: np.dtype,
        *,
        names: list[str] | None = None,
        memory_limit: int | None = None,
        watched: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self.what, self._shape, self.dtype, self.names = what, shape, np.dtype(dtype), names
        self.memory_limit = size_in_bytes(memory_limit)
        self._watches = [Watch(path) for path in watched]
        self._kept: tuple[int, int, np.ndarray] | None = None
        self._reading = threading.Lock()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self._shape

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        kind = np.float64 if dtype == torch.float64 else np.float32
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step == 1:
                found = np.array(self._contiguous(start, max(start, stop)), kind, order="C")
                return torch.from_numpy(found).to(dtype)
            index = np.arange(start, stop, step)
        out = np.empty((len(index), self.shape[1]), dtype=kind)
        for places, wanted in runs(np.asarray(index), self._gap, self._most_rows):
            first = int(wanted[0])
            out[places] = self._contiguous(first, int(wanted[-1]) + 1)[wanted - first]
        return torch.from_numpy(out).to(dtype)

    def __repr__(self) -> str:
        n, d = self.shape
        return f"<{self.what}: {n} rows of {d} features, {self.dtype}>"

    @abstractmethod
    def _read(self, start: int, stop: int) -> np.ndarray:
        """Rows from start to stop."""

    def _stored_in_chunks(self, rows: int) -> None:
        """Say how many rows are stored together; chunks too large to hold do not count."""
        fits = rows * self.row_bytes <= (self.memory_limit or 0) // CHUNK_SHARE
        self.chunk_rows = max(1, rows) if fits else 1

    def _check_unchanged(self) -> None:
        for watch in self._watches:
            watch.check()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is stored."""
        return max(1, self.shape[1] * self.dtype.itemsize)

    @property
    def _gap(self) -> int:
        return max(1, self.chunk_rows, GAP_BYTES // self.row_bytes)

    @property
    def _most_rows(self) -> int:
        limit = self.memory_limit or PIECE_BYTES
        return max(1, self.chunk_rows, min(PIECE_BYTES, limit // 12) // self.row_bytes)

    def _contiguous(self, start: int, stop: int) -> np.ndarray:
        """Rows as they are stored; those of a chunk that was begun are kept for the next call."""
        if start == stop:
            return np.empty((0, self.shape[1]), dtype=self.dtype)
        with self._reading:
            return self._chunks(start, stop)

    def _chunks(self, start: int, stop: int) -> np.ndarray:
        if self._kept is not None and self._kept[0] <= start and stop <= self._kept[1]:
            return self._kept[2][start - self._kept[0] : stop - self._kept[0]]
        low, high = self._whole_chunks(start, stop)
        self._kept = None
        self._check_unchanged()
        values = self._read(low, high)
        self._check_unchanged()
        check_values(values, self.names, self.what, first_row=low)
        if (low, high) != (start, stop):
            self._kept = low, high, values
        return values[start - low : stop - low]

    def _whole_chunks(self, start: int, stop: int) -> tuple[int, int]:
        size = self.chunk_rows
        return start - start % size, min(self.shape[0], -(-stop // size) * size)


def runs(
    index: np.ndarray, gap: int, most: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Group row numbers that lie close together: where they go, and which they are, ascending.

    Examples
    --------
    >>> import numpy as np
    >>> [(at.tolist(), rows.tolist()) for at, rows in runs(np.array([9, 1, 2]), gap=3, most=10)]
    [([1, 2], [1, 2]), ([0], [9])]
    """
    places = np.argsort(index, kind="stable")
    ranked = index[places]
    at = 0
    while at < len(ranked):
        end = int(np.searchsorted(ranked, ranked[at] + most))
        jumps = np.flatnonzero(np.diff(ranked[at:end]) > gap)
        if len(jumps):
            end = at + int(jumps[0]) + 1
        yield places[at:end], ranked[at:end]
        at = end


def in_memory_if_small(source: StoredSource) -> Source:
    """The same rows in memory where they take no more than a quarter of the limit."""
    n = source.shape[0]
    if n * source.row_bytes > (source.memory_limit or 0) // SMALL_SHARE:
        return source
    size = source._most_rows - source._most_rows % source.chunk_rows or 1
    parts = [source._contiguous(at, min(at + size, n)) for at in range(0, n, size)]
    loaded = DenseSource(parts[0].copy() if len(parts) == 1 else np.concatenate(parts))
    loaded.names, loaded.left_out = source.names, source.left_out
    loaded.memory_limit = source.memory_limit
    return loaded
