"""Rows: where they come from, how they are summed up, how they reach a network."""

from fewer.data.batches import Batch, Batches
from fewer.data.moments import Covariance, Moments, covariance, moments
from fewer.data.open import as_array, check_values, open_source
from fewer.data.order import shard
from fewer.data.reading import blocks, read_blocks
from fewer.data.source import (
    ColumnChoice,
    DenseSource,
    Log1pSource,
    RowSubset,
    ScaledSource,
    Source,
    SparseSource,
)

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
    "Source",
    "SparseSource",
    "as_array",
    "blocks",
    "check_values",
    "covariance",
    "moments",
    "open_source",
    "read_blocks",
    "shard",
]
