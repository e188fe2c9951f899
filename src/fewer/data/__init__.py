"""Data sources, file formats, moments and covariances, batches."""

from fewer.data.moments import Covariance, Moments, covariance, moments
from fewer.data.on_disk import clear_cache
from fewer.data.open import open
from fewer.data.source import (
    ColumnView,
    Log1pSource,
    RowView,
    ScaledSource,
    Source,
    read_all,
    read_blocks,
)

__all__ = [
    "ColumnView",
    "Covariance",
    "Log1pSource",
    "Moments",
    "RowView",
    "ScaledSource",
    "Source",
    "clear_cache",
    "covariance",
    "moments",
    "open",
    "read_all",
    "read_blocks",
]
