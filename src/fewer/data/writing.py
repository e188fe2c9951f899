"""Rows on their way out: written block by block, under their name only when all went well."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fewer.data.cache import write_npy_header
from fewer.data.extras import require_extra
from fewer.data.stores import HDF5
from fewer.data.table_files import FEATHER, PARQUET
from fewer.data.text import COMPRESSED, TEXT
from fewer.errors import InputError

__all__ = ["RowWriter", "check_out", "write_rows"]

KNOWN = ".npy, .csv, .tsv (also .gz, .zst), .parquet, .feather, .h5, .h5ad"


class RowWriter(Protocol):
    """Takes rows in order, and the columns of the same rows that are not numbers."""

    def __call__(self, values: np.ndarray, aside: Any = None) -> None:
        """Write some rows."""
        ...


def check_out(path: Path) -> None:
    """Refuse a path that cannot be written, before any work is done.

    Examples
    --------
    >>> from pathlib import Path
    >>> check_out(Path("all.docx"))
    Traceback (most recent call last):
    fewer.errors.InputError: out='all.docx' ends in '.docx', which is not known; use .npy, ...
    """
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
        The file; it appears, or replaces an older one, when all rows are written.
    rows : int
        How many there will be.
    names : sequence of str
        Of the features.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "x.npy"
    >>> with write_rows(path, 2, ["a", "b"]) as write:
    ...     write(np.ones((1, 2)))
    ...     write(np.zeros((1, 2)))
    >>> np.load(path)
    array([[1., 1.],
           [0., 0.]])
    """
    check_out(path)
    form = _form(path)
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    unfinished = folder / path.name
    try:
        with ExitStack() as stack:
            if form == ".npy":
                yield _npy(unfinished, rows, len(names), stack)
            elif form in HDF5:
                yield _hdf5(unfinished, rows, names, stack)
            elif form == ".h5ad":
                yield _h5ad(unfinished, rows, names, stack)
            else:
                yield _Table(unfinished, form, list(names), stack)
        unfinished.replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _form(path: Path) -> str:
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return inner.suffix.lower()


def _npy(path: Path, rows: int, columns: int, stack: ExitStack) -> RowWriter:
    file = stack.enter_context(path.open("wb"))
    write_npy_header(file, (rows, columns), np.dtype(np.float64))

    def write(values: np.ndarray, aside: Any = None) -> None:
        file.write(np.ascontiguousarray(values, dtype=np.float64).data)

    return write


def _filled(array: Any) -> RowWriter:
    at = 0

    def write(values: np.ndarray, aside: Any = None) -> None:
        nonlocal at
        array[at : at + len(values)] = values
        at += len(values)

    return write


def _hdf5(path: Path, rows: int, names: Sequence[str], stack: ExitStack) -> RowWriter:
    file = stack.enter_context(require_extra("h5py").File(path, "w"))
    file["names"] = np.array(list(names), dtype=object)
    return _filled(file.create_dataset("X", shape=(rows, len(names)), dtype=np.float64))


def _h5ad(path: Path, rows: int, names: Sequence[str], stack: ExitStack) -> RowWriter:
    """The least that anndata reads: X, and the labels of rows and features."""
    file = stack.enter_context(require_extra("h5py").File(path, "w"))
    file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    for part, labels in (("obs", map(str, range(rows))), ("var", names)):
        frame = file.create_group(part)
        frame.attrs.update(
            {"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"}
        )
        frame.attrs["column-order"] = np.array([], dtype=float)
        frame["_index"] = np.array(list(labels), dtype=object)
        frame["_index"].attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
    matrix = file.create_dataset("X", shape=(rows, len(names)), dtype=np.float64)
    matrix.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    return _filled(matrix)


class _Table:
    """Arrow's writers; columns that were put aside come first, as they came in."""

    def __init__(self, path: Path, form: str, names: list[str], stack: ExitStack) -> None:
        self.path, self.form, self.names, self.stack = path, form, names, stack
        self.writer: Any = None

    def __call__(self, values: np.ndarray, aside: Any = None) -> None:
        """Write some rows."""
        pa = require_extra("pyarrow")
        columns = {} if aside is None else dict(zip(aside.schema.names, aside.columns, strict=True))
        taken = set(self.names)
        columns = {name: column for name, column in columns.items() if name not in taken}
        columns |= {name: np.ascontiguousarray(values[:, j]) for j, name in enumerate(self.names)}
        table = pa.table(columns)
        if self.writer is None:
            self.writer = self.stack.enter_context(self._open(table.schema))
        self.writer.write_table(table)

    def _open(self, schema: Any) -> Any:
        pa = require_extra("pyarrow")
        if self.form in PARQUET:
            return require_extra("pyarrow.parquet").ParquetWriter(self.path, schema)
        if self.form in FEATHER:
            return require_extra("pyarrow.ipc").new_file(str(self.path), schema)
        arrow_csv = require_extra("pyarrow.csv")
        packing = COMPRESSED.get(self.path.suffix.lower())
        file = self.stack.enter_context(pa.output_stream(str(self.path), compression=packing))
        options = arrow_csv.WriteOptions(
            delimiter="\t" if self.form == ".tsv" else ",", quoting_style="needed"
        )
        return arrow_csv.CSVWriter(file, schema, write_options=options)
