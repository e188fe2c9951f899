"""Rows on their way out: written block by block, under their name only when all went well."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fewer._checks import join_names
from fewer._files import atomic
from fewer._optional import import_optional
from fewer.data.arrays import HDF5
from fewer.data.cache import write_npy_header
from fewer.data.csv import COMPRESSED, TEXT
from fewer.data.h5ad import write_h5ad
from fewer.data.parquet import FEATHER, PARQUET
from fewer.errors import InputError

__all__ = ["RowWriter", "check_out", "write_rows"]

KNOWN = ".npy, .csv, .tsv (also .gz, .zst), .parquet, .feather, .h5, .h5ad"


class RowWriter(Protocol):
    """Takes rows in order, and the columns of the same rows that are not numbers."""

    def __call__(self, values: np.ndarray, metadata: Any = None) -> None:
        """Write some rows."""
        ...


def check_out(path: Path) -> None:
    """Refuse a path that cannot be written, before any work is done."""
    form = _form(path)
    if form not in (".npy", ".h5ad", *TEXT, *PARQUET, *FEATHER, *HDF5):
        raise InputError(f"out={str(path)!r} ends in {form!r}, which is not known; use {KNOWN}")
    if not path.parent.is_dir():
        raise InputError(f"out={str(path)!r}: there is no folder {str(path.parent)!r}")


@contextmanager
def write_rows(path: Path, rows: int, names: Sequence[str]) -> Iterator[RowWriter]:
    """Write rows of named features into a new file, in the form that its name says.

    Parameters
    ----------
    path : Path
        The file; it appears, or replaces an older one, when all rows are written. With fewer or
        more rows than announced there is an error and no file.
    rows : int
        How many there will be.
    names : sequence of str
        Of the features; all different.
    """
    check_out(path)
    names = _different(path, names)
    with atomic(path) as draft, ExitStack() as stack:
        counted = _Counted(path, rows, _writer(draft, rows, names, stack))
        yield counted
        counted.finish()


def _writer(path: Path, rows: int, names: list[str], stack: ExitStack) -> RowWriter:
    form = _form(path)
    if form == ".npy":
        return _npy(path, rows, len(names), stack)
    if form in HDF5:
        return _hdf5(path, rows, names, stack)
    if form == ".h5ad":
        return write_h5ad(path, rows, names, stack)
    return _Table(path, form, names, stack)


class _Counted:
    """A writer that holds its user to the number of rows that was announced."""

    def __init__(self, path: Path, rows: int, writer: RowWriter) -> None:
        self.path, self.rows, self.writer, self.written = path, rows, writer, 0

    def __call__(self, values: np.ndarray, metadata: Any = None) -> None:
        """Write some rows."""
        self.written += len(values)
        if self.written > self.rows:
            raise self._wrong()
        if len(values):
            self.writer(values, metadata)

    def finish(self) -> None:
        """Refuse a file that is not whole."""
        if self.written != self.rows:
            raise self._wrong()
        finish = getattr(self.writer, "finish", None)
        if finish is not None:
            finish()

    def _wrong(self) -> InputError:
        return InputError(
            f"{self.path} was to have {self.rows} rows and got {self.written}; it is not written"
        )


def _different(path: Path, names: Sequence[str]) -> list[str]:
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise InputError(
            f"out={str(path)!r}: {len(repeated)} names occur more than once: "
            f"{join_names(repeated)}; one of each would be lost, so rename them"
        )
    return list(names)


def _form(path: Path) -> str:
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return inner.suffix.lower()


def _npy(path: Path, rows: int, columns: int, stack: ExitStack) -> RowWriter:
    file = stack.enter_context(path.open("wb"))
    write_npy_header(file, (rows, columns), np.dtype(np.float64))

    def write(values: np.ndarray, metadata: Any = None) -> None:
        file.write(np.ascontiguousarray(values, dtype=np.float64).data)

    return write


def _hdf5(path: Path, rows: int, names: Sequence[str], stack: ExitStack) -> RowWriter:
    file = stack.enter_context(import_optional("h5py").File(path, "w"))
    file["names"] = np.array(list(names), dtype=object)
    matrix, at = file.create_dataset("X", shape=(rows, len(names)), dtype=np.float64), 0

    def write(values: np.ndarray, metadata: Any = None) -> None:
        nonlocal at
        matrix[at : at + len(values)] = values
        at += len(values)

    return write


class _Table:
    """Arrow's writers; metadata columns come first, as they came in.

    A metadata column with the name of a feature gives way to that.
    """

    def __init__(self, path: Path, form: str, names: list[str], stack: ExitStack) -> None:
        self.path, self.form, self.names, self.stack = path, form, names, stack
        self.writer: Any = None

    def __call__(self, values: np.ndarray, metadata: Any = None) -> None:
        """Write some rows."""
        pa = import_optional("pyarrow")
        taken = set(self.names)
        kept = [] if metadata is None else metadata.schema.names
        columns = {name: metadata.column(name) for name in kept if name not in taken}
        columns |= {name: np.ascontiguousarray(values[:, j]) for j, name in enumerate(self.names)}
        table = pa.table(columns)
        if self.writer is None:
            self.writer = self.stack.enter_context(self._open(table.schema))
        self.writer.write_table(table)

    def finish(self) -> None:
        """Without rows, still a table with its columns."""
        if self.writer is None:
            self(np.empty((0, len(self.names))))

    def _open(self, schema: Any) -> Any:
        pa = import_optional("pyarrow")
        if self.form in PARQUET:
            return import_optional("pyarrow.parquet").ParquetWriter(self.path, schema)
        if self.form in FEATHER:
            return import_optional("pyarrow.ipc").new_file(str(self.path), schema)
        arrow_csv = import_optional("pyarrow.csv")
        packing = COMPRESSED.get(self.path.suffix.lower())
        file = self.stack.enter_context(pa.output_stream(str(self.path), compression=packing))
        options = arrow_csv.WriteOptions(
            delimiter="\t" if self.form == ".tsv" else ",", quoting_style="needed"
        )
        return arrow_csv.CSVWriter(file, schema, write_options=options)
