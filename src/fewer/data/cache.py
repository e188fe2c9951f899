"""Binary copies of files that cannot be read in pieces: converted once to .npy, then reused.

A copy is keyed by the file's path, size and time of change and by how it was read, so an edited
file is converted again. It lies in the folder ``fewer/rows`` of the user's cache, or of the folder
that ``FEWER_CACHE`` names, and can be deleted at any time.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fewer._files import atomic
from fewer.data.on_disk import SMALL_SHARE, open_npy, readable_size
from fewer.data.source import Source, array_source
from fewer.errors import InputError, warn

__all__ = ["cache_folder", "clear_cache", "convert_once", "rows_of_blocks", "write_npy_header"]

FORMAT = 2


def cache_folder() -> Path:
    """Where fewer keeps what it can make again."""
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


def rows_of_blocks(
    blocks: Iterable[np.ndarray],
    what: str,
    paths: Sequence[Path],
    options: dict[str, Any],
    memory_limit: int,
) -> Source:
    """A source of rows that can only be read in order: in memory if small, else from a copy.

    ``options`` say how the files are read: another way needs another copy.
    """
    copy = _copy_of(paths, options)
    if _is_whole(copy):
        return open_npy(copy, None, memory_limit)
    rest = iter(blocks)
    parts: list[np.ndarray] = []
    for part in rest:
        parts.append(part)
        if sum(held.nbytes for held in parts) > memory_limit // SMALL_SHARE:
            break
    else:
        return array_source(np.concatenate(parts), None, memory_limit)

    def taken() -> Iterable[np.ndarray]:  # each part is freed as soon as it is written
        while parts:
            yield parts.pop(0)

    convert_once(paths, options, lambda file: _write_blocks(file, chain(taken(), rest), what))
    source = open_npy(copy, None, memory_limit)
    warn(
        f"{what} does not fit memory_limit={readable_size(memory_limit)}; it was converted once "
        f"to {copy} ({source.shape[0]} rows), which is read from now on"
    )
    return source


def convert_once(
    paths: Sequence[Path], options: dict[str, Any], write: Callable[[IO[bytes]], None]
) -> Path:
    """The binary copy of some files; ``write`` makes it in an open file if it is not there yet."""
    copy = _copy_of(paths, options)
    if _is_whole(copy):
        return copy
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with atomic(copy) as draft:
            with draft.open("w+b") as file:
                write(file)
            size = draft.stat().st_size
        with atomic(copy.with_suffix(".json")) as draft:
            draft.write_text(json.dumps({"bytes": size}), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"a binary copy of {paths[0]} cannot be kept in {copy.parent} ({error}); make room, or "
            "name another folder by the environment variable FEWER_CACHE"
        ) from error
    return copy


def write_npy_header(file: IO[bytes], shape: tuple[int, int], dtype: np.dtype) -> None:
    """Begin an .npy file of this shape; NumPy leaves room for the number of rows to grow."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _write_blocks(file: IO[bytes], blocks: Iterable[np.ndarray], what: str) -> None:
    """Write rows of one floating dtype as an .npy file."""
    rows, width, dtype = 0, 0, np.dtype(np.float64)
    text = TextColumn("converting {task.description}: {task.completed:,.0f} rows")
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        text,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(Path(what).name, total=None)
        for part in blocks:
            if not rows:
                width = part.shape[1]
                dtype = part.dtype if part.dtype.kind == "f" else dtype
                write_npy_header(file, (0, width), dtype)
            file.write(np.ascontiguousarray(part, dtype=dtype).data)
            rows += len(part)
            progress.update(task, completed=rows)
    file.seek(0)
    write_npy_header(file, (rows, width), dtype)


def _copy_of(paths: Sequence[Path], options: dict[str, Any]) -> Path:
    key: list[Any] = [FORMAT, options]
    for path in paths:
        found = path.stat()
        key.append([str(path.resolve()), found.st_size, found.st_mtime_ns])
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / "rows" / f"{digest}.npy"


def _is_whole(copy: Path) -> bool:
    try:
        notes = json.loads(copy.with_suffix(".json").read_text(encoding="utf-8"))
        return bool(copy.stat().st_size == notes["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return False  # not there, or not whole: made again
