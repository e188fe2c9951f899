"""Rows from which the differences between the means of batches are taken."""

import numpy as np
import torch
from torch import Tensor

from fewer.data.moments import moments
from fewer.data.source import RowView, Source

__all__ = ["BatchCentered"]


class BatchCentered(Source):
    """Rows of another source, each moved by the mean of all rows less the mean of its batch.

    Every batch has the same mean of each feature then, so that no feature is worth measuring for
    telling batches apart. The rows are made dense, a block at a time.

    Parameters
    ----------
    source : Source
        The rows.
    batches : array of length n
        A label for each row.

    Examples
    --------
    >>> import numpy as np
    >>> from fewer.data import DenseSource
    >>> rows = DenseSource(np.array([[0.0], [2.0], [10.0], [12.0]]))
    >>> BatchCentered(rows, np.array(["a", "a", "b", "b"])).rows(slice(4)).T
    tensor([[5., 7., 5., 7.]])
    """

    def __init__(self, source: Source, batches: np.ndarray) -> None:
        self.source = source
        labels, self._batch = np.unique(batches, return_inverse=True)
        whole = moments(source).mean
        parts = [
            moments(RowView(source, np.flatnonzero(self._batch == at))).mean
            for at in range(len(labels))
        ]
        self._move = torch.from_numpy(whole - np.stack(parts))
        self.on_disk, self.names, self.left_out = source.on_disk, source.names, source.left_out
        self.memory_limit, self.chunk_rows = source.memory_limit, source.chunk_rows
        self.chunk_starts, self.row_width = source.chunk_starts, source.row_width

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.source.shape

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        found = self.source.rows(index, torch.float64)
        return found.add_(self._move[torch.from_numpy(self._batch[index])]).to(dtype)
