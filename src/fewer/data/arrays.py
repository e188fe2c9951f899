"""Arrays that are not in memory: .npz files, memory maps, HDF5, zarr, torch datasets."""

import shutil
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fewer._checks import join_names
from fewer._optional import import_optional
from fewer.data.columns import check_numbers, check_values
from fewer.data.on_disk import (
    SMALL_SHARE,
    OnDiskSource,
    convert_once,
    damaged,
    in_memory_if_small,
    open_npy,
    readable_size,
)
from fewer.data.source import Source, array_source, numpy_dtype
from fewer.data.tables import as_array
from fewer.errors import FewerError, FileFormatError, InputError, TypeInputError, warn

HDF5 = (".h5", ".hdf5", ".hdf", ".he5")


def open_array(
    array: Any, what: str, watched: list[Path], names: list[str] | None, memory_limit: int
) -> Source:
    """A source of a memory map, h5py dataset or zarr array, read in whole chunks."""
    source = OnDiskSource(
        lambda start, stop: np.array(array[start:stop]),
        what,
        array,
        memory_limit,
        names=names,
        watched=watched,
    )
    return source if isinstance(array, np.memmap) else in_memory_if_small(source)


def open_npz(path: Path, dataset: str | None, names: list[str] | None, memory_limit: int) -> Source:
    """A source of one array of an .npz file, or of a sparse matrix that SciPy saved."""
    try:
        with zipfile.ZipFile(path) as archive:  # first: NumPy leaves a broken one open
            sizes = {
                item.filename.removesuffix(".npy"): item.file_size for item in archive.infolist()
            }
        if dataset is None and {"indices", "indptr", "data", "shape", "format"} <= set(sizes):
            matrix = sparse.load_npz(path).tocsr()
            check_values(matrix, names, str(path))
            return array_source(matrix, names, memory_limit)
        if dataset is not None and dataset not in sizes:
            raise InputError(f"{path} has no array {dataset!r}; it has {join_names(list(sizes))}")
        name = dataset or _only(path, ["X"] if "X" in sizes else list(sizes))
        if sizes[name] <= memory_limit // SMALL_SHARE:
            with np.load(path, allow_pickle=False) as stored:
                array = stored[name]
            check_numbers(f"{name!r} in {path}", array.shape, array.dtype)
            check_values(array, names, f"{name!r} in {path}")
            return array_source(array, names, memory_limit)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        if isinstance(error, (FewerError, FileNotFoundError)):
            raise
        raise FileFormatError(f"{path} is not a whole .npz file ({error})") from error

    def unpack(file: IO[bytes]) -> None:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
            shutil.copyfileobj(member, file, 2**24)
        warn(
            f"{path} does not fit memory_limit={readable_size(memory_limit)}; it was unpacked once "
            "to the cache, so that it can be read in pieces"
        )

    return open_npy(convert_once([path], {"npz": name}, unpack), names, memory_limit)


# -- HDF5 and zarr ---------------------------------------------------------------------------


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
            raise damaged(path, error) from error
        dataset = _only(path, tables)
    if dataset not in file or not isinstance(file[dataset], h5py.Dataset):
        raise InputError(f"{path} has no dataset {dataset!r}; choose another with dataset=")
    return open_array(file[dataset], f"{path}:{dataset}", [path], names, memory_limit)


def open_zarr(
    path: Path, dataset: str | None, names: list[str] | None, memory_limit: int
) -> Source:
    """A source of a zarr array on disk, or of one in a group there."""
    zarr = import_optional("zarr")
    try:
        found = zarr.open(str(path), mode="r")
    except Exception as error:  # zarr has many kinds of its own
        raise damaged(path, error) from error
    if isinstance(found, zarr.Group):
        arrays = [name for name, array in found.arrays() if len(array.shape) == 2]
        dataset = _only(path, arrays) if dataset is None else dataset
        if dataset not in found or isinstance(found[dataset], zarr.Group):
            raise InputError(f"{path} has no array {dataset!r}; choose another with dataset=")
        found = found[dataset]
    elif dataset is not None:
        raise InputError(f"{path} is a single array; drop dataset={dataset!r}")
    return open_array(found, str(path), [], names, memory_limit)


def open_hdf5_file(path: Path) -> Any:
    """An HDF5 file open for reading."""
    h5py = import_optional("h5py")
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError) as error:
        raise damaged(path, error) from error


def _only(path: Path, held: list[str]) -> str:
    if len(held) == 1:
        return held[0]
    shown = join_names(held) or "no two-dimensional array of numbers"
    raise InputError(f"{path} holds {shown}; choose one with dataset=")


# -- torch datasets --------------------------------------------------------------------------


class DatasetSource(Source):
    """Rows of a torch Dataset, asked for one by one; of a pair, the first is the row."""

    on_disk = True  # it may be, and asking in order does no harm

    def __init__(self, dataset: Any, names: list[str] | None, memory_limit: int) -> None:
        self.dataset, self.names, self.memory_limit = dataset, names, memory_limit
        first = self._row(0)
        self.shape, self.dtype = (len(dataset), len(first)), first.dtype

    def rows(self, index: np.ndarray | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        wanted = range(len(self.dataset))[index] if isinstance(index, slice) else index
        out = np.empty((len(wanted), self.shape[1]), dtype=numpy_dtype(dtype))
        for at, number in enumerate(wanted):
            row = self._row(int(number))
            if len(row) != self.shape[1]:
                raise InputError(
                    f"item {number} of the dataset has {len(row)} values, item 0 has "
                    f"{self.shape[1]}; all need the same"
                )
            check_values(row[None], self.names, "the dataset", first_row=int(number))
            out[at] = row
        return torch.from_numpy(out).to(dtype)

    def _row(self, number: int) -> np.ndarray:
        item = self.dataset[number]
        row = np.asarray(as_array(item[0] if isinstance(item, (tuple, list)) else item))
        if row.dtype.kind not in "biuf":
            raise InputError(
                f"item {number} of the dataset holds {row.dtype}, not numbers; give items that "
                "are tensors, or pairs that begin with one"
            )
        return row.reshape(-1)


def open_dataset(data: Dataset, names: list[str] | None, memory_limit: int) -> Source:
    """A source of a torch Dataset with a length; its tensor, where it is made of tensors."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise TypeInputError(
            f"{type(data).__name__} has no rows by number; give a dataset with __len__ and "
            "__getitem__"
        )
    if len(data) == 0:
        raise InputError("the dataset is empty")
    if isinstance(data, TensorDataset):
        array = as_array(data.tensors[0]).reshape(len(data), -1)
        check_values(array, names, "the dataset")
        return array_source(array, names, memory_limit)
    return DatasetSource(data, names, memory_limit)
