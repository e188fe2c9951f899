"""Checks of options, each with one error that names the value and the remedy."""

from typing import Any

from fewer._checks import check_whole
from fewer.errors import InputError

__all__ = ["check_neighbours"]


def check_neighbours(n_neighbors: Any, n: int) -> None:
    """Refuse more neighbours than there are other rows."""
    check_whole("n_neighbors", n_neighbors)
    if n_neighbors >= n:
        raise InputError(
            f"n_neighbors={n_neighbors} needs at least {n_neighbors + 1} rows, but X has "
            f"n_samples={n}; give more rows, or lower n_neighbors"
        )
