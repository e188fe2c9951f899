"""Where rows come from. Everything that trains or sums reads rows through this protocol."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from fewer.distributed import shard_bounds, world_size

__all__ = [
    "ColumnView",
    "DenseSource",
    "Log1pSource",
    "RowRange",
    "RowView",
    "ScaledSource",
    "Source",
    "SparseSource",
    "shard_of_rank",
]


@runtime_checkable
class Source(Protocol):
    """n rows of d features, read a few rows at a time.

    A source of your own subclasses this, or has the same members; only ``shape`` and ``rows``
    must be written.

    Examples
    --------
    >>> class Waves(Source):
    ...     shape = (500, 20)
    ...
    ...     def rows(self, index, dtype=torch.float32):
    ...         phase = torch.arange(500, dtype=dtype)[index, None]
    ...         return torch.sin(phase + torch.arange(20))
    >>> import fewer
    >>> fewer.select(Waves(), k=2, random_state=0).held_out > 0.99  # two points fix a wave
    True
    """

    is_sparse: bool = False  # whether making all rows dense would take far more memory
    on_disk: bool = False  # whether rows that lie together are far quicker to read
    names: list[str] | None = None  # of the features
    left_out: tuple[str, ...] = ()  # columns that are no features: text, dates, row labels
    aside: Callable[[], Iterator[Any]] | None = None  # Arrow tables of what is left out, in order
    dtype: np.dtype = np.dtype(np.float64)  # of the values as they are stored
    memory_limit: int | None = None  # bytes that reading and shuffling may take
    chunk_rows: int = 1  # rows that are stored, so best read, together
    chunk_starts: np.ndarray | None = None  # where stored chunks begin, if not all of one length
    row_width: int = 0  # values that a row takes on its way, where more than features come out

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        ...

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows, NaN where a value is missing."""
        ...

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        """The same rows without making them dense; None where the source cannot."""
        return None


def _describe_as(wrapper: Source, source: Source) -> None:
    """Let a wrapper say of itself what the source says that it reads from."""
    wrapper.is_sparse, wrapper.on_disk = source.is_sparse, source.on_disk
    wrapper.names, wrapper.left_out, wrapper.dtype = source.names, source.left_out, source.dtype
    wrapper.memory_limit, wrapper.chunk_rows = source.memory_limit, source.chunk_rows
    wrapper.chunk_starts, wrapper.row_width = source.chunk_starts, source.row_width


def starts_among(source: Source, index: np.ndarray) -> np.ndarray | None:
    """At which of some ascending rows another stored chunk begins; None where chunks are not known.

    Examples
    --------
    >>> import numpy as np
    >>> whole = DenseSource(np.zeros((6, 1)))
    >>> whole.chunk_rows = 2
    >>> starts_among(whole, np.array([1, 4, 5]))
    array([0, 1])
    """
    starts = source.chunk_starts
    if starts is None and source.chunk_rows > 1:
        starts = np.arange(0, source.shape[0], source.chunk_rows)
    if starts is None or (np.diff(index) < 0).any():
        return None
    found = np.unique(np.searchsorted(index, starts))
    return found[found < len(index)]


class DenseSource(Source):
    """Rows of a NumPy array of any real dtype, converted only as they are read.

    Examples
    --------
    >>> import numpy as np
    >>> source = DenseSource(np.arange(6, dtype=np.uint8).reshape(3, 2))
    >>> source.rows(slice(0, 2))
    tensor([[0., 1.],
            [2., 3.]])
    """

    def __init__(self, array: np.ndarray, names: list[str] | None = None) -> None:
        self.array, self.names, self.dtype = array, names, array.dtype

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


