"""Parquet and Feather: a file, or many with the same columns; and Arrow's columns as rows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewer._checks import join_names
from fewer._optional import import_optional
from fewer.data.cache import rows_of_blocks
from fewer.data.columns import (
    Columns,
    check_same_columns,
    check_values,
    choose_columns,
    warn_of_metadata,
)
from fewer.data.on_disk import Watch, damaged
from fewer.data.source import Source
from fewer.errors import InputError

__all__ = ["FEATHER", "PARQUET", "arrow_dtype", "arrow_values", "open_parquet", "stored_columns"]

PARQUET = (".parquet", ".pq")
FEATHER = (".feather", ".arrow", ".ipc")
METADATA_ROWS = 2**14
BLOCK_SHARE = 32  # of the memory limit: bytes of a block as it is read


def open_parquet(
    paths: Sequence[Path], ignore: Sequence[str], memory_limit: int, what: str
) -> Source:
    """A source of Parquet or Feather files: in memory where they are small, else a binary copy."""
    schema = stored_schema(paths[0])
    columns = _choose(str(paths[0]), schema, ignore)
    for path in paths[1:]:
        other = stored_schema(path)
        check_same_columns(str(path), other.names, str(paths[0]), schema.names)
        _check_types(path, other, columns.features)
    warn_of_metadata(what, columns)
    size = max(1, memory_limit // BLOCK_SHARE // (8 * len(columns.features)))
    source = rows_of_blocks(
        lambda: _blocks(paths, columns.features, size, what),
        what,
        paths,
        {"ignore": sorted(ignore)},
        columns.features,
        memory_limit,
    )
    source.metadata_columns = columns.metadata
    if columns.metadata:
        names = list(columns.metadata)
        source.metadata = lambda: (
            batch for path in paths for batch in _batches(path, names, METADATA_ROWS)
        )
    return source


def stored_schema(path: Path) -> Any:
    """Arrow's schema of a Parquet or Feather file."""
    file = _opened(path)
    return file.schema_arrow if hasattr(file, "schema_arrow") else file.schema


def stored_columns(path: Path) -> list[str]:
    """Names of all columns of a Parquet or Feather file."""
    return list(stored_schema(path).names)


def _choose(what: str, schema: Any, ignore: Sequence[str]) -> Columns:
    text = [field.name for field in schema if arrow_dtype(field.type) is None]
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    labels = [name for name in stored if isinstance(name, str) and name in schema.names]
    return choose_columns(what, schema.names, text, ignore, labels)


def _check_types(path: Path, schema: Any, features: list[str]) -> None:
    text = [name for name in features if arrow_dtype(schema.field(name).type) is None]
    if text:
        raise InputError(
            f"{path}: the columns {join_names(text)} are not numbers here, but are in the first "
            "file; write them alike, or name them in ignore="
        )


def _blocks(paths: Sequence[Path], names: list[str], size: int, what: str) -> Iterator[np.ndarray]:
    rows = 0
    for path in paths:
        watch = Watch(path)
        try:
            for batch in _batches(path, names, size):
                values = arrow_values(batch)
                check_values(values, names, str(path), first_row=rows)
                rows += len(values)
                yield values
        except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors
            watch.check()
            if isinstance(error, InputError):
                raise
            raise damaged(path, error) from error
        watch.check()
    if not rows:
        raise InputError(f"{what} holds no rows")


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
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error


# -- Arrow's columns as rows of numbers ------------------------------------------------------


def arrow_dtype(kind: Any) -> np.dtype | None:
    """The NumPy type of an Arrow type of numbers; None for any other."""
    types = import_optional("pyarrow.types")
    if types.is_boolean(kind):
        return np.dtype(np.uint8)
    if types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    if types.is_decimal(kind) or types.is_null(kind):
        return np.dtype(np.float64)
    return None


def arrow_values(table: Any) -> np.ndarray:
    """All columns of a table of numbers as one array; nulls become NaN."""
    plain = {kind: _is_plain(kind) for kind in set(table.schema.types)}
    columns = []
    for kind, column in zip(table.schema.types, table.columns, strict=True):
        simple = plain[kind] and not column.null_count  # most are, and most of the time is here
        found = column if simple else _as_float(column)
        chunked = hasattr(found, "num_chunks")
        columns.append(found.to_numpy() if chunked else found.to_numpy(zero_copy_only=False))
    dtype = np.result_type(*{column.dtype for column in columns})
    out = np.empty((table.num_rows, len(columns)), dtype=dtype)
    for j, column in enumerate(columns):
        out[:, j] = column
    return out


def _is_plain(kind: Any) -> bool:
    types = import_optional("pyarrow.types")
    return types.is_integer(kind) or types.is_floating(kind)


def _as_float(column: Any) -> Any:
    """A column with nulls, or of a type that NumPy does not have."""
    pa = import_optional("pyarrow")
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if _is_plain(column.type) and not (column.null_count and pa.types.is_integer(column.type)):
        return column
    return column.cast(pa.float64(), safe=False)
