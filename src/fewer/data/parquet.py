"""Parquet and Feather: a file, or many with the same columns."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fewer._checks import join_names
from fewer._optional import import_optional
from fewer.data.columns import (
    check_same_columns,
    choose_columns,
)
from fewer.data.on_disk import arrow_dtype, damaged, source_of_tables
from fewer.data.source import Source
from fewer.errors import InputError

__all__ = [
    "FEATHER",
    "PARQUET",
    "open_parquet",
    "row_labels",
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
