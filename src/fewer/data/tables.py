"""Tables of any library that narwhals knows, tensors, and Parquet and Feather files."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import torch
from narwhals.exceptions import NarwhalsError
from scipy import sparse

from fewer._checks import join_names
from fewer._optional import import_optional
from fewer.data.columns import check_same_columns, check_unique, check_values, choose_columns
from fewer.data.on_disk import damaged, damaged_where_unreadable, holds_numbers, source_of_tables
from fewer.data.screen import screen
from fewer.data.source import Source, array_source
from fewer.errors import InputError, TypeInputError, warn

PARQUET = (".parquet", ".pq")
FEATHER = (".feather", ".arrow", ".ipc")
METADATA_ROWS = 2**14
BLOCK_SHARE = 32  # of the memory limit: bytes of a block as it is read


def is_table(data: Any) -> bool:
    """Whether this is a table in memory: pandas, polars, Arrow, Modin, cuDF."""
    return bool(nw.dependencies.is_into_dataframe(data))


def column_names_of(table: Any) -> list[Any]:
    """Names of the columns of a table in memory; none of anything else."""
    if not is_table(table):
        return []
    # the columns of an Arrow table are their values
    return list(table.column_names if hasattr(type(table), "column_names") else table.columns)


def open_table(table: Any, ignore: Sequence[str], memory_limit: int) -> Source:
    """A source of the numeric columns of a table."""
    what = _what(table)
    frame = _frame(table)
    values = {
        str(column.name): None if str(column.name) in ignore else _numbers(column)
        for column in frame.iter_columns()
    }
    names = [str(name) for name in frame.columns]
    text = [name for name in names if values[name] is None and name not in ignore]
    schema = getattr(table, "schema", None)
    labels = row_labels(schema) if hasattr(schema, "pandas_metadata") else []
    features, metadata = choose_columns(what, names, text, ignore, labels)
    matrix = _joined([values[name] for name in features])
    check_values(matrix, features, what)
    source = array_source(matrix, features, memory_limit)
    source.metadata_columns = metadata
    if metadata:
        others = frame.select([name for name in frame.columns if str(name) in metadata])
        source.metadata = lambda: iter([_arrow(others)])
    return source


def without_text(table: Any) -> Any:
    """A table without its non-numeric columns, which a warning names, unless it has no others."""
    frame = _frame(table)
    text = [column.name for column in frame.iter_columns() if _numbers(column) is None]
    if not text or len(text) == len(frame.columns):
        return table
    warn(
        f"{_what(table)}: non-numeric columns were ignored ({len(text)}): "
        f"{join_names([str(label) for label in text])}; drop them, or encode them as numbers"
    )
    return frame.select([label for label in frame.columns if label not in text]).to_native()


def as_array(X: Any) -> Any:
    """Tensors and masked arrays as NumPy arrays; tables with text or repeated names are refused."""
    if isinstance(X, torch.Tensor):
        try:
            return _tensor_as_array(X.detach().cpu())
        except (RuntimeError, TypeError, ValueError) as error:  # float8, meta, quantized, nested
            first = str(error).split("\n", maxsplit=1)[0]
            raise TypeInputError(
                f"a tensor of {X.dtype} on {X.device} cannot be read as an array ({first}); "
                "convert it to a dense tensor of float32 or float64 first"
            ) from error
    if isinstance(X, np.ma.MaskedArray):
        return np.ma.filled(X.astype(np.result_type(X.dtype, np.float32)), np.nan)
    if is_table(X):
        frame = _frame(X)
        text = [
            str(name)
            for name, dtype in frame.schema.items()
            if not (dtype.is_numeric() or dtype in (nw.Boolean, nw.Object, nw.Unknown))
        ]
        if text:
            raise InputError(
                f"{len(text)} of {len(frame.columns)} columns are not numbers: {join_names(text)}; "
                "drop them or encode them as numbers first"
            )
    return X


def _tensor_as_array(X: torch.Tensor) -> Any:
    if X.layout != torch.strided:
        X = X.to_sparse().coalesce()
        entries = (X.values().numpy(), tuple(X.indices().numpy()))
        return sparse.coo_array(entries, shape=tuple(X.shape)).tocsr()
    return (X.float() if X.dtype == torch.bfloat16 else X).numpy()


def _frame(table: Any) -> Any:
    """The table for narwhals; one with repeated names is refused."""
    check_unique(
        _what(table), column_names_of(table), "rename them, or give an array without names"
    )
    return nw.from_native(table, eager_only=True)


def _what(table: Any) -> str:
    return f"the {type(table).__module__.split('.')[0]} table"


def _numbers(column: Any) -> Any:
    """A column as an array; None where it does not hold numbers."""
    dtype = column.dtype
    if dtype.is_numeric() or dtype == nw.Boolean:
        whole = dtype.is_float() or (dtype != nw.Decimal and not column.null_count())
        return (column if whole else column.cast(nw.Float64)).to_numpy()
    if dtype not in (nw.Object, nw.Unknown):
        return None
    native = column.to_native()
    if hasattr(native, "sparse"):  # pandas
        return sparse.csc_array(native.sparse.to_dense().to_numpy()[:, None])
    try:
        with warnings.catch_warnings():  # complex numbers would lose their imaginary part
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            return column.cast(nw.Float64).to_numpy()
    except (TypeError, ValueError, OverflowError, NarwhalsError, np.exceptions.ComplexWarning):
        return None


def _joined(columns: list[Any]) -> Any:
    if all(sparse.issparse(column) for column in columns):
        return sparse.hstack(columns, format="csr")
    dense = [c.toarray()[:, 0] if sparse.issparse(c) else c for c in columns]
    return np.stack(dense, axis=1)


def _arrow(frame: Any) -> Any:
    import_optional("pyarrow")
    table = frame.to_arrow()
    return table.rename_columns([str(name) for name in table.column_names])


# -- Parquet and Feather files ------------------------------------------------------------------


def open_parquet(
    paths: Sequence[Path], ignore: Sequence[str], memory_limit: int, what: str
) -> Source:
    """A source of Parquet or Feather files: in memory where they are small, else a binary copy."""
    schema = stored_schema(paths[0])
    text = [field.name for field in schema if not holds_numbers(field.type)]
    features, metadata = choose_columns(
        str(paths[0]), schema.names, text, ignore, row_labels(schema)
    )
    for path in paths[1:]:
        other = stored_schema(path)
        check_same_columns(str(path), other.names, str(paths[0]), schema.names)
        text = [name for name in features if not holds_numbers(other.field(name).type)]
        if text:
            raise InputError(
                f"{path}: the columns {join_names(text)} are not numbers here, but are in the "
                "first file; use the same types in all files, or list them in ignore="
            )
    size = max(1, memory_limit // BLOCK_SHARE // (8 * len(features)))
    return source_of_tables(
        paths,
        features,
        metadata,
        lambda path: _batches(path, features, size),
        lambda path: _batches(path, list(metadata), METADATA_ROWS),
        damaged,
        {"ignore": sorted(ignore)},
        memory_limit,
        what,
    )


def stored_schema(path: Path) -> Any:
    """Arrow's schema of a Parquet or Feather file, after a helper process has read the file."""
    import_optional("pyarrow")
    screen(path, "arrow" if path.suffix.lower() in FEATHER else "parquet")
    file = _opened(path)
    with damaged_where_unreadable(path):
        schema = file.schema_arrow if hasattr(file, "schema_arrow") else file.schema
        schema.names  # noqa: B018 (decodes them)
        return schema


