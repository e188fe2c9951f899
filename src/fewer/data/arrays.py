"""Arrays that are not in memory: .npz files, memory maps, HDF5, zarr, torch datasets."""

import io
import json
import math
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    NpyHeader,
    OnDiskSource,
    check_expansion,
    convert_once,
    damaged_where_unreadable,
    in_memory_if_small,
    open_npy,
    read_npy_header,
    readable_size,
)
from fewer.data.screen import screen
from fewer.data.source import Source, array_source, numpy_dtype
from fewer.data.tables import as_array
from fewer.errors import FewerError, FileFormatError, InputError, TypeInputError, warn

FREE_CHUNKS, BYTES_PER_CHUNK = 10_000, 16
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
    with _npz_errors(path):
        with zipfile.ZipFile(path) as archive:
            members = {item.filename.removesuffix(".npy"): item for item in archive.infolist()}
        if dataset is None and {"indices", "indptr", "data", "shape", "format"} <= set(members):
            return _open_sparse_npz(path, names, memory_limit)
        if dataset is not None and dataset not in members:
            raise InputError(f"{path} has no array {dataset!r}; it has {join_names(list(members))}")
        name = dataset or _only(path, ["X"] if "X" in members else list(members))
        header = _npz_header(path, members[name])
        what = f"{name!r} in {path}"
        check_numbers(what, header.shape, header.dtype)
        if header.nbytes <= memory_limit // SMALL_SHARE:
            array = _npz_array(path, members[name])
            check_values(array, names, what)
            return array_source(array, names, memory_limit)

    def unpack(file: IO[bytes]) -> None:
        with (
            _npz_errors(path),
            zipfile.ZipFile(path) as archive,
            archive.open(members[name]) as member,
        ):
            shutil.copyfileobj(member, file, 2**24)
        warn(
            f"{path} does not fit memory_limit={readable_size(memory_limit)}; it was unpacked once "
            "to the cache, to be read in chunks"
        )

    return open_npy(convert_once([path], {"npz": name}, unpack), names, memory_limit)


@contextmanager
def _npz_errors(path: Path) -> Iterator[None]:
    """Turn whatever a zip file and its compression raise into a `FileFormatError`."""
    try:
        yield
    except (FewerError, FileNotFoundError):
        raise
    except Exception as error:  # zlib, bz2 and lzma have their own, encryption a RuntimeError
        raise FileFormatError(f"{path} is not a whole .npz file ({error})") from error


def _npz_header(path: Path, member: zipfile.ZipInfo) -> NpyHeader:
    """How the values of a member lie; refused where the header claims more than is there."""
    check_expansion(path, member.file_size, path.stat().st_size)
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        header = read_npy_header(file)
    if header.start + header.nbytes != member.file_size:
        raise ValueError(
            f"{member.filename} has {member.file_size} bytes, {header.start + header.nbytes} "
            "expected"
        )
    return header


def _npz_array(path: Path, member: zipfile.ZipInfo) -> np.ndarray:
    """All values of a member."""
    header = _npz_header(path, member)
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        data = file.read(member.file_size)  # to its end, where its checksum is compared
    values = np.frombuffer(bytearray(data), header.dtype, offset=header.start)
    return values.reshape(header.shape, order="F" if header.by_column else "C")


