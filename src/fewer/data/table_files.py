"""Parquet and Feather: a file, or many with the same columns."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewer._optional import import_optional
from fewer.data.arrays import open_npy
from fewer.data.arrow import arrow_columns, arrow_dtype, arrow_values
from fewer.data.cache import cache_folder, convert_once, write_npy_header
from fewer.data.columns import check_same_columns, join_names, tell_left_out
from fewer.data.memory import readable_size
from fewer.data.on_disk import StoredSource, in_memory_if_small
from fewer.data.source import Source
from fewer.errors import FileFormatError, InputError, warn

__all__ = ["FEATHER", "PARQUET", "TableFiles", "open_table_files", "stored_columns"]

PARQUET = (".parquet", ".pq")
FEATHER = (".feather", ".arrow", ".ipc")
ASIDE_ROWS = 2**14
PIECE_SHARE = 8  # of the memory limit: files with larger pieces are converted first
PASSES = 2  # over all rows, after which a binary copy pays: it is ten times as fast to read
DISK_SHARE = 10  # of the free disk: no larger copy is made without need


class TableFiles(StoredSource):
    """Rows of Parquet or Feather files, read one stored piece (row group or batch) at a time.

    Who begins to read all rows for the third time trains a network, most likely, and will read
    them often: then a binary copy is made, where the disk has room, and read instead.
    """

    def __init__(
        self, paths: Sequence[Path], leave_out: Sequence[str], memory_limit: int, what: str
    ) -> None:
        first = _opened(paths[0]).schema
        self.columns = arrow_columns(str(paths[0]), first, leave_out)
        features = self.columns.features
        self._pieces: list[tuple[Path, int]] = []
        starts = [0]
        for path in paths:
            file = _opened(path)
            check_same_columns(str(path), file.schema.names, str(paths[0]), first.names)
            _check_types(path, file.schema, features)
            for piece in range(file.pieces):
                rows = file.piece_rows(piece)
                if rows:
                    self._pieces.append((path, piece))
                    starts.append(starts[-1] + rows)
        if not self._pieces:
            raise InputError(f"{what} holds no rows")
        kinds = [arrow_dtype(first.field(name).type) for name in features]
        super().__init__(
            what,
            (starts[-1], len(features)),
            np.result_type(*(kind for kind in kinds if kind is not None)),
            names=features,
            memory_limit=memory_limit,
            watched=paths,
        )
        self._watch_of = {watch.path: watch for watch in self._watches}
        self._file: _ParquetPieces | _FeatherPieces | None = None
        self._decoded: tuple[int, np.ndarray] | None = None
        self._decodings, self._copy = 0, None
        self._paths, self._leave_out = paths, leave_out
        self._starts = np.array(starts)
        self.left_out = self.columns.left_out
        lengths = np.diff(self._starts)
        self.most_rows = int(lengths.max())
        # only pieces of one length lie where multiples of it say
        if (lengths[:-1] == self.most_rows).all():
            self._stored_in_chunks(self.most_rows)
        self.chunk_starts = self._starts[:-1]

    def _check_unchanged(self) -> None:
        pass  # each piece checks its own file: a folder may hold thousands

    _copy: StoredSource | None

    def _read(self, start: int, stop: int) -> np.ndarray:
        if self._decodings == PASSES * len(self._pieces):
            self._decodings += 1  # asked once, whatever the answer
            self._copy = self._copied()
        if self._copy is not None:
            return self._copy._read(start, stop)
        first, last = np.searchsorted(self._starts, [start, stop - 1], side="right") - 1
        parts = []
        for piece in range(first, last + 1):
            low = int(self._starts[piece])
            parts.append(self._piece(piece)[max(start - low, 0) : stop - low])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _piece(self, piece: int) -> np.ndarray:
        if self._decoded is None or self._decoded[0] != piece:
            self._decoded = None  # before the next one takes its memory
            self._decoded = piece, self._decode(piece)
            self._decodings += 1
        return self._decoded[1]

    def _copied(self) -> StoredSource | None:
        size = 8 * self.shape[0] * self.shape[1]
        if size > _free_disk() // DISK_SHARE:
            return None
        self._decoded = None
        copy = _converted(self, self._paths, self._leave_out, "is read again and again")
        return copy if isinstance(copy, StoredSource) else None

    def _decode(self, piece: int) -> np.ndarray:
        path, at = self._pieces[piece]
        watch = self._watch_of[path]
        watch.check()
        if self._file is None or self._file.path != path:
            self._file = _opened(path)
        try:
            values = arrow_values(self._file.read(at, self.names))
        except (OSError, ValueError) as error:
            watch.check()
            raise _damaged(path, error) from error
        watch.check()
        return values


def open_table_files(
    paths: Sequence[Path], leave_out: Sequence[str], memory_limit: int, what: str
) -> Source:
    """A source of Parquet or Feather files; in memory where they are small."""
    files = TableFiles(paths, leave_out, memory_limit, what)
    tell_left_out(what, files.columns)
    found = in_memory_if_small(files)
    if found is files and files.most_rows * files.row_bytes > memory_limit // PIECE_SHARE:
        reason = (
            f"is stored in pieces of {files.most_rows} rows "
            f"({readable_size(files.most_rows * files.row_bytes)}), too much for "
            f"memory_limit={readable_size(files.memory_limit or 0)}"
        )
        found = _converted(files, paths, leave_out, reason)
    if files.left_out:
        names = list(files.left_out)
        found.aside = lambda: (
            table for path in paths for table in _opened(path).stream(names, ASIDE_ROWS)
        )
    return found


def stored_columns(path: Path) -> list[str]:
    """Names of all columns of a Parquet or Feather file."""
    return list(_opened(path).schema.names)


def _free_disk() -> int:
    """Bytes that are free where binary copies are kept."""
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _converted(
    files: TableFiles, paths: Sequence[Path], leave_out: Sequence[str], reason: str
) -> Source:
    """Files as a binary copy."""
    dtype = files.dtype if files.dtype.kind == "f" else np.dtype(np.float64)
    step = max(1, (files.memory_limit or 0) // PIECE_SHARE // files.row_bytes)

    def convert(out: Any) -> dict[str, Any]:
        write_npy_header(out, files.shape, dtype)
        for path in paths:
            try:
                for table in _opened(path).stream(files.names, step):
                    out.write(np.ascontiguousarray(arrow_values(table), dtype=dtype).data)
            except (OSError, ValueError) as error:
                raise _damaged(path, error) from error
        for watch in files._watches:
            watch.check()
        return {}

    copy, _, fresh = convert_once(paths, {"leave_out": sorted(leave_out)}, convert)
    if fresh:
        warn(f"{files.what} {reason}; it was converted once to {copy}")
    source = open_npy(copy, files.names, files.memory_limit or 0)
    source.left_out = files.left_out
    return source


class _ParquetPieces:
    """A Parquet file by its row groups."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = import_optional("pyarrow.parquet").ParquetFile(path)
        self.schema, self.pieces = self.file.schema_arrow, self.file.metadata.num_row_groups

    def piece_rows(self, piece: int) -> int:
        return self.file.metadata.row_group(piece).num_rows

    def read(self, piece: int, names: list[str] | None) -> Any:
        return self.file.read_row_group(piece, columns=names).select(names)

    def stream(self, names: list[str] | None, rows: int) -> Iterator[Any]:
        # buffered, so that a piece is not read whole before its first rows come
        file = import_optional("pyarrow.parquet").ParquetFile(self.path, buffer_size=2**16)
        for batch in file.iter_batches(rows, columns=names):
            yield batch.select(names)


