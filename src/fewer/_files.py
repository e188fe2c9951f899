"""Files and folders that appear whole or not at all."""

import ctypes
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fewer.errors import InputError

__all__ = [
    "atomic",
    "check_parent",
    "check_path",
    "remove_leftovers",
    "replacing_folder",
    "write_text",
    "write_whole",
]

LOCK = ".lock"
OLD = "old"  # a folder while it is replaced: never deleted before the new one is in its place
LEFTOVER = re.compile(r"[a-z0-9_]{8}")  # what tempfile adds to a name


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, which takes the place of the given one only when all went well."""
    target = Path(path)
    # in a folder of its own the file gets the permissions that the umask gives
    with _scratch(target) as scratch:
        yield scratch / target.name
        os.replace(scratch / target.name, target)


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` that is deleted in the end, or by the next one if we are killed.

    It is locked as long as this process lives, which is how others know that it is in use.
    """
    remove_leftovers(target)
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        lock = _lock(scratch)
        if lock is None or (scratch / LOCK).exists():
            break
        os.close(lock)  # somebody took it for a leftover before it was locked
    try:
        yield scratch
    finally:
        if not (scratch / OLD).exists():
            shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, *, wait: bool = True) -> int | None:
    """Lock a folder; None where another process has it, or where there are no locks."""
    try:
        import fcntl  # noqa: PLC0415 (not on every system)

        file = os.open(folder / LOCK, os.O_RDWR | (os.O_CREAT if wait else 0), 0o600)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # in use, or a file system without locks
        os.close(file)
        return None
    return file


def remove_leftovers(target: Path) -> None:
    """Delete what killed processes have left beside ``target``, or had not put into its place."""
    start = f".{target.name}-"
    try:
        found = [path for path in target.parent.iterdir() if path.name.startswith(start)]
    except OSError:
        return
    for scratch in found:
        if not LEFTOVER.fullmatch(scratch.name.removeprefix(start)) or scratch.is_symlink():
            continue
        lock = _lock(scratch, wait=False)
        if lock is None:
            continue
        with suppress(OSError):
            if (scratch / OLD).is_dir() and not target.exists():
                (scratch / OLD).rename(target)
        if target.exists() or not (scratch / OLD).exists():
            shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a file that `write_whole` cannot make, before the work that leads to it."""
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file in it")
    check_parent(target)


def check_parent(path: Path) -> None:
    """Refuse a path whose folder cannot be created or written to."""
    folder = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; choose another path than {path}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"no permission to write to {folder}; choose another path than {path}")


def write_whole(path: str | os.PathLike[str], write: Callable[[Path], object]) -> Path:
    """Let ``write`` make a file, folders above it included, or say why it cannot be written."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic(target) as draft:
            write(draft)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error.strerror or error}); choose another path"
        ) from error
    return target


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write text in UTF-8, as a whole or not at all."""
    return write_whole(path, lambda draft: draft.write_text(text, encoding="utf-8"))


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """A new folder that takes the place of ``target`` once everything in it is written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _scratch(target) as scratch:
        fresh, old = scratch / "new", scratch / OLD
        fresh.mkdir()
        yield fresh
        if target.exists() and _exchange(fresh, target):
            return
        try:
            if target.exists():
                target.rename(old)
            fresh.rename(target)
        finally:
            if old.exists() and fresh.exists():
                old.rename(target)  # the new one is not in place
        shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two paths, so that neither is ever missing; False where that cannot be done."""
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):  # an old C library
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    done: int = rename(here, os.fsencode(a), here, os.fsencode(b), ctypes.c_uint(swap))
    return done == 0
