"""Sparse matrices in stores: a group of data, indices and indptr."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fewer.data.hdf5_zarr import damaged
from fewer.data.memory import readable_size
from fewer.data.on_disk import GAP_BYTES, PIECE_BYTES, SMALL_SHARE, StoredSource, runs
from fewer.data.source import Source, SparseSource
from fewer.data.values import check_values
from fewer.errors import InputError

__all__ = ["SparseRows", "open_sparse_group"]


class SparseRows(StoredSource):
    """Rows of a CSR matrix in an HDF5 or zarr group; they stay sparse until they are used."""

    is_sparse = True

    def __init__(self, group: Any, what: str, shape: tuple[int, int], **described: Any) -> None:
        super().__init__(what, shape, group["data"].dtype, **described)
        self._data, self._indices = group["data"], group["indices"]
        self._indptr = np.asarray(group["indptr"][...]).astype(np.int64)
        entries = self._data.shape[0]
        if len(self._indptr) != shape[0] + 1 or self._indptr[-1] != entries:
            raise damaged(what, f"indptr does not fit {shape[0]} rows of {entries} entries")

    def sparse_rows(self, index: np.ndarray | slice) -> sparse.csr_array:
        """Some rows as they are stored."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step == 1:
                return self._csr(start, max(start, stop))
            index = np.arange(start, stop, step)
        a_row = (self._data.nbytes + self._indices.nbytes) / self.shape[0]
        gap, most = (max(1, int(size / max(a_row, 1))) for size in (GAP_BYTES, PIECE_BYTES))
        found = [
            (places, self._csr(int(wanted[0]), int(wanted[-1]) + 1)[wanted - wanted[0]])
            for places, wanted in runs(np.asarray(index), gap, most)
        ]
        if not found:
            return self._csr(0, 0)
        joined = sparse.vstack([part for _, part in found], format="csr")
        return joined[np.argsort(np.concatenate([places for places, _ in found]))]

    def _read(self, start: int, stop: int) -> np.ndarray:
        return self._csr(start, stop).toarray()

    def _csr(self, start: int, stop: int) -> sparse.csr_array:
        first, last = int(self._indptr[start]), int(self._indptr[stop])
        self._check_unchanged()
        try:
            data, indices = self._data[first:last], self._indices[first:last]
        except (OSError, ValueError, RuntimeError) as error:
            self._check_unchanged()
            raise damaged(self.what, error) from error
        part = sparse.csr_array(
            (data, indices, self._indptr[start : stop + 1] - first),
            shape=(stop - start, self.shape[1]),
        )
        check_values(part, self.names, self.what, first_row=start)
        return part


def open_sparse_group(
    group: Any, what: str, watched: list[Path], names: list[str], memory_limit: int
) -> Source:
    """A source of a sparse matrix; in memory where it is small, or stored column by column."""
    kind = str(group.attrs.get("encoding-type", group.attrs.get("h5sparse_format", "")))
    rows, columns = (
        int(size) for size in group.attrs.get("shape", group.attrs.get("h5sparse_shape", (0, 0)))
    )
    if columns != len(names):
        raise damaged(what, f"{columns} columns, but {len(names)} names")
    size = group["data"].shape[0] * (group["data"].dtype.itemsize + group["indices"].dtype.itemsize)
    by_column = kind.startswith("csc")
    if by_column and size > memory_limit // 3:
        raise InputError(
            f"{what} is stored column by column (CSC, {readable_size(size)}), so its rows cannot "
            f"be read in pieces within memory_limit={readable_size(memory_limit)}; save it as CSR "
            "(adata.X = adata.X.tocsr()), or raise the limit"
        )
    if by_column or size <= memory_limit // SMALL_SHARE:
        form = sparse.csc_array if by_column else sparse.csr_array
        try:
            parts = tuple(group[name][...] for name in ("data", "indices", "indptr"))
            matrix = form(parts, shape=(rows, columns)).tocsr()
        except (OSError, ValueError, RuntimeError) as error:
            raise damaged(what, error) from error
        check_values(matrix, names, what)
        source: Source = SparseSource(matrix, names)
        source.memory_limit = memory_limit
        return source
    return SparseRows(
        group, what, (rows, columns), names=names, memory_limit=memory_limit, watched=watched
    )
