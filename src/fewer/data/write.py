"""Rows on their way out: written block by block, under their name only when all went well."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fewer._files import atomic
from fewer._optional import import_optional
from fewer.data.arrays import HDF5
from fewer.data.columns import check_unique
from fewer.data.csv import COMPRESSED, TEXT, file_form
from fewer.data.h5ad import H5adWriter
from fewer.data.on_disk import write_npy_header
from fewer.data.tables import FEATHER, PARQUET
from fewer.errors import InputError

__all__ = ["RowWriter", "check_out", "write_rows"]

KNOWN = ".npy, .csv, .tsv (also .gz, .zst), .parquet, .feather, .h5, .h5ad"


class RowWriter(Protocol):
    """Takes rows in order, and the columns of the same rows that are not numbers."""

    def __call__(self, values: np.ndarray, metadata: Any = None) -> None: ...


def check_out(path: Path) -> None:
    """Refuse a path that cannot be written, before any work is done."""
    form = file_form(path)
    if form not in (".npy", ".h5ad", *TEXT, *PARQUET, *FEATHER, *HDF5):
        raise InputError(f"out={str(path)!r} ends in {form!r}, which is not known; use {KNOWN}")
    if not path.parent.is_dir():
        raise InputError(f"out={str(path)!r}: there is no folder {str(path.parent)!r}")


@contextmanager
def write_rows(path: Path, rows: int, names: Sequence[str]) -> Iterator[RowWriter]:
    """Write rows of named features into a new file, in the form that its name says.

    It appears, or replaces an older one, when all rows are written. With fewer or more than the
    number of rows announced there is an error and no file.
    """
    check_out(path)
    remedy = "one of each would be lost, so rename them"
    check_unique(f"out={str(path)!r}", names, remedy, "names")
    written = 0

    def write(values: np.ndarray, metadata: Any = None) -> None:
        nonlocal written
        written += len(values)
        check(written <= rows)
        if len(values):
            writer(values, metadata)

    def check(as_announced: bool) -> None:
        if not as_announced:
            raise InputError(f"{path} was to have {rows} rows and got {written}; it is not written")

    with atomic(path) as draft, ExitStack() as stack:
        writer = _writer(draft, rows, list(names), stack)
        yield write
        check(written == rows)
        if hasattr(writer, "finish"):
            writer.finish()


def _writer(path: Path, rows: int, names: list[str], stack: ExitStack) -> RowWriter:
    form = file_form(path)
    if form == ".npy":
        return _npy(path, rows, len(names), stack)
    if form in HDF5:
        return _hdf5(path, rows, names, stack)
    if form == ".h5ad":
        return H5adWriter(stack.enter_context(import_optional("h5py").File(path, "w")), rows, names)
    return _Table(path, form, names, stack)


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
        others = [] if metadata is None else metadata.schema.names
        columns = {name: metadata.column(name) for name in others if name not in self.names}
        columns |= {name: np.ascontiguousarray(values[:, j]) for j, name in enumerate(self.names)}
        table = import_optional("pyarrow").table(columns)
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