def row_labels(schema: Any) -> list[str]:
    """Columns of an Arrow schema that were the index of a pandas table."""
    try:
        stored = (schema.pandas_metadata or {}).get("index_columns", [])
    except (ValueError, RecursionError, AttributeError):  # not the JSON that pandas writes
        stored = []
    stored = stored if isinstance(stored, list) else []
    return [name for name in stored if isinstance(name, str) and name in schema.names]


def _batches(path: Path, names: list[str], size: int) -> Iterator[Any]:
    """Some columns of a file, at most ``size`` rows at a time."""
    file = _opened(path)
    if hasattr(file, "iter_batches"):
        for batch in file.iter_batches(size, columns=names):
            if batch.num_rows:
                yield batch.select(names)
        return
    for piece in range(file.num_record_batches):
        batch = file.get_batch(piece).select(names)
        batch.validate(full=True)  # Arrow trusts offsets and lengths otherwise
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)


def _opened(path: Path) -> Any:
    """Arrow's ParquetFile, or its reader of a Feather (Arrow IPC) file."""
    pa = import_optional("pyarrow")
    try:
        if path.suffix.lower() in FEATHER:
            return import_optional("pyarrow.ipc").open_file(pa.OSFile(str(path)))
        # buffered, so that a row group is not read whole before its first rows come
        return import_optional("pyarrow.parquet").ParquetFile(path, buffer_size=2**16)
    except FileNotFoundError:
        raise
    except Exception as error:  # Arrow has many kinds of its own
        raise damaged(path, error) from error
