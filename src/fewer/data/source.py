"""Where rows come from. Everything that trains or sums reads rows through this protocol."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

__all__ = [
    "DenseSource",
    "Log1pSource",
    "RowSubset",
    "ScaledSource",
    "Source",
    "SparseSource",
    "blocks",
]

BLOCK_BYTES = 32 * 2**20


class Source(Protocol):
    """n rows of d features, read a few rows at a time."""

    is_sparse: bool  # whether making all rows dense would take far more memory

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        ...

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows, NaN where a value is missing."""
        ...


class DenseSource:
    """Rows of a NumPy array of any real dtype, converted only as they are read.

    Examples
    --------
    >>> import numpy as np
    >>> source = DenseSource(np.arange(6, dtype=np.uint8).reshape(3, 2))
    >>> source.rows(slice(0, 2))
    tensor([[0., 1.],
            [2., 3.]])
    """

    is_sparse = False

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.array.shape[0], self.array.shape[1]

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        # a copy, since the caller may write to it; np.array also mends odd byte orders and
        # integer widths that have no torch twin
        kind = np.float64 if dtype == torch.float64 else np.float32
        return torch.from_numpy(np.array(self.array[index], dtype=kind, order="C")).to(dtype)


class SparseSource:
    """Rows of a SciPy sparse matrix; only the rows that are asked for become dense.

    Examples
    --------
    >>> from scipy import sparse
    >>> SparseSource(sparse.eye_array(3)).rows(slice(1, 2))
    tensor([[0., 1., 0.]])
    """

    is_sparse = True

    def __init__(self, matrix: sparse.sparray | sparse.spmatrix) -> None:
        self.matrix = matrix.tocsr()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.matrix.shape[0], self.matrix.shape[1]

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        part = self.matrix[index]
        kind = np.float64 if dtype == torch.float64 else np.float32
        return torch.from_numpy(part.astype(kind).toarray()).to(dtype)


class RowSubset:
    """Some rows of another source, as a source.

    Examples
    --------
    >>> import numpy as np
    >>> whole = DenseSource(np.arange(6).reshape(3, 2))
    >>> RowSubset(whole, np.array([2, 0])).rows(slice(0, 1))
    tensor([[4., 5.]])
    """

    def __init__(self, source: Source, index: np.ndarray) -> None:
        self.source, self.index = source, index
        self.is_sparse = source.is_sparse

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return len(self.index), self.source.shape[1]

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        return self.source.rows(self.index[index], dtype)


class ScaledSource:
    """Rows of another source, centred and divided, feature by feature.

    Examples
    --------
    >>> import numpy as np
    >>> whole = DenseSource(np.array([[1.0, 10.0], [3.0, 30.0]]))
    >>> scaled = ScaledSource(whole, center=np.array([2.0, 20.0]), scale=np.array([1.0, 10.0]))
    >>> scaled.rows(slice(2))
    tensor([[-1., -1.],
            [ 1.,  1.]])
    """

    def __init__(self, source: Source, center: np.ndarray, scale: np.ndarray) -> None:
        self.source = source
        self.is_sparse = source.is_sparse
        self.center, self.scale = torch.from_numpy(center), torch.from_numpy(scale)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.source.shape

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        rows = self.source.rows(index, torch.float64)
        return rows.sub_(self.center).div_(self.scale).to(dtype)


class Log1pSource:
    """log(1 + x) of the rows of another source of counts.

    Examples
    --------
    >>> import numpy as np
    >>> Log1pSource(DenseSource(np.array([[0, 1]]))).rows(slice(1)).exp()
    tensor([[1., 2.]])
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.is_sparse = source.is_sparse

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.source.shape

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        return self.source.rows(index, dtype).log1p_()


def blocks(n: int, d: int, itemsize: int = 8) -> Iterator[slice]:
    """Consecutive row ranges that stay small when made dense.

    Examples
    --------
    >>> list(blocks(5, 2**21))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = max(1, BLOCK_BYTES // (d * itemsize))
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
