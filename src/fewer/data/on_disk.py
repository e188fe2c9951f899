"""Rows outside memory: read in whole pieces, within a memory limit, noticing change.

Files that cannot be read in pieces are converted once to .npy, then reused. A copy is keyed by the
file's path, size and time of change and by how it was read, so an edited file is converted again.
It lies in the folder ``fewer/rows`` of the user's cache, or of the folder that ``FEWER_CACHE``
names, and can be deleted at any time.
"""

import hashlib
import json
import math
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewer._files import atomic
from fewer._optional import import_optional
from fewer._threads import memory_quota
from fewer.data.columns import check_numbers, check_values
from fewer.data.screen import most_bytes
from fewer.data.source import Source, array_source, numpy_dtype
from fewer.errors import FewerError, FileFormatError, InputError, warn

GAP_BYTES = 256 * 2**10  # reading this much for nothing costs no more than another request
PIECE_BYTES = 32 * 2**20
CHUNK_SHARE = 8  # of the memory limit: most that a chunk held for the next call may take
SMALL_SHARE = 4  # of the memory limit: what takes no more than this part is read into memory

FALLBACK = 2 * 2**30


class OnDiskSource(Source):
    """Rows that ``read(start, stop)`` fetches from an array with shape, dtype and maybe chunks."""

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
    if size >= n:
        return array_source(source._contiguous(0, n), source.names, limit)
    rows = np.empty(source.shape, source.dtype)
    for at in range(0, n, size):
        rows[at : at + size] = source._contiguous(at, min(at + size, n))
    return array_source(rows, source.names, limit)


def open_npy(path: Path, names: list[str] | None, memory_limit: int) -> Source:
    """A source of an .npy file."""

    try:
        with path.open("rb") as file:
            header = read_npy_header(file)
            held = os.fstat(file.fileno()).st_size - header.start
    except OSError:
        raise
    except Exception as error:  # the header is Python, which its parser may refuse in many ways
        raise FileFormatError(
            f"{path} is not a whole .npy file of numbers ({error}); write it again"
        ) from error
    if held < header.nbytes:
        raise FileFormatError(
            f"{path} is not a whole .npy file of numbers (truncated: {held} bytes of values, "
            f"{header.nbytes} expected); write it again"
        )
    source = OnDiskSource(
        partial(_read_npy, path, header),
        str(path),
        header,
        memory_limit,
        names=names,
        watched=[path],
    )
    return in_memory_if_small(source)


