"""Data that are not files here: standard input, and addresses such as s3:// and https://.

They are copied once per process into a temporary folder, block by block, and read from there.
"""

import atexit
import os
import re
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from fewer._optional import import_optional
from fewer.errors import InputError, MissingExtraError

__all__ = ["fetched", "is_elsewhere", "name_originals", "without_secrets"]

STDIN = "-"
ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
BLOCK = 2**20
_copies: dict[str, str] = {}  # local copies, and what they are copies of


def is_elsewhere(data: Any) -> bool:
    """Whether this is standard input ("-") or an address, not the path of a file."""
    return isinstance(data, str) and (data == STDIN or ADDRESS.match(data) is not None)


def without_secrets(address: str) -> str:
    """An address without user, password and query, which may be a key; anything else as it is.

    Examples
    --------
    >>> without_secrets("https://me:secret@host/data.csv?key=1234")
    'https://host/data.csv'
    """
    if not is_elsewhere(address) or address == STDIN:
        return address
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def name_originals(text: str) -> str:
    """A message that names what was fetched instead of its local copy."""
    for path, original in _copies.items():
        text = text.replace(path, original)
    return text


@cache
def fetched(address: str) -> Path:
    """A local copy, kept until the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="fewer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if address == STDIN:
        return _from_stdin(folder)
    name, shown = Path(urlsplit(address).path).name, without_secrets(address)
    if not name:
        raise InputError(f"{shown} is not a file; use the URL of a file, such as .../data.csv")
    path = folder / re.sub(r"[^\w.+-]", "_", name)
    _copies[str(path)] = shown
    fsspec = import_optional("fsspec")
    try:
        with fsspec.open(address, "rb") as stream, path.open("wb") as file:
            shutil.copyfileobj(stream, file, BLOCK)
    except ImportError as error:  # each kind of address has a library of its own
        kind = address.partition("://")[0]
        raise MissingExtraError(
            f"{kind}:// URLs require another library ({error}): pip install 'fewer[remote]'"
        ) from error
    except FileNotFoundError as error:
        raise InputError(f"{shown} does not exist or cannot be reached") from error
    except Exception as error:  # every kind of address has its own
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{shown} cannot be read ({reason})") from error
    return path


def _from_stdin(folder: Path) -> Path:
    """Standard input as a file: Parquet and Excel by their first bytes, else text."""
    if os.environ.get("LOCAL_RANK") is not None:
        raise InputError("standard input cannot be shared by several processes; name a file")
    stream: IO[bytes] = sys.stdin.buffer
    if sys.stdin.isatty():
        raise InputError("data='-' is standard input, but nothing is piped into it")
    first = stream.read(BLOCK)
    kinds = {b"PAR1": ".parquet", b"ARROW1": ".feather", b"PK\x03\x04": ".xlsx"}
    form = next((form for start, form in kinds.items() if first.startswith(start)), ".csv")
    path = folder / f"stdin{form}"
    _copies[str(path)] = "standard input"
    with path.open("wb") as file:
        file.write(first)
        shutil.copyfileobj(stream, file, BLOCK)
    return path
