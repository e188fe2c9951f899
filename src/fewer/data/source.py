"""The protocol through which all rows are read."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from fewer._optional import import_optional
from fewer.distributed import shard_bounds, world_size
from fewer.errors import InputError

T = TypeVar("T")

BLOCK_BYTES = 16 * 2**20
LEAST_BYTES = 64 * 2**10


@runtime_checkable
class Source(Protocol):
    """n rows of d features, read a few rows at a time.

    To write your own source, subclass this or implement the same members; only ``shape`` and
    ``rows`` are required.

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

    shape: tuple[int, int] = (0, 0)  # rows and features
    is_sparse: bool = False  # whether making all rows dense would take far more memory
    on_disk: bool = False  # whether neighbouring rows are far quicker to read together
    names: list[str] | None = None  # of the features
    metadata_columns: tuple[str, ...] = ()  # columns that are not features: text, dates, labels
    metadata: Callable[[], Iterator[Any]] | None = None  # their values, as Arrow tables in order
    missing: tuple[str, ...] = ()  # words and numbers that mean no value in metadata columns, too
    description: str | None = None  # of where the rows are from, for reports
    dialect: Any = None  # of the text file that rows are from, for files that are written
    dtype: np.dtype = np.dtype(np.float64)  # of the values as they are stored
    memory_limit: int | None = None  # bytes that reading and shuffling may take
    chunk_rows: int = 1  # rows that are stored, so best read, together
    chunk_starts: np.ndarray | None = None  # where stored chunks begin, if not all of one length
    row_width: int = 0  # values read per row, where that is more than its features

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense copies of some rows, NaN where a value is missing."""
        ...

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        """The same rows without making them dense; None where the source cannot."""
        return None


# -- arrays in memory ------------------------------------------------------------------------


def numpy_dtype(dtype: torch.dtype) -> Any:
    """The NumPy type in which rows are read that become tensors of a floating type."""
    return np.float64 if dtype == torch.float64 else np.float32


class DenseSource(Source):
    """Rows of a NumPy array of any real dtype, converted only as they are read."""

    def __init__(self, array: np.ndarray, names: list[str] | None = None) -> None:
        self.array, self.names, self.dtype = array, names, array.dtype
        self.shape = array.shape[0], array.shape[1]

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        # a copy, since the caller may write to it; np.array also converts odd byte orders and
        # integer widths that torch does not have
        values = np.array(self.array[index], dtype=numpy_dtype(dtype), order="C")
        return torch.from_numpy(values).to(dtype)


class SparseSource(Source):
    """Rows of a SciPy sparse matrix; only the requested rows become dense."""

    is_sparse = True

    def __init__(
        self, matrix: sparse.sparray | sparse.spmatrix, names: list[str] | None = None
    ) -> None:
        self.matrix, self.names, self.dtype = matrix.tocsr(), names, matrix.dtype
        self.shape = matrix.shape[0], matrix.shape[1]

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.from_numpy(self.matrix[index].astype(numpy_dtype(dtype)).toarray()).to(dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array:
        return self.matrix[index]


def array_source(X: Any, names: list[str] | None = None, memory_limit: int | None = None) -> Source:
    """A source of a validated array or sparse matrix; a source stays as it is."""
    if isinstance(X, Source):
        return X
    source: Source = SparseSource(X, names) if sparse.issparse(X) else DenseSource(X, names)
    source.memory_limit = memory_limit
    return source


# -- views -----------------------------------------------------------------------------------


class View(Source):
    """A view of another source; attributes that a view does not set are forwarded to its source."""

    source: Source

    def __init__(self, source: Source) -> None:
        self.source = source

    def over(self, source: Source | None, rows: np.ndarray) -> Self:
        """The same view of a source that holds only ``rows``, or of one that is set later."""
        other = copy.copy(self)
        other.source = source  # type: ignore[assignment]
        return other


class _Forwarded:
    """An attribute of the viewed source, until the view sets its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, view: View | None, owner: type | None = None) -> Any:
        return self if view is None else getattr(view.source, self.name)


for _name in Source.__annotations__:
    setattr(View, _name, _Forwarded(_name))


