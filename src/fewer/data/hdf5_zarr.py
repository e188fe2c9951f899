"""Arrays in stores: HDF5 datasets and zarr arrays."""

from pathlib import Path
from typing import Any

import numpy as np

from fewer._optional import import_optional
from fewer.data.arrays import check_numbers
from fewer.data.columns import join_names
from fewer.data.on_disk import StoredSource, in_memory_if_small
from fewer.data.source import Source
from fewer.errors import FileFormatError, InputError

__all__ = ["HDF5", "ChunkedArray", "open_array", "open_hdf5", "open_zarr"]

HDF5 = (".h5", ".hdf5", ".hdf", ".he5")


class ChunkedArray(StoredSource):
    """Rows of an h5py dataset or a zarr array, read in whole chunks."""

    def __init__(self, array: Any, what: str, *, watched: Any = (), **described: Any) -> None:
        check_numbers(what, array.shape, array.dtype)
        shape = int(array.shape[0]), int(array.shape[1])
        super().__init__(what, shape, array.dtype, watched=watched, **described)
        self.array = array
        if array.chunks:
            self._stored_in_chunks(int(array.chunks[0]))

    def _read(self, start: int, stop: int) -> np.ndarray:
        try:
            found = np.asarray(self.array[start:stop])
        except (OSError, ValueError, RuntimeError) as error:
            self._check_unchanged()
            raise damaged(self.what, error) from error
        if len(found) != stop - start:
            raise damaged(self.what, "fewer rows than it says")
        return found


def open_hdf5(
    path: Path, dataset: str | None, names: list[str] | None, memory_limit: int
) -> Source:
    """A source of a dataset of an HDF5 file."""
    file = open_hdf5_file(path)
    h5py = import_optional("h5py")
    tables: list[str] = []

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.ndim == 2 and item.dtype.kind in "biuf":
            tables.append(name)

    if dataset is None:
        try:
            file.visititems(note)
        except (OSError, RuntimeError) as error:
            raise damaged(str(path), error) from error
        dataset = _only(path, tables)
    if dataset not in file or not isinstance(file[dataset], h5py.Dataset):
        raise InputError(f"{path} has no dataset {dataset!r}; say another by dataset=")
    return open_array(file[dataset], f"{path}:{dataset}", [path], names, memory_limit)


def open_zarr(
    path: Path, dataset: str | None, names: list[str] | None, memory_limit: int
) -> Source:
    """A source of a zarr array on disk, or of one in a group there."""
    zarr = import_optional("zarr")
    try:
        found = zarr.open(str(path), mode="r")
    except Exception as error:  # zarr has many kinds of its own
        raise damaged(str(path), error) from error
    if isinstance(found, zarr.Group):
        arrays = [name for name, array in found.arrays() if len(array.shape) == 2]
        dataset = _only(path, arrays) if dataset is None else dataset
        if dataset not in found or isinstance(found[dataset], zarr.Group):
            raise InputError(f"{path} has no array {dataset!r}; say another by dataset=")
        found = found[dataset]
    elif dataset is not None:
        raise InputError(f"{path} is a single array; leave out dataset={dataset!r}")
    return open_array(found, str(path), [], names, memory_limit)


def open_array(
    array: Any, what: str, watched: list[Path], names: list[str] | None, memory_limit: int
) -> Source:
    """A source of an open h5py dataset or zarr array."""
    return in_memory_if_small(
        ChunkedArray(array, what, watched=watched, names=names, memory_limit=memory_limit)
    )


def open_hdf5_file(path: Path) -> Any:
    """An HDF5 file open for reading."""
    h5py = import_optional("h5py")
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError) as error:
        raise damaged(str(path), error) from error


def damaged(what: str, reason: object) -> FileFormatError:
    """The error for a store that cannot be read to its end."""
    said = str(reason).strip().split("\n")[0]
    return FileFormatError(f"{what} is damaged or truncated ({said}); write or copy it again")


def _only(path: Path, held: list[str]) -> str:
    if len(held) == 1:
        return held[0]
    if not held:
        raise InputError(f"{path} holds no two-dimensional array of numbers; say one by dataset=")
    raise InputError(f"{path} holds {join_names(held)}; say which by dataset=")
