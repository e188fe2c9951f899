"""Arrays in files: .npy and memory maps, .npz."""

import io
import mmap
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fewer.data.cache import convert_once
from fewer.data.memory import readable_size
from fewer.data.on_disk import SMALL_SHARE, StoredSource, in_memory_if_small
from fewer.data.source import DenseSource, Source, SparseSource
from fewer.data.values import check_values
from fewer.errors import FileFormatError, InputError, warn

__all__ = ["NpyFile", "check_numbers", "open_memmap", "open_npy", "open_npz"]


class NpyFile(StoredSource):
    """Rows of a two-dimensional .npy file, or of the file behind a memory map.

    They are read, not mapped: mapped pages would count as memory of this process without limit,
    and a file that shrinks would end the process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shape: tuple[int, int],
        dtype: np.dtype,
        offset: int,
        *,
        fortran: bool = False,
        **described: Any,
    ) -> None:
        super().__init__(str(path), shape, dtype, watched=[path], **described)
        self._path, self._offset, self._fortran = Path(path), offset, fortran
        need = offset + shape[0] * shape[1] * self.dtype.itemsize
        have = self._path.stat().st_size
        if have < need:
            raise FileFormatError(
                f"{path} is truncated: {readable_size(have)} of the {readable_size(need)} that "
                f"{shape[0]} x {shape[1]} values of {dtype} take; write it again"
            )

    def _read(self, start: int, stop: int) -> np.ndarray:
        n, d = self.shape
        size = self.dtype.itemsize
        with self._path.open("rb", buffering=0) as file:
            if not self._fortran:
                out = np.empty((stop - start, d), dtype=self.dtype)
                self._fill(file, out, self._offset + start * d * size)
                return out
            columns = np.empty((d, stop - start), dtype=self.dtype)
            for j in range(d):
                self._fill(file, columns[j], self._offset + (j * n + start) * size)
            return columns.T

    def _fill(self, file: io.FileIO, out: np.ndarray, offset: int) -> None:
        rest = out.reshape(-1).view(np.uint8).data
        file.seek(offset)
        while rest:
            count = file.readinto(rest)
            if not count:
                raise FileFormatError(f"{self._path} ends too early; write it again")
            rest = rest[count:]


def open_npy(path: Path, names: list[str] | None, memory_limit: int) -> Source:
    """A source of an .npy file."""
    with path.open("rb") as file:
        try:
            first = np.lib.format.read_magic(file) == (1, 0)
            read = (
                np.lib.format.read_array_header_1_0
                if first
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(file)
        except ValueError as error:
            raise FileFormatError(f"{path} is not a whole .npy file ({error})") from error
        offset = file.tell()
    check_numbers(str(path), shape, dtype)
    n, d = shape
    return in_memory_if_small(
        NpyFile(
            path, (n, d), dtype, offset, fortran=fortran, names=names, memory_limit=memory_limit
        )
    )


def open_memmap(array: np.memmap, names: list[str] | None, memory_limit: int) -> Source:
    """A source of a memory map: of its file, where the map shows that as it is."""
    check_numbers("the memory map", array.shape, array.dtype)
    whole = isinstance(array.base, mmap.mmap) and array.filename is not None
    orderly = array.flags.c_contiguous or array.flags.f_contiguous
    if whole and orderly and array.mode != "c" and array.filename is not None:
        array.flush()
        return NpyFile(
            array.filename,
            (array.shape[0], array.shape[1]),
            array.dtype,
            array.offset,
            fortran=not array.flags.c_contiguous,
            names=names,
            memory_limit=memory_limit,
        )
    check_values(array)
    source = DenseSource(array, names)
    source.on_disk, source.memory_limit = True, memory_limit
    return source


def open_npz(path: Path, dataset: str | None, names: list[str] | None, memory_limit: int) -> Source:
    """A source of one array of an .npz file, or of a sparse matrix that SciPy saved."""
    try:
        with zipfile.ZipFile(path) as archive:  # first: NumPy leaves a broken one open
            sizes = {
                item.filename.removesuffix(".npy"): item.file_size for item in archive.infolist()
            }
        if dataset is None and {"indices", "indptr", "data", "shape", "format"} <= set(sizes):
            matrix = sparse.load_npz(path)
            check_values(matrix.tocsr(), names, str(path))
            return _limited(SparseSource(matrix, names), memory_limit)
        name = _which(path, list(sizes), dataset)
        if sizes[name] <= memory_limit // SMALL_SHARE:
            with np.load(path, allow_pickle=False) as stored:
                array = stored[name]
            check_numbers(f"{name!r} in {path}", array.shape, array.dtype)
            check_values(array, names, f"{name!r} in {path}")
            return _limited(DenseSource(array, names), memory_limit)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        if isinstance(error, (InputError, FileFormatError, FileNotFoundError)):
            raise
        raise FileFormatError(f"{path} is not a whole .npz file ({error})") from error
    copy = _unpacked(path, name)
    return open_npy(copy, names, memory_limit)


def _limited(source: Source, memory_limit: int) -> Source:
    source.memory_limit = memory_limit
    return source


def _which(path: Path, held: list[str], dataset: str | None) -> str:
    if dataset is not None and dataset not in held:
        raise InputError(f"{path} has no array {dataset!r}; it has {', '.join(held)}")
    if dataset is not None:
        return dataset
    if len(held) == 1:
        return held[0]
    if "X" in held:
        return "X"
    raise InputError(f"{path} holds {', '.join(held)}; say which by dataset=")


def _unpacked(path: Path, name: str) -> Path:
    """The member of an archive as a file of its own, since an archive is read only in order."""

    def unpack(file: Any) -> dict[str, Any]:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
            while part := member.read(2**24):
                file.write(part)
        return {}

    copy, _, fresh = convert_once([path], {"npz": name}, unpack)
    if fresh:
        warn(f"{path} was unpacked once to {copy}, so that it can be read in pieces")
    return copy


def check_numbers(what: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse what is not a table of numbers."""
    kind = np.dtype(dtype)
    if kind.kind not in "biuf":
        raise InputError(f"{what} holds {kind}, not real numbers; convert it first")
    if len(shape) != 2:
        raise InputError(
            f"{what} has the shape {tuple(shape)}; rows of features need two dimensions: "
            "reshape it to (rows, features)"
        )
    if 0 in shape:
        raise InputError(f"{what} is empty: {shape[0]} rows of {shape[1]} features")
