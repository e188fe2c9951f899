"""Parquet and Feather: a file, or many with the same columns; and Arrow's columns as rows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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
from fewer.data.on_disk import damaged, guarded, watch
from fewer.data.source import Source
from fewer.errors import InputError

__all__ = [
    "FEATHER",
    "PARQUET",
    "arrow_dtype",
    "open_parquet",
    "row_labels",
    "source_of_tables",
    "stored_schema",
]

PARQUET = (".parquet", ".pq")
FEATHER = (".feather", ".arrow", ".ipc")
METADATA_ROWS = 2**14
BLOCK_SHARE = 32  # of the memory limit: bytes of a block as it is read


def open_parquet(
    paths: Sequence[Path], ignore: Sequence[str], memory_limit: int, what: str
) -> Source:
    """A source of Parquet or Feather files: in memory where they are small, else a binary copy."""
    schema = stored_schema(paths[0])
    text = [field.name for field in schema if arrow_dtype(field.type) is None]
    columns = choose_columns(str(paths[0]), schema.names, text, ignore, row_labels(schema))
    for path in paths[1:]:
        other = stored_schema(path)
        check_same_columns(str(path), other.names, str(paths[0]), schema.names)
        text = [name for name in columns.features if arrow_dtype(other.field(name).type) is None]
        if text:
            raise InputError(
                f"{path}: the columns {join_names(text)} are not numbers here, but are in the "
                "first file; write them alike, or name them in ignore="
            )
    size = max(1, memory_limit // BLOCK_SHARE // (8 * len(columns.features)))
    return source_of_tables(
        paths,
        columns,
        lambda path: _batches(path, columns.features, size),
        lambda path: _batches(path, list(columns.metadata), METADATA_ROWS),
        damaged,
        {"ignore": sorted(ignore)},
        memory_limit,
        what,
    )


def stored_schema(path: Path) -> Any:
    """Arrow's schema of a Parquet or Feather file."""
    file = _opened(path)
    return file.schema_arrow if hasattr(file, "schema_arrow") else file.schema


def row_labels(schema: Any) -> list[str]:
    """Columns of an Arrow schema that were the index of a pandas table."""
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in stored if isinstance(name, str) and name in schema.names]


def source_of_tables(
    paths: Sequence[Path],
    columns: Columns,
    features: Callable[[Path], Iterable[Any]],
    metadata: Callable[[Path], Iterable[Any]],
    explain: Callable[[Path, Exception], Exception],
    options: dict[str, Any],
    memory_limit: int,
    what: str,
) -> Source:
    """A source of files that Arrow reads batch by batch, either kind of columns of a path."""
    warn_of_metadata(what, columns)

    def blocks() -> Iterator[np.ndarray]:
        rows = 0
        for path in paths:
            with guarded(watch([path]), partial(explain, path)):
                for batch in features(path):
                    values = arrow_values(batch)
                    check_values(values, columns.features, str(path), first_row=rows)
                    rows += len(values)
                    yield values
        if not rows:
            raise InputError(f"{what} holds no rows")

    source = rows_of_blocks(blocks(), what, paths, options, memory_limit)
    source.names, source.metadata_columns = columns.features, columns.metadata
    if columns.metadata:
        table = import_optional("pyarrow").Table
        source.metadata = lambda: (
            table.from_batches([batch]) for path in paths for batch in metadata(path)
        )
    return source


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


def arrow_values(batch: Any) -> np.ndarray:
    """All columns of a batch of numbers as one array; nulls become NaN."""
    pa = import_optional("pyarrow")

    def is_plain(kind: Any) -> bool:
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))

    def converted(column: Any) -> Any:
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        if is_plain(column.type) and not (column.null_count and pa.types.is_integer(column.type)):
            return column
        return column.cast(pa.float64(), safe=False)

    plain = {kind: is_plain(kind) for kind in set(batch.schema.types)}
    columns = []
    for kind, column in zip(batch.schema.types, batch.columns, strict=True):
        simple = plain[kind] and not column.null_count  # most are, and most of the time is here
        found = column if simple else converted(column)
        columns.append(found.to_numpy(zero_copy_only=False))
    out = np.empty(
        (batch.num_rows, len(columns)), np.result_type(*{column.dtype for column in columns})
    )
    for j, column in enumerate(columns):
        out[:, j] = column
    return out