class NpyHeader(NamedTuple):
    """Where the values of an .npy file start, and how they lie."""

    shape: tuple[int, ...]
    dtype: np.dtype
    by_column: bool
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(file: IO[bytes]) -> NpyHeader:
    """The header of an .npy file that is open at its start; objects are refused."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):  # 3.0 is for names of fields, which rows have not
        raise ValueError(f"version {version} of the format")
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, by_column, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return NpyHeader(tuple(map(int, shape)), dtype, by_column, file.tell())


def _read_npy(path: Path, header: NpyHeader, start: int, stop: int) -> np.ndarray:
    """Some rows of an .npy file; read, not mapped: a map of a file that shrinks ends the process.

    (Pages of a map that stays open would also count as this process's memory, without limit.)
    """
    (rows, width), size = header.shape, header.dtype.itemsize
    with path.open("rb") as file:
        if not header.by_column:
            file.seek(header.start + start * width * size)
            found = np.fromfile(file, header.dtype, (stop - start) * width)
            if len(found) < (stop - start) * width:
                raise ValueError("truncated")
            return found.reshape(stop - start, width)
        out = np.empty((width, stop - start), header.dtype)
        for j in range(width):
            file.seek(header.start + (j * rows + start) * size)
            if file.readinto(memoryview(out[j]).cast("B")) < out[j].nbytes:
                raise ValueError("truncated")
        return out.T


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
    except Exception as error:  # libraries raise all kinds for damaged files
        _check_unchanged(seen)
        if isinstance(error, FewerError):
            raise
        raise explain(error) from error
    _check_unchanged(seen)


def _check_unchanged(seen: Seen) -> None:
    for path, before in seen:
        if not path.exists():
            raise InputError(f"{path} vanished while it was read; start again")
        if _state(path) != before:
            raise InputError(
                f"{path} changed while it was read; start again when nothing writes to it"
            )


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


@contextmanager
def damaged_where_unreadable(what: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever a library raises for a file into a `FileFormatError`."""
    try:
        yield
    except FewerError:
        raise
    except Exception as error:  # libraries raise all kinds for damaged files
        raise damaged(what, error) from error


def check_expansion(what: str | os.PathLike[str], claimed: int, size: int) -> None:
    """Refuse a file that claims to hold more than its size can explain, before it is unpacked."""
    if claimed > most_bytes(size):
        raise FileFormatError(
            f"{what} declares {readable_size(claimed)} of data in a file of {readable_size(size)}; "
            "at most 64 MB and 1,000 times the size are unpacked: write it again, without "
            "compression if the data is that repetitive"
        )


def damaged(what: str | os.PathLike[str], reason: object) -> FileFormatError:
    """The error for a file that cannot be read to its end."""
    first_line = str(reason).strip().split("\n")[0] or type(reason).__name__
    return FileFormatError(f"{what} is damaged or truncated ({first_line}); write or copy it again")


# -- how much memory reading may take --------------------------------------------------------


def size_in_bytes(limit: Any = None) -> int:
    """A memory limit ("2GB", or bytes) in bytes.

    Without one, a quarter of the memory of the machine, or of its container.
    """
    if limit is None:  # processes that torchrun has started on one machine share that quarter
        try:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            return int(min(memory, memory_quota())) // (
                4 * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            )
        except (AttributeError, OSError, ValueError):  # not on every system
            return FALLBACK
    found = limit
    if isinstance(limit, str):
        parts = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(?:([kmgt])(i?))?b?\s*", limit.lower())
        found = parts and float(parts[1]) * (1024 if parts[3] else 1000) ** (
            "kmgt".index(parts[2]) + 1 if parts[2] else 0
        )
    fits = isinstance(found, (int, float)) and not isinstance(found, bool)
    if not fits or not 1 <= found < math.inf:
        raise InputError(
            f"memory_limit={limit!r} is not a size; use a number of bytes, or text such as '2GB'"
        )
    return int(found)


def readable_size(size: float) -> str:
    """Bytes with a unit, such as 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


# -- copies in the cache ------------------------------------------------------------------------

FORMAT = 2


def cache_folder() -> Path:
    """Where fewer keeps what it can make again."""
    own = os.environ.get("FEWER_CACHE")
    if own:
        return Path(own).expanduser() / "fewer"
    if sys.platform == "darwin":
        base = "~/Library/Caches"
    elif sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fewer"


def clear_cache() -> int:
    """Delete all binary copies; the number of bytes set free.

    Examples
    --------
    >>> import os, tempfile
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"FEWER_CACHE": tempfile.mkdtemp()}):
    ...     clear_cache()  # nothing there yet
    0
    """
    folder = cache_folder() / "rows"
    size = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
    shutil.rmtree(folder, ignore_errors=True)
    return size


def rows_of_blocks(
    blocks: Iterable[np.ndarray],
    what: str,
    paths: Sequence[Path],
    options: dict[str, Any],
    memory_limit: int,
) -> Source:
    """A source of rows that can only be read in order: in memory if small, else from a copy."""
    copy = _copy_of(paths, options)
    if _is_whole(copy):
        return open_npy(copy, None, memory_limit)
    rest = iter(blocks)
    parts: list[np.ndarray] = []
    for part in rest:
        parts.append(part)
        if sum(held.nbytes for held in parts) > memory_limit // SMALL_SHARE:
            break
    else:
        return array_source(np.concatenate(parts), None, memory_limit)

    def taken() -> Iterable[np.ndarray]:  # each part is freed as soon as it is written
        while parts:
            yield parts.pop(0)

    convert_once(paths, options, lambda file: _write_blocks(file, chain(taken(), rest), what))
    source = open_npy(copy, None, memory_limit)
    warn(
        f"{what} does not fit memory_limit={readable_size(memory_limit)}; it was converted once "
        f"to {copy} ({source.shape[0]} rows), which will be used from now on"
    )
    return source


def convert_once(
    paths: Sequence[Path], options: dict[str, Any], write: Callable[[IO[bytes]], None]
) -> Path:
    """The binary copy of some files; ``write`` makes it in an open file if it is not there yet."""
    copy = _copy_of(paths, options)
    if _is_whole(copy):
        return copy
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with atomic(copy) as draft, draft.open("w+b") as file:
            write(file)
    except OSError as error:
        raise InputError(
            f"a binary copy of {paths[0]} cannot be written to {copy.parent} ({error}); "
            "free some space, or set the environment variable FEWER_CACHE to another folder"
        ) from error
    return copy


def write_npy_header(file: IO[bytes], shape: tuple[int, int], dtype: np.dtype) -> None:
    """Begin an .npy file of this shape; NumPy leaves room for the number of rows to grow."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _write_blocks(file: IO[bytes], blocks: Iterable[np.ndarray], what: str) -> None:
    """Write rows of one floating dtype as an .npy file."""
    from rich.console import Console  # noqa: PLC0415 (slow to import, and most files need no copy)

    rows, width, dtype = 0, 0, np.dtype(np.float64)
    name = Path(what).name
    with Console(stderr=True).status(f"converting {name}") as status:
        for part in blocks:
            if not rows:
                width = part.shape[1]
                dtype = part.dtype if part.dtype.kind == "f" else dtype
                write_npy_header(file, (0, width), dtype)
            file.write(np.ascontiguousarray(part, dtype=dtype).data)
            rows += len(part)
            status.update(f"converting {name}: {rows:,} rows")
    file.seek(0)
    write_npy_header(file, (rows, width), dtype)


