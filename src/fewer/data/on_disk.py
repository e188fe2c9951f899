"""Rows outside memory: read in whole pieces, within a memory limit, noticing change."""

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer.data.columns import check_numbers, check_values
from fewer.data.source import DenseSource, Source
from fewer.errors import FileFormatError, InputError

__all__ = [
    "OnDiskSource",
    "Watch",
    "damaged",
    "in_memory_if_small",
    "open_npy",
    "readable_size",
    "runs",
    "size_in_bytes",
]

GAP_BYTES = 256 * 2**10  # reading this much for nothing costs no more than another request
PIECE_BYTES = 32 * 2**20
CHUNK_SHARE = 8  # of the memory limit: most that a chunk kept for the next call may take
SMALL_SHARE = 4  # of the memory limit: what takes no more than this part is kept in memory

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
FALLBACK = 2 * 2**30


class OnDiskSource(Source):
    """Rows that ``read(start, stop)`` fetches.

    Rows of a chunk that was begun are kept for the next call. Infinite values are refused, and so
    is a watched file that became another one since.
    """

    on_disk = True

    def __init__(
        self,
        read: Callable[[int, int], np.ndarray],
        what: str,
        shape: tuple[int, int],
        dtype: np.dtype,
        *,
        names: list[str] | None = None,
        memory_limit: int | None = None,
        watched: Sequence[str | os.PathLike[str]] = (),
        chunk_rows: int = 1,
    ) -> None:
        self._read, self.what, self._shape, self.names = read, what, shape, names
        self.dtype = np.dtype(dtype)
        self.memory_limit = size_in_bytes(memory_limit)
        # chunks too large to hold do not count
        fits = chunk_rows * self.row_bytes <= self.memory_limit // CHUNK_SHARE
        self.chunk_rows = max(1, chunk_rows) if fits else 1
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
        gap = max(1, self.chunk_rows, GAP_BYTES // self.row_bytes)
        for places, wanted in runs(np.asarray(index), gap, self._most_rows):
            first = int(wanted[0])
            out[places] = self._contiguous(first, int(wanted[-1]) + 1)[wanted - first]
        return torch.from_numpy(out).to(dtype)

    def check_unchanged(self) -> None:
        """Raise if a watched file is no longer what it was."""
        for watch in self._watches:
            watch.check()

    def __repr__(self) -> str:
        n, d = self.shape
        return f"<{self.what}: {n} rows of {d} features, {self.dtype}>"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is stored."""
        return max(1, self.shape[1] * self.dtype.itemsize)

    @property
    def _most_rows(self) -> int:
        limit = self.memory_limit or PIECE_BYTES
        return max(1, self.chunk_rows, min(PIECE_BYTES, limit // 12) // self.row_bytes)

    def _contiguous(self, start: int, stop: int) -> np.ndarray:
        """Rows as they are stored."""
        if start == stop:
            return np.empty((0, self.shape[1]), dtype=self.dtype)
        with self._reading:
            if self._kept is not None and self._kept[0] <= start and stop <= self._kept[1]:
                return self._kept[2][start - self._kept[0] : stop - self._kept[0]]
            size = self.chunk_rows
            low, high = start - start % size, min(self.shape[0], -(-stop // size) * size)
            self._kept = None
            values = self._fetch(low, high)
            check_values(values, self.names, self.what, first_row=low)
            if (low, high) != (start, stop):
                self._kept = low, high, values
            return values[start - low : stop - low]

    def _fetch(self, low: int, high: int) -> np.ndarray:
        self.check_unchanged()
        try:
            values = np.asarray(self._read(low, high))
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, InputError):
                raise
            self.check_unchanged()
            raise damaged(self.what, error) from error
        self.check_unchanged()
        if len(values) != high - low:
            raise damaged(self.what, "fewer rows than it says")
        return values


class Watch:
    """Notices that a file became another one while it was read."""

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


def runs(
    index: np.ndarray, gap: int, most: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Group row numbers that lie close together: where they go, and which they are, ascending."""
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


def in_memory_if_small(source: OnDiskSource) -> Source:
    """The same rows in memory where they take no more than a quarter of the limit."""
    n = source.shape[0]
    if n * source.row_bytes > (source.memory_limit or 0) // SMALL_SHARE:
        return source
    size = source._most_rows - source._most_rows % source.chunk_rows or 1
    parts = [source._contiguous(at, min(at + size, n)) for at in range(0, n, size)]
    loaded = DenseSource(
        parts[0].copy() if len(parts) == 1 else np.concatenate(parts), source.names
    )
    loaded.memory_limit = source.memory_limit
    return loaded


def open_npy(path: Path, names: list[str] | None, memory_limit: int) -> Source:
    """A source of an .npy file."""

    def mapped() -> np.ndarray:
        # mapped anew for each piece: pages of a map that stays open would count as this
        # process's memory, without limit
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return found

    try:
        array = mapped()
    except (ValueError, EOFError) as error:
        raise FileFormatError(
            f"{path} is not a whole .npy file of numbers ({error}); write it again"
        ) from error
    check_numbers(str(path), array.shape, array.dtype)
    return in_memory_if_small(
        OnDiskSource(
            lambda start, stop: np.array(mapped()[start:stop]),
            str(path),
            (array.shape[0], array.shape[1]),
            array.dtype,
            names=names,
            memory_limit=memory_limit,
            watched=[path],
        )
    )


def damaged(what: str | os.PathLike[str], reason: object) -> FileFormatError:
    """The error for a file that cannot be read to its end."""
    said = str(reason).strip().split("\n")[0]
    return FileFormatError(f"{what} is damaged or truncated ({said}); write or copy it again")


# -- how much memory reading may take --------------------------------------------------------


def size_in_bytes(limit: Any = None) -> int:
    """A memory limit ("2GB", or bytes) in bytes; without one, a quarter of the machine's memory.

    Processes that ``torchrun`` has started on one machine divide that quarter among them.
    """
    if limit is None:
        return _quarter_of_memory()
    found = limit
    if isinstance(limit, str):
        parts = re.fullmatch(r"\s*([0-9.]+)\s*(?:([kmgt])(i?))?b?\s*", limit.lower())
        found = None
        if parts and parts[1].count(".") <= 1 and parts[1] != ".":
            units = BINARY if parts[3] else UNITS
            found = float(parts[1]) * units[parts[2] or ""]
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not found >= 1:
        raise InputError(f"memory_limit={limit!r} is not a size; give bytes, or text such as '2GB'")
    return int(found)


def readable_size(size: float) -> str:
    """Bytes as a person would say them."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _quarter_of_memory() -> int:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return memory // (4 * int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except (AttributeError, OSError, ValueError):  # not everywhere
        return FALLBACK
