"""How much memory reading may take: "2GB", bytes, or a quarter of the machine's."""

import os
import re
from typing import Any

from fewer.errors import InputError

__all__ = ["readable_size", "size_in_bytes"]

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
FALLBACK = 2 * 2**30


def size_in_bytes(limit: Any = None) -> int:
    """A memory limit as a number of bytes; without one, a quarter of the machine's memory.

    Processes that ``torchrun`` has started on one machine divide that quarter among them.

    Examples
    --------
    >>> size_in_bytes("1.5 GB"), size_in_bytes("512MiB"), size_in_bytes(1000)
    (1500000000, 536870912, 1000)
    >>> size_in_bytes("much")
    Traceback (most recent call last):
    fewer.errors.InputError: memory_limit='much' is not a size; give bytes, or text such as '2GB'
    """
    if limit is None:
        return _quarter_of_memory()
    found = limit
    if isinstance(limit, str):
        parts = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(i?)b?\s*", limit.lower())
        found = None
        if parts and parts[1].count(".") <= 1 and parts[1] != ".":
            found = float(parts[1]) * (BINARY[parts[2]] if parts[3] else UNITS[parts[2]])
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not found >= 1:
        raise InputError(f"memory_limit={limit!r} is not a size; give bytes, or text such as '2GB'")
    return int(found)


def readable_size(size: float) -> str:
    """Bytes as a person would say them.

    Examples
    --------
    >>> readable_size(1_500_000_000), readable_size(20)
    ('1.5 GB', '20 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _quarter_of_memory() -> int:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return memory // (4 * int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except (AttributeError, OSError, ValueError):  # not everywhere
        return FALLBACK
