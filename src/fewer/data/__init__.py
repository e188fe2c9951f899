"""Rows: where they come from, how they are summed up, how they reach a network."""

from fewer.data.batches import Batch, Batches
from fewer.data.cache import clear_cache
from fewer.data.empty import without_empty
from fewer.data.moments import Covariance, Moments, covariance, moments
from fewer.data.opening import (
    column_names,
    match_columns,
    needs_opening,
    open,
    open_beside,
    validated,
)
from fewer.data.order import shard
from fewer.data.reading import blocks, read_all, read_aside, read_blocks
from fewer.data.scanning import Scan, scan
from fewer.data.source import (
    ColumnChoice,
    DenseSource,
    Log1pSource,
    RowSubset,
    ScaledSource,
    Source,
    SparseSource,
)
from fewer.data.values import as_array, check_values, open_source
from fewer.data.writing import check_out, write_rows

__all__ = [
    "Batch",
    "Batches",
    "ColumnChoice",
    "Covariance",
    "DenseSource",
    "Log1pSource",
    "Moments",
    "RowSubset",
    "ScaledSource",
    "Scan",
    "Source",
    "SparseSource",
    "as_array",
    "blocks",
    "check_out",
    "check_values",
    "clear_cache",
    "column_names",
    "covariance",
    "match_columns",
    "moments",
    "needs_opening",
    "open",
    "open_beside",
    "open_source",
    "read_all",
    "read_aside",
    "read_blocks",
    "scan",
    "shard",
    "validated",
    "without_empty",
    "write_rows",
]
