"""Where results go, and what the shell offers when a path is typed."""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["check_free", "check_panel_folder", "complete_data", "complete_panel", "shown"]

TABLES = (".csv", ".tsv", ".txt", ".gz", ".zst", ".parquet", ".pq", ".feather", ".arrow", ".ipc")
KNOWN = (*TABLES, ".npy", ".npz", ".h5", ".hdf5", ".h5ad", ".zarr")


def check_free(path: Path, force: bool) -> None:
    """Refuse a file that is there already, or that cannot be made, before any work."""
    from fewer.errors import InputError

    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise InputError(f"{path} exists; choose another name, or replace it with --force")
    _check_parent(path)


def check_panel_folder(path: Path, force: bool) -> None:
    """Refuse a folder that holds something: a panel without --force, anything else always."""
    from fewer.errors import InputError

    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; a panel is a folder, so choose another name")
    if path.is_dir() and any(path.iterdir()):
        if not (path / "panel.json").is_file():
            raise InputError(f"{path} holds something that is no panel; choose another folder")
        if not force:
            raise InputError(
                f"{path} holds a panel; choose another folder by --out, or replace it with --force"
            )
    _check_parent(path)


def _check_parent(path: Path) -> None:
    from fewer.errors import InputError

    folder = path.absolute().parent
    while not folder.exists():  # it will be made
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; choose another path than {path}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"no permission to write into {folder}; choose another path than {path}")


def shown(path: Path | str) -> str:
    """A path as it can be typed again, in quotes where it needs them.

    Examples
    --------
    >>> shown("my data.csv")
    "'my data.csv'"
    """
    from shlex import quote

    return quote(str(path))


def complete_data(incomplete: str) -> Iterator[str]:
    """Files of data, and folders on the way to them."""
    for path in _begun(incomplete):
        if path.is_dir() or path.suffix.lower() in KNOWN:
            yield _typed(path, incomplete)


def complete_panel(incomplete: str) -> Iterator[str]:
    """Folders: those that hold a panel first."""
    folders = [path for path in _begun(incomplete) if path.is_dir()]
    for path in sorted(folders, key=lambda path: not (path / "panel.json").is_file()):
        yield _typed(path, incomplete)


def _begun(incomplete: str) -> list[Path]:
    folder, _, start = incomplete.rpartition("/")
    where = Path(folder or ("/" if incomplete.startswith("/") else ".")).expanduser()
    try:
        found = [path for path in where.iterdir() if path.name.startswith(start)]
    except OSError:
        return []
    return sorted(path for path in found if start.startswith(".") or not path.name.startswith("."))


def _typed(path: Path, incomplete: str) -> str:
    """As the user began it: a tilde stays a tilde."""
    folder, slash, _ = incomplete.rpartition("/")
    return f"{folder}{slash}{path.name}" + ("/" if path.is_dir() else "")
