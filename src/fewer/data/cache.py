"""Binary copies of files that are slow to read more than once.

A copy is keyed by the file's path, size and time of change and by how it was read, so an edited
file is converted anew. It lies in the folder ``fewer/rows`` of the user's cache, or of the folder
that ``FEWER_CACHE`` names, and can be deleted at any time.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from fewer.errors import InputError

__all__ = ["cache_folder", "clear_cache", "convert_once"]

FORMAT = 1


def cache_folder() -> Path:
    """Where fewer keeps what it can make again.

    Examples
    --------
    >>> cache_folder().name
    'fewer'
    """
    own = os.environ.get("FEWER_CACHE")
    if own:
        return Path(own).expanduser() / "fewer"
    if sys.platform == "darwin":
        base = "~/Library/Caches"
    elif sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fewer"


def clear_cache() -> int:
    """Delete all binary copies; the number of bytes set free.

    Examples
    --------
    >>> import os, tempfile
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"FEWER_CACHE": tempfile.mkdtemp()}):
    ...     clear_cache()  # nothing there yet
    0
    """
    folder = cache_folder() / "rows"
    size = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
    shutil.rmtree(folder, ignore_errors=True)
    return size


def convert_once(
    paths: Sequence[Path],
    options: dict[str, Any],
    convert: Any,
) -> tuple[Path, dict[str, Any], bool]:
    """The binary copy of some files, made now if it is not there yet.

    Parameters
    ----------
    paths : sequence of Path
        The files.
    options : dict
        How they are read, as JSON can hold it.
    convert : callable
        ``convert(file) -> dict``: write an .npy file into the open binary file, and say of it
        what is to be remembered.

    Returns
    -------
    path, notes, fresh
        The .npy file, what ``convert`` said of it, and whether it was made just now.
    """
    key = _key(paths, options)
    folder = cache_folder() / "rows"
    array, notes = folder / f"{key}.npy", folder / f"{key}.json"
    try:
        found = json.loads(notes.read_text(encoding="utf-8"))
        if array.stat().st_size == found["bytes"]:
            return array, found["notes"], False
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or not whole: made again
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replaced_when_done(array) as file:
            said = convert(file)
            size = file.seek(0, os.SEEK_END)
        with replaced_when_done(notes) as file:
            file.write(json.dumps({"bytes": size, "notes": said}).encode())
    except OSError as error:
        raise InputError(
            f"a binary copy of {paths[0]} cannot be kept in {folder} ({error}); make room, or name "
            "another folder by the environment variable FEWER_CACHE"
        ) from error
    return array, said, True


@contextmanager
def replaced_when_done(path: Path) -> Iterator[IO[bytes]]:
    """An open file that takes its name only when all went well."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _key(paths: Sequence[Path], options: dict[str, Any]) -> str:
    told: list[Any] = [FORMAT, options]
    for path in paths:
        found = path.stat()
        told.append([str(path.resolve()), found.st_size, found.st_mtime_ns])
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def write_npy_header(file: IO[bytes], shape: tuple[int, int], dtype: np.dtype) -> None:
    """Begin an .npy file of this shape; space for the largest number of rows is kept."""
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