class SparseSource(Source):
    """Rows of a SciPy sparse matrix; only the rows that are asked for become dense.

    Examples
    --------
    >>> from scipy import sparse
    >>> SparseSource(sparse.eye_array(3)).rows(slice(1, 2))
    tensor([[0., 1., 0.]])
    """

    is_sparse = True

    def __init__(
        self, matrix: sparse.sparray | sparse.spmatrix, names: list[str] | None = None
    ) -> None:
        self.matrix, self.names, self.dtype = matrix.tocsr(), names, matrix.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.matrix.shape[0], self.matrix.shape[1]

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        kind = np.float64 if dtype == torch.float64 else np.float32
        return torch.from_numpy(self.matrix[index].astype(kind).toarray()).to(dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array:
        """Some rows as they are."""
        return self.matrix[index]


class RowView(Source):
    """Some rows of another source, as a source.

    Examples
    --------
    >>> import numpy as np
    >>> whole = DenseSource(np.arange(6).reshape(3, 2))
    >>> RowView(whole, np.array([2, 0])).rows(slice(0, 1))
    tensor([[4., 5.]])
    """

    def __init__(self, source: Source, index: np.ndarray) -> None:
        self.source, self.index = source, index
        _describe_as(self, source)
        starts = starts_among(source, index)
        self.chunk_rows, self.chunk_starts = 1, starts

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return len(self.index), self.source.shape[1]

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        return self.source.rows(self.index[index], dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        """Some rows as they are."""
        return self.source.sparse_rows(self.index[index])


class RowRange(Source):
    """Neighbouring rows of another source, as a source: slices of it stay slices.

    Examples
    --------
    >>> import numpy as np
    >>> whole = DenseSource(np.arange(6).reshape(3, 2))
    >>> RowRange(whole, 1, 3).rows(slice(0, 1))
    tensor([[2., 3.]])
    """

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self.source, self.start, self.stop = source, start, stop
        _describe_as(self, source)
        index = np.arange(start, stop)
        self.chunk_starts = starts_among(source, index)
        self.chunk_rows = 1 if start % max(source.chunk_rows, 1) else source.chunk_rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.stop - self.start, self.source.shape[1]

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        return self.source.rows(self._whole(index), dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        """Some rows as they are."""
        return self.source.sparse_rows(self._whole(index))

    def _whole(self, index: np.ndarray | slice) -> np.ndarray | slice:
        if not isinstance(index, slice):
            return np.asarray(index) + self.start
        start, stop, step = index.indices(self.stop - self.start)
        return slice(self.start + start, self.start + stop, step)


def shard_of_rank(source: Source) -> Source:
    """The neighbouring rows that this rank reads; all of them where there is one process."""
    if world_size() == 1:
        return source
    return RowRange(source, *shard_bounds(source.shape[0]))


class ColumnView(Source):
    """Some columns of another source, in a given order, as a source.

    Examples
    --------
    >>> import numpy as np
    >>> whole = DenseSource(np.arange(6).reshape(2, 3), names=["a", "b", "c"])
    >>> part = ColumnView(whole, np.array([2, 0]))
    >>> part.names, part.rows(slice(1))
    (['c', 'a'], tensor([[2., 0.]]))
    """

    def __init__(self, source: Source, columns: np.ndarray) -> None:
        self.source, self.columns = source, np.asarray(columns, dtype=np.int64)
        _describe_as(self, source)
        self.row_width = max(source.row_width, source.shape[1])
        self.aside = source.aside
        if source.names is not None:
            self.names = [source.names[j] for j in self.columns]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.source.shape[0], len(self.columns)

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        return self.source.rows(index, dtype)[:, torch.from_numpy(self.columns)]

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        """Some rows as they are."""
        part = self.source.sparse_rows(index)
        return None if part is None else part[:, self.columns]


class ScaledSource(Source):
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
        self.center, self.scale = torch.from_numpy(center), torch.from_numpy(scale)
        _describe_as(self, source)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.source.shape

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        rows = self.source.rows(index, torch.float64)
        return rows.sub_(self.center).div_(self.scale).to(dtype)


class Log1pSource(Source):
    """log(1 + x) of the rows of another source of counts.

    Examples
    --------
    >>> import numpy as np
    >>> Log1pSource(DenseSource(np.array([[0, 1]]))).rows(slice(1)).exp()
    tensor([[1., 2.]])
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        _describe_as(self, source)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.source.shape

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows."""
        return self.source.rows(index, dtype).log1p_()
