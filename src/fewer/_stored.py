"""JSON and tensors of files that somebody else may have written, read without trusting them."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewer.errors import FewerError, FileFormatError

__all__ = [
    "ANY",
    "damaged_if",
    "inside",
    "misfit",
    "parse_json",
    "read_json",
    "read_tensors",
    "require_array",
]

MOST_TEXT = 256 * 2**20  # bytes: a million names of features take 20 MB
MOST_LEVELS = 32  # of lists and objects in each other
ANY = object()
_KINDS = {
    dict: "an object",
    list: "a list",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    None: "null",
}
# what code that trusts a file raises when its parts do not fit together
UNFIT = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # RecursionError too
    TypeError,
    ValueError,
)


@contextmanager
def damaged_if(message: str, *unfit: type[Exception]) -> Iterator[None]:
    """Turn errors of a block into a `FileFormatError`; ``{}`` in the message becomes the reason.

    Errors that fewer raises on purpose pass, unless their kind is named in ``unfit``.
    """
    try:
        yield
    except FileFormatError:
        raise
    except UNFIT as error:
        if isinstance(error, FewerError) and not isinstance(error, unfit):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FileFormatError(message.format(reason[:200])) from error


def inside(folder: Path, name: str) -> Path:
    """A file of a folder; one that is missing, no plain file, or elsewhere by a link is refused."""
    path = folder / name
    if not path.is_file():
        raise FileFormatError(f"{path} is missing, or is not a file")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise FileFormatError(
            f"{path} is a link to a file outside its folder ({path.resolve()}), which is not "
            "read; put the file itself there"
        )
    return path


def read_json(path: Path) -> Any:
    """The content of a JSON file; not more than 256 MB, 32 levels, and no NaN."""
    size = path.stat().st_size
    if size > MOST_TEXT:
        raise ValueError(f"{size:,} bytes of JSON; the limit is {MOST_TEXT:,}")
    return parse_json(path.read_bytes())


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """JSON with numbers of ordinary size, not nested too deeply; else a ValueError."""
    real = _finite if finite else float
    try:
        found = json.loads(text, parse_int=_whole, parse_float=real, parse_constant=real)
    except RecursionError:
        raise ValueError(f"more than {MOST_LEVELS} levels") from None
    level = [found] if isinstance(found, (dict, list)) else []
    for _ in range(MOST_LEVELS):
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, (dict, list))
        ]
    if level:
        raise ValueError(f"more than {MOST_LEVELS} levels")
    return found


def _whole(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]}, which is not finite")
    return number


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensors of a safetensors file, as copies: no map that a shrinking file breaks.

    Whatever is wrong with the file raises a ValueError.
    """
    from safetensors.torch import load  # noqa: PLC0415 (with torch, which most commands need late)

    try:
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            if start > MOST_TEXT:
                raise ValueError(f"a header of {start:,} bytes; the limit is {MOST_TEXT:,}")
            header = parse_json(file.read(start - 8))
            ends = [one["data_offsets"][1] for key, one in header.items() if key != "__metadata__"]
            size = os.fstat(file.fileno()).st_size
            if start + max(ends, default=0) != size:  # before it is read: it may be of any size
                raise ValueError(f"{size:,} bytes, of which {start + max(ends, default=0):,} used")
            file.seek(0)
            tensors = load(file.read())
    except Exception as error:  # safetensors has no public exception of its own
        raise ValueError(str(error)) from error
    notes = header.get("__metadata__") or {}
    return notes, tensors


def misfit(value: Any, kind: Any, name: str = "") -> str:  # noqa: PLR0911 (one per kind)
    """How a JSON value differs from a kind, in words; "" if it does not.

    A kind is a type, None, a set of allowed values, ``[kind]`` for a list, ``{str: kind}`` for an
    object with any keys, ``{"key": kind}`` for one that has these (``"key?"`` may be missing;
    others are not looked at), a tuple of alternatives, or ``ANY``.

    Examples
    --------
    >>> misfit({"k": [1, "two"]}, {"k": [int]})
    "'k[1]' is 'two'; it must be a whole number"
    >>> misfit({}, {"k": int, "note?": (str, None)})
    "'k' is missing; it must be a whole number"
    """
    if kind is ANY:
        return ""
    if isinstance(kind, tuple):
        reasons = [misfit(value, one, name) for one in kind]
        return "" if "" in reasons else reasons[0]
    wrong = f"{name!r} is {_shown(value)}; it must be {_spelled(kind)}"
    if isinstance(kind, list):
        if not isinstance(value, list):
            return wrong
        only = kind[0]
        if only in (int, str) and all(type(item) is only for item in value):
            return ""  # fast: there may be a million names
        found = (misfit(item, only, f"{name}[{at}]") for at, item in enumerate(value))
        return next(filter(None, found), "")
    if isinstance(kind, dict):
        return _misfit_object(value, kind, name) if isinstance(value, dict) else wrong
    if isinstance(kind, frozenset):
        fits = isinstance(value, (str, int, float, type(None))) and value in kind
    elif kind is None or kind is bool:
        fits = value is None if kind is None else isinstance(value, bool)
    elif kind in (int, float):
        fits = isinstance(value, (int, kind)) and not isinstance(value, bool)
    else:
        fits = isinstance(value, kind)
    return "" if fits else wrong


def _misfit_object(value: dict[str, Any], kind: dict[Any, Any], name: str) -> str:
    start = f"{name}." if name else ""
    for key, part in kind.items():
        if key is str:
            found = (misfit(item, part, f"{start}{one}") for one, item in value.items())
            if reason := next(filter(None, found), ""):
                return reason
            continue
        plain = key.removesuffix("?")
        if plain in value:
            if reason := misfit(value[plain], part, start + plain):
                return reason
        elif plain == key:
            return f"{start + plain!r} is missing; it must be {_spelled(part)}"
    return ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _spelled(kind: Any) -> str:
    if isinstance(kind, tuple):
        return " or ".join(map(_spelled, kind))
    if isinstance(kind, frozenset):
        return " or ".join(sorted(map(repr, kind)))
    if isinstance(kind, (list, dict)):
        kind = type(kind)
    return "present" if kind is ANY else _KINDS[kind]


def require_array(
    name: str, array: NDArray, shape: tuple[int | None, ...], kind: str, *, finite: bool = True
) -> None:
    """Refuse an array of another shape (None: any length), kind of dtype, or with NaN in it."""
    fits = array.ndim == len(shape) and all(
        wanted in (None, have) for wanted, have in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind != kind:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{name} has the shape {array.shape} and the type {array.dtype}; it must be of "
            f"({wanted}) and of kind {kind!r}"
        )
    if finite and kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinite values")
