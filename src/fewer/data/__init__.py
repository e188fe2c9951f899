"""Rows: where they come from, how they are summed up, how they reach a network."""

from fewer.data.batches import Batch, Batches
from fewer.data.cache import clear_cache
from fewer.data.empty import without_empty
from fewer.data.moments import Covariance, Moments, covariance, moments
from fewer.data.opening import (
    as_source,
    column_names,
    is_source_like,
    match_columns,
    open,
    open_beside,
)
from fewer.data.order import shard
from fewer.data.reading import blocks, read_all, read_aside, read_blocks
from fewer.data.scanning import Scan, scan
from fewer.data.source import (
    ColumnView,
    DenseSource,
    Log1pSource,
    RowView,
    ScaledSource,
    Source,
    SparseSource,
)
from fewer.data.values import as_array, check_values, open_source
from fewer.data.writing import check_out, write_rows

__all__ = [
    "Batch",
    "Batches",
    "ColumnView",
    "Covariance",
    "DenseSource",
    "Log1pSource",
    "Moments",
    "RowView",
    "ScaledSource",
    "Scan",
    "Source",
    "SparseSource",
    "as_array",
    "as_source",
    "blocks",
    "check_out",
    "check_values",
    "clear_cache",
    "column_names",
    "covariance",
    "is_source_like",
    "match_columns",
    "moments",
    "open",
    "open_beside",
    "open_source",
    "read_all",
    "read_aside",
    "read_blocks",
    "scan",
    "shard",
    "without_empty",
    "write_rows",
]
