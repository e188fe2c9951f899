"""Temperature schedules: pure functions from a step to a temperature.

Each factory takes ``(start, end, total)`` and returns ``step -> T`` for steps 0 to ``total``.
What a step is (an epoch, as in the paper, or one gradient step) is up to the caller.
"""

from collections.abc import Callable

from fewer.errors import InputError

__all__ = ["SCHEDULES", "Schedule", "abrupt", "constant", "exponential", "linear", "make_schedule"]

Schedule = Callable[[float], float]


def exponential(start: float, end: float, total: float) -> Schedule:
    """T(b) = T0 (TB / T0)^(b / B), the paper's schedule.

    Examples
    --------
    >>> temperature = exponential(10.0, 0.1, total=100)
    >>> [round(temperature(b), 3) for b in (0, 50, 100)]
    [10.0, 1.0, 0.1]
    """
    _check(start, end, total)
    return lambda step: start * (end / start) ** (step / total)


def linear(start: float, end: float, total: float) -> Schedule:
    """T(b) = T0 + (TB - T0) b / B.

    Examples
    --------
    >>> linear(10.0, 0.0001, total=100)(50)
    5.00005
    """
    _check(start, end, total)
    return lambda step: start + (end - start) * step / total


def constant(start: float, end: float, total: float) -> Schedule:
    """T(b) = T0; ``end`` is not used.

    Examples
    --------
    >>> constant(0.5, 0.5, total=100)(99)
    0.5
    """
    _check(start, end, total)
    return lambda step: start


def abrupt(start: float, end: float, total: float) -> Schedule:
    """T(b) = T0 for the first half, TB for the second.

    Examples
    --------
    >>> temperature = abrupt(10.0, 0.01, total=100)
    >>> temperature(49), temperature(50)
    (10.0, 0.01)
    """
    _check(start, end, total)
    return lambda step: start if step < total / 2 else end


SCHEDULES: dict[str, Callable[[float, float, float], Schedule]] = {
    "exponential": exponential,
    "linear": linear,
    "constant": constant,
    "abrupt": abrupt,
}


def make_schedule(
    schedule: str | Callable[[float, float, float], Schedule],
    start: float,
    end: float,
    total: float,
) -> Schedule:
    """Look up a schedule by name, or call your own factory of the same form.

    Examples
    --------
    >>> make_schedule("linear", 2.0, 1.0, total=10)(5)
    1.5
    """
    if callable(schedule):
        return schedule(start, end, total)
    if schedule not in SCHEDULES:
        raise InputError(
            f"schedule={schedule!r} is not valid; use one of {', '.join(map(repr, SCHEDULES))}, "
            "or a function of (start, end, total) that returns step -> temperature"
        )
    return SCHEDULES[schedule](start, end, total)


def _check(start: float, end: float, total: float) -> None:
    for name, value in (("start_temperature", start), ("end_temperature", end)):
        if not 0 < value < float("inf"):
            raise InputError(f"{name}={value!r} must be above 0; the paper goes from 10 to 0.01")
    if end > start:
        raise InputError(
            f"the temperature would rise from {start} to {end}; "
            "give an end_temperature at or below start_temperature"
        )
    if not total > 0:
        raise InputError(f"total={total!r} steps: a schedule needs at least one")
