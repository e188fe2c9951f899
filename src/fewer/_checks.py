"""Checks of values that users give, each with one message that names the value and the remedy."""

import math
import operator
from collections.abc import Iterable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from fewer.errors import InputError, TypeInputError

__all__ = [
    "check_choice",
    "check_number",
    "check_observed",
    "check_random_state",
    "check_suffix",
    "check_whole",
    "find_names",
    "join_and",
    "join_names",
    "truth_of_words",
]

YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")


def join_names(names: Sequence[Any], most: int = 5, *, quoted: bool = True) -> str:
    """The first names, separated by commas, with dots if there are more."""
    shown = ", ".join(map(repr if quoted else str, names[:most]))
    return shown + (", ..." if len(names) > most else "")


def join_and(parts: Sequence[str]) -> str:
    """Parts of a sentence: a; a and b; a, b and c."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def check_whole(
    name: str, value: Any, least: int = 1, most: int | None = None, hint: str = ""
) -> int:
    """A whole number within bounds; ``hint`` ends the message, such as " or 'auto'"."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeInputError(f"{name}={value!r} must be a whole number {bounds}{hint}") from None
    if number < least or (most is not None and number > most):
        raise InputError(f"{name}={number} must be a whole number {bounds}{hint}")
    return number


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float = 0,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Refuse anything but a finite number within bounds."""
    bounds = f"above {above:g}" if above is not None else f"of at least {least:g}"
    if most != math.inf:
        bounds += f" and at most {most:g}"
    if below != math.inf:
        bounds += f" and below {below:g}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeInputError(f"{name}={value!r} must be a number {bounds}")
    number = float(value)
    enough = number >= least if above is None else number > above
    if not (enough and number <= most and (number < below) and math.isfinite(number)):
        raise InputError(f"{name}={value!r} must be a number {bounds}")


def check_choice(name: str, value: Any, known: Sequence[Any]) -> None:
    """Refuse anything but one of the known words."""
    if value not in known:
        raise InputError(f"{name}={value!r} is not valid; use {' or '.join(map(repr, known))}")


def check_suffix(path: Path, known: Sequence[str], shown: str = "", form: str = "") -> None:
    """Refuse a file whose name ends in anything else; ``form`` may stand for its suffix."""
    form = form or path.suffix.lower()
    if form not in known:
        raise InputError(f"{path} ends in {form!r}; use {shown or ' or '.join(known)}")


def check_random_state(random_state: Any) -> np.random.RandomState:
    """A RandomState: NumPy's own for None, one with a given seed, or the given one."""
    if random_state is None or random_state is np.random:
        return np.random.mtrand._rand
    if isinstance(random_state, np.random.RandomState):
        return random_state
    try:
        return np.random.RandomState(operator.index(random_state))
    except (TypeError, ValueError):
        raise InputError(
            f"random_state={random_state!r} is not a valid random seed; use a whole "
            "number from 0 to 2**32 - 1, a RandomState, or None"
        ) from None


def find_names(
    names: Sequence[Any] | np.ndarray, have: Iterable[Any], lacks: str, remedy: str = ""
) -> list[int]:
    """Positions of ``names`` in ``have``; ``{}`` in ``lacks`` becomes a count like "2 of the 5"."""
    at = {str(name): j for j, name in enumerate(have)}
    missing = [str(name) for name in names if str(name) not in at]
    if missing:
        counts = f"{len(missing)} of the {len(names)}"
        raise InputError(f"{lacks.format(counts)}: {join_names(missing, 8)}{remedy}")
    return [at[str(name)] for name in names]


def check_observed(observed: np.ndarray, names: Sequence[str] | np.ndarray | None) -> None:
    """Refuse columns of which no value was observed."""
    empty = np.flatnonzero(observed == 0).tolist()
    if empty:
        shown = join_names(empty if names is None else [str(names[j]) for j in empty])
        raise InputError(f"columns without any value, only NaN ({len(empty)}): {shown}; drop them")


def truth_of_words(words: Iterable[Any]) -> np.ndarray | None:
    """Words such as true and no as booleans; None if any is something else."""
    texts = [str(word).strip().lower() for word in words]
    return np.array([text in YES for text in texts]) if {*texts} <= {*YES, *NO} else None