def _open_sparse_npz(path: Path, names: list[str] | None, memory_limit: int) -> Source:
    """A sparse matrix as `scipy.sparse.save_npz` writes it, checked before SciPy uses it."""
    with zipfile.ZipFile(path) as archive:
        parts = {
            item.filename.removesuffix(".npy"): _npz_array(path, item)
            for item in archive.infolist()
        }
    form = parts["format"].item()
    form = form.decode("ascii") if isinstance(form, bytes) else str(form)
    kinds = {"csr": sparse.csr_array, "csc": sparse.csc_array}
    if form not in kinds:
        raise InputError(f"{path} holds a sparse matrix of format {form!r}; save it as csr or csc")
    shape = tuple(parts["shape"].tolist())
    check_numbers(str(path), shape, parts["data"].dtype)
    matrix = checked_sparse(
        kinds[form]((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
    )
    check_values(matrix, names, str(path))
    return array_source(matrix.tocsr(), names, memory_limit)


def checked_sparse(matrix: Any) -> Any:
    """A compressed sparse matrix whose index arrays were checked: SciPy trusts them in C++."""
    matrix.check_format(full_check=True)
    return matrix


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

    with damaged_where_unreadable(path):
        if dataset is None:
            file.visititems(note)
            dataset = _only(path, tables)
        if dataset not in file or not isinstance(file[dataset], h5py.Dataset):
            raise InputError(f"{path} has no dataset {dataset!r}; choose another with dataset=")
        found = file[dataset]
        if found.is_virtual or found.external or found.file.filename != file.filename:
            raise FileFormatError(
                f"the values of {dataset!r} are not in {path} but in other files, which are not "
                "followed; copy them into one file (h5repack, or h5py)"
            )
        return open_array(found, f"{path}:{dataset}", [path], names, memory_limit)


def open_zarr(
    path: Path, dataset: str | None, names: list[str] | None, memory_limit: int
) -> Source:
    """A source of a zarr array on disk, or of one in a group there."""
    zarr = import_optional("zarr")
    size = folder_size(path)
    with damaged_where_unreadable(path):
        found = zarr.open(str(path), mode="r")
        if isinstance(found, zarr.Group):
            arrays = [name for name, array in found.arrays() if len(array.shape) == 2]
            dataset = _only(path, arrays) if dataset is None else dataset
            if dataset not in found or isinstance(found[dataset], zarr.Group):
                raise InputError(f"{path} has no array {dataset!r}; choose another with dataset=")
            found = found[dataset]
        elif dataset is not None:
            raise InputError(f"{path} is a single array; drop dataset={dataset!r}")
        check_zarr_array(path, found, size)
        return open_array(found, str(path), [], names, memory_limit)


def check_zarr_array(path: Path, array: Any, size: int) -> None:
    """Refuse an array that claims far more than files of this size can hold, in bytes or chunks."""
    for claimed in (array.shape, array.chunks):
        check_expansion(path, math.prod(claimed) * array.dtype.itemsize, size)
    chunks = math.prod(-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True))
    most = FREE_CHUNKS + size // BYTES_PER_CHUNK
    if chunks > most:  # looking for one that is not there takes as long as reading it
        raise FileFormatError(
            f"{path} claims {chunks:,} chunks in files of {size:,} bytes; at most {most:,} are "
            "read: write it in larger chunks"
        )


def folder_size(path: Path) -> int:
    """Bytes of all files of a zarr folder; links that lead out of it, and pickle, are refused."""
    top, size = path.resolve(), 0
    for file in path.rglob("*"):
        if file.is_symlink() and not file.resolve().is_relative_to(top):
            raise FileFormatError(
                f"{file} is a link out of its folder, which is not followed; copy the file there"
            )
        if file.is_file():
            size += file.stat().st_size
            if file.name in (".zarray", ".zmetadata"):
                with damaged_where_unreadable(file):
                    json.loads(file.read_bytes(), object_pairs_hook=_check_codec)
    return size


def _check_codec(pairs: list[tuple[str, Any]]) -> None:
    """Refuse pickle, which runs code, among the codecs of zarr, as new versions of numcodecs do."""
    if ("id", "pickle") in pairs:
        raise ValueError("it holds pickled Python objects, which are not read")


def open_hdf5_file(path: Path, kind: str = "hdf5") -> Any:
    """An HDF5 file open for reading, after a helper process has read it (see `screen`)."""
    h5py = import_optional("h5py")
    screen(path, kind)
    with damaged_where_unreadable(path):
        return h5py.File(path, "r")


class _Unfailing(io.FileIO):
    """A file for HDF5, which crashes when a write fails: what does not fit stays in memory.

    That is little, since writers call `check` after each block.
    """

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self.failed: OSError | None = None
        self.rest: list[tuple[int, bytes]] = []  # what did not fit, and where

    def check(self) -> None:
        """Raise the error of an earlier write."""
        if self.failed is not None:
            raise self.failed

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while view and self.failed is None:
                view = view[super().write(view) :]
        except OSError as error:
            self.failed = error
        if view:
            self.rest.append((self.tell(), bytes(view)))
            self.seek(len(view), os.SEEK_CUR)
        return size

    def readinto(self, buffer: Any) -> int:
        view, start = memoryview(buffer).cast("B"), self.tell()
        read = super().readinto(view)
        if self.failed is None:
            return read
        view[read:] = bytes(len(view) - read)
        for at, part in self.rest:
            first, end = max(start, at), min(start + len(view), at + len(part))
            if first < end:
                view[first - start : end - start] = part[first - at : end - at]
        return len(view)

    def seek(self, at: int, whence: int = os.SEEK_SET) -> int:
        found = super().seek(at, whence)
        if whence == os.SEEK_END:
            return super().seek(max([found, *(start + len(part) for start, part in self.rest)]))
        return found

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.failed = self.failed or error
            return size or 0


@contextmanager
def hdf5_to_write(path: Path, mode: str = "w") -> Iterator[tuple[Any, Callable[[], None]]]:
    """An HDF5 file to write to, and a function that raises the OSError of an earlier write.

    Call it after each block of rows; at the end it is called here.
    """
    with _Unfailing(path, "r+" if mode == "r+" else "w+") as raw:
        with import_optional("h5py").File(raw, mode) as file:
            yield file, raw.check
        raw.check()


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
                    f"{self.shape[1]}; all items need the same number"
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
                "are tensors, or tuples that start with one"
            )
        return row.reshape(-1)


def open_dataset(data: Dataset, names: list[str] | None, memory_limit: int) -> Source:
    """A source of a torch Dataset with a length; its tensor, where it is made of tensors."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise TypeInputError(
            f"{type(data).__name__} has no indexable rows; pass a dataset with __len__ and "
            "__getitem__"
        )
    if len(data) == 0:
        raise InputError("the dataset is empty")
    if isinstance(data, TensorDataset):
        array = as_array(data.tensors[0]).reshape(len(data), -1)
        check_values(array, names, "the dataset")
        return array_source(array, names, memory_limit)
    return DatasetSource(data, names, memory_limit)
