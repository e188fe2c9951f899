"""Rows on their way out: written block by block, under their name only when all went well."""

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fewer._checks import check_suffix
from fewer._files import atomic, check_path
from fewer._optional import import_optional
from fewer.data.arrays import HDF5, hdf5_to_write
from fewer.data.columns import check_unique
from fewer.data.csv import COMPRESSED, TEXT, Dialect, file_form
from fewer.data.h5ad import h5ad_writer
from fewer.data.on_disk import write_npy_header
from fewer.data.tables import FEATHER, PARQUET
from fewer.errors import InputError

KNOWN = ".npy, .csv, .tsv (also .gz, .bz2, .zst, .zip), .parquet, .feather, .h5, .h5ad"
FORMS = (".npy", ".h5ad", *TEXT, *PARQUET, *FEATHER, *HDF5)


def check_out(path: Path) -> None:
    """Refuse a path that cannot be written, before any work is done."""
    check_suffix(path, FORMS, KNOWN, file_form(path))
    check_path(path)


def whole_suffix(path: Path) -> str:
    """The suffix of a file, with that of its compression: .csv.gz."""
    packed = path.suffix.lower() in COMPRESSED
    return "".join(path.suffixes[-2:]) if packed else path.suffix


@contextmanager
def write_rows(
    path: Path, rows: int, names: list[str], dialect: Dialect | None = None
) -> Iterator[Callable[..., None]]:
    """Yield a function that writes rows and their metadata; the file appears once all are there.

    Text is written in a dialect: delimiter and decimal mark of the file that rows are from.
    """
    check_out(path)
    check_unique(str(path), names, "one of each would be lost, so rename them", "names")
    written = 0

    def write(values: np.ndarray, metadata: Any = None) -> None:
        nonlocal written
        start, written = written, written + len(values)
        check(written <= rows)
        if len(values):
            put(slice(start, written), values, metadata)

    def check(as_announced: bool) -> None:
        if not as_announced:
            raise InputError(
                f"{path} should have had {rows} rows but got {written}; it was not written"
            )

    form = file_form(path)
    table = partial(_table, dialect=dialect or Dialect())
    writer = {".npy": _npy, ".h5ad": h5ad_writer}.get(form, _hdf5 if form in HDF5 else table)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as draft, writer(draft, rows, names) as put:
            yield write
            check(written == rows)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); make room, or choose "
            "another path"
        ) from error


@contextmanager
def _npy(path: Path, rows: int, names: Sequence[str]) -> Iterator[Callable[..., Any]]:
    with path.open("wb") as file:
        write_npy_header(file, (rows, len(names)), np.dtype(np.float64))
        yield lambda at, values, _: file.write(np.ascontiguousarray(values, dtype=np.float64).data)


@contextmanager
def _hdf5(path: Path, rows: int, names: Sequence[str]) -> Iterator[Callable[..., None]]:
    with hdf5_to_write(path) as (file, check):
        file["names"] = np.array(list(names), dtype=object)
        matrix = file.create_dataset("X", shape=(rows, len(names)), dtype=np.float64)

        def put(at: slice, values: np.ndarray, metadata: Any) -> None:
            matrix[at] = values
            check()

        yield put


@contextmanager
def _table(
    path: Path, rows: int, names: Sequence[str], dialect: Dialect
) -> Iterator[Callable[..., None]]:
    """Metadata columns come first; one with the name of a feature gives way to it."""
    writer: Any = None

    def put(at: slice, values: np.ndarray, metadata: Any) -> None:
        nonlocal writer
        others = [] if metadata is None else metadata.schema.names
        columns = {name: metadata.column(name) for name in others if name not in names}
        columns |= {name: np.ascontiguousarray(values[:, j]) for j, name in enumerate(names)}
        table = import_optional("pyarrow").table(columns)
        writer = writer or _arrow_writer(path, table.schema, stack, dialect)
        writer.write_table(table)

    with ExitStack() as stack:
        yield put
        if writer is None:  # without rows, still a table with its columns
            put(slice(0), np.empty((0, len(names))), None)


def _arrow_writer(path: Path, schema: Any, stack: ExitStack, dialect: Dialect) -> Any:
    form = file_form(path)
    if form in PARQUET:
        parquet = import_optional("pyarrow.parquet")
        return stack.enter_context(parquet.ParquetWriter(path, schema))
    if form in FEATHER:
        return stack.enter_context(import_optional("pyarrow.ipc").new_file(str(path), schema))
    file = _text_file(path, stack)
    return _TextWriter(file, schema, Dialect("\t") if form == ".tsv" else dialect)


def _text_file(path: Path, stack: ExitStack) -> Any:
    """A file for text, compressed as its name says."""
    pa = import_optional("pyarrow")
    packing = COMPRESSED.get(path.suffix.lower())
    if packing != "zip":
        return stack.enter_context(pa.output_stream(str(path), compression=packing))
    archive = stack.enter_context(zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED))
    member = path.stem if path.stem.endswith(TEXT) else f"{path.stem}.csv"
    file = stack.enter_context(archive.open(member, "w", force_zip64=True))
    return stack.enter_context(pa.PythonFile(file, mode="w"))


class _TextWriter:
    """Text with quotes only where needed, as most programs write it.

    Arrow, which is fast, quotes either all text or none, and knows no decimal comma; blocks that
    it cannot write go through the csv module.
    """

    def __init__(self, file: Any, schema: Any, dialect: Dialect) -> None:
        self.file, self.dialect = file, dialect
        self.file.write(self._lines([[name] for name in schema.names]))

    def write_table(self, table: Any) -> None:
        """Append the rows of a table."""
        pa, arrow_csv = import_optional("pyarrow"), import_optional("pyarrow.csv")
        if self.dialect.decimal == ".":
            options = arrow_csv.WriteOptions(
                delimiter=self.dialect.delimiter, quoting_style="none", include_header=False
            )
            block = pa.BufferOutputStream()
            try:
                arrow_csv.write_csv(table, block, options)
            except pa.ArrowInvalid:  # some text needs quotes
                pass
            else:
                self.file.write(block.getvalue())
                return
        compute, columns = import_optional("pyarrow.compute"), []
        for column in table.columns:
            text = column.cast(pa.string())
            if pa.types.is_floating(column.type):
                text = compute.replace_substring(text, ".", self.dialect.decimal)
            columns.append(text.to_pylist())
        self.file.write(self._lines(columns))

    def _lines(self, columns: list[list[str | None]]) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=self.dialect.delimiter, lineterminator="\n")
        writer.writerows(zip(*columns, strict=True))
        return text.getvalue().encode("utf-8")
