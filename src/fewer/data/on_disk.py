"""Rows outside memory: read in whole pieces, within a memory limit, noticing change."""

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data.columns import check_numbers, check_values
from fewer.data.source import Source, array_source, numpy_dtype
from fewer.errors import FewerError, FileFormatError, InputError

__all__ = [
    "SMALL_SHARE",
    "OnDiskSource",
    "damaged",
    "guarded",
    "in_memory_if_small",
    "open_npy",
    "readable_size",
    "size_in_bytes",
    "watch",
]

GAP_BYTES = 256 * 2**10  # reading this much for nothing costs no more than another request
PIECE_BYTES = 32 * 2**20
CHUNK_SHARE = 8  # of the memory limit: most that a chunk held for the next call may take
SMALL_SHARE = 4  # of the memory limit: what takes no more than this part is read into memory

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
FALLBACK = 2 * 2**30


class OnDiskSource(Source):
    """Rows that ``read(start, stop)`` fetches from an array with shape, dtype and maybe chunks.

    Rows of a chunk that was begun are held for the next call. Infinite values are refused, and so
    is a watched file that became another one since.
    """

    on_disk = True

    def __init__(
        self,
        read: Callable[[int, int], Any],
        what: str,
        array: Any,
        memory_limit: int,
        *,
        names: list[str] | None = None,
        watched: Sequence[Path] = (),
    ) -> None:
        check_numbers(what, array.shape, array.dtype)
        self._read, self.what, self.names, self.memory_limit = read, what, names, memory_limit
        self.shape = int(array.shape[0]), int(array.shape[1])
        self.dtype = np.dtype(array.dtype)
        self.row_bytes: float = self.shape[1] * self.dtype.itemsize
        chunk = int((getattr(array, "chunks", None) or [1])[0])
        # chunks too large to hold do not count
        self.chunk_rows = chunk if chunk * self.row_bytes <= memory_limit // CHUNK_SHARE else 1
        self._seen = watch(watched)
        self._chunk: tuple[int, int, np.ndarray] | None = None
        self._reading = threading.Lock()

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        kind = numpy_dtype(dtype)
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step == 1:
                found = np.array(self._contiguous(start, max(start, stop)), kind, order="C")
                return torch.from_numpy(found).to(dtype)
            index = np.arange(start, stop, step)
        out = np.empty((len(index), self.shape[1]), dtype=kind)
        for places, first, stop, offsets in self.runs(np.asarray(index)):
            out[places] = self._contiguous(first, stop)[offsets]
        return torch.from_numpy(out).to(dtype)

    def __repr__(self) -> str:
        n, d = self.shape
        return f"<{self.what}: {n} rows of {d} features, {self.dtype}>"

    def runs(
        self, index: np.ndarray
    ) -> Iterator[tuple[NDArray[np.int64], int, int, NDArray[np.int64]]]:
        """Group rows that lie close together: where they go, what to read, and which rows of it."""
        gap = max(1, self.chunk_rows, int(GAP_BYTES / self.row_bytes))
        places = np.argsort(index, kind="stable")
        ranked = index[places]
        at = 0
        while at < len(ranked):
            first = int(ranked[at])
            end = int(np.searchsorted(ranked, first + self._most_rows))
            jumps = np.flatnonzero(np.diff(ranked[at:end]) > gap)
            if len(jumps):
                end = at + int(jumps[0]) + 1
            yield places[at:end], first, int(ranked[end - 1]) + 1, ranked[at:end] - first
            at = end

    @property
    def _most_rows(self) -> int:
        piece = min(PIECE_BYTES, (self.memory_limit or PIECE_BYTES) // 12)
        return max(1, self.chunk_rows, int(piece / self.row_bytes))

    def _contiguous(self, start: int, stop: int) -> np.ndarray:
        """Rows as they are stored."""
        if start == stop:
            return np.empty((0, self.shape[1]), dtype=self.dtype)
        with self._reading:
            if self._chunk is not None and self._chunk[0] <= start and stop <= self._chunk[1]:
                return self._chunk[2][start - self._chunk[0] : stop - self._chunk[0]]
            size = self.chunk_rows
            low, high = start - start % size, min(self.shape[0], -(-stop // size) * size)
            self._chunk = None
            values = np.asarray(self.fetch(low, high))
            check_values(values, self.names, self.what, first_row=low)
            if (low, high) != (start, stop):
                self._chunk = low, high, values
            return values[start - low : stop - low]

    def fetch(self, low: int, high: int) -> Any:
        """Some neighbouring rows, not checked for infinite values."""
        with guarded(self._seen, lambda error: damaged(self.what, error)):
            values = self._read(low, high)
        if values.shape[0] != high - low:
            raise damaged(self.what, "fewer rows than it says")
        return values


def in_memory_if_small(source: OnDiskSource) -> Source:
    """The same rows in memory where they take no more than a quarter of the limit."""
    n, limit = source.shape[0], source.memory_limit or 0
    if n * source.row_bytes > limit // SMALL_SHARE:
        return source
    size = source._most_rows - source._most_rows % source.chunk_rows or 1
    parts = [source._contiguous(at, min(at + size, n)) for at in range(0, n, size)]
    return array_source(np.concatenate(parts), source.names, limit)


def open_npy(path: Path, names: list[str] | None, memory_limit: int) -> Source:
    """A source of an .npy file."""

    def mapped() -> np.ndarray:
        # mapped again for each piece: pages of a map that stays open would count as this
        # process's memory, without limit
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return found

    try:
        array = mapped()
    except (ValueError, EOFError) as error:
        raise FileFormatError(
            f"{path} is not a whole .npy file of numbers ({error}); write it again"
        ) from error
    source = OnDiskSource(
        lambda start, stop: np.array(mapped()[start:stop]),
        str(path),
        array,
        memory_limit,
        names=names,
        watched=[path],
    )
    return in_memory_if_small(source)


# -- files that are damaged, or change while they are read -----------------------------------

Seen = list[tuple[Path, tuple[int, int, int]]]


def watch(paths: Sequence[Path]) -> Seen:
    """What some files look like now, for `guarded`."""
    return [(path, _state(path)) for path in paths]


@contextmanager
def guarded(seen: Seen, explain: Callable[[Exception], Exception]) -> Iterator[None]:
    """Read files inside the block; an error is explained, unless a file has changed meanwhile."""
    _check_unchanged(seen)
    try:
        yield
    except (OSError, ValueError, RuntimeError, IndexError) as error:
        _check_unchanged(seen)
        if isinstance(error, FewerError):
            raise
        raise explain(error) from error
    _check_unchanged(seen)


def _check_unchanged(seen: Seen) -> None:
    for path, before in seen:
        try:
            same = _state(path) == before
        except FileNotFoundError as error:
            raise InputError(f"{path} vanished while it was read; start again") from error
        if not same:
            raise InputError(
                f"{path} changed while it was read; start again when nothing writes to it"
            )


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def damaged(what: str | os.PathLike[str], reason: object) -> FileFormatError:
    """The error for a file that cannot be read to its end."""
    first_line = str(reason).strip().split("\n")[0]
    return FileFormatError(f"{what} is damaged or truncated ({first_line}); write or copy it again")


# -- how much memory reading may take --------------------------------------------------------


def size_in_bytes(limit: Any = None) -> int:
    """A memory limit ("2GB", or bytes) in bytes; without one, a quarter of the machine's memory.

    Processes that ``torchrun`` has started on one machine divide that quarter among them.
    """
    if limit is None:
        try:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            return memory // (4 * int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        except (AttributeError, OSError, ValueError):  # not on every system
            return FALLBACK
    found = limit
    if isinstance(limit, str):
        parts = re.fullmatch(
            r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*(?:([kmgt])(i?))?b?\s*", limit.lower()
        )
        found = parts and float(parts[1]) * (BINARY if parts[3] else UNITS)[parts[2] or ""]
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not found >= 1:
        raise InputError(f"memory_limit={limit!r} is not a size; give bytes, or text such as '2GB'")
    return int(found)


def readable_size(size: float) -> str:
    """Bytes with a unit, such as 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
