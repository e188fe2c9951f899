"""Files and folders that appear whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fewer.errors import InputError

__all__ = ["atomic", "check_parent", "check_path", "replacing_folder", "write_text", "write_whole"]


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, which takes the place of the given one only when all went well."""
    target = Path(path)
    # in a folder of its own the file gets the permissions that the umask gives
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield scratch / target.name
        os.replace(scratch / target.name, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    fresh, old = scratch / "new", scratch / "old"
    try:
        fresh.mkdir()
        yield fresh
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    finally:
        if old.exists() and fresh.exists():
            old.rename(target)  # the new one is not in place; if this fails too, both stay
        shutil.rmtree(scratch, ignore_errors=True)