class _FeatherPieces:
    """A Feather (Arrow IPC) file by its batches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = self._open(None)
        self.schema, self.pieces = self.file.schema, self.file.num_record_batches
        self._first: Any = None

    def piece_rows(self, piece: int) -> int:
        if self._first is None:  # a batch says its length only when read: one column is enough
            self._first = self._open([0])
        return self._first.get_batch(piece).num_rows

    def read(self, piece: int, names: list[str] | None) -> Any:
        return self.file.get_batch(piece).select(names)

    def stream(self, names: list[str] | None, rows: int) -> Iterator[Any]:
        for piece in range(self.pieces):
            batch = self.read(piece, names)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def _open(self, fields: list[int] | None) -> Any:
        pa, ipc = import_optional("pyarrow"), import_optional("pyarrow.ipc")
        options = ipc.IpcReadOptions(included_fields=fields)
        return ipc.open_file(pa.OSFile(str(self.path)), options=options)


def _opened(path: Path) -> _ParquetPieces | _FeatherPieces:
    import_optional("pyarrow")
    try:
        if path.suffix.lower() in FEATHER:
            return _FeatherPieces(path)
        return _ParquetPieces(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors
        raise _damaged(path, error) from error


def _check_types(path: Path, schema: Any, features: list[str]) -> None:
    text = [name for name in features if arrow_dtype(schema.field(name).type) is None]
    if text:
        raise InputError(
            f"{path}: the columns {join_names(text)} are not numbers here, but are in the first "
            "file; write them alike, or name them in leave_out="
        )


def _damaged(path: Path, error: Exception) -> FileFormatError:
    reason = str(error).strip().split("\n")[0]
    return FileFormatError(f"{path} is damaged or truncated ({reason}); write or copy it again")