class RowView(View):
    """Some rows of another source, as a source.

    Parameters
    ----------
    source : Source
        All rows.
    index : array of int, or slice
        Which rows, in which order. Slices of a slice stay slices, which are fast to read.

    Examples
    --------
    >>> import fewer, numpy as np
    >>> whole = fewer.data.open(np.arange(6).reshape(3, 2))
    >>> RowView(whole, np.array([2, 0])).rows(slice(0, 1))
    tensor([[4., 5.]])
    """

    def __init__(self, source: Source, index: np.ndarray | slice) -> None:
        super().__init__(source)
        if isinstance(index, slice):
            start, stop, step = index.indices(source.shape[0])
            index = slice(start, max(start, stop)) if step == 1 else np.arange(start, stop, step)
        self.index = index
        length = index.stop - index.start if isinstance(index, slice) else len(index)
        self.shape = length, source.shape[1]
        aligned = isinstance(index, slice) and index.start % max(source.chunk_rows, 1) == 0
        self.chunk_rows = source.chunk_rows if aligned else 1
        self.chunk_starts = starts_among(source, index)
        if source.metadata is not None:
            self.metadata = self._metadata

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.source.rows(self.locate(index), dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        return self.source.sparse_rows(self.locate(index))

    def locate(self, index: np.ndarray | slice) -> np.ndarray | slice:
        """Which rows of the source these rows are."""
        if not isinstance(self.index, slice):
            return self.index[index]
        first = self.index.start
        if not isinstance(index, slice):
            return np.asarray(index) + first
        start, stop, step = index.indices(self.shape[0])
        return slice(first + start, first + stop, step)

    def _metadata(self) -> Iterator[Any]:
        assert self.source.metadata is not None
        whole = import_optional("pyarrow").concat_tables(self.source.metadata())
        yield whole.take(_row_numbers(self.index))


def shard_of_rank(source: Source) -> Source:
    """The neighbouring rows that this rank reads; all of them where there is one process."""
    if world_size() == 1:
        return source
    return RowView(source, slice(*shard_bounds(source.shape[0])))


def starts_among(source: Source, index: np.ndarray | slice) -> np.ndarray | None:
    """At which of some ascending rows a stored chunk begins; None where chunks are unknown."""
    starts = source.chunk_starts
    if starts is None and source.chunk_rows > 1:
        starts = np.arange(0, source.shape[0], source.chunk_rows)
    if starts is None:
        return None
    wanted = _row_numbers(index)
    if (np.diff(wanted) < 0).any():
        return None
    found = np.unique(np.searchsorted(wanted, starts))
    return found[found < len(wanted)]


def _row_numbers(index: np.ndarray | slice) -> np.ndarray:
    return np.arange(index.start, index.stop) if isinstance(index, slice) else np.asarray(index)


class ColumnView(View):
    """Some columns of another source, in a given order, as a source.

    Examples
    --------
    >>> import fewer, numpy as np
    >>> whole = fewer.data.open(np.arange(6).reshape(2, 3), names=["a", "b", "c"])
    >>> part = ColumnView(whole, np.array([2, 0]))
    >>> part.names, part.rows(slice(1))
    (['c', 'a'], tensor([[2., 0.]]))
    """

    def __init__(self, source: Source, columns: np.ndarray) -> None:
        super().__init__(source)
        self.columns = np.asarray(columns, dtype=np.int64)
        self.row_width = max(source.row_width, source.shape[1])
        if source.names is not None:
            self.names = [source.names[j] for j in self.columns]

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """Rows and features."""
        return self.source.shape[0], len(self.columns)

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        if self.is_sparse and len(self.columns) < self.source.shape[1]:
            part = self.sparse_rows(index)  # what is left out is never made dense
            if part is not None:
                return torch.from_numpy(part.toarray()).to(dtype)
        return self.source.rows(index, dtype)[:, torch.from_numpy(self.columns)]

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        part = self.source.sparse_rows(index)
        return None if part is None else part[:, self.columns]


class AppendedColumns(View):
    """Rows of another source, followed by columns from an array, as a source.

    Examples
    --------
    >>> import fewer, numpy as np
    >>> whole = fewer.data.open(np.array([[1, 2], [3, 4]]))
    >>> AppendedColumns(whole, np.array([[0.5], [0.25]])).rows(slice(1, 2))
    tensor([[3.0000, 4.0000, 0.2500]])
    """

    dtype = np.dtype(np.float64)
    is_sparse = False
    names = None

    def __init__(self, source: Source, columns: np.ndarray) -> None:
        super().__init__(source)
        self.columns = torch.from_numpy(np.ascontiguousarray(columns, dtype=np.float64))

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """Rows and features."""
        return self.source.shape[0], self.source.shape[1] + self.columns.shape[1]

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        more = self.columns[index].to(dtype)
        return torch.cat([self.source.rows(index, dtype), more], dim=1)


class ScaledSource(View):
    """Rows of another source, centred and divided, feature by feature.

    Examples
    --------
    >>> import fewer, numpy as np
    >>> whole = fewer.data.open(np.array([[1.0, 10.0], [3.0, 30.0]]))
    >>> scaled = ScaledSource(whole, center=np.array([2.0, 20.0]), scale=np.array([1.0, 10.0]))
    >>> scaled.rows(slice(2))
    tensor([[-1., -1.],
            [ 1.,  1.]])
    """

    dtype = np.dtype(np.float64)

    def __init__(self, source: Source, center: np.ndarray, scale: np.ndarray) -> None:
        super().__init__(source)
        self.center, self.scale = torch.from_numpy(center), torch.from_numpy(scale)
        self.unscaled = not center.any() and bool((scale == 1).all())

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        if self.unscaled:
            return self.source.rows(index, dtype)
        rows = self.source.rows(index, torch.float64)
        return rows.sub_(self.center).div_(self.scale).to(dtype)


class MissingNumbers(View):
    """Rows of another source in which some numbers, such as 9999, are codes for missing values."""

    dtype = np.dtype(np.float64)

    def __init__(self, source: Source, numbers: Sequence[float]) -> None:
        super().__init__(source)
        self.missing = (*source.missing, *map(str, numbers))
        kind = source.dtype if source.dtype.kind == "f" else np.dtype(np.float64)
        # as they are stored: -99.9 in a file of float32 is another number in float64
        self.numbers = torch.tensor(
            [float(np.asarray(one).astype(kind)) for one in numbers], dtype=torch.float64
        )

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        rows = self.source.rows(index, torch.float64)
        rows[torch.isin(rows, self.numbers)] = torch.nan
        return rows.to(dtype)

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array | None:
        part = self.source.sparse_rows(index)
        if part is None:
            return None
        values = part.data.astype(np.float64)
        values[np.isin(values, self.numbers.numpy())] = np.nan
        return sparse.csr_array((values, part.indices, part.indptr), shape=part.shape)


class Log1pSource(View):
    """log(1 + x) of the rows of another source of counts.

    Examples
    --------
    >>> import fewer, numpy as np
    >>> Log1pSource(fewer.data.open(np.array([[0, 1]]))).rows(slice(1)).exp()
    tensor([[1., 2.]])
    """

    dtype = np.dtype(np.float64)

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.source.rows(index, dtype).log1p_()


def is_remote(source: Source) -> bool:
    """Whether rows live on other machines, so that work should go to them."""
    while isinstance(source, View):
        source = source.source
    return getattr(source, "is_remote", False)


def reduce_rows(
    source: Source, work: Callable[..., T], *aligned: Any, add: Callable[[list[T]], T]
) -> T:
    """``work(source, *aligned)`` with ``aligned`` values of each row; remote parts are added."""
    if not is_remote(source):
        return work(source, *aligned)
    from fewer.data.dask import reduce_on_workers  # noqa: PLC0415

    return reduce_on_workers(source, work, *aligned, add=add)


# -- rows in order, a block at a time -----------------------------------------------------------


def blocks(n: int, d: int, chunk_rows: int = 1, size: int | None = None) -> Iterator[slice]:
    """Consecutive row ranges that stay small when made dense, in whole chunks where these fit."""
    rows = max(1, (size or BLOCK_BYTES) // (8 * d))
    if 1 < chunk_rows <= rows:
        rows -= rows % chunk_rows
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


def row_blocks(source: Source) -> Iterator[slice]:
    """Row ranges of a source, within its memory limit."""
    n, d = source.shape
    return blocks(n, max(d, source.row_width), source.chunk_rows, block_bytes(source))


def block_bytes(source: Source) -> int:
    """Bytes of one block of float64 rows; a sixth of the memory limit at most."""
    # two blocks are alive at a time (one is read, one in use), and the work on one takes copies
    if source.memory_limit is None:
        return BLOCK_BYTES
    return min(BLOCK_BYTES, max(LEAST_BYTES, source.memory_limit // 6))


def read_blocks(
    source: Source, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[slice, Tensor]]:
    """Yield every row once, in order, as pairs of row range and values.

    Examples
    --------
    >>> import numpy as np
    >>> import fewer
    >>> [(rows.stop, x.sum().item()) for rows, x in read_blocks(fewer.data.open(np.ones((3, 2))))]
    [(3, 6.0)]
    """
    found = ((rows, source.rows(rows, dtype)) for rows in row_blocks(source))
    return ahead(found) if source.on_disk else found


def read_all(source: Source, columns: np.ndarray | None = None) -> np.ndarray:
    """Read all rows into one float64 array, optionally only some columns.

    Examples
    --------
    >>> import numpy as np
    >>> import fewer
    >>> read_all(fewer.data.open(np.arange(6).reshape(2, 3)), np.array([2]))
    array([[2.],
           [5.]])
    """
    out = np.empty((source.shape[0], source.shape[1] if columns is None else len(columns)))
    for rows, x in read_blocks(source):
        out[rows] = x.numpy() if columns is None else x.numpy()[:, columns]
    return out


def read_metadata(source: Source) -> Iterator[Any]:
    """Metadata of the rows of each block of `read_blocks`, as Arrow tables, or None."""
    if source.metadata is None:
        yield from (None for _ in row_blocks(source))
        return
    pa = import_optional("pyarrow")
    tables = iter(source.metadata())
    held: list[Any] = []
    for rows in row_blocks(source):
        need = rows.stop - rows.start
        while sum(table.num_rows for table in held) < need:
            table = next(tables, None)
            if table is None:
                raise InputError("the metadata columns have fewer rows than the features")
            held.append(table)
        whole = pa.concat_tables(held)
        yield whole.slice(0, need)
        held = [whole.slice(need)]


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, each made in a background thread while the one before it is used."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "fewer-reads-ahead") as reader:
        waiting = reader.submit(next, source, end)
        while (item := waiting.result()) is not end:
            waiting = reader.submit(next, source, end)
            yield item  # type: ignore[misc]
            del item  # no second reference while the next one is awaited
