"""Checks of options, each with one error that names the value and the remedy."""

import math
from numbers import Integral, Real
from typing import Any

from fewer.errors import InputError, TypeInputError

__all__ = ["check_neighbours", "check_number", "check_whole"]


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse anything but a whole number of at least ``least``.

    Examples
    --------
    >>> check_whole("n_clusters", 0)
    Traceback (most recent call last):
    fewer.errors.InputError: n_clusters=0 must be a whole number of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeInputError(f"{name}={value!r} must be a whole number of at least {least}")
    if value < least:
        raise InputError(f"{name}={value} must be a whole number of at least {least}")


def check_number(name: str, value: Any, *, above: bool = False) -> None:
    """Refuse anything but a finite number of at least 0, or above 0.

    Examples
    --------
    >>> check_number("gamma", -1.0)
    Traceback (most recent call last):
    fewer.errors.InputError: gamma=-1.0 must be a number of at least 0
    """
    bound = "above 0" if above else "of at least 0"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeInputError(f"{name}={value!r} must be a number {bound}")
    if not math.isfinite(value) or value < 0 or (above and value == 0):
        raise InputError(f"{name}={value!r} must be a number {bound}")


def check_neighbours(n_neighbors: Any, n: int) -> None:
    """Refuse more neighbours than there are other rows.

    Examples
    --------
    >>> check_neighbours(5, 4)
    Traceback (most recent call last):
    fewer.errors.InputError: n_neighbors=5 needs at least 6 rows, but X has n_samples=4; ...
    """
    check_whole("n_neighbors", n_neighbors)
    if n_neighbors >= n:
        raise InputError(
            f"n_neighbors={n_neighbors} needs at least {n_neighbors + 1} rows, but X has "
            f"n_samples={n}; give more rows, or lower n_neighbors"
        )