def _copy_of(paths: Sequence[Path], options: dict[str, Any]) -> Path:
    key: list[Any] = [FORMAT, options]
    for path in paths:
        found = path.stat()
        key.append([str(path.resolve()), found.st_size, found.st_mtime_ns])
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / "rows" / f"{digest}.npy"


def _is_whole(copy: Path) -> bool:
    try:
        with copy.open("rb") as file:
            header = read_npy_header(file)
            return os.fstat(file.fileno()).st_size >= header.start + header.nbytes
    except Exception:
        return False  # not there, or not whole: made again


# -- files that Arrow reads ----------------------------------------------------------------------


def source_of_tables(
    paths: Sequence[Path],
    features: list[str],
    metadata: tuple[str, ...],
    read_features: Callable[[Path], Iterable[Any]],
    read_metadata: Callable[[Path], Iterable[Any]],
    explain: Callable[[Path, Exception], Exception],
    options: dict[str, Any],
    memory_limit: int,
    what: str,
) -> Source:
    """A source of files that Arrow reads batch by batch, either kind of columns of a path."""
    seen = {path: watch([path]) for path in paths}  # metadata must be of the same rows

    def blocks() -> Iterator[np.ndarray]:
        rows = 0
        for path in paths:
            with guarded(seen[path], partial(explain, path)):
                for batch in read_features(path):
                    values = arrow_values(batch)
                    check_values(values, features, str(path), first_row=rows)
                    rows += len(values)
                    yield values
        if not rows:
            raise InputError(f"{what} holds no rows")

    source = rows_of_blocks(blocks(), what, paths, options, memory_limit)
    source.names, source.metadata_columns = features, metadata
    if metadata:
        table = import_optional("pyarrow").Table

        def tables() -> Iterator[Any]:
            for path in paths:
                with guarded(seen[path], partial(explain, path)):
                    for batch in read_metadata(path):
                        yield table.from_batches([batch])

        source.metadata = tables
    return source


def holds_numbers(kind: Any) -> bool:
    """Whether an Arrow type is one of numbers; true and false count as 1 and 0."""
    t = import_optional("pyarrow.types")
    checks = t.is_boolean, t.is_integer, t.is_floating, t.is_decimal, t.is_null
    return any(check(kind) for check in checks)


def arrow_values(batch: Any) -> np.ndarray:
    """All columns of a batch of numbers as one array; nulls become NaN."""
    pa = import_optional("pyarrow")

    def plain(kind: Any) -> Any:
        if pa.types.is_boolean(kind):
            return pa.uint8()
        if pa.types.is_float16(kind):
            return pa.float32()
        return kind if pa.types.is_primitive(kind) else pa.float64()

    schema = pa.schema([(field.name, plain(field.type)) for field in batch.schema])
    gaps = any(column.null_count for column in batch.columns)
    return batch.cast(schema, safe=False).to_tensor(null_to_nan=gaps).to_numpy()
